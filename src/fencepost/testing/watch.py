"""Locks that know which of their leases are still held, and where each was acquired."""

import asyncio
import os
import sys
import threading
from types import FrameType
from typing import Any, TypeVar

from fencepost.lease import BaseLease
from fencepost.locks import Core

L = TypeVar("L", bound=BaseLease)

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_BETWEEN = {"asyncio", "contextlib", "contextvars", "functools", "threading", "concurrent"}
"""Modules whose frames may lie between an acquire and the code that asked for it."""
_CROWD = 1000


class WatchedCore(Core[L]):
    """A core that keeps a reference to its leases: a lease that the test has dropped is still held."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._places: dict[L, str] = {}
        self._crowd = _CROWD

    async def acquire(self, name: str, **options: Any) -> L | None:
        lease = await super().acquire(name, **options)
        if lease is not None:
            if len(self._places) >= self._crowd:
                self._places = {each: place for each, place in self._places.items() if each.reason is None}
                self._crowd = max(_CROWD, 2 * len(self._places))
            self._places[lease] = _place()
        return lease

    def exempt(self, lease: L) -> None:
        """Do not ask for the release of a lease that the test did not acquire itself."""
        self._places[lease] = ""

    def unreleased(self) -> list[str]:
        """One line for each lease that is still held: its lock, its token, and where it was acquired."""
        return [
            f"{lease.name!r} (token {lease.token}), acquired {place}"
            for lease, place in list(self._places.items())
            if place and lease.reason is None
        ]

    def check_released(self) -> None:
        """AssertionError if a lease is still held."""
        __tracebackhide__ = True
        if held := self.unreleased():
            leases = "a lease was" if len(held) == 1 else f"{len(held)} leases were"
            lines = "\n".join(f"  {each}" for each in held)
            raise AssertionError(f"{leases} not released:\n{lines}\nuse 'with locks.lock(...)', or release() each")


def _place() -> str:
    """The line that acquires, in the first file around here that is not ours."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    outermost = getattr(task.get_coro(), "cr_frame", None) if task else None  # below it, the event loop runs
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code, module = frame.f_code, str(frame.f_globals.get("__name__", ""))
        if not code.co_filename.startswith(_OURS) and module.partition(".")[0] not in _BETWEEN:
            return f"at {_shown(code.co_filename)}:{frame.f_lineno} in {code.co_name}"
        frame = None if frame is outermost else frame.f_back
    return f"in task {task.get_name()!r}" if task else f"on thread {threading.current_thread().name!r}"


def _shown(path: str) -> str:
    """A path as people like to read it: below the working directory, without that."""
    try:
        here = os.getcwd() + os.sep
    except OSError:  # it was removed
        return path
    return path.removeprefix(here)
