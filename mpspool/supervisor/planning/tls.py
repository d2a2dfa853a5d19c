"""TLS of the gRPC port before anything starts: can the files be read, do they go together, and for how long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec

from mpspool.core import tls
from mpspool.core.certificates import Certificate, CertificateError, read_certificates
from mpspool.core.errors import Problem
from mpspool.core.settings import TlsSettings
from mpspool.core.tls import Material, TlsError
from mpspool.supervisor.config.schema import PoolConfig

# From then on it is time to renew a certificate.
_SOON = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Looked:
    """What was found.

    Attributes:
        settings: for the router; None for clear text, or where there is a problem.
        fact: for whom the certificate is and until when; "" without TLS.
        warnings: what will be a problem soon, or is hardly meant.
    """

    settings: TlsSettings | None = None
    problems: tuple[Problem, ...] = ()
    fact: str = ""
    warnings: tuple[str, ...] = ()


def look(config: PoolConfig, now: datetime | None = None) -> Looked:
    """Reads the files that are named."""
    asked = config.tls
    if not asked.given:
        return Looked()
    settings = TlsSettings(
        key=asked.key,
        cert=asked.cert,
        client_ca=asked.client_ca,
        verify_client=asked.verifies,
        file=asked.file,
    )
    now = now or datetime.now(UTC)
    try:
        material = tls.read(settings)
        tls.server_context(material)
        found = _certificates(material, "cert")
        cas = _certificates(material, "client_ca") if material.verify_client else []
    except TlsError as error:
        return Looked(problems=(Problem(f"tls.{error.key}", str(error)),))
    problems = [*_misdated(material, "cert", found, now)]
    if cas and all(ca.ends <= now for ca in cas):
        problems += _misdated(material, "client_ca", cas, now)
    if problems:
        return Looked(problems=tuple(problems))
    settings = msgspec.structs.replace(settings, verify_client=material.verify_client, digest=material.digest)
    return Looked(
        settings, (), _fact(found, material), tuple(_warnings(config, material, [*found, *cas], now))
    )


def _certificates(material: Material, part: str) -> list[Certificate]:
    key, where = material.source[part]
    try:
        return read_certificates(getattr(material, part))
    except CertificateError as error:
        raise TlsError(key, f"{where} {error}; give certificates in PEM form") from error


def _misdated(material: Material, part: str, found: list[Certificate], now: datetime) -> Iterator[Problem]:
    key, where = material.source[part]
    for certificate in found:
        who = f"the certificate of {_who(certificate)} in {where}"
        if certificate.ends <= now:
            text = f"{who} has expired on {_day(certificate.ends)}; renew it"
            yield Problem(f"tls.{key}", text)
        elif certificate.begins > now:
            text = f"{who} is valid from {_day(certificate.begins)} only; is this machine's clock right?"
            yield Problem(f"tls.{key}", text)


def _warnings(
    config: PoolConfig, material: Material, found: list[Certificate], now: datetime
) -> Iterator[str]:
    if not config.grpc_port:
        yield "tls is for the gRPC port, and that is off (grpc_port: 0); leave tls out, or give a grpc_port"
    for certificate in found:
        if certificate.ends <= now:
            yield f"tls: the CA {_who(certificate)} has expired on {_day(certificate.ends)}; leave it out"
        elif certificate.ends - now < _SOON:
            days = (certificate.ends - now).days
            yield (
                f"tls: the certificate of {_who(certificate)} expires on {_day(certificate.ends)}, in {days} days; "
                "renew it, then `mpspool reload`"
            )
    if material.client_ca and not material.verify_client:
        _, where = material.source["client_ca"]
        yield (
            f"tls: {where} is not used, for clients are not verified; "
            f"{'set client_verify: true' if config.tls.file else 'set verify_client: true'}, or leave it out"
        )


def _fact(found: list[Certificate], material: Material) -> str:
    until = min(certificate.ends for certificate in found)
    clients = "clients need a certificate" if material.verify_client else "clients need no certificate"
    return f"TLS on the gRPC port for {_names(found[0])} until {_day(until)}; {clients}"


def _names(certificate: Certificate) -> str:
    shown = ", ".join(certificate.names[:5])
    return (
        f"{shown} and {len(certificate.names) - 5} more" if len(certificate.names) > 5 else shown or "no name"
    )


def _who(certificate: Certificate) -> str:
    return certificate.common_name or _names(certificate)


def _day(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
