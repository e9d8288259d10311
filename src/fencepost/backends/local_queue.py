"""The waiters of one process, first come, first served; only the first of each queue asks the store."""

import threading

from fencepost.driver import Signal, abandoned


class Lines:
    """One line for each name that somebody waits for."""

    def __init__(self) -> None:
        self._gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside
        self._lines: dict[str, dict[str, Signal]] = {}

    def busy(self, name: str) -> bool:
        """Whether somebody waits already."""
        if name not in self._lines:
            return False
        with self._gate:
            self._skip_abandoned(name)
            return name in self._lines

    def join(self, name: str, holder: str, limit: int, signal: Signal) -> bool:
        """Take the last place; False if ``limit`` wait already."""
        with self._gate:
            self._skip_abandoned(name)
            line = self._lines.get(name, {})
            if len(line) >= limit:
                return False
            self._lines.setdefault(name, line).setdefault(holder, signal)
            return True

    def await_turn(self, name: str, holder: str, signal: Signal) -> Signal:
        """Have ``signal`` set when this holder's turn comes; it joins if it is not in line."""
        with self._gate:
            self._lines.setdefault(name, {})[holder] = signal
        return signal

    def first(self, name: str, holder: str) -> bool:
        with self._gate:
            self._skip_abandoned(name)
            return next(iter(self._lines[name])) == holder

    def leave(self, name: str, holder: str) -> None:
        """Leave the queue, and wake the new first."""
        with self._gate:
            line = self._lines.get(name)
            if line is None or holder not in line:
                return
            del line[holder]
            if not line:
                del self._lines[name]
            else:
                next(iter(line.values())).set()

    def _skip_abandoned(self, name: str) -> None:
        """Forget those whose event loop was closed: nobody can wake them, and they leave nothing."""
        line = self._lines.get(name, {})
        for holder in [holder for holder, signal in line.items() if abandoned(signal)]:
            self.leave(name, holder)
