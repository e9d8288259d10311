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
# Spare the first step of code that undoes something: Python code cannot free a lock there. And spare code whose errors
# Python drops: __del__, a generator that is closed before its end, and a finalizer.
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
        """Make the call; its errors are raised, except this MemoryError."""
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
