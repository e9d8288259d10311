"""Ctrl-C in a blocking program: only KeyboardInterrupt comes out, and nothing stays behind in the store.

Each test is a process of its own, and it is that process which is interrupted.
"""

import os
import random
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count

import pytest

import fencepost
from fencepost import sync
from fencepost.errors import NotAcquired
from tests import FUZZ
from tests.conformance.store import Store
from tests.harness.interrupts import Interrupter, at_random, innermost
from tests.harness.isolated import isolated
from tests.harness.threads import background
from tests.harness.waiting import PATIENCE, until

pytestmark = pytest.mark.only("blocking")

RANDOM = int(os.environ.get("FENCEPOST_INTERRUPTS", "24"))
"""How many interrupts at random moments must hit; 500 in `make torment`."""


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def nothing_left(locks: sync.Locks, name: str) -> None:
    assert locks.status(name) is None
    lease = locks.try_acquire(name)
    assert lease is not None
    assert lease.release()


@isolated
def test_a_waiter_that_is_interrupted_leaves_nothing(store: Store) -> None:
    with fencepost.connect(store.url, ttl=store.long) as here, fencepost.connect(store.url, ttl=store.long) as there:
        holder = here.acquire(store.name)
        asking = threading.Event()

        def queued() -> bool:
            status = here.status(store.name)
            assert status is not None
            return bool(status.waiters) or not store.promises.fair

        def watch() -> None:
            assert asking.wait(PATIENCE)
            until(queued, "a waiter")
            press()

        watcher = background(watch)

        def ask() -> None:
            asking.set()
            there.acquire(store.name, timeout=store.long)

        with pytest.raises(KeyboardInterrupt):
            ask()
        watcher.result()

        def left() -> bool:
            status = here.status(store.name)
            assert status is not None
            assert status.holder == holder.holder
            return status.waiters == ()

        until(left, "it has left the line")
        assert holder.release()
        nothing_left(there, store.name)


@isolated
def test_an_interrupted_block_releases(store: Store) -> None:
    with fencepost.connect(store.url, ttl=store.long) as locks:

        def work() -> None:
            with locks.lock(store.name) as lease:
                press()
                lease.ended.wait(store.patience)

        with pytest.raises(KeyboardInterrupt):
            work()
        nothing_left(locks, store.name)


class Victim:
    """The calls that are interrupted: a free lock, a block, a renewal, a release, a wait, a hand-over."""

    def __init__(self, store: Store, locks: sync.Locks, other: sync.Locks) -> None:
        self.name, self.taken = store.name, f"{store.prefix}/taken"
        self.locks, self.other = locks, other
        self.lock = locks.lock(self.name)
        self.lease: sync.Lease | None = None

    @property
    def calls(self) -> dict[str, Callable[[], object]]:
        return {
            "acquire": self.acquire,
            "lock": self.lock_,
            "try": self.try_,
            "block": self.block,
            "renew": self.renew,
            "release": self.release,
            "wait": self.wait,
            "hand-over": self.hand_over,
        }

    def prepare(self, call: str) -> None:
        if call in ("renew", "release"):
            self.lease = self.locks.acquire(self.name)

    def acquire(self) -> None:
        self.lease = self.locks.acquire(self.name)

    def lock_(self) -> None:
        self.lease = self.lock.acquire()

    def try_(self) -> None:
        self.lease = self.lock.try_acquire()

    def block(self) -> None:
        with self.lock:
            pass

    def renew(self) -> None:
        assert self.lease is not None
        self.lease.renew()

    def release(self) -> None:
        assert self.lease is not None
        self.lease.release()

    def wait(self) -> None:
        with suppress(NotAcquired):
            self.locks.acquire(self.taken, timeout=0.05)

    def hand_over(self) -> None:
        """Wait for a lock that is released meanwhile."""
        self.lease = self.locks.acquire(self.name, timeout=60)

    def tidy(self) -> None:
        """Release what a call returned before the interrupt came: that is the caller's own."""
        if self.lease is not None:
            self.lease.release()
            self.lease = None


CLEANED = 20.0
"""Seconds for a clean-up; far less than a ttl here, which would free the lock too."""


