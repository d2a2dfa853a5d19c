"""What clients speak: gRPC over HTTP/2, and REST."""
