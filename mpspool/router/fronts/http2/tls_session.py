"""A server's side of TLS for one connection, without a socket: what came in, what is to be sent."""

from __future__ import annotations

import contextlib
import ssl

from mpspool.router.fronts.http2.streams import Buffer

# Handed to the library at once: it keeps a buffer as large as the largest it was given, for each connection.
_PIECE_BYTES = 2**15
# The most that one record has.
_RECORD_BYTES = 2**14

# What clients do wrong most often, in other words than the library's.
_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it has no certificate, and must have one",
    "UNSUPPORTED_PROTOCOL": "it speaks no TLS 1.2 or later",
    "NO_SHARED_CIPHER": "it has no cipher of ours",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not know the CA of our certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it takes our certificate for a bad one",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it takes our certificate for expired",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not take our certificate",
}


class TlsBrokenError(Exception):
    """The peer, or what came in its name, broke TLS; the text says how. There may be an alert to be sent."""


class TlsSession:
    """One connection's.

    Args:
        context: a server's.

    Attributes:
        ended: the peer has said that it sends nothing more.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._in, self._out, server_side=True)
        self.ended = False

    def feed(self, data: bytes) -> None:
        """What came in, while the handshake is not done."""
        self._in.write(data)

    def shake(self) -> bool:
        """Goes on with the handshake; whether it is done. May be called in a thread, as the only method then.

        Raises:
            TlsBrokenError: it has failed.
        """
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise TlsBrokenError(_describe(error)) from error
        return True

    def decrypt(self, data: bytes) -> bytes:
        """What came in, in clear, as far as its records are whole. Raises TlsBrokenError."""
        found: list[bytes] = []
        if len(data) <= _PIECE_BYTES:
            self._in.write(data)
            self._read(found)
            return found[0] if len(found) == 1 else b"".join(found)
        view = memoryview(data)
        for start in range(0, len(data), _PIECE_BYTES):
            self._in.write(view[start : start + _PIECE_BYTES])
            self._read(found)
        return b"".join(found)

    def _read(self, found: list[bytes]) -> None:
        incoming, read = self._in, self._ssl.read
        try:
            while incoming.pending:
                if not (record := read(_RECORD_BYTES)):
                    self.ended = True
                    return
                found.append(record)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        except ssl.SSLError as error:
            raise TlsBrokenError(_describe(error)) from error

    def encrypt(self, data: Buffer) -> bytes:
        """The bytes to be sent for these, at most _PIECE_BYTES of them; also what the library has to say by itself."""
        self._ssl.write(data)
        return self._out.read()

    def take(self) -> bytes:
        """What the library has to send by itself."""
        return self._out.read()

    def end(self) -> bytes:
        """Says that nothing follows."""
        with contextlib.suppress(ssl.SSLError, ValueError):  # it waits for the peer to say so, too; we do not
            self._ssl.unwrap()
        return self._out.read()


def pieces(data: Buffer) -> list[Buffer]:
    """As TlsSession takes them."""
    if len(data) <= _PIECE_BYTES:
        return [data]
    view = memoryview(data)
    return [view[start : start + _PIECE_BYTES] for start in range(0, len(data), _PIECE_BYTES)]


def _describe(error: ssl.SSLError) -> str:
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate does not do: {error.verify_message}"
    return _REASONS.get(reason) or reason.lower().replace("_", " ") or "TLS is broken"
