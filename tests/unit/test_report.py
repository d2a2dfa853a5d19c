"""What a start tells the user to type."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mpspool.core.rundir import default_run_dir
from mpspool.core.settings import ModelSettings, PoolSettings, RouterSettings
from mpspool.supervisor import report
from mpspool.supervisor.ports import client_address, with_port


def settings(
    name: str = "half_plus_two", host: str = "127.0.0.1", port: int = 8500, run_dir: str = "/r"
) -> PoolSettings:
    model = ModelSettings(name=name, version=1, path="/m/1", slots=[])
    router = RouterSettings(run_dir=run_dir, host=host, grpc_port=port, rest_port=0)
    return PoolSettings(
        run_dir=run_dir,
        host=host,
        grpc_port=port,
        rest_port=0,
        mps="off",
        models=[model],
        mps_daemons=[],
        router=router,
    )


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The `mpspool` that runs, in a folder that is not in PATH."""
    path = tmp_path / "bin" / "mpspool"
    path.parent.mkdir()
    path.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(path)])
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path)
    return path


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1:1"),
        ("0.0.0.0", "127.0.0.1:1"),
        ("::", "[::1]:1"),
        ("10.0.0.7", "10.0.0.7:1"),
        ("fd00::7", "[fd00::7]:1"),
        ("localhost", "localhost:1"),
    ],
)
def test_a_client_is_sent_where_the_front_listens(host: str, address: str) -> None:
    """An address for all networks is no address to connect to; a name or another address is."""
    assert client_address(host, 1) == address


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("localhost", "localhost:8500"),
        ("10.0.0.7", "10.0.0.7:8500"),
        ("::1", "[::1]:8500"),
        ("[::1]", "[::1]:8500"),
        ("[::1]:9", "[::1]:9"),
        ("localhost:9", "localhost:9"),
        ("dns:///localhost", "dns:///localhost"),
        ("unix:/run/socket", "unix:/run/socket"),
    ],
)
def test_a_host_alone_is_asked_on_grpcs_port(given: str, address: str) -> None:
    """Left to gRPC, it would be asked on the port of https."""
    assert with_port(given) == address


def test_the_line_to_try_names_a_program_that_is_not_in_path(program: Path) -> None:
    """By its path from the working folder, with the address where the run folder is not the usual one."""
    line = """bin/mpspool predict half_plus_two --input '{"x": [1, 2, 5]}'"""
    assert report.how_to_try(settings()) == f"{line} --address 127.0.0.1:8500"
    assert report.how_to_try(settings(run_dir=str(default_run_dir()))) == line


def test_the_line_to_try_names_a_program_in_path_alone(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where typing `mpspool` runs this very one."""
    monkeypatch.setenv("PATH", str(program.parent))
    assert report.how_to_try(settings()).startswith("mpspool predict ")


def test_the_line_to_try_can_be_typed_whatever_the_name(program: Path) -> None:
    """A model's name that a shell would read otherwise is quoted."""
    assert " predict 'my model; ls' " in report.how_to_try(settings(name="my model; ls"))


def test_there_is_nothing_to_try_without_grpc(program: Path) -> None:
    """`predict` speaks gRPC, so the line would be wrong."""
    assert report.how_to_try(settings(port=0)) == ""
