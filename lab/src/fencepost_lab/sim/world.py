"""Virtual time, and the machines that live in it: each with its own clock, paused, killed and restarted at will.

Nothing here is random but ``World.rng``, and nothing reads a real clock: the same calls in the same
order give the same world.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

from fencepost.errors import ConfigError

MAX_STEPS = 300_000
_TICK = 1e-6  # the shortest nap: a timer that rounding woke too early must not spin in place


class World:
    """What happens when: calls on machines, in the order of their instants.

    Calls due at the same instant come first come, first served; with ``shuffle`` the seed decides.
    """

    def __init__(self, seed: int, *, shuffle: bool = False) -> None:
        self.now = 0.0
        self.rng = Random(seed)
        self.trace: list[dict[str, Any]] = []
        self._shuffle = shuffle
        self._queue: list[tuple[float, float, int, Node | None, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def tell(self, ev: str, **facts: Any) -> dict[str, Any]:
        """Add a line to the trace."""
        line = {"t": round(self.now, 6), "ev": ev, **facts}
        self.trace.append(line)
        return line

    def at(self, instant: float, node: "Node | None", call: Callable[..., None], *args: Any) -> None:
        """Make a call at an instant: on ``node``, unless it has died since, and once it is not paused."""
        self._count += 1
        tie = self.rng.random() if self._shuffle else 0.0
        life = 0 if node is None else node.life
        heappush(self._queue, (max(instant, self.now), tie, self._count, node, life, call, args))

    def plan(self, instant: float, call: Callable[..., None], *args: Any) -> None:
        """Make a call at an instant, before all else that is due then; what comes earlier does not notice."""
        self._count += 1
        heappush(self._queue, (max(instant, self.now), -1.0, self._count, None, 0, call, args))

    def run(self, until: float, steps: int | None = None) -> None:
        """Let everything happen that is due up to ``until``; ConfigError if it takes more steps than MAX_STEPS."""
        queue = self._queue
        steps = MAX_STEPS if steps is None else steps
        for _ in range(steps):
            if not queue or queue[0][0] > until:
                self.now = until
                return
            self.now, _, _, node, life, call, args = heappop(queue)
            if node is None:
                call(*args)
            elif node.up and node.life == life:
                node.perform(call, args)
        raise ConfigError(f"this scenario takes more than {steps} steps; shorten it")


class Node:
    """A machine or process. Paused, it computes nothing while its sockets receive and its clock goes on."""

    def __init__(self, world: World, name: str, *, offset: float = 0.0, rate: float = 1.0) -> None:
        self.world = world
        self.name = name
        self.life = 1
        """Counts its lives; what was planned in an earlier one never happens."""
        self.up = True
        self.paused = False
        self.shift = 0.0
        """How far its wall clock was jumped; its monotonic clock never jumps."""
        self.rate = rate
        self._local = offset
        self._since = 0.0
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._foreground: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def clock(self) -> float:
        """The monotonic clock of this machine."""
        return self._local + (self.world.now - self._since) * self.rate

    def wall(self) -> float:
        """The wall clock of this machine."""
        return self.clock() + self.shift

    def instant(self, clock: float) -> float:
        """The true instant at which the monotonic clock reads ``clock``, if its rate stays."""
        return self._since + (clock - self._local) / self.rate

    def skew(self, rate: float) -> None:
        """Let its clocks run at another rate from now on."""
        self._local, self._since, self.rate = self.clock(), self.world.now, rate

    def after(self, seconds: float, call: Callable[..., None], *args: Any) -> None:
        """Make a call once this machine's clock has advanced by ``seconds``."""
        self.world.at(self.world.now + max(seconds, _TICK) / self.rate, self, call, *args)

    def soon(self, call: Callable[..., None], *args: Any) -> None:
        """Make a call at this very instant, after what is being done."""
        self.world.at(self.world.now, self, call, *args)

    def perform(self, call: Callable[..., None], args: tuple[Any, ...], *, foreground: bool = False) -> None:
        """Make a call that is due, now or when the pause ends; what was in the foreground then comes first."""
        if self.paused:
            (self._foreground if foreground else self._backlog).append((call, args))
        else:
            call(*args)

    def pause(self) -> None:
        """Stop computing."""
        self.paused = True

    def resume(self) -> None:
        """Go on: with what was about to run when the pause began, then with all that came since."""
        self.paused = False
        foreground, self._foreground = self._foreground, []
        backlog, self._backlog = self._backlog, []
        for call, args in foreground:
            self.soon(call, *args)
        for call, args in backlog:
            self.after(_TICK, call, *args)

    def kill(self) -> None:
        """Die at once: nothing planned happens any more."""
        self.up = self.paused = False
        self.life += 1
        self._backlog.clear()
        self._foreground.clear()

    def restart(self) -> None:
        """Live again, with empty memory."""
        self.life += 1  # what the dying one still planned must not reach this one
        self.up = True
