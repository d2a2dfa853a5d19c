"""The generator processes, as the command sees them."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import Self

from mpspool.loadtest import messages
from mpspool.loadtest.messages import Answer, Ask, Job, Phase, Progress, Result, Stop

_BUFFER_BYTES = 2**22
_END_S = 5.0

Watch = Callable[[Progress], object]


class GeneratorLostError(Exception):
    """A generator process has ended by itself; its own words are on standard error."""


class Fleet:
    """Some generator processes. To be entered: they end with it, or when this process does."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._processes: list[asyncio.subprocess.Process] = []
        self._stopped = False

    async def __aenter__(self) -> Self:
        for _ in range(self._count):
            self._processes.append(
                await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", "mpspool.loadtest.generator"),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    limit=_BUFFER_BYTES,
                    process_group=0,  # Ctrl-C is the command's, which says what follows
                )
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            try:
                async with asyncio.timeout(_END_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()

    async def ask(self, order: Ask) -> Answer:
        """One call, by the first of them."""
        process = self._processes[0]
        await _send(process, order)
        answer = await _receive(process)
        assert isinstance(answer, Answer)
        return answer

    async def load(self, jobs: Sequence[Job]) -> None:
        """What each of them is to send."""
        for process, job in zip(self._processes, jobs, strict=True):
            await _send(process, job)

    async def run(self, phases: Sequence[Phase], watch: Watch) -> list[Result]:
        """One phase for each of the first of them, at the same time.

        Args:
            phases: as many as there are processes, or fewer.
            watch: told how far all of them together are.
        """
        if self._stopped:
            return []
        so_far = [Progress(0, 0, 0) for _ in phases]

        async def one(number: int, phase: Phase) -> Result:
            process = self._processes[number]
            await _send(process, phase)
            while not isinstance(found := await _receive(process), Result):
                assert isinstance(found, Progress)
                so_far[number] = found
                watch(
                    Progress(
                        sum(each.sent for each in so_far),
                        sum(each.right for each in so_far),
                        sum(each.failed for each in so_far),
                    )
                )
            return found

        return await asyncio.gather(*(one(*item) for item in enumerate(phases)))

    def stop(self) -> None:
        """Nothing is sent any more; the phase that runs ends at once."""
        self._stopped = True
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(messages.pack(Stop()))


async def _send(process: asyncio.subprocess.Process, order: messages.ToGenerator) -> None:
    assert process.stdin is not None
    process.stdin.write(messages.pack(order))
    with contextlib.suppress(ConnectionError):  # then there is no answer either, and that says why
        await process.stdin.drain()


async def _receive(process: asyncio.subprocess.Process) -> messages.FromGenerator:
    assert process.stdout is not None
    try:
        size = int.from_bytes(await process.stdout.readexactly(messages.HEAD_BYTES), "big")
        found: messages.FromGenerator = messages.decode_from_generator(await process.stdout.readexactly(size))
    except asyncio.IncompleteReadError as error:
        raise GeneratorLostError(
            f"a generator process has ended (exit status {await process.wait()})"
        ) from error
    return found
