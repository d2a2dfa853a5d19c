"""The bound on bytes: requests that are read, wait or run, and answers that wait for their clients. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from mpspool.core.errors import Code, Lack, PoolError
from mpspool.router.relief import Holders

# So much of a message, or all of it, has to be there before it is admitted: a size alone reserves nothing.
START_BYTES = 4096
# A shorter answer fits into a connection's buffer.
LONG_ANSWER_BYTES = 64 * 1024
# Of answers, at one moment: one is taken in, and one goes out.
_COPIES = 2

# Raises PoolError where there is no room for so many bytes, of a model's, or of any for None, and a client's, of which so many are counted.
_Check = Callable[[int, str | None, str | None, int], object]


class _Counts:
    """Bytes in all, of each model, and of each client that has a share.

    Attributes:
        used: in all.
        by_model: by its name.
    """

    __slots__ = ("_by_client", "by_model", "used")

    def __init__(self) -> None:
        self.used = 0
        self.by_model: defaultdict[str, int] = defaultdict(int)
        # By model and client; by None and client in all.
        self._by_client: dict[tuple[str | None, str], int] = {}

    def of_client(self, model: str | None, client: str) -> int:
        """What it holds of a model's; of None in all."""
        return self._by_client.get((model, client), 0)

    def add(self, size: int, model: str | None, client: str | None) -> None:
        """Fewer for a negative size; for no model, or client, where that is None."""
        self.used += size
        if client is not None:
            self._note(None, client, size)
        self.move(size, model, client)

    def move(self, size: int, model: str | None, client: str | None) -> None:
        """To a model, or from it for a negative size, of what counts in all."""
        if model is not None:
            self.by_model[model] += size
            if client is not None:
                self._note(model, client, size)

    def _note(self, model: str | None, client: str, size: int) -> None:
        """Clients come and go: of those that hold nothing nothing is kept."""
        held = self._by_client.get((model, client), 0) + size
        if held:
            self._by_client[model, client] = held
        else:
            self._by_client.pop((model, client), None)


