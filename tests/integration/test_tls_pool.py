"""Pools with TLS: our own clients, a reload with renewed certificates, a drain; and what start refuses."""

from __future__ import annotations

import itertools
import json
import shutil
import ssl
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from mpspool.core import tfs
from tests.certificates import Authority, Pair, ssl_config
from tests.conftest import PoolStarter, short_dir
from tests.light import LIGHT, PREDICT, body, half, write_model
from tests.polling import until
from tests.pool import Pool, cli
from tests.tensors import decode

FILES = {"key": "key.pem", "cert": "cert.pem"}


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


class Secured:
    """A pool file with a tls section, and the files that it names.

    Args:
        folder: an empty one.
        base: of its model; None for one of a light worker's.
        tls: the section.
    """

    def __init__(self, folder: Path, base: Path | None = None, **tls: Any) -> None:
        self.folder = folder
        self.file = folder / "pool.yaml"
        models = {"half": {"base_path": str(base or write_model(folder / "half")), "cpu_slots": 1}}
        self.file.write_text(json.dumps({"models": models, "tls": tls}))

    def renew(self, pair: Pair) -> None:
        shutil.copy(pair.key, self.folder / "key.pem")
        shutil.copy(pair.cert, self.folder / "cert.pem")


def channel(pool: Pool, ca: Authority, own: Pair | None = None) -> grpc.Channel:
    key, cert = own.pem() if own else (None, None)
    credentials = grpc.ssl_channel_credentials(ca.pem(), key, cert)
    options = [("grpc.use_local_subchannel_pool", 1)]
    return grpc.secure_channel(pool.address, credentials, options=options)


def shown(pool: Pool) -> str:
    """The certificate that a new connection gets."""
    return ssl.get_server_certificate(("127.0.0.1", pool.grpc_port), timeout=10)


def predict(pool: Pool, *options: object) -> subprocess.CompletedProcess[str]:
    return cli("predict", "half", "--input", '{"x": [1, 2]}', *options)


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_dir() as root:
        yield root


def test_a_pool_with_tls_and_its_clients(
    start_pool: PoolStarter, ca: Authority, folder: Path, model_dir: Callable[[str], Path]
) -> None:
    """Our clients know the pool here by its certificate; elsewhere by a CA; and say so where it is missing."""
    secured = Secured(folder, model_dir("half_plus_two"), **FILES)
    secured.renew(ca.issue("server", ("*.serving.example",), ends_days=20))
    pool = start_pool(secured.file).wait()
    said = pool.output.read_text()
    assert "TLS on the gRPC port for *.serving.example until " in said
    assert "warning: tls: the certificate of server expires on " in said
    here, there = ("--run-dir", pool.run_dir), ("--address", pool.address)
    done = predict(pool, *here)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"y": [2.5, 3.0]}
    done = predict(pool, *there, "--ca", ca.cert, "--server-name", "a.serving.example")
    assert done.returncode == 0, done.stderr
    for options, words in (
        ((), "it may want TLS: give --tls, or --ca"),
        (("--tls",), "its certificate is of no CA that is trusted here, or has expired; give --ca"),
        (("--ca", ca.cert), "its certificate is for another name; give one that it is for as --server-name"),
    ):
        done = predict(pool, *there, *options)
        assert done.returncode == 1
        assert words in done.stderr
    load = ("--model", "half", "--concurrency", "2", "--repeat", "1", "--seconds", "0.3", "--warmup", "0.1")
    for options in (here, (*there, "--ca", ca.cert, "--server-name", "b.serving.example")):
        done = cli("bench", *load, *options)
        assert done.returncode == 0, done.stdout + done.stderr
    done = cli("bench", *load, *there, "--ca", ca.cert)
    assert done.returncode == 1
    assert "certificate" in done.stderr
    done = cli("bench", *load, *there)
    assert done.returncode == 1
    assert "it may want TLS: give --tls, or --ca" in done.stderr
    settings = pool.run_dir / "settings" / "router.json"
    assert stat.S_IMODE(settings.stat().st_mode) == 0o600
    key = (folder / "key.pem").read_text().splitlines()[1]
    for file in pool.run_dir.rglob("*"):
        if file.is_file():
            assert key not in file.read_text(errors="replace"), file


def test_clients_need_a_certificate(
    start_pool: PoolStarter, ca: Authority, folder: Path, model_dir: Callable[[str], Path]
) -> None:
    """By TensorFlow Serving's file; predict says what to give, and takes it."""
    secured = Secured(folder, model_dir("half_plus_two"))
    (folder / "ssl.cfg").write_text(ssl_config(ca.issue("server"), ca.pem(), verify=True))
    pool = start_pool(secured.file, "--ssl-config-file", folder / "ssl.cfg").wait()
    assert "clients need a certificate" in pool.output.read_text()
    client = ca.issue("client")
    done = predict(pool, "--run-dir", pool.run_dir)
    assert done.returncode == 2
    assert done.stderr == "--cert: the pool wants to see a client's certificate; give --cert and --key\n"
    done = predict(pool, "--run-dir", pool.run_dir, "--cert", client.cert, "--key", client.key)
    assert done.returncode == 0, done.stderr
    done = predict(pool, "--address", pool.address, "--ca", ca.cert)
    assert done.returncode == 1
    assert "UNAVAILABLE" in done.stderr
    with channel(pool, ca, client) as found:
        x = np.array([1, 2], np.float32)
        assert found.unary_unary(PREDICT)(body("half", x), timeout=20)


