"""Parts of the pool with an echo behind them: what the front and the router cost by themselves.

    python -m bench.echo front PORT             the gRPC front over a data plane that answers at once
    python -m bench.echo grpc_aio PORT          grpcio's asyncio server with the same answers, bytes in and bytes out
    python -m bench.echo router PORT FOLDER     the router as it is, two workers that answer at once
    python -m bench.echo worker FOLDER NAME     one of them

The "echo" is the model's right answer to the benchmark's own request, made beforehand for each
batch size and looked up by the size of the request. BENCH_MODEL names the model.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.models import MODELS, Model, inputs_for, reference
from bench.peers import WORKERS
from bench.protocols import Tfs
from mpspool.core import messages, process, settings, tfs
from mpspool.core.errors import Code, PoolError
from mpspool.core.ids import WorkerId
from mpspool.core.messages import Dispatch, Hello, Outcome
from mpspool.core.progress import ProgressWriter
from mpspool.core.rundir import RunDir
from mpspool.core.settings import RouterSettings
from mpspool.core.states import WorkerState
from mpspool.router.memory import Admission, Memory
from mpspool.router.models import VersionStatus
from mpspool.router.pending import Head

_BEAT_S = 0.1
# As many as the real workers have: one running, one on its way.
_CREDITS = 2


def _answers(model: Model) -> Mapping[int, bytes]:
    """Size of the request -> the right response."""
    answers = {}
    for batch in model.batches:
        inputs = inputs_for(model, batch)
        response = tfs.PredictResponse()
        response.model_spec.name = model.name
        response.model_spec.version.value = 1
        response.model_spec.signature_name = tfs.DEFAULT_SIGNATURE
        for name, array in reference(model, inputs).items():
            tensor = response.outputs[name]
            tensor.dtype = tfs.DATA_TYPES_BY_NAME["DT_FLOAT"].number
            for size in array.shape:
                tensor.tensor_shape.dim.add().size = size
            tensor.float_val.extend(array.ravel().tolist())
        answers[len(Tfs().encode(model, inputs))] = response.SerializeToString()
    return answers


def _not_here() -> PoolError:
    return PoolError(Code.UNIMPLEMENTED, "there is only an echo here")


class EchoDataplane:
    """What the front needs of a data plane."""

    draining = False

    def __init__(self, answers: Mapping[int, bytes]) -> None:
        self._answers = answers
        self.memory = Memory(2**32)

    def admit(self, _asked: object, size: int, start: bytes, head: Head) -> Admission:  # noqa: ARG002
        return self.memory.admit(size)

    async def call(
        self,
        _asked: object,
        body: bytes,
        deadline_ns: int,  # noqa: ARG002
        admission: Admission,
        head: Head,  # noqa: ARG002
    ) -> bytes:
        admission.release()
        return self._answers[len(body)]

    def labelled(self, name: str, label: str) -> int | None:  # noqa: ARG002
        return None

    def metadata(self, *_: object) -> tuple[int, bytes]:
        raise _not_here()

    def status(self, *_: object) -> list[VersionStatus]:
        raise _not_here()

    def unready(self) -> str:
        return ""

    def on_change(self, callback: Callable[[], None]) -> None:
        """It never changes."""


def _router_settings(port: int, folder: Path) -> RouterSettings:
    return RouterSettings(run_dir=str(folder), host="127.0.0.1", grpc_port=port, rest_port=0)


async def _front(port: int, answers: Mapping[int, bytes]) -> None:
    from mpspool.router.fronts.tfs_grpc import GrpcFront
    from mpspool.router.metrics.exposition import Metrics

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    config = _router_settings(port, Path())
    front = GrpcFront(EchoDataplane(answers), config, Metrics(config))
    await front.start()
    await stop.wait()
    await front.close()


async def _grpc_aio(port: int, answers: Mapping[int, bytes]) -> None:
    import grpc
    import grpc.aio

    async def answer(body: bytes, _context: object) -> bytes:
        return answers[len(body)]

    class Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, _details: object) -> object:
            return grpc.unary_unary_rpc_method_handler(answer)

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((Methods(),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await stop.wait()
    await server.stop(None)


def _router(port: int, folder: Path, model: Model) -> None:
    """The router and its workers; ends, and they with it, at SIGTERM or when one of them ends."""
    run_dir = RunDir(folder / "run")
    for each in run_dir.folders():
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings.save(run_dir.settings_file("router"), _router_settings(port, run_dir.root))
    count = int(os.environ.get("BENCH_ECHO_WORKERS", WORKERS))
    workers = [WorkerId(model.name, 1, "cpu0", number) for number in range(count)]
    commands = [["mpspool.router", str(run_dir.settings_file("router"))]]
    commands += [["bench.echo", "worker", str(run_dir.root), str(worker)] for worker in workers]
    children = [subprocess.Popen([sys.executable, "-P", "-m", *command]) for command in commands]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    finally:
        for child in children:
            child.terminate()


def _worker(run_dir: RunDir, worker: WorkerId, answers: Mapping[int, bytes]) -> None:
    from mpspool.worker.link import Link, Ran

    process.die_with_parent(os.getppid())
    page_file = run_dir.progress_file(worker.program, 1)
    page = ProgressWriter(page_file)

    def beat() -> None:
        while True:
            page.beat()
            time.sleep(_BEAT_S)

    def run(dispatch: Dispatch, bodies: list[bytes], frames: list[bytes]) -> Ran:
        outcomes = []
        for index, body in enumerate(bodies):
            page.start(dispatch.dispatch, index)
            page.finish()
            outcomes.append(Outcome(Code.OK, messages.inline(answers[len(body)], frames)))
        return Ran(outcomes, [], False)

    threading.Thread(target=beat, daemon=True).start()
    hello = Hello(
        protocol=messages.PROTOCOL,
        epoch=0,
        worker=str(worker),
        generation=1,
        pid=os.getpid(),
        state=WorkerState.STARTING.value,
        credits=_CREDITS,
        progress=str(page_file),
    )
    signatures = tfs.SignatureDefMap()
    signatures.signature_def[tfs.DEFAULT_SIGNATURE].method_name = "tensorflow/serving/predict"
    link = Link(run_dir.router_socket, hello, run)
    link.announce(WorkerState.READY, "echo", signatures.SerializeToString())
    never_readable, _writing = os.pipe()
    link.serve(lambda: False, never_readable)


def main(part: str, *arguments: str) -> None:
    model = MODELS[os.environ["BENCH_MODEL"]]
    if part in ("front", "grpc_aio"):
        import uvloop

        from mpspool.core.allocator import keep_bodies

        keep_bodies()
        serve = _front if part == "front" else _grpc_aio
        uvloop.run(serve(int(arguments[0]), _answers(model)))
    elif part == "router":
        _router(int(arguments[0]), Path(arguments[1]), model)
    else:
        _worker(RunDir(Path(arguments[0])), WorkerId.parse(arguments[1]), _answers(model))


if __name__ == "__main__":
    main(*sys.argv[1:])
