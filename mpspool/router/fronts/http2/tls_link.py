"""A socket with TLS and its HTTP/2 connection.

The library never sees the socket: what waits for the peer is in the transport's buffer, as without TLS, and is counted and
bounded as there.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

from mpspool.core.http2_frames import ErrorCode
from mpspool.core.tls import ALPN
from mpspool.router.fronts.http2 import client_hello
from mpspool.router.fronts.http2.client_hello import Kind
from mpspool.router.fronts.http2.link import Link
from mpspool.router.fronts.http2.sending import Output
from mpspool.router.fronts.http2.streams import Buffer
from mpspool.router.fronts.http2.tls_session import TlsBrokenError, TlsSession, pieces

if TYPE_CHECKING:
    from mpspool.router.fronts.http2.listener import Listener

# A fatal alert: no_application_protocol.
_NO_PROTOCOL = bytes.fromhex("15 03 03 00 02 02 78")


class TlsLink(Link):
    """One socket with its Connection; until the handshake is done, the Connection hears nothing.

    Args:
        listener: its own.
        context: a server's, of that moment: another one is for those who come later.

    Attributes:
        ended: that nothing follows has been said, or that TLS is broken: what is written afterwards is dropped.
    """

    def __init__(self, listener: Listener, context: ssl.SSLContext) -> None:
        super().__init__(listener)
        self._session = TlsSession(context)
        self.ended = False
        # What came before it is known what it is; None afterwards.
        self._hello: bytes | None = b""
        self._open = False
        self._begun_s = listener.now_s()
        # What the library has sent by itself since the last tick.
        self._unasked = 0
        self._step: asyncio.Future[bool] | None = None

    def output(self, transport: asyncio.Transport) -> Output:
        return _Sealed(self, transport)

    def data_received(self, data: bytes) -> None:
        if self._open:
            super().data_received(data)
        else:
            self._greet(data)

    def read(self, data: bytes, now_s: float, waited_s: float) -> None:
        if self.connection.over:
            return
        try:
            clear = self._session.decrypt(data)
        except TlsBrokenError as error:
            self._give_up(str(error), self._session.take())
            return
        self._answer(self._session.take())
        if clear:
            super().read(clear, now_s, waited_s)
        if self._session.ended and not self._transport.is_closing():
            self.connection.lost()  # it may never read what its streams have, nor close its socket
            self.close()

    def _answer(self, own: bytes) -> None:
        """What the library has to send by itself; not for ever, to one who asks for new keys again and again."""
        if own and not self._transport.is_closing():
            self._transport.write(own)
            self._unasked += len(own)
            if self._unasked > self._listener.limits.control_bytes:
                self.connection.fail(ErrorCode.ENHANCE_YOUR_CALM, "it asks for too many new keys")

    # -- the handshake ----------------------------------------------------------------------------

    def _greet(self, data: bytes) -> None:
        if self.connection.over:
            return
        if self._hello is None:
            self._session.feed(data)
            self._shake()
            return
        self._hello += data
        found = client_hello.read(self._hello)
        if found.kind is Kind.CLEAR:
            self._give_up("it speaks without TLS, and must speak with it")
            self._transport.close()
        elif found.offered and ALPN.encode() not in found.offered:
            names = ", ".join(name.decode("ascii", "backslashreplace") for name in found.offered)
            self._give_up(f"it offers {names[:100]} by ALPN, and must offer {ALPN}", _NO_PROTOCOL)
        elif found.kind is Kind.HELLO:
            self._session.feed(self._hello)
            self._hello = None
            self._shake()

    def _shake(self) -> None:
        """Nothing else of this connection happens until it is done."""
        self._transport.pause_reading()
        self._step = self._listener.in_thread(self._session.shake)
        self._step.add_done_callback(self._shaken)

    def _shaken(self, step: asyncio.Future[bool]) -> None:
        error = None if step.cancelled() else step.exception()
        if step.cancelled() or self._transport.is_closing() or self.connection.over:
            return
        self._transport.resume_reading()
        if error is not None:
            self._give_up(str(error), self._session.take())
            return
        if own := self._session.take():
            self._transport.write(own)
        if step.result():
            self._open = True
            self.data_received(b"")

    def _give_up(self, why: str, alert: bytes = b"") -> None:
        """Says so, and waits a while for the peer to close: what it has sent meanwhile must not have it miss the alert."""
        self.complain(ErrorCode.INADEQUATE_SECURITY, why)
        self._gathered.flush()
        if alert and not self._transport.is_closing():
            self._transport.write(alert)
        self.connection.lost()
        self.ended = True
        super().write_end()

    # -- what ends it -----------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        self._unasked = 0
        if not self._open and not self.connection.over:
            if now_s - self._begun_s >= self._listener.limits.greeting_s:
                self.complain(ErrorCode.INADEQUATE_SECURITY, "the TLS handshake was not done in time")
                self.connection.lost()
                self._transport.abort()
            return
        super().tick(now_s)

    def connection_lost(self, error: Exception | None) -> None:
        if self._step is not None:
            self._step.cancel()
        if self._hello is None and not self._open and not self.connection.over:
            self.complain(
                ErrorCode.INADEQUATE_SECURITY,
                "it went away during the handshake; it may not trust our certificate",
            )
        super().connection_lost(error)

    def write_end(self) -> None:
        if not self._open:
            self._transport.abort()
            return
        self._say_end()
        super().write_end()

    def close(self) -> None:
        """Once all is sent."""
        self._say_end()
        self._transport.close()

    def _say_end(self) -> None:
        self._gathered.flush()
        if self._open and not self.ended and not self._transport.is_closing():
            self.ended = True
            self._transport.write(self._session.end())

    def seal(self, data: Buffer) -> bytes:
        """What is to be sent for these bytes, of which there are not too many."""
        return self._session.encrypt(data)


class _Sealed:
    """Where a connection's bytes go."""

    def __init__(self, link: TlsLink, transport: asyncio.Transport) -> None:
        self._link = link
        self._seal = link.seal
        self._transport = transport
        self.close = link.close

    def write(self, data: Buffer) -> None:
        if self._link.ended:
            return
        if len(sealed := [self._seal(piece) for piece in pieces(data)]) == 1:
            self._transport.write(sealed[0])
        else:
            self._transport.writelines(sealed)

    def writelines(self, list_of_data: list[Buffer]) -> None:
        self.write(b"".join(list_of_data))
