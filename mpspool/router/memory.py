"""The bound on bytes: requests that are read, wait or run, and answers that wait for their clients. Pure."""

from __future__ import annotations

from collections import defaultdict

from mpspool.core.errors import Code, PoolError


class Memory:
    """Counts bytes, in all and for each model.

    Args:
        limit_bytes: more is refused to requests. An answer is counted all the same: it is there already.

    Attributes:
        used: bytes counted now.
        limits: of the requests of one model, by its name; without one the limit of all holds.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used = 0
        self.limits: dict[str, int] = {}
        self._by_model: defaultdict[str, int] = defaultdict(int)

    def hold(self, size: int) -> None:
        """Counts what is there, whatever the limit; fewer for a negative size."""
        self.used += size

    def admit_any(self, size: int, _start: bytes) -> Admission:
        """admit(), for methods that do not look at the message."""
        return self.admit(size)

    def admit(self, size: int, model: str = "") -> Admission:
        """Counts a request's bytes until its admission is released.

        Args:
            size: of the request.
            model: whose it is; "" where that is not known yet.

        Raises:
            PoolError: RESOURCE_EXHAUSTED.
        """
        if self.used + size > self.limit_bytes:
            raise PoolError(
                Code.RESOURCE_EXHAUSTED,
                f"Requests and answers hold {self.used} of {self.limit_bytes} bytes and this one has {size}; "
                "try again later, or raise max_queued_bytes",
            )
        counted = self._count(model, size)
        self.used += size
        return Admission(self, size, counted)

    def _count(self, model: str, size: int) -> str:
        """Counts it for a model that has a limit, which nobody can make up; "" for any other."""
        limit = self.limits.get(model)
        if limit is None:
            return ""
        used = self._by_model[model]
        if used + size > limit:
            raise PoolError(
                Code.RESOURCE_EXHAUSTED,
                f"Requests for {model} hold {used} of its {limit} bytes and this one has {size}; "
                "try again later, or raise the model's max_queued_bytes",
            )
        self._by_model[model] = used + size
        return model

    def _discount(self, model: str, size: int) -> None:
        if model:
            self._by_model[model] -= size


class Admission:
    """Bytes that count until all that hold them have released them.

    Attributes:
        model: whose limit they count against, too; "" for nobody's.
        size: how many they are; 0 once they are released.
    """

    __slots__ = ("_holders", "_memory", "model", "size")

    def __init__(self, memory: Memory, size: int, model: str) -> None:
        self._memory = memory
        self._holders = 1
        self.size = size
        self.model = model

    def grow(self, size: int) -> None:
        """Counts as many more. Raises PoolError, and counts as before."""
        self._memory.admit(size, self.model)
        self.size += size

    def belong(self, model: str) -> None:
        """It is this model's. Raises PoolError, and counts as before."""
        if model != self.model:
            counted = self._memory._count(model, self.size)  # noqa: SLF001  one class in two
            self._memory._discount(self.model, self.size)  # noqa: SLF001
            self.model = counted

    def share(self, holders: int) -> None:
        """So many will release it."""
        self._holders = holders

    def release(self) -> None:
        """Of those that hold it one does no more. Once more than there are holders does nothing."""
        self._holders -= 1
        if self._holders > 0:
            return
        self._memory.used -= self.size
        self._memory._discount(self.model, self.size)  # noqa: SLF001
        self.size = 0
