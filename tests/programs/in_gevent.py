"""Locks in a program that gevent has patched: ``python -m tests.programs.in_gevent URL NAME TTL``.

It ends with status 0 if all greenlets did what they should, and none of them stopped the others.
"""

from gevent import monkey

monkey.patch_all()

import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402

import gevent  # noqa: E402

import fencepost  # noqa: E402
from fencepost import sync  # noqa: E402


class Ticks:
    """A greenlet that runs whenever the others wait."""

    def __init__(self) -> None:
        self.count = 0
        gevent.spawn(self._tick)

    def _tick(self) -> None:
        while True:
            self.count += 1
            gevent.sleep(0.005)

    def during(self, call: Callable[[], object]) -> object:
        before = self.count
        done = call()
        assert self.count > before + 3, "others ran meanwhile"
        return done


def until(condition: Callable[[], object], what: str) -> None:
    with gevent.Timeout(60, AssertionError(f"still not so after 60 s: {what}")):
        while not condition():
            gevent.sleep(0.01)


def waiting(locks: sync.Locks) -> int:
    return len(locks._core._waits._inside)


def main(url: str, name: str, ttl: float) -> None:
    ticks = Ticks()
    with fencepost.connect(url, ttl=ttl) as locks, fencepost.connect(url, ttl=ttl) as others:
        assert locks.acquire(name).release()
        held = others.acquire(name)
        served: list[int] = []

        def work() -> None:
            with locks.lock(name) as lease:
                served.append(lease.token)
                gevent.sleep(0.02)

        crowd = [gevent.spawn(work) for _ in range(3)]
        until(lambda: waiting(locks) == 3, "three wait")
        ticks.during(lambda: gevent.sleep(1.3 * ttl))
        assert not held.lost, "it was renewed past its ttl"
        assert held.release()
        ticks.during(lambda: gevent.joinall(crowd, timeout=60, raise_error=True))
        assert len(served) == 3
        assert served == sorted(served)
        assert served[0] > held.token

        # What ends a wait leaves nothing behind: a timeout of gevent's, and the end of a greenlet.
        held = others.acquire(name)
        with gevent.Timeout(0.5, False):
            locks.acquire(name)
            raise AssertionError("it was to be ended")
        ended = gevent.spawn(locks.acquire, name)
        until(lambda: waiting(locks) == 1, "it waits")
        ended.kill()
        until(lambda: waiting(locks) == 0, "it does not wait any more")
        assert held.release()
        assert others.acquire(name, timeout=60).release(), "nobody stands in the way"

        short = locks.acquire(name, renew=False)
        assert ticks.during(lambda: short.ended.wait(10 * ttl)), "its loss is told"
        assert short.lost


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