def test_renewed_certificates(start_pool: PoolStarter, ca: Authority, folder: Path) -> None:
    """A reload takes them up: no request fails, no connection is dropped, no process begins anew. What is broken is refused."""
    secured = Secured(folder, **FILES)
    secured.renew(ca.issue("server"))
    pool = start_pool(secured.file, env=LIGHT).wait()
    before, router = shown(pool), pool.process_pid("router")
    x = np.array([1, 2], np.float32)
    stop = threading.Event()
    answered = itertools.count()
    failed: list[str] = []

    def ask() -> None:
        while not stop.is_set():
            try:
                call(body("half", x), timeout=20)
                next(answered)
            except grpc.RpcError as error:
                failed.append(str(error))

    with channel(pool, ca) as found:
        call = found.unary_unary(PREDICT)
        asking = [threading.Thread(target=ask) for _ in range(4)]
        for thread in asking:
            thread.start()
        try:
            assert cli("reload", "--run-dir", pool.run_dir).stdout == "nothing has changed\n"
            for _ in range(2):
                secured.renew(ca.issue("server"))
                done = predict(pool, "--run-dir", pool.run_dir)
                assert "the pool's files have been renewed since it took them up: `" in done.stderr
                assert f"reload --run-dir {pool.run_dir}`" in done.stderr
                done = cli("reload", "--run-dir", pool.run_dir)
                assert done.returncode == 0, done.stderr
                assert done.stdout == "pool  tls holds at once\n"
                after = shown(pool)
                assert after != before
                before = after
            shutil.copy(ca.issue("other").key, folder / "key.pem")
            done = cli("reload", "--run-dir", pool.run_dir)
            assert done.returncode == 2
            assert "is not the key of the certificate" in done.stderr
            assert shown(pool) == after
            secured.renew(ca.issue("old", begins_days=-9, ends_days=-1))
            done = cli("reload", "--run-dir", pool.run_dir)
            assert done.returncode == 2
            assert "has expired on" in done.stderr
            assert shown(pool) == after
        finally:
            stop.set()
            for thread in asking:
                thread.join()
    assert failed == []
    assert next(answered) > 10
    assert pool.process_pid("router") == router


def test_a_drain(start_pool: PoolStarter, ca: Authority, folder: Path) -> None:
    """SIGTERM: what runs is answered through TLS, and nothing is left."""
    secured = Secured(folder, **FILES)
    secured.renew(ca.issue("server"))
    pool = start_pool(secured.file, env=LIGHT).wait()
    (pool.run_dir / "hold").mkdir()
    (pool.run_dir / "runs").touch()
    x = np.array([7, 8], np.float32)
    hold = pool.run_dir / "hold" / "7"
    hold.touch()
    with channel(pool, ca) as found:
        call = found.unary_unary(PREDICT).future(body("half", x), timeout=60)
        until((pool.run_dir / "runs").read_text, 20, "the run has begun")
        stopping = threading.Thread(target=pool.stop)
        stopping.start()
        until(lambda: pool.status()["pool"]["state"] == "STOPPING", 20, "the pool drains")
        hold.unlink()
        assert decoded(call.result()) == half(x)
        stopping.join()


def decoded(response: bytes) -> Any:
    answer = tfs.PredictResponse.FromString(response)
    return decode(answer.outputs["y"].SerializeToString()).tolist()


def test_what_start_and_the_doctor_refuse(ca: Authority, folder: Path) -> None:
    """Before anything starts, with the file and what to do about it."""
    secured = Secured(folder, **FILES)
    pair = ca.issue("server", begins_days=-9, ends_days=-1)
    secured.renew(pair)
    options = ("--run-dir", folder / "run", "--grpc-port", "0", "--rest-port", "0")
    done = cli("start", secured.file, *options)
    assert done.returncode == 2
    assert (
        f"error: tls.cert: in pool.yaml line 1: the certificate of server in {folder / 'cert.pem'}"
        in done.stderr
    )
    assert "has expired on" in done.stderr
    done = cli("doctor", secured.file, *options, "--json")
    found = [check for check in json.loads(done.stdout)["checks"] if check["name"] == "tls"]
    assert [(check["status"], check["remedy"]) for check in found] == [("error", "renew it")]
    secured.renew(ca.issue("server", ends_days=10))
    done = cli("doctor", secured.file, *options[:2], "--json")
    found = [check for check in json.loads(done.stdout)["checks"] if check["name"] == "tls"]
    assert [check["status"] for check in found] == ["warning"]
    secured.renew(ca.issue("server"))
    done = cli("doctor", secured.file, *options[:2], "--json")
    found = [check for check in json.loads(done.stdout)["checks"] if check["name"] == "tls"]
    assert [check["status"] for check in found] == ["ok"]
    assert found[0]["evidence"].startswith("TLS on the gRPC port for localhost, 127.0.0.1, ::1 until ")
