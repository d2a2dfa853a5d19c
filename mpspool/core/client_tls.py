"""TLS as a client of ours speaks it."""

from __future__ import annotations

import ssl
from pathlib import Path

import msgspec

from mpspool.core import tls
from mpspool.core.certificates import CertificateError, read_certificates
from mpspool.core.settings import TlsSettings
from mpspool.core.tls import TlsError

# What people are told where the other side does not speak as we do.
MAY_WANT = "it may want TLS: give --tls, or --ca with the CA of its certificate"
LEAVE_OUT = "leave out --tls, --ca, --cert, --key and --server-name"
MAY_HAVE_NONE = f"it may speak without TLS: then {LEAVE_OUT}"


class ClientTls(msgspec.Struct, frozen=True, kw_only=True):
    """Whom a client trusts, and who it is.

    Attributes:
        ca: certificates in PEM form, of CAs or of the server itself; empty for what this machine trusts.
        cert, key: files with the client's own; empty for none.
        name: that the server's certificate must be for; empty for the host that is asked.
    """

    ca: bytes = b""
    cert: str = ""
    key: str = ""
    name: str = ""

    def pair(self) -> tuple[bytes, bytes]:
        """The client's certificate and its key; empty for none. Raises TlsError."""
        if not self.cert:
            return b"", b""
        return tls.read_file("cert", self.cert), tls.read_file("key", self.key)

    def roots(self) -> bytes:
        """What is trusted; empty where this machine has nothing, or not in one file."""
        file = ssl.get_default_verify_paths().cafile
        return self.ca or (Path(file).read_bytes() if file else b"")

    def context(self) -> ssl.SSLContext:
        """For HTTP/2. Raises TlsError of "ca", "cert" or "key"."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.settle(context)
        if self.ca:
            # As gRPC: a server's own certificate, or one between, is enough.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            tls.load_ca(context, self.ca, "ca", "ca")
        else:
            context.load_default_certs()
        cert, key = self.pair()
        if cert:
            tls.load_certificate(context, cert, key, {"cert": ("cert", self.cert), "key": ("key", self.key)})
        return context


def read(ca: str, cert: str, key: str, name: str) -> ClientTls:
    """Of files; "" for none. Raises TlsError of "ca", "cert" or "key" where they cannot be had."""
    if bool(cert) != bool(key):
        text = "a client's certificate goes with its key; give both, or neither"
        raise TlsError("key" if cert else "cert", text)
    found = ClientTls(ca=tls.read_file("ca", ca) if ca else b"", cert=cert, key=key, name=name)
    found.context()
    return found


def pinned(settings: TlsSettings, cert: str = "", key: str = "") -> ClientTls:
    """For a server on this machine: what is trusted is its own certificate.

    Args:
        settings: the server's.
        cert: a file with the client's own; "" for none.
        key: a file with its key.

    Raises:
        TlsError: a file cannot be read.
    """
    material = tls.read(settings)
    where, words = material.source["cert"]
    if material.verify_client and not cert:
        raise TlsError("cert", "the pool wants to see a client's certificate; give --cert and --key")
    try:
        own = read_certificates(material.cert)[0]
    except CertificateError as error:
        raise TlsError(where, f"{words} {error}") from error
    name = own.names[0].replace("*", "any") if own.names else ""
    return ClientTls(ca=own.pem, cert=cert, key=key, name=name)
