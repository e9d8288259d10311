"""One run, remembered with its result: what every kind of memory has in common."""

import json
from types import TracebackType
from typing import Any, Generic, TypeVar

from fencepost import check
from fencepost.driver import run
from fencepost.errors import ConfigError


class Run:
    """An attempt at a run that is to happen once.

    ``done`` says whether an earlier attempt made it; then ``result`` is what that one left, and the effect must not
    be made again. If not, make the effect and set ``result`` to anything that JSON can carry.
    """

    def __init__(self, id: str) -> None:
        self.id = check.name(id, "run id")
        self.done = False
        self._result: Any = None

    @property
    def result(self) -> Any:
        """What the run came to; None until it is set."""
        return self._result

    @result.setter
    def result(self, value: Any) -> None:
        if self.done:
            raise ConfigError(f"run {self.id!r} was made before, and keeps its result; look at run.done first")
        self._result = value

    def _recall(self, text: str) -> None:
        self.done = True
        self._result = json.loads(text)

    def _told(self) -> str:
        """The result as it is kept; from now on it is the same to who set it, a list where it was a tuple."""
        try:
            text = json.dumps(self._result, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"the result of run {self.id!r} cannot be kept as JSON: {error}; keep its plain facts"
            ) from error
        self._result = json.loads(text)
        return text


R = TypeVar("R", bound=Run)


class Block(Generic[R]):
    """A ``with`` block around one run; ``async with`` for asyncio connections and clients."""

    _run: R
    _async: bool

    async def _begin(self) -> None:
        raise NotImplementedError

    async def _end(self, cause: tuple[Any, Any, Any]) -> None:
        raise NotImplementedError

    def __enter__(self) -> R:
        if self._async:
            raise ConfigError("this connection is asyncio's; use 'async with'")
        run(self._begin())
        return self._run

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run(self._end((kind, error, trace)))

    async def __aenter__(self) -> R:
        if not self._async:
            raise ConfigError("this connection blocks; use 'with'")
        await self._begin()
        return self._run

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end((kind, error, trace))