class Memory:
    """Counts bytes, in all and for each model, and for each client where they share fairly.

    A client that holds something is given more only while as much as it then holds stays free: by itself it has
    half of a bound, and there is room for another. One that holds nothing is given what fits.

    So it is with models that share, and what one of them is given leaves as much free in any case: by itself it has half of all,
    two have a third each, and whatever they do another finds room.

    Answers that wait for their clients count as the requests do. Of each bound they have half: what would have to wait
    beyond that is not kept, so that clients which take nothing do not keep out those which do; nor does the last one,
    which may be larger: requests have the other half.

    Args:
        limit_bytes: more is refused.

    Attributes:
        limits: of one model, by its name, and of the requests of which it is not known yet, by ""; without one
            the limit of all holds.
        sharing: those of them that have no more than leaves as much free for others.
        coming: messages that are not whole.
        waiting: answers that wait for their clients. Before something is refused for lack of bytes, those of both make way that
            do not use what they hold.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.limits: dict[str, int] = {}
        self.sharing: frozenset[str] = frozenset()
        self.coming = Holders()
        self.waiting = Holders()
        self._all = _Counts()
        self._answers = _Counts()
        self._expected = _Counts()

    @property
    def used(self) -> int:
        """Bytes counted now."""
        return self._all.used

    @property
    def lacks_answers(self) -> bool:
        """Whether answers that wait for their clients have all that they should."""
        return self._answers.used >= self.limit_bytes // 2

    def tick(self) -> None:
        """To be called about once a second."""
        self.coming.tick()
        self.waiting.tick()

    def hold(self, size: int, model: str | None = None, client: str | None = None) -> None:
        """Counts what waits for a client, whatever the limits; fewer for a negative size."""
        self._all.add(size, model, client)
        self._answers.add(size, model, client)

    def check_answer(self, size: int, model: str | None, client: str | None, kept: int = 0) -> None:
        """For an answer that is long, or will have to wait for its client. The last one may be of any size, so that each can be given.

        Args:
            size: of the answer, or of a part of it.
            model: whose it is.
            client: whose it is.
            kept: bytes of other parts of it, which are counted.

        Raises:
            PoolError: RESOURCE_EXHAUSTED, there is no room for it.
        """
        try:
            self._check_answer(size, model, client, kept)
        except PoolError:
            _make_room((self.waiting,), self._check_answer, size, model, client, kept)
            self._check_answer(size, model, client, kept)

    def _check_answer(self, size: int, model: str | None, client: str | None, kept: int) -> None:
        """As check_answer(), with nobody's making way."""
        limits: list[tuple[str | None, int, int]] = [(None, self.limit_bytes, self._answers.used)]
        if model is not None:
            limit = self.limits.get(model, self.limit_bytes)
            limits.append((model, limit, self._answers.by_model[model]))
        for whose, limit, counted in limits:
            held = counted - kept
            free = limit // 2 - held
            if free <= 0:
                raise PoolError(
                    Code.RESOURCE_EXHAUSTED,
                    f"Answers of {_named(whose)} that wait for their clients, or for the rest of them, hold {held} of "
                    f"{limit // 2} bytes, so this one of {size} is not kept; take answers sooner, ask for fewer rows at "
                    "once, or raise max_queued_bytes",
                    Lack.ANSWERS,
                )
            if client is not None:
                mine = self._answers.of_client(whose, client) - kept
                if _takes_too_much(mine, kept + size, free):
                    raise PoolError(
                        Code.RESOURCE_EXHAUSTED,
                        f"Answers of {_named(whose)} that this client has not taken hold {mine} bytes, {free} are free and "
                        f"this one has {size}: it is not kept; take answers sooner",
                        Lack.ANSWERS,
                    )
        if model in self.sharing:
            self._check_answers_share(model, size, kept)

    def _check_answers_share(self, model: str, size: int, kept: int) -> None:
        """Raises PoolError where a model's answers that wait would hold more than they leave free for others'."""
        held = self._answers.by_model[model] - kept
        free = self.limit_bytes // 2 - self._answers.used + kept
        if _takes_too_much(held, kept + size, free):
            raise PoolError(
                Code.RESOURCE_EXHAUSTED,
                f"Answers of {_named(model)} that wait for their clients hold {held} bytes, {free} are free and this one has "
                f"{size}: as much as a model's answers hold stays free for others', so it is not kept; take answers sooner",
                Lack.ANSWERS,
            )

    def admit(
        self, size: int, model: str | None = "", client: str | None = None, to_come: tuple[int, int] = (0, 0)
    ) -> Admission:
        """Counts a request's bytes until its admission is released.

        Args:
            size: of the request.
            model: whose it is; "" where that is not known yet, None where it counts against no model's limit.
            client: who asks; None where clients do not share.
            to_come: how many answers may come that do not count yet, and of how many bytes. Where anything is held these stay free,
                as far as answers may have them, and as many as copies of two take; but no more than half of what it leaves.

        Raises:
            PoolError: RESOURCE_EXHAUSTED.
        """
        counted = self._find_room(size, model, client, 0, to_come)
        self._all.add(size, counted, client)
        return Admission(self, size, counted, client)

    def _find_room(
        self,
        size: int,
        model: str | None,
        client: str | None,
        before: int,
        to_come: tuple[int, int] = (0, 0),
    ) -> str | None:
        """As _room(), of what others have who do not use it, too."""
        try:
            return self._room(size, model, client, before, to_come)
        except PoolError:
            holders = (self.coming, self.waiting)
            never = size > self.limit_bytes or (model is not None and size > self.limits.get(model, size))
            if never or not any(map(len, holders)):
                raise

            def check(size: int, model: str | None, client: str | None, before: int) -> str | None:
                return self._room(size, model, client, before, to_come)

            _make_room(holders, check, size, model, client, before)
            return self._room(size, model, client, before, to_come)

    def _room(
        self, size: int, model: str | None, client: str | None, before: int, to_come: tuple[int, int]
    ) -> str | None:
        """The model that a request counts for, of which `before` bytes are counted by now. `to_come` as of admit(). Raises PoolError."""
        used = self._used_by(None, self.limit_bytes) - before
        free = self.limit_bytes - used
        if size > self.limit_bytes:
            raise _never(size, "max_queued_bytes", self.limit_bytes)
        spare = self._spare(size, *to_come) if used > 0 else 0
        if size > free - spare:
            kept = f", another {spare} are for answers to come," if spare else ""
            raise PoolError(
                Code.RESOURCE_EXHAUSTED,
                f"Requests and answers hold {used} of {self.limit_bytes} bytes{kept} and this one has {size}; "
                "try again later, or raise max_queued_bytes",
                Lack.BYTES,
            )
        if client is not None:
            self._check_share(None, client, size, free, before)
        return self._whose(model, client, size, before, free)

    def _whose(self, model: str | None, client: str | None, size: int, before: int, free: int) -> str | None:
        """The model that it counts for, which has a limit and is none that clients make up; else None. Raises PoolError.

        Args:
            model: whose it may be.
            client: whose it is.
            size: of the request.
            before: bytes of it that are counted as the model's.
            free: of all bytes, without it.
        """
        if model is None or (limit := self.limits.get(model)) is None:
            return None
        used = self._used_by(model, limit) - before
        if size > limit:
            raise _never(
                size, f"max_queued_bytes for {_named(model)}", limit, ", or max_queued_bytes_per_model"
            )
        if used + size > limit:
            raise PoolError(
                Code.RESOURCE_EXHAUSTED,
                f"Requests and answers of {_named(model)} hold {used} of {limit} bytes and this one has {size}; "
                "try again later, or raise the model's max_queued_bytes, or max_queued_bytes_per_model",
                Lack.BYTES,
            )
        if model in self.sharing and used + size > free - size:
            raise PoolError(
                Code.RESOURCE_EXHAUSTED,
                f"Requests and answers of {_named(model)} hold {used} bytes, of all {free} are free and this one has {size}: as "
                "much as a model holds stays free for others; try again later, raise max_queued_bytes, or give the model its own",
                Lack.BYTES,
            )
        if client is not None:
            self._check_share(model, client, size, limit - used, before)
        return model

    def _check_share(self, model: str | None, client: str, size: int, free: int, before: int) -> None:
        """Raises PoolError where a client that holds something else would hold more than it leaves free for others."""
        held = self._all.of_client(model, client) - before
        if _takes_too_much(held, size, free):
            whose = f"the client {client!r}" if client else "clients that say no name"
            raise PoolError(
                Code.RESOURCE_EXHAUSTED,
                f"Requests of {whose} for {_named(model)} hold {held} bytes, {free} are free and this one has {size}: clients "
                "share (scheduling.fair_by), and as much as one holds stays free for others; try again when some are answered, "
                + (
                    "or raise the model's max_queued_bytes, or max_queued_bytes_per_model"
                    if model
                    else "or raise max_queued_bytes"
                ),
                Lack.BYTES,
            )

    def belong(self, admission: Admission, model: str) -> None:
        """What was admitted before it was known whose it is, is this model's. Raises PoolError, and counts as before."""
        free = self.limit_bytes - self._used_by(None, self.limit_bytes)
        counted = self._whose(model, admission.client, admission.size, 0, free + admission.size)
        self._all.move(-admission.size, admission.model, admission.client)
        self._all.move(admission.size, counted, admission.client)
        admission.model = counted

    def grow(self, admission: Admission, size: int) -> None:
        """What was admitted has become larger by so much. Raises PoolError, and counts as before."""
        self._find_room(admission.size + size, admission.model, admission.client, admission.size)
        self._all.add(size, admission.model, admission.client)

    def _spare(self, size: int, count: int, each: int) -> int:
        """What a request of that size leaves free; see admit()."""
        left = self.limit_bytes // 2 - self._answers.used - self._expected.used
        return min(_COPIES * each + max(0, min(count * each, left)), (self.limit_bytes - size) // 2)

    def _used_by(self, model: str | None, limit: int) -> int:
        """Bytes of a model, or of all for None, that count against requests: of answers, here or to come, no more than they should have."""
        if model is None:
            used, answers = self._all.used, self._answers.used + self._expected.used
        else:
            used = self._all.by_model[model]
            answers = self._answers.by_model[model] + self._expected.by_model[model]
        return used - max(0, answers - limit // 2)

    def expect(self, size: int, model: str | None) -> None:
        """Counts answers to come, whatever the limits, and for no client's share; fewer for a negative size."""
        self._all.add(size, model, None)
        self._expected.add(size, model, None)

    def release(self, admission: Admission) -> None:
        self._all.add(-admission.size, admission.model, admission.client)


class Admission:
    """Bytes that count until all that hold them have released them.

    Attributes:
        model: whose limit they count against, too; None for nobody's.
        size: how many they are; 0 once they are released.
        client: whose share; None where clients do not share.
    """

    __slots__ = ("_expected", "_holders", "_kept", "_memory", "client", "model", "size")

    def __init__(self, memory: Memory, size: int, model: str | None, client: str | None) -> None:
        self._memory = memory
        self._holders = 1
        self._expected = self._kept = 0
        self.size = size
        self.model = model
        self.client = client

    def grow(self, size: int) -> None:
        """Counts as many more. Raises PoolError, and counts as before."""
        self._memory.grow(self, size)
        self.size += size

    def belong(self, model: str) -> None:
        """It is this model's. Raises PoolError, and counts as before."""
        if model != self.model:
            self._expect_none()
            self._memory.belong(self, model)

    def keep(self, holders: int = 1) -> None:
        """So many more will release it."""
        self._holders += holders

    def expect(self, size: int) -> None:
        """A worker is sent it: an answer of about so many bytes is to come, and counts until this is released."""
        self._expected += size
        self._memory.expect(size, self.model)

    def release(self) -> None:
        """Of those that hold it one does no more. Once more than there are holders does nothing."""
        self._holders -= 1
        if self._holders > 0:
            return
        self._memory.release(self)
        self.size = 0
        self._expect_none()

    def begin_again(self) -> None:
        """It goes to another version, which had none of it: one more will release it, and nothing is expected."""
        self._holders += 1
        self._expect_none()

    def _expect_none(self) -> None:
        if self._expected:
            self._memory.expect(-self._expected, self.model)
            self._expected = 0

    def check_answer(self, size: int) -> None:
        """For its answer, or a part of it, which will have to wait for the client. Raises PoolError where others leave no room."""
        self._memory.check_answer(size, self.model, self.client, self._kept)

    def held(self, model: str | None) -> int:
        """Bytes of it that count for that model; for None in all."""
        return self.size if model is None or model == self.model else 0

    def hold(self, size: int) -> None:
        """Counts what waits of its answer, whatever the limits; fewer for a negative size."""
        self._kept += size
        self._memory.hold(size, self.model, self.client)


def _make_room(
    kinds: Iterable[Holders], check: _Check, size: int, model: str | None, client: str | None, counted: int
) -> None:
    """As far as those do not use it that have some, of one kind after the other."""
    lacking = model if _passes(check, size, None, client, counted) else None
    for holders in kinds:
        for holder in holders.idle(lacking, size):
            if _passes(check, size, model, client, counted):  # now that all were counted anew, too
                return
            holder.make_way()


def _passes(check: _Check, size: int, model: str | None, client: str | None, counted: int) -> bool:
    try:
        check(size, model, client, counted)
    except PoolError:
        return False
    return True


def _takes_too_much(held: int, size: int, free: int) -> bool:
    """Whether a client that holds something would hold more than it leaves free."""
    return held > 0 and held + size > free - size


def _never(size: int, limit: str, limit_bytes: int, another: str = "") -> PoolError:
    text = (
        f"The request has {size} bytes and {limit} is {limit_bytes}: make it smaller, or raise that{another}"
    )
    return PoolError(Code.RESOURCE_EXHAUSTED, text, Lack.BYTES)


def _named(model: str | None) -> str:
    if model is None:
        return "any model"
    return model or "models that their first bytes do not name"
