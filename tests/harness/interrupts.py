"""Interrupt blocking code at chosen moments: at every place where Python runs signal handlers, or at random times."""

from __future__ import annotations

import _weakrefset
import dis
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from fencepost.driver import interrupts

CALLS = {"CALL", "CALL_FUNCTION_EX", "CALL_KW"}


class Interrupter:
    """Sends SIGINT at the n-th place of a call where Python would run a signal handler.

    Those are: where a function begins, where a loop jumps back, and after a call of something written in C; on Python
    3.11 also after every call with ``*args`` or ``**options``.
    """

    def __init__(self, at: int) -> None:
        self.at = at
        self.places = 0
        self.sent = False
        self._instructions: dict[CodeType, dict[int, str]] = {}
        self._after_call: FrameType | None = None
        self._after_ex: set[FrameType] = set()

    def _name(self, frame: FrameType) -> str:
        code = frame.f_code
        if code not in self._instructions:
            self._instructions[code] = {each.offset: each.opname for each in dis.get_instructions(code)}
        return self._instructions[code].get(frame.f_lasti, "")

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "call":
            if frame.f_code.co_filename in (__file__, _weakrefset.__file__):
                return None  # Python prints and drops what a weak reference's callback raises
            frame.f_trace = self._trace  # first, or Python 3.13 traces no opcode of this frame
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
            self._after_call = None
            return self._trace
        if event == "opcode":
            name = self._name(frame)
            after = frame is self._after_call or frame in self._after_ex
            self._after_ex.discard(frame)
            if after or name == "RESUME" or name.startswith("JUMP_BACKWARD"):
                if self.places == self.at:
                    self.sent = True
                    sys.settrace(None)
                    os.kill(os.getpid(), signal.SIGINT)
                self.places += 1
            self._after_call = frame if name in CALLS else None
            if name == "CALL_FUNCTION_EX" and sys.version_info < (3, 12):
                self._after_ex.add(frame)
        return self._trace

    def run(self, call: Callable[[], Any]) -> Any:
        sys._getframe().f_trace_opcodes = True  # or Python 3.12 traces no opcode in the frames to come
        sys.settrace(self._trace)
        try:
            return call()
        finally:
            sys.settrace(None)


def innermost(error: BaseException) -> CodeType:
    """The code that an interrupt hit; fencepost's own handler, which may still be installed, does not count."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    return [code for code in codes if code.co_filename != __file__ and code is not interrupts._defer.__code__][-1]


def at_random(call: Callable[[], Any], longest: float, dice: random.Random) -> Any:
    """Make the call, and send SIGINT to this process within ``longest`` seconds; wait for the sender either way."""

    def send() -> None:
        time.sleep(dice.uniform(0, longest))
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        return call()
    finally:
        while sender.is_alive():  # a late interrupt comes in here
            try:
                sender.join(0.01)
                time.sleep(0.001)
            except KeyboardInterrupt:
                pass
