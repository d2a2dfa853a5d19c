"""The body of an HTTP request, which may come now, and has to come at a rate."""

from __future__ import annotations

import asyncio
from io import BytesIO

from aiohttp import web

from mpspool.core.errors import Code, PoolError
from mpspool.router.fronts.rest_listener import STALL_S, least_of
from mpspool.router.memory import Admission
from mpspool.router.relief import made_way


class Body:
    """What has come of it.

    Args:
        request: whose.
        max_bytes: that it may have.

    Attributes:
        declared: bytes that it announces; 0 where nobody has said its length.

    Raises:
        PoolError: what it announces is no length.
    """

    def __init__(self, request: web.Request, max_bytes: int) -> None:
        self._request = request
        self._max_bytes = max_bytes
        self.declared = _length_of(request)
        self._least = self._due = least_of(self.declared)
        self._admission: Admission | None = None
        self._limit: asyncio.Timeout | None = None
        self._made_way = False
        # It grows in place: putting a long body together at its end would hold up all others.
        self._come = BytesIO()

    def check_size(self, size: int) -> None:
        """Raises PoolError where that is more than it may have."""
        if size > self._max_bytes:
            text = f"SERVER: Received message larger than max ({size} vs. {self._max_bytes})"
            raise PoolError(Code.RESOURCE_EXHAUSTED, text)

    async def read(self, size: float, admission: Admission | None = None) -> None:
        """Until so much, or all of it, is there.

        Args:
            size: bytes.
            admission: of one whose length nobody has said: it grows by what comes.

        Raises:
            PoolError: it is too large, does not come, or does not come as HTTP.
        """
        come, content = self._come, self._request.content
        self._admission = admission
        try:
            async with asyncio.timeout(STALL_S) as limit:
                self._limit = limit
                while come.tell() < size and (part := await content.readany()):
                    come.write(part)
                    if admission is not None and self._request.content_length is None:
                        self.check_size(come.tell())
                        admission.grow(len(part))
                    if come.tell() >= self._due:
                        self._due = come.tell() + self._least
                        limit.reschedule(asyncio.get_running_loop().time() + STALL_S)
            if isinstance(error := content.exception(), web.RequestPayloadError):
                raise error  # which ended it
        except TimeoutError:
            if self._made_way:
                raise made_way() from None
            text = f"Nothing of the request came for {STALL_S:g} s, or too little"
            raise PoolError(Code.DEADLINE_EXCEEDED, text) from None
        except web.RequestPayloadError as error:
            text = f"The request is no HTTP: {' '.join(str(error).split())}"
            raise PoolError(Code.INVALID_ARGUMENT, text) from None
        if self._made_way:
            raise made_way()

    def holds(self, model: str | None) -> int:
        return self._admission.held(model) if self._admission is not None else 0

    def moved(self) -> int:
        return self._come.tell()

    def missing(self) -> int:
        return max(0, self.declared - self._come.tell())

    def make_way(self) -> None:
        assert self._admission is not None
        assert self._limit is not None
        self._made_way = True
        self._admission.release()
        if not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())

    def whole(self) -> bytes:
        """All of it, once it is there."""
        return self._come.getvalue()


def _length_of(request: web.Request) -> int:
    """What it announces; 0 where it announces nothing. Raises PoolError."""
    try:
        return request.content_length or 0
    except ValueError:  # more digits than Python converts
        raise PoolError(Code.INVALID_ARGUMENT, "The Content-Length is no length") from None
