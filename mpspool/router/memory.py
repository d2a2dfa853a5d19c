"""The bound on bytes: requests that are read, wait or run, and answers that wait for their clients. Pure."""

from __future__ import annotations

from collections import defaultdict

from mpspool.core.errors import Code, Lack, PoolError


class Memory:
    """Counts bytes, in all and for each model, and for each client where they share fairly.

    A client that holds something is given more only while as much as it then holds stays free: by itself it has
    half of a bound, and there is room for another. One that holds nothing is given what fits.

    Args:
        limit_bytes: more is refused to requests. An answer is counted all the same: it is there already.

    Attributes:
        used: bytes counted now.
        limits: of the requests of one model, by its name, and of those of which it is not known yet, by ""; without one
            the limit of all holds.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used = 0
        self.limits: dict[str, int] = {}
        self._by_model: defaultdict[str, int] = defaultdict(int)
        # By model and client; by None and client in all.
        self._by_client: dict[tuple[str | None, str], int] = {}

    def hold(self, size: int) -> None:
        """Counts what is there, whatever the limit; fewer for a negative size."""
        self.used += size

    def admit_any(self, size: int, _start: bytes, _head: object) -> Admission:
        """admit(), for methods that do not look at the message."""
        return self.admit(size)

    def admit(self, size: int, model: str | None = "", client: str | None = None) -> Admission:
        """Counts a request's bytes until its admission is released.

        Args:
            size: of the request.
            model: whose it is; "" where that is not known yet, None where it counts against no model's limit.
            client: who asks; None where clients do not share.

        Raises:
            PoolError: RESOURCE_EXHAUSTED.
        """
        free = self.limit_bytes - self.used
        if size > self.limit_bytes:
            raise _never(size, "max_queued_bytes", self.limit_bytes)
        if size > free:
            raise PoolError(
                Code.RESOURCE_EXHAUSTED,
                f"Requests and answers hold {self.used} of {self.limit_bytes} bytes and this one has {size}; "
                "try again later, or raise max_queued_bytes",
                Lack.BYTES,
            )
        if client is not None:
            self._check_share(None, client, size, free)
        counted = self._count(model, client, size)
        self.used += size
        if client is not None:
            self._note(None, client, size)
        return Admission(self, size, counted, client)

    def _count(self, model: str | None, client: str | None, size: int) -> str | None:
        """Counts it for a model that has a limit, which nobody can make up; None for any other."""
        if model is None or (limit := self.limits.get(model)) is None:
            return None
        used = self._by_model[model]
        if size > limit:
            raise _never(size, f"max_queued_bytes for {_named(model)}", limit)
        if used + size > limit:
            raise PoolError(
                Code.RESOURCE_EXHAUSTED,
                f"Requests for {_named(model)} hold {used} of {limit} bytes and this one has {size}; "
                "try again later, or raise the model's max_queued_bytes",
                Lack.BYTES,
            )
        if client is not None:
            self._check_share(model, client, size, limit - used)
            self._note(model, client, size)
        self._by_model[model] = used + size
        return model

    def _discount(self, model: str | None, client: str | None, size: int) -> None:
        if model is not None:
            self._by_model[model] -= size
            if client is not None:
                self._note(model, client, -size)

    def _check_share(self, model: str | None, client: str, size: int, free: int) -> None:
        """Raises PoolError where a client would hold more than it leaves free for others."""
        held = self._by_client.get((model, client), 0)
        if held and held + size > free - size:
            raise PoolError(
                Code.RESOURCE_EXHAUSTED,
                f"Requests of this client for {_named(model)} hold {held} bytes, {free} are free and this one has {size}: "
                f"as much as a client holds stays free for others; try again when some are answered",
                Lack.BYTES,
            )

    def _note(self, model: str | None, client: str, size: int) -> None:
        """Clients come and go: of those that hold nothing nothing is kept."""
        held = self._by_client.get((model, client), 0) + size
        if held:
            self._by_client[model, client] = held
        else:
            self._by_client.pop((model, client), None)

    def _release(self, model: str | None, client: str | None, size: int) -> None:
        self.used -= size
        if client is not None:
            self._discount(model, client, size)
            self._note(None, client, -size)
        elif model is not None:
            self._by_model[model] -= size


class Admission:
    """Bytes that count until all that hold them have released them.

    Attributes:
        model: whose limit they count against, too; None for nobody's.
        size: how many they are; 0 once they are released.
        client: whose share; None where clients do not share.
    """

    __slots__ = ("_holders", "_memory", "client", "model", "size")

    def __init__(self, memory: Memory, size: int, model: str | None, client: str | None) -> None:
        self._memory = memory
        self._holders = 1
        self.size = size
        self.model = model
        self.client = client

    def grow(self, size: int) -> None:
        """Counts as many more. Raises PoolError, and counts as before."""
        self._memory.admit(size, self.model, self.client)
        self.size += size

    def belong(self, model: str) -> None:
        """It is this model's. Raises PoolError, and counts as before."""
        if model != self.model:
            counted = self._memory._count(model, self.client, self.size)  # noqa: SLF001  one class in two
            self._memory._discount(self.model, self.client, self.size)  # noqa: SLF001
            self.model = counted

    def share(self, holders: int) -> None:
        """So many will release it."""
        self._holders = holders

    def release(self) -> None:
        """Of those that hold it one does no more. Once more than there are holders does nothing."""
        self._holders -= 1
        if self._holders > 0:
            return
        self._memory._release(self.model, self.client, self.size)  # noqa: SLF001
        self.size = 0


def _never(size: int, limit: str, limit_bytes: int) -> PoolError:
    text = f"The request has {size} bytes and {limit} is {limit_bytes}: make it smaller, or raise that"
    return PoolError(Code.RESOURCE_EXHAUSTED, text, Lack.BYTES)


def _named(model: str | None) -> str:
    if model is None:
        return "any model"
    return model or "models that their first bytes do not name"
