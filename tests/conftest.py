"""Fixtures: test models built once, real pools that leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests import models
from tests.polling import until
from tests.pool import Load, Pool

PoolStarter = Callable[..., Pool]

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

# A shell has its background jobs ignore Ctrl-C, and their children with them; some tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)
# And nohup has them ignore the end of the terminal, which a pool then does, too.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def models_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all processes of a run: whoever needs a model first builds it."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # pytest-xdist gives each of its processes a folder in the run's
        root = root.parent
    (root / "models").mkdir(exist_ok=True)
    return root / "models"


@pytest.fixture(scope="session")
def model_dir(models_root: Path) -> Callable[[str], Path]:
    """Builds a test model on first use, in a process of its own, and gives its base path."""
    return lambda name: models.build(name, models_root)


@pytest.fixture(scope="session")
def testing_ops(models_root: Path) -> Path:
    """The test operators (abort, sleep), compiled against the installed TensorFlow."""
    return models.ops_library(models_root)


@contextlib.contextmanager
def short_dir() -> Iterator[Path]:
    """A folder whose path is short enough for UNIX sockets in it."""
    root = Path(tempfile.mkdtemp(prefix="mps-"))
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextlib.contextmanager
def pools() -> Iterator[PoolStarter]:
    """Starts pools; at the end each is stopped and must have left nothing."""
    with short_dir() as root:
        started: list[Pool] = []

        def make(*args: object, kind: type[Pool] = Pool, **kwargs: dict[str, str]) -> Pool:
            pool = kind(root / f"run{len(started)}", *args, **kwargs)
            started.append(pool)
            return pool.start()

        try:
            yield make
            for pool in started:
                pool.stop()
                pool.assert_nothing_left()
        finally:
            for pool in started:
                pool.clear()


@pytest.fixture
def start_pool() -> Iterator[PoolStarter]:
    """Starts pools for one test."""
    with pools() as make:
        yield make


@pytest.fixture(scope="module")
def start_module_pool() -> Iterator[PoolStarter]:
    """Starts pools that a module's tests share."""
    with pools() as make:
        yield make


@pytest.fixture
def load() -> Iterator[Callable[..., Load]]:
    """Starts load generators and ends those that a failed test left."""
    running: list[Load] = []

    def make(*args: object, **kwargs: object) -> Load:
        running.append(Load(*args, **kwargs))  # type: ignore[arg-type]
        return running[-1]

    yield make
    for one in running:
        one.kill()


@pytest.fixture(autouse=True)
def _no_leaked_descriptors() -> Iterator[None]:
    """A test leaves no more than eight descriptors open in this process: less would miss what libraries keep."""
    before = len(os.listdir("/proc/self/fd"))
    yield
    # gRPC closes its connections a moment later.
    until(lambda: len(os.listdir("/proc/self/fd")) <= before + 8, 5, "descriptors leaked")
