"""Certificates as a CA gives them, made by the openssl program."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

_CONFIG = """[ca]
default_ca = here
[here]
database = {folder}/index.txt
serial = {folder}/serial
new_certs_dir = {folder}
default_md = sha256
unique_subject = no
policy = any
[any]
commonName = supplied
"""
LOCAL = ("localhost", "127.0.0.1", "::1")


def openssl(*arguments: object) -> str:
    done = subprocess.run(
        ["openssl", *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@dataclass(frozen=True)
class Pair:
    """Files with a certificate and its key."""

    cert: Path
    key: Path

    def pem(self) -> tuple[bytes, bytes]:
        """Key first, as gRPC takes them."""
        return self.key.read_bytes(), self.cert.read_bytes()

    def files(self) -> dict[str, str]:
        return {"key": str(self.key), "cert": str(self.cert)}


class Authority:
    """A CA.

    Args:
        folder: an existing one, of its own.
    """

    def __init__(self, folder: Path, name: str = "a test's CA") -> None:
        self.folder = folder
        self.cert, self._key = folder / "ca.pem", folder / "ca.key"
        self._made = 0
        (folder / "index.txt").touch()
        (folder / "serial").write_text("01")
        (folder / "ca.cnf").write_text(_CONFIG.format(folder=folder))
        openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-sha256"),
            *("-keyout", self._key, "-out", self.cert, "-subj", f"/CN={name}", "-days", 400),
        )

    def pem(self) -> bytes:
        return self.cert.read_bytes()

    def issue(
        self,
        name: str,
        names: tuple[str, ...] = LOCAL,
        *,
        begins_days: float = -1,
        ends_days: float = 365,
        rsa: bool = False,
    ) -> Pair:
        """A certificate for these host names and addresses, valid from and until so many days from now."""
        self._made += 1
        key, asked, cert, extensions = (
            self.folder / f"{self._made}.{kind}" for kind in ("key", "csr", "pem", "ext")
        )
        kind = ("rsa:2048",) if rsa else ("ec", "-pkeyopt", "ec_paramgen_curve:P-256")
        openssl("req", "-newkey", *kind, "-nodes", "-keyout", key, "-out", asked, "-subj", f"/CN={name}")
        listed = ",".join(f"{'IP' if one[-1].isdigit() or ':' in one else 'DNS'}:{one}" for one in names)
        extensions.write_text(f"subjectAltName={listed}\n" if names else "basicConstraints=CA:FALSE\n")
        openssl(
            *("ca", "-batch", "-config", self.folder / "ca.cnf", "-in", asked, "-out", cert, "-notext"),
            *("-cert", self.cert, "-keyfile", self._key, "-extfile", extensions),
            *("-startdate", _moment(begins_days), "-enddate", _moment(ends_days)),
        )
        return Pair(cert, key)


def _moment(days: float) -> str:
    return (datetime.now(UTC) + timedelta(days=days)).strftime("%Y%m%d%H%M%SZ")


def ssl_config(pair: Pair, ca: bytes = b"", *, verify: bool = False) -> str:
    """TensorFlow Serving's ssl_config_file."""
    lines = {
        "server_key": pair.key.read_text(),
        "server_cert": pair.cert.read_text(),
        "custom_ca": ca.decode(),
    }
    texts = [f'{key}: "{text.replace(chr(10), chr(92) + "n")}"\n' for key, text in lines.items() if text]
    return "".join(texts) + ("client_verify: true\n" if verify else "")
