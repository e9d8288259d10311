"""One run, remembered with its result: what all stores of runs share."""

import json
from abc import ABC, abstractmethod
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
        """The result of the run; None until it is set."""
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
        """The result as JSON. From now on ``result`` is what a later attempt will get, a list where it was a tuple."""
        try:
            text = json.dumps(self._result, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"the result of run {self.id!r} cannot be kept as JSON: {error}; keep its plain facts"
            ) from error
        self._result = json.loads(text)
        return text


R = TypeVar("R", bound=Run)


class Attempt(ABC, Generic[R]):
    """What a store of runs does before and after the effect of one attempt."""

    run: R
    is_async: bool

    @abstractmethod
    async def begin(self) -> None:
        """Find out whether the run was made before."""

    @abstractmethod
    async def end(self, cause: tuple[Any, Any, Any]) -> None:
        """Remember the run together with its effect, unless the block raised."""


class Block(Generic[R]):
    """A ``with`` block around one run."""

    def __init__(self, attempt: Attempt[R]) -> None:
        if attempt.is_async:
            raise ConfigError("this connection is asyncio's; use fencepost.once.aio")
        self._attempt = attempt

    def __enter__(self) -> R:
        run(self._attempt.begin())
        return self._attempt.run

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run(self._attempt.end((kind, error, trace)))


class AsyncBlock(Generic[R]):
    """An ``async with`` block around one run."""

    def __init__(self, attempt: Attempt[R]) -> None:
        if not attempt.is_async:
            raise ConfigError("this connection blocks, and is not for asyncio; use fencepost.once")
        self._attempt = attempt

    async def __aenter__(self) -> R:
        await self._attempt.begin()
        return self._attempt.run

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._attempt.end((kind, error, trace))
