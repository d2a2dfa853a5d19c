"""An HTTP/2 server's side of a connection (RFC 9113), for gRPC: a core without sockets and its asyncio shell."""
