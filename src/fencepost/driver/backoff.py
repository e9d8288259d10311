"""The pause between one try and the next."""

from collections.abc import Callable


class Backoff:
    """Pauses that begin with ``first`` seconds and grow by ``factor`` up to ``longest``.

    With ``jitter`` each is between half of that and one and a half, so that two who collided do not meet again.
    """

    __slots__ = ("_factor", "_first", "_jitter", "_longest", "pause")

    def __init__(self, first: float, longest: float, *, factor: float = 2.0, jitter: bool = False) -> None:
        self._first = first
        self._longest = longest
        self._factor = factor
        self._jitter: Callable[[float, float], float] | None = None
        if jitter:
            # Now, and not when it is needed: a process that is out of descriptors by then can import nothing.
            from random import uniform

            self._jitter = uniform
        self.pause = first
        """The next one, before jitter."""

    def next(self) -> float:
        """The pause to make now; the one after it is longer."""
        pause = self.pause
        self.pause = min(pause * self._factor, self._longest)
        return pause if self._jitter is None else pause * self._jitter(0.5, 1.5)

    def reset(self) -> None:
        """Begin with the first again: the last try went well."""
        self.pause = self._first
