"""Locks among greenlets: ``python -m tests.programs.in_greenlets gevent|eventlet URL NAME TTL``.

It ends with status 0 if all greenlets did what they should, and none of them stopped the others.
"""

import sys
import warnings

KIND = sys.argv[1]
if KIND == "gevent":
    from gevent import Timeout, kill, monkey, sleep, spawn

    monkey.patch_all()
else:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that nobody should begin with eventlet today
        import eventlet
        from eventlet import Timeout, kill, sleep, spawn

        eventlet.monkey_patch()

import os  # noqa: E402
import traceback  # noqa: E402
from collections.abc import Callable  # noqa: E402
from typing import NoReturn  # noqa: E402

import fencepost  # noqa: E402
from fencepost import sync  # noqa: E402


class Ticks:
    """A greenlet that runs whenever the others wait."""

    def __init__(self) -> None:
        self.count = 0
        spawn(self._tick)

    def _tick(self) -> None:
        while True:
            self.count += 1
            sleep(0.005)

    def during(self, call: Callable[[], object]) -> object:
        before = self.count
        done = call()
        assert self.count > before, "others ran meanwhile"
        return done


def until(condition: Callable[[], object], what: str) -> None:
    with Timeout(60, AssertionError(f"still not so after 60 s: {what}")):
        while not condition():
            sleep(0.01)


def waiting(locks: sync.Locks) -> int:
    return len(locks._core._waits._inside)


def main(url: str, name: str, ttl: float) -> None:
    ticks = Ticks()
    with fencepost.connect(url, ttl=3 * ttl) as locks, fencepost.connect(url, ttl=3 * ttl) as others:
        assert locks.acquire(name).release()
        held = others.acquire(name)
        served: list[int] = []

        def work() -> None:
            with locks.lock(name) as lease:
                served.append(lease.token)
                sleep(0.02)

        for _ in range(3):
            spawn(work)
        until(lambda: waiting(locks) == 3, "three wait")
        seen = held.deadline
        ticks.during(lambda: until(lambda: held.deadline > seen, "it is renewed"))
        assert held.release()
        ticks.during(lambda: until(lambda: len(served) == 3, "each is served"))
        assert served == sorted(served)
        assert served[0] > held.token

        # What ends a wait leaves nothing behind: a timeout of the library's own, and the end of a greenlet.
        held = others.acquire(name)
        with Timeout(0.5, False):
            locks.acquire(name)
            raise AssertionError("it was to be ended")
        ended = spawn(locks.acquire, name)
        until(lambda: waiting(locks) == 1, "it waits")
        kill(ended)
        until(lambda: waiting(locks) == 0, "it does not wait any more")
        assert held.release()
        assert others.acquire(name, timeout=60).release(), "nobody stands in the way"

        short = locks.acquire(name, ttl=ttl, renew=False)
        assert ticks.during(lambda: short.ended.wait(10 * ttl)), "its loss is told"
        assert short.lost

        held = locks.acquire(name, timeout=60)
        pid = os.fork()
        if pid == 0:
            in_child(locks, held)
        assert os.waitpid(pid, 0)[1] == 0, "the child did what it should"
        assert held.release(), "it stayed the parent's"


def in_child(locks: sync.Locks, held: sync.Lease) -> NoReturn:
    """A forked child has connections of its own, and none of its parent's leases."""
    status = 1
    try:
        if KIND == "eventlet":
            eventlet.hubs.use_hub()  # it does not do so itself, and would share its parent's
        assert held.lost
        assert locks.acquire(f"{held.name}-child", timeout=60).release()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    main(sys.argv[2], sys.argv[3], float(sys.argv[4]))
