"""The pause between two attempts."""

from collections.abc import Callable


class Backoff:
    """Pauses that begin with ``first`` seconds and grow by ``factor`` up to ``longest``.

    With ``jitter`` each is multiplied by a random factor from 0.5 to 1.5, so that clients that collided do not collide
    again.
    """

    __slots__ = ("_factor", "_first", "_jitter", "_longest", "pause")

    def __init__(self, first: float, longest: float, *, factor: float = 2.0, jitter: bool = False) -> None:
        self._first = first
        self._longest = longest
        self._factor = factor
        self._jitter: Callable[[float, float], float] | None = None
        if jitter:
            # Import it now: when it is needed, the process may be out of file descriptors and unable to import.
            from random import uniform

            self._jitter = uniform
        self.pause = first
        """The next pause, before jitter."""

    def next(self) -> float:
        """The pause to make now; the one after it is longer, up to ``longest``."""
        pause = self.pause
        self.pause = min(pause * self._factor, self._longest)
        return pause if self._jitter is None else pause * self._jitter(0.5, 1.5)

    def reset(self) -> None:
        """Begin with ``first`` again: the last attempt succeeded."""
        self.pause = self._first