def trial(victim: Victim, call: str, interrupted: Callable[[Callable[[], object]], object]) -> str:
    """Interrupt one call; what came out of it. The store must be as before."""
    victim.prepare(call)
    releasing = None
    if call == "hand-over":
        held = victim.other.acquire(victim.name)

        def release() -> bool:
            time.sleep(0.01)
            return held.release()

        releasing = background(release)
    try:
        interrupted(victim.calls[call])
        outcome, where = "nothing", ""
    except KeyboardInterrupt as error:
        outcome, where = "interrupted", "".join(traceback.format_exception(error))
        if innermost(error) is sync.Lock.__exit__.__code__ and victim.lock._held:
            # Python's own gap, which no context manager written in Python can close: between the end of a block and
            # the first step of its __exit__. The lease stays until its lock is dropped, and then for its ttl.
            victim.lock.__exit__(None, None, None)
    if releasing is not None:
        releasing.result()
    victim.tidy()
    status = victim.other.status(victim.taken)
    assert status is not None, f"after {call}: the other holder's lock is gone; {where}"

    def waiters() -> bool:
        status = victim.other.status(victim.taken)
        return status is not None and status.waiters == ()

    # At once, but for a store that does not answer in time: then the clean-up goes on in the background.
    until(waiters, f"after {call}: no waiter stays behind; {where}", deadline=CLEANED)
    until(
        lambda: victim.other.status(victim.name) is None, f"after {call}: the lock is free; {where}", deadline=CLEANED
    )
    return outcome


def still_works(store: Store, locks: sync.Locks) -> None:
    """Whatever was interrupted, the background services go on: a lease is renewed past its ttl, a waiter is served."""
    lease = locks.acquire(store.name, ttl=store.kept)
    first = lease.deadline
    until(lambda: lease.deadline > first, "a renewal")
    waiter = background(lambda: locks.acquire(store.name, timeout=60).release())
    assert lease.release()
    assert waiter.result()
    nothing_left(locks, store.name)


@pytest.mark.slow
@isolated
def test_interrupts_at_random_moments_leave_nothing(store: Store) -> None:
    dice = random.Random(13)
    came: Counter[str] = Counter()
    with fencepost.connect(store.url, ttl=store.long) as other:
        other.acquire(f"{store.prefix}/taken")
        with fencepost.connect(store.url, ttl=store.long) as locks:
            victim = Victim(store, locks, other)
            calls = list(victim.calls)
            longest = {}
            for call in calls:
                start = time.monotonic()
                trial(victim, call, lambda job: job())
                longest[call] = 1.3 * (time.monotonic() - start)
            for number in count():
                if came["interrupted"] >= RANDOM:
                    break
                assert number < 20 * RANDOM, f"too few interrupts hit: {came}"
                call = calls[number % len(calls)]
                came[trial(victim, call, lambda job, most=longest[call]: at_random(job, most, dice))] += 1  # type: ignore[misc]
            still_works(store, locks)
        # A first connection has most to lose: threads start, sockets open.
        for number in range(RANDOM // 4):
            with fencepost.connect(store.url, ttl=store.long) as locks:
                victim = Victim(store, locks, other)
                call = ("acquire", "wait", "block")[number % 3]
                came[trial(victim, call, lambda job: at_random(job, 0.03, dice))] += 1


@pytest.mark.slow
@isolated
def test_an_interrupt_at_every_bytecode_leaves_nothing(store: Store) -> None:
    """Enumerated, not sampled, in memory; every n-th place elsewhere, more of them in `make torment`."""
    step = 1 if store.promises.reach == "one process" else 7 if store.promises.reach == "one host" else 61
    if FUZZ:
        step = min(step, 7)
    came: Counter[str] = Counter()
    with fencepost.connect(store.url, ttl=store.long) as other:
        other.acquire(f"{store.prefix}/taken")
        with fencepost.connect(store.url, ttl=store.long) as locks:
            victim = Victim(store, locks, other)
            for call in victim.calls:
                if call == "hand-over":
                    continue  # its steps are those of wait; when it is woken is up to the clock
                for at in range(0, 100_000, step):
                    interrupter = Interrupter(at)
                    came[trial(victim, call, interrupter.run)] += 1
                    if not interrupter.sent:
                        assert at > 0, f"{call} has no place to interrupt"
                        break
            still_works(store, locks)
    assert came["interrupted"] >= 5, came
