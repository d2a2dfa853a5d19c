"""A real Prometheus (Debian's package), which scrapes one target and is asked by its HTTP API."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.polling import until
from tests.pool import free_port

_MISSING = (
    "there is no {name}, and the tests have a real Prometheus scrape a pool: install Debian's package (apt-get install prometheus), "
    "which has prometheus and promtool, or put both from https://prometheus.io/download on PATH"
)
# It reads few series for a few seconds.
_SMALL = {"GOMAXPROCS": "1", "GOMEMLIMIT": "64MiB"}


def program(name: str) -> str:
    """Where prometheus or promtool is. Raises AssertionError that says what to install."""
    found = shutil.which(name)
    assert found, _MISSING.format(name=name)
    return found


class Prometheus:
    """One that runs."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def ready(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self._url}/-/ready", timeout=5):
            return True
        return False

    def ask(self, query: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series that PromQL finds, once it finds any: after a page that came too late there is none for a while."""
        return until(lambda: self._ask(query), 60, f"there is {query}")

    def _ask(self, query: str) -> list[tuple[dict[str, str], float]]:
        with urllib.request.urlopen(
            f"{self._url}/api/v1/query?{urllib.parse.urlencode({'query': query})}", timeout=10
        ) as answer:
            found: dict[str, Any] = json.load(answer)
        return [(one["metric"], float(one["value"][1])) for one in found["data"]["result"]]

    def value(self, query: str) -> float:
        """Of the one series that it finds."""
        ((_, found),) = self.ask(query)
        return found


@contextlib.contextmanager
def scraping(port: int, path: str, folder: Path) -> Iterator[Prometheus]:
    """A Prometheus that scrapes that port of this machine, and is gone at the end with all that it keeps.

    Args:
        port: of the target.
        path: of its page.
        folder: for what Prometheus keeps: one of the test's own.
    """
    config = folder / "prometheus.yml"
    job = {"job_name": "pool", "metrics_path": path, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
    config.write_text(yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}))
    listens = free_port()
    log = folder / "prometheus.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{listens}",
                "--log.level=warn",
            ],
            stdout=out,
            stderr=out,
            env={**os.environ, **_SMALL},
        )
    try:
        running = Prometheus(listens)

        def ready() -> bool:
            assert process.poll() is None, log.read_text()
            return running.ready()

        until(ready, 30, "Prometheus is ready")
        yield running
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder / "data", ignore_errors=True)


def lint(page: bytes) -> tuple[int, list[str]]:
    """What `promtool check metrics` finds wrong with a page: its exit status, 1 where it cannot be read, and its complaints."""
    done = subprocess.run(
        [program("promtool"), "check", "metrics"], input=page, capture_output=True, timeout=30, check=False
    )
    return done.returncode, (done.stdout + done.stderr).decode().splitlines()
