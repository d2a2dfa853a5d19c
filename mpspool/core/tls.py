"""TLS of the gRPC port: from files to what the ssl module takes. No key is in any text or settings."""

from __future__ import annotations

import hashlib
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mpspool.core.settings import TlsSettings

ALPN = "h2"
# Of TLS 1.2, for HTTP/2: forward secrecy and AEAD (RFC 9113, 9.2.2). TLS 1.3 has no others.
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
_MAX_FILE_BYTES = 2**20


class TlsError(Exception):
    """TLS cannot be had with what was named.

    Attributes:
        key: of TlsSettings, what it is about.
    """

    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key


@dataclass(frozen=True, slots=True)
class Material:
    """What the files hold, in PEM.

    Attributes:
        key: of the server.
        cert: its certificate, and those between it and its CA.
        client_ca: whose clients are let in, where they are asked.
        verify_client: they are, and must have a certificate.
        source: by "key", "cert" and "client_ca", the key of TlsSettings and the words for where it was found.
    """

    key: bytes = field(repr=False)
    cert: bytes
    client_ca: bytes
    verify_client: bool
    source: dict[str, tuple[str, str]]

    @property
    def digest(self) -> str:
        """The same as long as nothing has changed. A key is known by the certificate that it fits."""
        parts = (self.cert, self.client_ca, b"verify" if self.verify_client else b"")
        return hashlib.sha256(b"\0".join(parts)).hexdigest()


def read(settings: TlsSettings) -> Material:
    """What is named there. Raises TlsError."""
    return _read_ssl_config(settings.file) if settings.file else _read_files(settings)


def server_context(material: Material) -> ssl.SSLContext:
    """For a server's connections. Raises TlsError where the parts do not go together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    settle(context)
    load_certificate(context, material.cert, material.key, material.source)
    if material.verify_client:
        key, where = material.source["client_ca"]
        if not material.client_ca:
            raise TlsError(key, no_client_ca(where))
        load_ca(context, material.client_ca, key, where)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def no_client_ca(where: str) -> str:
    return (
        f"clients are to be verified, and {where} is empty: no client's certificate would do; "
        "give the certificates of the CAs that sign clients', or do not verify clients"
    )


def settle(context: ssl.SSLContext) -> None:
    """What holds on either side, with HTTP/2."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols([ALPN])


def read_file(key: str, path: str) -> bytes:
    """Raises TlsError."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        remedy = "name a file that can be read, in PEM form"
        raise TlsError(key, f"{path} cannot be read: {error.strerror}; {remedy}") from None
    if len(content) > _MAX_FILE_BYTES:
        raise TlsError(key, f"{path} has more than {_MAX_FILE_BYTES} bytes; name a file in PEM form")
    return content


def _read_files(settings: TlsSettings) -> Material:
    found = {}
    for key in ("key", "cert", "client_ca"):
        path = getattr(settings, key)
        found[key] = read_file(key, path) if path else b""
    source = {key: (key, getattr(settings, key) or key) for key in found}
    return Material(found["key"], found["cert"], found["client_ca"], settings.verify_client, source)


def _read_ssl_config(path: str) -> Material:
    """TensorFlow Serving's ssl_config_file: an SSLConfig as text, with the PEM texts in it."""
    from google.protobuf import text_format

    from mpspool.core import tfs

    content = read_file("file", path)
    message = tfs.SSLConfig()
    try:
        text_format.Parse(content.decode(), message)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise TlsError("file", f"{path} {_describe(error)}; {_EXAMPLE}") from None
    fields = {"key": "server_key", "cert": "server_cert", "client_ca": "custom_ca"}
    for name in ("key", "cert"):
        if not getattr(message, fields[name]):
            raise TlsError("file", f"{path} has no {fields[name]}; {_EXAMPLE}")
    source = {name: ("file", f"{fields[name]} of {path}") for name in fields}
    return Material(
        message.server_key.encode(),
        message.server_cert.encode(),
        message.custom_ca.encode(),
        message.client_verify,
        source,
    )


_EXAMPLE = (
    'it is TensorFlow Serving\'s SSLConfig as text: server_key: "-----BEGIN PRIVATE KEY-----\\n...", server_cert, '
    "and, to verify clients, custom_ca and client_verify: true"
)


def _describe(error: Any) -> str:
    """Where a text is no SSLConfig, without its words: a key may be among them."""
    if isinstance(error, UnicodeDecodeError):
        return f"is no text: {error.reason} at byte {error.start}"
    return f"cannot be read at line {error.GetLine() or 1}, column {error.GetColumn() or 1}"


def load_certificate(
    context: ssl.SSLContext, cert_pem: bytes, key_pem: bytes, source: dict[str, tuple[str, str]]
) -> None:
    """The server's, or a client's, own.

    Args:
        context: takes it.
        cert_pem: in PEM form, the own one first.
        key_pem: likewise.
        source: as Material has it.

    Raises:
        TlsError: they cannot be used, or do not belong together.
    """
    (cert_key, cert), (key_key, key) = source["cert"], source["key"]
    if b"PRIVATE KEY-----" not in key_pem:
        raise TlsError(key_key, f"{key} has no -----BEGIN PRIVATE KEY-----; give the key in PEM form")
    if b"CERTIFICATE-----" not in cert_pem:
        raise TlsError(
            cert_key, f"{cert} has no -----BEGIN CERTIFICATE-----; give the certificate in PEM form"
        )
    encrypted = False

    def password() -> str:
        nonlocal encrypted
        encrypted = True
        raise ValueError

    try:
        _with_files(
            lambda cert_path, key_path: context.load_cert_chain(cert_path, key_path, password),
            cert_pem,
            key_pem,
        )
    except (ssl.SSLError, ValueError) as error:
        if encrypted:
            text = f"{key} is encrypted, and nobody is there to ask for its password"
            raise TlsError(key_key, f"{text}; decrypt it, as with `openssl pkey -in FILE`") from None
        reason = getattr(error, "reason", None) or ""
        if reason == "KEY_VALUES_MISMATCH":
            text = f"{key} is not the key of the certificate in {cert}; name the two that belong together, "
            raise TlsError(key_key, f"{text}in {cert} the server's own certificate first") from None
        # Read apart from each other, they tell which of them it is.
        bad_cert = _is_no_certificate(cert_pem)
        where, what = (cert_key, cert) if bad_cert else (key_key, key)
        said = _said(error)
        remedy = "a certificate" if bad_cert else "a private key"
        raise TlsError(where, f"{what} cannot be used: {said}; give {remedy} in PEM form") from None


def _is_no_certificate(pem: bytes) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem.decode("ascii"))
    except (ssl.SSLError, ValueError):
        return True
    return False


def load_ca(context: ssl.SSLContext, pem: bytes, key: str, where: str) -> None:
    """Whom to trust. Raises TlsError of that key."""
    try:
        context.load_verify_locations(cadata=pem.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        text = f"{where} has no certificates that can be used: {_said(error)}; give those of the CAs, in PEM form"
        raise TlsError(key, text) from None


def _said(error: Exception) -> str:
    return (getattr(error, "reason", None) or "not PEM").lower().replace("_", " ")


def _with_files(use: Callable[[str, str], object], *contents: bytes) -> None:
    """Gives paths to what takes nothing else; what is there is in memory only, and gone afterwards."""
    descriptors = []
    try:
        for content in contents:
            descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
            descriptors.append(descriptor)
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(content)
        use(*(f"/proc/self/fd/{descriptor}" for descriptor in descriptors))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
