"""Pools with TLS: our own clients, a reload with renewed certificates, a drain; and what start refuses."""

from __future__ import annotations

import json
import shutil
import ssl
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.certificates import Authority, Pair, ssl_config
from tests.conftest import PoolStarter, short_dir
from tests.light import LIGHT, PREDICT, body, half, write_model
from tests.polling import until
from tests.pool import Pool, cli


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


class Secured:
    """A pool file with a tls section, and the files that it names."""

    def __init__(self, folder: Path, **tls: Any) -> None:
        self.folder = folder
        self.file = folder / "pool.yaml"
        self.tls = {"key": "key.pem", "cert": "cert.pem", **tls}
        self.base = write_model(folder, "half")
        self.write()

    def write(self, **pool: Any) -> None:
        models = {"half": {"base_path": str(self.base), "cpu_slots": 1}}
        self.file.write_text(json.dumps({"models": models, "tls": self.tls, **pool}))

    def renew(self, pair: Pair) -> None:
        shutil.copy(pair.key, self.folder / "key.pem")
        shutil.copy(pair.cert, self.folder / "cert.pem")


def shown(pool: Pool) -> str:
    """The certificate that a new connection gets."""
    return ssl.get_server_certificate(("127.0.0.1", pool.grpc_port), timeout=10)


def channel(pool: Pool, ca: Authority, own: Pair | None = None) -> grpc.Channel:
    key, cert = own.pem() if own else (None, None)
    credentials = grpc.ssl_channel_credentials(ca.pem(), key, cert)
    return grpc.secure_channel(pool.address, credentials)
