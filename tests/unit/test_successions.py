"""Which version can take the place of which is asked of the router, and judged once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from mpspool.core import tfs
from mpspool.core.control import ControlError
from mpspool.core.ids import ModelVersion
from mpspool.core.settings import ModelSettings
from mpspool.supervisor.pool.successions import Successions

ONE, TWO = ModelVersion("m", 1), ModelVersion("m", 2)
SETTINGS = ModelSettings(name="m", version=2, path="/m/2", slots=[])


def signatures(*inputs: str) -> bytes:
    found = tfs.SignatureDefMap()
    for name in inputs:
        found.signature_def["serving_default"].inputs[name].dtype = 1
    serialised: bytes = found.SerializeToString()
    return serialised


class Router:
    """Answers with what there is of a version; without anything, it is not there."""

    def __init__(self, folder: Path) -> None:
        self.signatures: dict[ModelVersion, bytes] = {}
        self.asked = 0
        self.file = folder / "signatures.json"

    async def __call__(self, model: ModelVersion) -> bytes:
        self.asked += 1
        if not self.signatures:
            raise ControlError("nobody answers")
        return self.signatures.get(model, b"")

    def unfit(self, settings: ModelSettings = SETTINGS, times: int = 1) -> str | None:
        async def ask() -> str | None:
            asked = Successions(lambda _model: settings, self, self.file)
            return [await asked.unfit(ONE, TWO) for _ in range(times)][-1]

        return asyncio.run(ask())


def test_nobody_knows_before_the_router_does(tmp_path: Path) -> None:
    """Not while it is away, nor before its workers have told it of both."""
    router = Router(tmp_path)
    assert router.unfit() is None
    router.signatures = {ONE: signatures("x")}
    assert router.unfit() is None


def test_what_clients_send_has_to_be_taken(tmp_path: Path) -> None:
    """Else it says what is missing, but where that is allowed; the router is asked once for each of both."""
    router = Router(tmp_path)
    router.signatures = {ONE: signatures("x", "y"), TWO: signatures("x")}
    why = router.unfit(times=3)
    assert why is not None
    assert "clients of version 1" in why
    assert "no input 'y'" in why
    assert router.asked == 2
    assert router.unfit(msgspec.structs.replace(SETTINGS, allow_signature_changes=True)) == ""
    assert (
        asyncio.run(Successions(lambda _model: SETTINGS, router, router.file).unfit(ONE, TWO, by_hand=True))
        == ""
    )
    router.signatures = {ONE: signatures("x"), TWO: signatures("x")}
    assert router.unfit() == ""


def test_what_will_have_gone_is_kept(tmp_path: Path) -> None:
    """What a version had is known when it has left, until its successor's is."""
    router = Router(tmp_path)
    router.signatures = {ONE: signatures("x"), TWO: signatures("y")}

    async def story() -> list[str | None]:
        asked = Successions(lambda _model: SETTINGS, router, router.file)
        await asked.keep([ONE])
        await asked.keep([])
        del router.signatures[ONE]
        before = await asked.unfit(ONE, TWO)
        await asked.keep([TWO])
        asked.forget()
        return [before, await asked.unfit(ONE, TWO)]

    before, after = asyncio.run(story())
    assert before is not None
    assert "it has no input 'x'" in before
    assert after is None


def test_a_successor_has_what_was_kept(tmp_path: Path) -> None:
    """Of each model; a file that cannot be read is none."""
    router = Router(tmp_path)
    file = router.file
    other = ModelVersion("n@1", 7)
    router.signatures = {ONE: signatures("x"), other: signatures("x"), TWO: signatures("y")}
    asyncio.run(Successions(lambda _model: SETTINGS, router, file).keep([ONE, other]))
    del router.signatures[ONE]
    after = Successions(lambda _model: SETTINGS, router, file)
    assert (after.forgot(ONE), after.forgot(other), after.forgot(TWO)) == (False, False, True)
    assert "it has no input 'x'" in (asyncio.run(after.unfit(ONE, TWO)) or "")
    file.write_text("{")
    assert Successions(lambda _model: SETTINGS, router, file).forgot(ONE)


def test_what_comes_again_under_its_number_is_asked_again(tmp_path: Path) -> None:
    """Whatever was kept of what had that number before, be it that the one now is there or has gone."""
    router = Router(tmp_path)

    async def story() -> list[str | None]:
        router.signatures = {ONE: signatures("x")}
        asked = Successions(lambda _model: SETTINGS, router, router.file)
        await asked.keep([ONE])
        await asked.keep([])
        router.signatures = {ONE: signatures("y"), TWO: signatures("y")}
        present = await asked.unfit(ONE, TWO)
        await asked.keep([ONE])
        await asked.keep([])
        del router.signatures[ONE]
        asked.forget()
        return [present, await asked.unfit(ONE, TWO)]

    assert asyncio.run(story()) == ["", ""]
