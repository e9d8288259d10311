"""Blocking code that runs out of memory at a chosen call. For ``@isolated`` tests."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import fencepost

_PRODUCT = str(Path(fencepost.__file__).parent)
# What undoes, at its very first step: Python code cannot free a lock there. And what is raised where Python drops it:
# in __del__, in a generator that is closed because nobody asks it for more, and in a finalizer.
_SPARED = {"__exit__", "see_through", "__del__", "<genexpr>"}
_FINALIZER = weakref.finalize.__call__.__code__


class OutOfMemory:
    """Raises MemoryError instead of the n-th call, on this thread, of a function of fencepost's, once."""

    def __init__(self, at: int) -> None:
        self._left = at
        self.raised = False

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        if code.co_filename.startswith(_PRODUCT) and code.co_name not in _SPARED:
            if self._left == 1 and _finalizes(frame):
                return None
            self._left -= 1
            if self._left == 0:
                self.raised = True
                raise MemoryError
        return None

    def run(self, call: Callable[[], object]) -> None:
        """Make the call; what it raises is raised, but for this MemoryError."""
        sys.settrace(self._trace)
        try:
            call()
        except MemoryError:
            if not self.raised:
                raise
        finally:
            sys.settrace(None)


def _finalizes(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code is not _FINALIZER:
        frame = frame.f_back
    return frame is not None
