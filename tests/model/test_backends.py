"""Backends against a model of a lock: any sequence of requests, on a clock that only the test moves."""

import secrets
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from fencepost import registry
from fencepost.backend import Backend, Hold, Renewal
from fencepost.driver import run
from fencepost.driver.threads import Blocking
from fencepost.errors import QueueFull
from fencepost.lease import Grant

pytestmark = pytest.mark.slow

NAMES = st.sampled_from(["a", "b"])
TTLS = st.sampled_from([1.0, 3.0, 10.0])
QUEUE = 3


@dataclass
class Held:
    holder: str
    token: int
    expires: float
    waiters: list[tuple[str, float]] = field(default_factory=list)


class Model:
    """What a lock is: a holder until an instant, and a line."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.locks: dict[str, Held] = {}

    def settle(self, name: str) -> None:
        """Whoever looks at an overdue lock hands it on. The token is the store's to choose."""
        lock = self.locks.get(name)
        if lock is not None and self.now >= lock.expires:
            self.hand_over(name)

    def hand_over(self, name: str) -> None:
        lock = self.locks[name]
        if lock.waiters:
            holder, ttl = lock.waiters.pop(0)
            lock.holder, lock.token, lock.expires = holder, 0, self.now + ttl
        else:
            del self.locks[name]

    def owns(self, name: str, holder: str, token: int) -> bool:
        lock = self.locks.get(name)
        return lock is not None and (lock.holder, lock.token) == (holder, token) and self.now < lock.expires


