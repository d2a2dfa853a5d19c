"""How GPUs are set, as NVML says it; and whose MPS processes there are."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mpspool.mps import device_state
from mpspool.mps.device_state import GpuState, Survey, survey
from mpspool.mps.leftovers import DEFAULT_PIPE_DIR, Running, running
from mpspool.mps.simulated.nvml import Nvml
from tests.fakes.nvml import FakeNvml, Gpu, NVMLError_GpuIsLost, NVMLError_NotSupported
from tests.polling import until


@dataclass
class StateNvml(FakeNvml):
    """With what is asked of each GPU's settings; `said` by function, what is not in it is not supported."""

    said: dict[str, int] = field(default_factory=dict)
    NVMLLibraryMismatchError = KeyError

    def nvmlSystemGetCudaDriverVersion(self) -> int:  # noqa: N802 - pynvml's
        return self.said["cuda"]

    def nvmlDeviceGetComputeMode(self, _handle: Gpu) -> int:  # noqa: N802
        return self._say("mode")

    def nvmlDeviceGetPersistenceMode(self, _handle: Gpu) -> int:  # noqa: N802
        return self._say("persistence")

    def nvmlDeviceGetTotalEccErrors(self, _handle: Gpu, kind: int, counter: int) -> int:  # noqa: N802
        assert (kind, counter) == (1, 0)  # uncorrected, volatile
        return self._say("errors")

    def _say(self, what: str) -> int:
        if what not in self.said:
            raise NVMLError_NotSupported("Not Supported")
        return self.said[what]


def only(nvml: Any) -> GpuState:
    (state,) = survey(nvml=nvml).gpus
    return state


def test_every_setting_is_read() -> None:
    """Compute mode by its name, MIG devices by UUID, and the CUDA version as two numbers."""
    parts = [Gpu("MIG-1"), None, Gpu("MIG-2")]
    said = {"cuda": 12080, "mode": 3, "persistence": 0, "errors": 7}
    nvml = StateNvml([Gpu("GPU-1", mig=parts)], said=said)
    assert survey(nvml=nvml) == Survey(
        (GpuState("GPU-1", device_state.EXCLUSIVE_PROCESS, ("MIG-1", "MIG-2"), False, 7),), (12, 8)
    )
    assert nvml.shutdowns == 1
    for number, name in ((0, "DEFAULT"), (1, "EXCLUSIVE_THREAD"), (2, "PROHIBITED"), (9, "9")):
        assert only(StateNvml([Gpu("GPU-1")], said={"mode": number})).compute_mode == name


def test_what_nobody_can_say_is_none() -> None:
    """A GPU that does not support a question, a driver or a library too old for it: unknown, and no error."""
    assert only(StateNvml([Gpu("GPU-1", mig=[], mig_mode=0)])) == GpuState("GPU-1")
    assert survey(nvml=StateNvml([Gpu("GPU-1")])).cuda is None
    assert survey(nvml=FakeNvml([Gpu("GPU-1", mig=[])])) == Survey((GpuState("GPU-1", mig=()),))


def test_without_nvml_there_is_nothing_to_look_at() -> None:
    """No driver, or one that fails on the way, gives an empty survey."""
    assert survey(nvml=FakeNvml(init_error="no driver")) == Survey()
    assert survey(nvml=FakeNvml([Gpu("GPU-1")], count_error="GPU is lost")) == Survey()


def test_a_gpu_that_is_lost_takes_no_other_with_it() -> None:
    """Nothing is known of it, and all of the others."""
    gpus = [Gpu("GPU-1", fault=NVMLError_GpuIsLost("GPU is lost")), Gpu("GPU-2")]
    assert [state.uuid for state in survey(nvml=FakeNvml(gpus)).gpus] == ["GPU-2"]


def test_stand_ins_answer_every_question() -> None:
    """The shipped stand-in of NVML leaves nothing unknown."""
    found = survey(nvml=Nvml(2, lambda _uuid: None))
    assert found.cuda is not None
    assert len(found.gpus) == 2
    assert all(None not in (gpu.compute_mode, gpu.persistent, gpu.uncorrected_errors) for gpu in found.gpus)


def test_mps_processes_are_known_by_their_programs(tmp_path: Path) -> None:
    """Daemon, server or stand-in, its pipe folder or the default one; who only asks the daemon is none."""
    idle = ["-c", "import time; time.sleep(60)"]
    pipe = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    cases: list[tuple[list[str], dict[str, str]]] = [
        (["nvidia-cuda-mps-control", *idle, "-f"], pipe),
        (["/usr/bin/nvidia-cuda-mps-server", *idle], {}),
        (["python", *idle, "mpspool.mps.simulated.server"], pipe),
        (["nvidia-cuda-mps-control", *idle], pipe),
    ]
    environ = {"PATH": os.environ["PATH"]}
    processes = [
        subprocess.Popen(arguments, executable=sys.executable, env=environ | own) for arguments, own in cases
    ]
    daemon, server, stand_in, asking = (process.pid for process in processes)
    uid = os.geteuid()
    expected = {
        Running(daemon, True, uid, str(tmp_path)),
        Running(server, False, uid, DEFAULT_PIPE_DIR),
        Running(stand_in, False, uid, str(tmp_path), simulated=True),
    }
    try:
        until(lambda: expected <= set(running()), 10, "they are not found")
        assert asking not in {found.pid for found in running()}
    finally:
        for process in processes:
            process.kill()
            process.wait()
