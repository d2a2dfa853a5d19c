"""What a start tells the user to type, and what is said of a model."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from mpspool.core.rundir import default_run_dir
from mpspool.core.settings import ModelSettings, PoolSettings, RouterSettings
from mpspool.core.weights import COPIED
from mpspool.mps.telemetry import GpuReading, as_message
from mpspool.supervisor import report
from mpspool.supervisor.commands import model_report
from mpspool.supervisor.ports import client_address, with_port

DOCUMENT = '{"x": [1, 2, 5]}'


def settings(
    name: str = "half_plus_two", host: str = "127.0.0.1", port: int = 8500, run_dir: str = "/r"
) -> PoolSettings:
    model = ModelSettings(name=name, version=1, path="/m/1", slots=[])
    router = RouterSettings(run_dir=run_dir, host=host, grpc_port=port, rest_port=0)
    return PoolSettings(
        run_dir=run_dir,
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
    assert report.how_to_try(settings(), DOCUMENT) == f"{line} --address 127.0.0.1:8500"
    assert report.how_to_try(settings(run_dir=str(default_run_dir())), DOCUMENT) == line


def test_the_line_to_try_names_a_program_in_path_alone(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where typing `mpspool` runs this very one."""
    monkeypatch.setenv("PATH", str(program.parent))
    assert report.how_to_try(settings(), DOCUMENT).startswith("mpspool predict ")