class BackendMachine(RuleBasedStateMachine):
    holders = Bundle("holders")  # name, holder, ttl of everybody who ever asked

    backend: Backend

    def connect(self) -> str:
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.model = Model()
        self.largest = 0
        self.granted: dict[str, int] = {}
        self.backend = registry.connect(self.connect(), Blocking(clock=lambda: self.model.now))
        self.other = registry.connect(self.connect(), Blocking(clock=lambda: self.model.now))

    def learn(self, name: str, holder: str, grant: Grant, ttl: float) -> None:
        """A grant that was seen: its token is new and larger than all before, its deadline the model's."""
        lock = self.model.locks[name]
        assert lock.holder == holder
        assert (grant.ttl, grant.since + grant.ttl) == (ttl, lock.expires)
        if lock.token == 0:
            assert grant.token > self.largest
            lock.token = self.largest = grant.token
        assert grant.token == lock.token
        self.granted[holder] = grant.token

    def see(self, name: str) -> None:
        """A hand-over that the store made unasked has its token in the status."""
        lock = self.model.locks.get(name)
        for status in run(self.other.status(name)):
            assert lock is not None
            if lock.token == 0:
                assert status.token > self.largest
                lock.token = self.largest = status.token

    @rule(target=holders, name=NAMES, ttl=TTLS, queue=st.booleans(), there=st.booleans())
    def take(self, name: str, ttl: float, queue: bool, there: bool) -> Any:
        holder = secrets.token_hex(16)
        backend = self.other if there else self.backend
        self.model.settle(name)
        lock = self.model.locks.get(name)
        try:
            grant = run(backend.take(name, holder, ttl, QUEUE if queue else None))
        except QueueFull:
            assert lock is not None
            assert queue
            assert len(lock.waiters) >= QUEUE
            return multiple()
        if lock is None:
            assert grant is not None, "a free lock is granted"
            self.model.locks[name] = Held(holder, 0, self.model.now + ttl)
            self.learn(name, holder, grant, ttl)
        else:
            assert grant is None, "a lock that is held, or awaited, is not"
            self.see(name)
            if queue:
                lock.waiters.append((holder, ttl))
        return (name, holder, ttl)

    @rule(who=holders)
    def wait(self, who: tuple[str, str, float]) -> None:
        name, holder, ttl = who
        lock = self.model.locks.get(name)
        if lock is None or (holder != lock.holder and holder not in dict(lock.waiters)):
            return  # it never waited, or gave up
        if holder == lock.holder and self.model.now >= lock.expires:
            return
        self.model.settle(name)
        grant = run(self.backend.wait(name, holder, ttl, 0))
        self.see(name)
        if lock.holder == holder:
            assert grant is not None
            self.learn(name, holder, grant, ttl)
        else:
            assert grant is None

    @rule(who=holders)
    def leave(self, who: tuple[str, str, float]) -> None:
        name, holder, _ = who
        run(self.backend.leave(name, holder))
        lock = self.model.locks.get(name)
        if lock is None:
            return
        if lock.holder == holder:
            self.model.hand_over(name)
        else:
            lock.waiters = [waiter for waiter in lock.waiters if waiter[0] != holder]
        self.see(name)

    @rule(who=holders, wrong=st.integers(-1, 1))
    def release(self, who: tuple[str, str, float], wrong: int) -> None:
        name, holder, _ = who
        token = self.granted.get(holder, 1) + wrong
        owned = self.model.owns(name, holder, token)
        assert run(self.backend.release(name, holder, token)) is owned
        lock = self.model.locks.get(name)
        if lock is not None and (lock.holder, lock.token) == (holder, token):
            self.model.hand_over(name)
        self.see(name)

    @rule(whos=st.lists(holders, max_size=3), wrong=st.integers(-1, 1))
    def renew(self, whos: list[tuple[str, str, float]], wrong: int) -> None:
        holds = [Hold(name, holder, self.granted.get(holder, 1) + wrong, ttl) for name, holder, ttl in whos]
        answers = run(self.backend.renew(holds))
        for hold, answer in zip(holds, answers, strict=True):
            owned = self.model.owns(hold.name, hold.holder, hold.token)
            assert answer is (Renewal.RENEWED if owned else Renewal.LOST)
            if owned:
                self.model.locks[hold.name].expires = self.model.now + hold.ttl

    @rule(name=NAMES)
    def break_lock(self, name: str) -> None:
        lock = self.model.locks.get(name)
        held = lock is not None and self.model.now < lock.expires
        ended = run(self.other.break_lock(name))
        assert (ended is not None) is held
        if held:
            assert lock is not None
            assert ended is not None
            assert (ended.holder, ended.token) == (lock.holder, lock.token)
            self.model.hand_over(name)
        self.see(name)

    @rule(name=NAMES, jump=st.integers(0, 100))
    def bump(self, name: str, jump: int) -> None:
        above = max(self.largest + jump - 50, 1)
        run(self.backend.bump(name, above))
        self.largest = max(self.largest, above)

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.5, 10.0]))
    def pass_time(self, seconds: float) -> None:
        self.model.now += seconds

    @invariant()
    def the_store_shows_what_the_model_has(self) -> None:
        if not hasattr(self, "model"):
            return
        shown = {status.name: status for status in run(self.backend.status())}
        held = {name: lock for name, lock in self.model.locks.items() if self.model.now < lock.expires}
        assert shown.keys() == held.keys()
        for name, lock in held.items():
            status = shown[name]
            assert (status.holder, status.token) == (lock.holder, lock.token)
            assert status.remaining == lock.expires - self.model.now
            assert status.waiters == tuple(holder for holder, _ in lock.waiters)

    def teardown(self) -> None:
        if hasattr(self, "model"):
            run(self.backend.close())
            run(self.other.close())


class MemoryMachine(BackendMachine):
    def __init__(self) -> None:
        super().__init__()
        self._url = f"memory://{secrets.token_hex(4)}"

    def connect(self) -> str:
        return self._url


class SQLiteMachine(BackendMachine):
    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()

    def connect(self) -> str:
        return f"sqlite://{Path(self._folder.name)}/locks.db"

    def teardown(self) -> None:
        super().teardown()
        self._folder.cleanup()


TestMemory = MemoryMachine.TestCase
TestMemory.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestSQLite = SQLiteMachine.TestCase
TestSQLite.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
