"""What a certificate says of itself: for whom it is, and until when. X.509 in PEM, as far as that; nothing is verified."""

from __future__ import annotations

import ipaddress
import re
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

_BLOCK = re.compile(
    rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----(.*?)-----END (?:X509 |TRUSTED )?CERTIFICATE-----",
    re.DOTALL,
)
# Tags of DER, as far as they are looked for.
_SEQUENCE, _SET, _OID, _OCTETS = 0x30, 0x31, 0x06, 0x04
_UTC_TIME, _GENERALISED_TIME = 0x17, 0x18
_VERSION, _EXTENSIONS = 0xA0, 0xA3
_DNS_NAME, _IP_ADDRESS = 0x82, 0x87
_SUBJECT_ALT_NAME = bytes.fromhex("551d11")
_COMMON_NAME = bytes.fromhex("550403")


class CertificateError(Exception):
    """It is no certificate."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """One certificate.

    Attributes:
        begins, ends: when it is valid, with the time zone.
        names: host names and IP addresses that it is for; its common name where it says none.
        common_name: of its subject; "" for none.
        pem: itself.
    """

    begins: datetime
    ends: datetime
    names: tuple[str, ...]
    common_name: str
    pem: bytes


def read_certificates(pem: bytes) -> list[Certificate]:
    """All that a text has, in its order. Raises CertificateError where it has none, or one that cannot be read."""
    found = [_read(block[1], block[0]) for block in _BLOCK.finditer(pem)]
    if not found:
        raise CertificateError("has no -----BEGIN CERTIFICATE-----")
    return found


def _read(block: bytes, pem: bytes) -> Certificate:
    try:
        ((_, certificate),) = _items(b64decode(block))
        (_, body), *_ = _items(certificate)
        parts = [part for part in _items(body) if part[0] != _VERSION]
        begins, ends = (_time(*part) for part in _items(parts[3][1]))
        common_name = _common_name(parts[4][1])
        extensions = next((value for tag, value in parts if tag == _EXTENSIONS), b"")
        names = tuple(_alternative_names(extensions))
    except (ValueError, IndexError) as error:
        raise CertificateError(f"has a certificate that cannot be read: {error}") from error
    return Certificate(begins, ends, names or ((common_name,) if common_name else ()), common_name, pem)


def _items(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tags and contents, one after another. Raises ValueError."""
    position = 0
    while position < len(data):
        if position + 2 > len(data):
            raise ValueError("it is cut off")
        tag, size = data[position], data[position + 1]
        position += 2
        if size & 0x80:
            more = size & 0x7F
            size = int.from_bytes(data[position : position + more], "big")
            position += more
        if position + size > len(data):
            raise ValueError("it is cut off")
        yield tag, data[position : position + size]
        position += size


def _time(tag: int, value: bytes) -> datetime:
    forms = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALISED_TIME: "%Y%m%d%H%M%SZ"}
    if tag not in forms:
        raise ValueError(f"a time with the tag {tag}")
    found = datetime.strptime(value.decode("ascii"), forms[tag]).replace(tzinfo=UTC)
    # Two digits stand for 1950 to 2049, in X.509.
    return found.replace(year=found.year - 100) if tag == _UTC_TIME and found.year >= 2050 else found


def _common_name(subject: bytes) -> str:
    for tag, attributes in _items(subject):
        if tag != _SET:
            continue
        for _, attribute in _items(attributes):
            (_, kind), (_, value) = _items(attribute)
            if kind == _COMMON_NAME:
                return value.decode(errors="replace")
    return ""


def _alternative_names(extensions: bytes) -> Iterator[str]:
    for _, listed in _items(extensions):
        for _, extension in _items(listed):
            (_, kind), *_, (tag, value) = _items(extension)
            if kind != _SUBJECT_ALT_NAME or tag != _OCTETS:
                continue
            for _, names in _items(value):
                for name_tag, name in _items(names):
                    if name_tag == _DNS_NAME:
                        yield name.decode("ascii")
                    elif name_tag == _IP_ADDRESS:
                        yield str(ipaddress.ip_address(name))