def test_the_line_to_try_after_tensorflow_servings_command(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one has no `predict`; `mpspool` lies beside it."""
    monkeypatch.setattr(sys, "argv", [str(program.with_name("tensorflow_model_server"))])
    assert report.how_to_try(settings(), DOCUMENT).startswith("bin/mpspool predict ")


def test_the_line_to_try_can_be_typed_whatever_the_name(program: Path) -> None:
    """A model's name, or an input's, that a shell would read otherwise is quoted."""
    line = report.how_to_try(settings(name="my model; ls"), '{"it\'s": 1}')
    assert shlex.split(line)[1:5] == ["predict", "my model; ls", "--input", '{"it\'s": 1}']


def test_there_is_nothing_to_try_without_grpc(program: Path) -> None:
    """`predict` speaks gRPC, so the line would be wrong."""
    assert report.how_to_try(settings(port=0), DOCUMENT) == ""


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (999_950, "1.0 MB"),
     (36_800_000, "36.8 MB"), (5 * 10**9, "5.0 GB"), (2 * 10**15, "2000.0 TB")],
)  # fmt: skip
def test_sizes_are_short(count: int, text: str) -> None:
    """Three to four digits and a unit."""
    assert report.size(count) == text


def weights(**fields: Any) -> dict[str, Any]:
    none = dict.fromkeys(
        ("shared_bytes", "private_bytes", "shared_variables", "private_variables", "excess_bytes"), 0
    )
    return {**none, "why": {}, **fields}


def model_text(capsys: pytest.CaptureFixture[str], **fields: Any) -> str:
    """What is printed of a model of the pool without signatures, but for these fields."""
    model: dict[str, Any] = {
        "model": "half", "version": 1, "state": "AVAILABLE", "error": "", "path": "/m/half/1", "weights": {},
        "signatures": {}, "variables": {"count": 0, "bytes": 0, "largest": []}, "cpu_only": [],
        "unregistered": [], "batch_functions": [],
    }  # fmt: skip
    model_report.print_model({**model, **fields})
    return capsys.readouterr().out


def test_a_model_says_what_is_private_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    """All names where all are known, else some; a reason for no variable in particular stands alone."""
    assert "not known until a worker is READY" in model_text(capsys)
    why = {"string": ["words", "[bold]"], "each worker ran the restore op": []}
    found = weights(shared_variables=1, shared_bytes=64, private_variables=2, private_bytes=9, why=why)
    text = model_text(capsys, weights=found)
    assert "64 B in 1 variable: one copy for all workers" in text
    assert "9 B in 2 variables: a copy in each worker" in text
    assert "- string: words, [bold]\n- each worker ran the restore op\n" in text
    text = model_text(capsys, weights={**found, "private_variables": 7, "excess_bytes": 10**6})
    assert "- string: such as words, [bold]" in text
    assert "1.0 MB of private memory beyond what was expected: perhaps weights were copied" in text
    text = model_text(capsys, weights={**found, "why": {COPIED: ["a[b]", "c"]}, "excess_bytes": 10**6})
    assert "beyond what was expected: weights were copied that should be shared, such as a[b], c" in text


def test_a_model_says_what_a_gpu_cannot_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing, something, or that it cannot be known."""
    assert "every operation has a kernel" in model_text(capsys)
    assert "not known: this TensorFlow was built without GPU kernels" in model_text(capsys, cpu_only=None)
    one = {"op": "Tile", "types": "T=string", "count": 3, "example": "a/tile"}
    text = model_text(capsys, cpu_only=[one, {**one, "op": "StringJoin", "types": ""}])
    assert "6 operations would run on the CPU" in text
    assert [line.split() for line in text.splitlines()[-2:]] == [
        ["Tile", "T=string", "3", "a/tile"],
        ["StringJoin", "any", "3", "a/tile"],
    ]
    text = model_text(capsys, unregistered=["A", "B"])
    assert "every other operation has a kernel" in text
    assert "A, B; name the library that defines them with custom_ops in the pool file" in text


def test_a_model_says_that_it_batches_within_its_graph(capsys: pytest.CaptureFixture[str]) -> None:
    """Up to how many rows, and what to do."""
    one = {"name": "batch/BatchFunction", "max_batch_size": 1024, "batch_timeout_micros": 2500}
    text = " ".join(model_text(capsys, batch_functions=[one]).split())
    assert "batch/BatchFunction is to join calls to batches of up to 1,024 rows" in text
    assert "set batching: {max_batch_size: 1024}" in text


def test_a_model_shows_its_state_and_error(capsys: pytest.CaptureFixture[str]) -> None:
    """A version that failed is described all the same; so is a checkpoint that only TensorFlow reads."""
    variables = {"unknown": "/m/half/1/variables.index is compressed"}
    text = model_text(capsys, state="END", error="cannot [bold]", variables=variables)
    assert text.startswith("half version 1  END\n/m/half/1\ncannot [bold]\n")
    assert "variables  not known: /m/half/1/variables.index is compressed" in text


def test_the_status_shows_gpus_where_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    """What a device does not tell is a dash, a stand-in says so, and why one is lost stands below."""
    full = GpuReading(
        "GPU-x", "H100", 0.41, 12_300_000_000, 80_000_000_000, 54, 310.4, 700.0, 0, xids={13: 2, 31: 1}
    )
    devices = [
        as_message("gpu0", full, "SERVING", simulated=True),
        as_message("gpu1", GpuReading("GPU-y"), "LOST", "Xid 79"),
    ]
    pool = {"state": "RUNNING", "pid": 1, "run_dir": "/r", "grpc_port": 1, "rest_port": 0, "mps": "on"}
    daemon = {"name": "mps.gpu0", "state": "RUNNING", "pid": 7, "simulated": True}
    processes = [daemon, {"name": "router", "state": "RUNNING", "pid": 8}]
    status: dict[str, Any] = {"pool": pool, "models": [], "workers": [], "processes": processes}
    report.print_status({**status, "devices": devices})
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "run folder /r  MPS on"
    assert ["mps.gpu0", "SIMULATED", "RUNNING", "7"] in [line.split() for line in lines]
    assert ["router", "RUNNING", "8"] in [line.split() for line in lines]
    titles = next(number for number, line in enumerate(lines) if line.startswith("device"))
    assert " ".join(lines[titles + 2].split()) == "gpu0 SIMULATED SERVING 41% 12.3 80.0 54 C 310 0 13 x 2, 31"
    assert lines[titles + 3].split() == ["gpu1", "LOST", *"-------"]
    assert "gpu1: Xid 79" in lines
    for nothing in ({**status, "devices": []}, status):
        report.print_status(nothing)
        assert "device" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("mps", "simulated", "told"),
    [("simulated", "gpus", "MPS SIMULATED"), ("off", "cpus", "MPS off SIMULATED"), ("on", "", "MPS on")],
)
def test_a_pool_on_stand_ins_says_so_once(
    capsys: pytest.CaptureFixture[str], mps: str, simulated: str, told: str
) -> None:
    """Beside its MPS, which may be what is one."""
    pool = {"state": "RUNNING", "pid": 1, "run_dir": "/r", "grpc_port": 1, "rest_port": 0, "mps": mps}
    report.print_status(
        {"pool": {**pool, "simulated": simulated}, "models": [], "workers": [], "processes": []}
    )
    assert capsys.readouterr().out.splitlines()[1] == f"run folder /r  {told}"
