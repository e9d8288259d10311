"""One client: it acquires, enters, reads, writes and releases, and stops, dies or forks where it is ordered to.

It never looks whether its lease still holds before it writes, but for now and then: a careful client would hide what
the guard is for. A write that got no answer is sent again under the same stamp, or given up: then it enters again,
reads, and goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fencepost
from fencepost.driver import boottime
from fencepost.errors import BackendError, ConfigError, FencepostError, LeaseLost, NotAcquired, Refused, StaleToken
from fencepost.events import Event
from fencepost.lease import BaseLease
from fencepost.rule import Verdict
from fencepost_lab.contend.clients import Held, open_client
from fencepost_lab.contend.diary import TOLD, Diary
from fencepost_lab.torture.board import At, Board, Do
from fencepost_lab.torture.plan import Plan
from fencepost_lab.torture.registers import Entry, Register, Seen, register

PEERS = {"redis-py": "redis-py", "set-nx": "redis-spin"}
_ATTEMPTS = 4
_OVERTAKEN = 8  # enters in a row that may be late, before it gives up
_EVERYBODY = 1_000_000  # the limit of a lock that is shared by as many as want it
_REPORT = 0.25  # seconds between two reports of what was done


def say(fact: dict[str, Any]) -> None:
    """Tell the crew; one write, so that lines of several workers do not mix."""
    os.write(1, (json.dumps(fact, separators=(",", ":")) + "\n").encode())


class Worker:
    """One client process's work. ``config`` is what the nursery was started with."""

    def __init__(self, config: dict[str, Any], who: str, slot: int, life: int) -> None:
        self.plan = Plan.of(config["plan"])
        self.who = who
        self.slot = slot
        self.urls: list[str] = config["urls"]
        folder = Path(config["folder"])
        self.board = Board(folder / "board", self.plan.workers)
        self.diary = Diary(folder / f"{who}.jsonl", config["start"], each_line=True)
        self.dice = random.Random(f"{self.plan.seed} {slot} {life}")
        self.counts: Counter[str] = Counter()
        self.fenced = self.plan.control not in PEERS
        self.patience = max(2.0, 3 * self.plan.ttl)
        self._guard = config["guard"]
        self._weak = self.plan.control if self.fenced and self.plan.control else "full" if self.fenced else "off"
        self._register: Register | None = None
        self._store = -1
        self._locks: Any = None
        self._peer: Any = None
        self._runner: asyncio.Runner | None = None
        last = self.board.look(slot)
        self._done = last.number if last else 0  # an order is for the life that it was given to
        self._leases: dict[str, dict[str, Any]] = {}
        self._reported = 0.0
        self._lease: BaseLease | None = None
        self._sent: dict[str, Any] | None = None
        """The write that is on its way, for one who dies before its answer comes."""

    # Its connections.

    @property
    def values(self) -> Register:
        if self._register is None:
            self._register = register(self._guard, self._weak)
        return self._register

    @property
    def locks(self) -> fencepost.Locks:
        store = self.board.store
        if self._locks is None or store != self._store:
            if self._locks is not None:
                self._locks.close()
            self._store = store
            self._locks = fencepost.connect(self.urls[store], ttl=self.plan.ttl, hooks=[self._heard])
            say({"ev": "store", "who": self.who, "store": store})
        locks: fencepost.Locks = self._locks
        return locks

    def _heard(self, event: Event) -> None:
        facts = self._leases.get(event.holder or "")
        if facts is None or event.kind not in TOLD:
            return
        lease: BaseLease = facts["lease"]
        known = {name: value for name, value in facts.items() if name != "lease"}
        if event.kind == "lost":
            self.diary.write("lost", **known, why=event.detail)
        else:
            # What was left of it when the answer came: this thread may have been stopped since.
            left = None if event.ratio is None else round(event.ratio * lease.ttl, 6)
            self.diary.write(event.kind, **known, until=self.diary.instant(lease.deadline), left=left)

    # Orders.

    def point(self, at: At, lease: BaseLease | None = None) -> None:
        """Do what was ordered, if it was ordered for here."""
        order = self.board.look(self.slot)
        if order is None or order.number <= self._done or order.at is not at:
            return
        self._done = order.number
        if order.do is Do.PAUSE:
            self.pause(at, lease)
        elif order.do is Do.KILL:
            self.die(at)
        elif lease is not None:
            self.fork(lease)

    def pause(self, at: At, lease: BaseLease | None) -> None:
        """Stop this process, all its threads, until the crew wakes it."""
        deadline = None if lease is None else lease.deadline
        self.diary.write("fault", do="pause", who=self.who, at=at.name.lower())
        say({"ev": "stopping", "who": self.who, "pid": os.getpid(), "deadline": deadline, "at": at.name.lower()})
        begun = boottime()
        os.kill(os.getpid(), signal.SIGSTOP)
        now = boottime()
        # A lease that was lost before is no lease that the pause outlived.
        outlived = None if lease is None else now >= lease.deadline
        self.diary.write("fault", do="resume", who=self.who, outlived=outlived)
        say({"ev": "resumed", "who": self.who, "outlived": outlived, "seconds": now - begun})

    def die(self, at: At) -> None:
        if self._sent is not None:
            self.diary.write("wrote", **self._sent, outcome="unknown")
        self.diary.write("fault", do="kill", who=self.who, at=at.name.lower())
        say({"ev": "dying", "who": self.who, "at": at.name.lower(), "held": self._lease is not None, **self._tally()})
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    def fork(self, lease: BaseLease) -> None:
        """A child tries what only its parent may do: stamp an access, renew, and give the lock back."""
        self.diary.flush()
        child = os.fork()
        if not child:
            try:
                lease.access()
            except LeaseLost:
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        refused = os.waitstatus_to_exitcode(status) == 0
        self.diary.write("fault", do="fork", who=self.who, refused=refused)
        say({"ev": "forked", "who": self.who, "refused": refused})

    @contextlib.contextmanager
    def _writing(self, lease: BaseLease | None, facts: dict[str, Any]) -> Iterator[None]:
        """Where a pause or a death between the write and its answer strikes, if that was ordered."""
        order = self.board.look(self.slot)
        if order is None or order.number <= self._done or order.at is not At.WRITING:
            yield
            return
        self._done = order.number
        self._sent = facts

        def strike(*_: object) -> None:
            if self._sent is not None:
                self.pause(At.WRITING, lease) if order.do is Do.PAUSE else self.die(At.WRITING)

        signal.signal(signal.SIGALRM, strike)
        signal.setitimer(signal.ITIMER_REAL, self.dice.uniform(0.00005, 0.0008))
        try:
            yield
        finally:
            missed = signal.setitimer(signal.ITIMER_REAL, 0)[0] > 0
            if missed:  # the answer was quicker
                self.pause(At.WROTE, lease) if order.do is Do.PAUSE else self.die(At.WROTE)
            self._sent = None

    # Work.

    def main(self) -> None:
        say({"ev": "started", "who": self.who, "pid": os.getpid()})
        try:
            while not self.board.over:
                self._cycle()
                self._report()
        finally:
            self.close()
        say({"ev": "over", "who": self.who, **self._tally(), **_left_open()})

    def close(self) -> None:
        if self._locks is not None:
            with contextlib.suppress(FencepostError):
                self._locks.close()
        if self._peer is not None and self._runner is not None:
            with contextlib.suppress(Exception):
                self._runner.run(self._peer.close())
        if self._runner is not None:
            self._runner.close()
        if self._register is not None:
            self._register.close()
        self.diary.close()

    def _tally(self) -> dict[str, Any]:
        counts, self.counts = self.counts, Counter()
        return {"counts": counts}

    def _report(self) -> None:
        now = boottime()
        if now - self._reported >= _REPORT:
            self._reported = now
            say({"ev": "tally", "who": self.who, "uses": _uses(), **self._tally()})

    def _cycle(self) -> None:
        key = self.dice.choice(self.plan.keys)
        kind = self.dice.random()
        if not self.fenced:
            self._peer_cycle(key)
        elif kind < 0.05 and not self.plan.control:
            self._election_cycle(f"{key}/leader")
        elif kind < 0.15 and not self.plan.control:
            self._shared_cycle(f"{key}/shared", alone=self.dice.random() < 0.4)
        else:
            self._lock_cycle(key)

    def _ask(self, key: str) -> float:
        self.counts["acquire"] += 1
        asked = self.diary.write("asked", who=self.who, lock=key)
        self.point(At.ASKING)
        return asked

    def _failed(self, key: str, asked: float, error: Exception) -> None:
        if isinstance(error, NotAcquired):
            self.diary.write("timeout", who=self.who, lock=key, asked=asked)
            self.counts["timeout"] += 1
            return
        self.diary.write("failed", who=self.who, lock=key, asked=asked, why=type(error).__name__)
        self.counts["failed"] += 1
        self.counts[f"error:{type(error).__name__}"] += 1
        if isinstance(error, ConfigError):
            raise error
        time.sleep(0.02)

    def _lock_cycle(self, key: str) -> None:
        locks = self.locks
        asked = self._ask(key)
        try:
            lease = locks.acquire(key, timeout=self.patience)
        except (NotAcquired, BackendError) as error:
            self._failed(key, asked, error)
            return
        if self._hold(key, lease, asked):
            self._release(key, lease)

    def _election_cycle(self, key: str) -> None:
        locks = self.locks
        asked = self._ask(key)
        election = locks.election(key, ttl=self.plan.ttl, metadata=self.who)
        closing = threading.Timer(self.patience, election.close)
        closing.start()
        try:
            elected = False
            for term in election:
                elected = True
                closing.cancel()
                self.counts["term"] += 1
                if self._hold(key, term, asked):
                    self._release(key, term)
                break
            if not elected:
                self._failed(key, asked, NotAcquired(key, self.patience))
        except BackendError as error:
            self._failed(key, asked, error)
        finally:
            closing.cancel()
            closing.join()
            with contextlib.suppress(FencepostError):
                election.close()

    def _shared_cycle(self, key: str, *, alone: bool) -> None:
        """Hold a lock together with others, or alone where others share it. Nothing is written under it."""
        locks = self.locks
        try:
            options: dict[str, Any] = {"ttl": self.plan.ttl, "timeout": self.patience}
            lock = locks.lock(key, **options) if alone else locks.shared(key, **options)
        except ConfigError:
            self.counts["unshared"] += 1
            return
        asked = self._ask(key)
        try:
            lease = lock.acquire()
        except (NotAcquired, BackendError) as error:
            self._failed(key, asked, error)
            return
        if self._got(key, lease, asked, **({} if alone else {"limit": _EVERYBODY})):
            self.counts["alone" if alone else "shared"] += 1
            self.point(At.GRANTED, lease)
            time.sleep(self.dice.uniform(0, 0.003))
            self._release(key, lease)

    def _peer_cycle(self, key: str) -> None:
        if self._runner is None:
            self._runner = asyncio.Runner()
            self._peer = open_client(PEERS[self.plan.control], self.urls[0], self.plan.ttl, [])
        asked = self._ask(key)
        try:
            held: Held | None = self._runner.run(self._peer.acquire(key, self.patience))
        except Exception as error:  # whatever the other library raises
            self._failed(key, asked, error)
            return
        if held is None:
            self._failed(key, asked, NotAcquired(key, self.patience))
            return
        until = boottime() + self.plan.ttl if held.until is None else held.until
        facts = {"who": self.who, "token": None, "holder": held.holder, "lock": key}
        self.diary.write("acquired", **facts, ttl=self.plan.ttl, asked=asked, until=self.diary.instant(until))
        with contextlib.suppress(BackendError):
            self._work(key, None, facts, _Peer(until))
        begun = self.diary.write("releasing", **facts)
        ok = None
        with contextlib.suppress(Exception):
            ok = self._runner.run(self._peer.release(held))
        self.counts["release"] += 1
        self.diary.write("released", **facts, asked=begun, ok=ok)

    def _hold(self, key: str, lease: Any, asked: float) -> bool:
        """Work under a lease; False if it was over before that."""
        if not self._got(key, lease, asked):
            return False
        self._lease = lease
        try:
            self._work(key, lease, self._facts(key, lease), lease)
        finally:
            self._lease = None
        return True

    def _facts(self, key: str, lease: Any) -> dict[str, Any]:
        return {"who": self.who, "token": lease.token, "holder": lease.holder, "lock": key}

    def _got(self, key: str, lease: Any, asked: float, **more: Any) -> bool:
        """Note a lease before anything is done under it."""
        got = boottime()
        if got >= lease.deadline:
            # The answer took nearly the whole ttl, and what little was left is over by now.
            self.diary.write("failed", who=self.who, lock=key, asked=asked, why="over on arrival")
            self.counts["over on arrival"] += 1
            self._give_back(lease)
            return False
        facts = self._facts(key, lease)
        until, got = self.diary.instant(lease.deadline), self.diary.instant(got)
        self.diary.write("acquired", **facts, ttl=lease.ttl, asked=asked, got=got, until=until, **more)
        self._leases[lease.holder] = {**facts, "lease": lease}
        return True

    def _work(self, key: str, lease: BaseLease | None, facts: dict[str, Any], held: Any) -> None:
        self.point(At.GRANTED, held)
        seen = self._read(key, lease, facts)
        for _ in range(self.dice.choice((1, 1, 1, 2, 2, 3))):
            if seen is None:
                break
            self.point(At.READ, held)
            if self.plan.control == "writes":
                time.sleep(self.dice.uniform(0, 0.02))  # the gap that entering closes: make it wide enough to be met
            if lease is not None and self.dice.random() < 0.1:
                try:
                    lease.check()
                except LeaseLost as lost:
                    self.diary.write("heeded", **facts, why=str(lost))
                    self.counts["heeded"] += 1
                    break
            seen = self._write(key, lease, facts, seen, held)
        self.point(At.WROTE, held)

    def _read(self, key: str, lease: BaseLease | None, facts: dict[str, Any], late: int = 0) -> Seen | None:
        access = None if lease is None else lease.access(key)
        self.counts["read"] += 1
        said = {**facts, "key": key, "seq": access.stamp.seq if access else None, "asked": self.diary.now()}
        for attempt in range(_ATTEMPTS):
            try:
                seen = self.values.read(key, access)
            except Refused as refused:
                self._refused("read", key, lease, said, refused)
                again = refused.verdict is Verdict.LATE and late < _OVERTAKEN
                return self._read(key, lease, facts, late + 1) if again else None
            except BackendError:
                if attempt + 1 < _ATTEMPTS and self.dice.random() < 0.6:
                    continue
                self.diary.write("read", **said, outcome="unknown")
                self.counts["read:unknown"] += 1
                return None
            self.diary.write("read", **said, value=seen.value, version=seen.version)
            return seen
        return None

    def _write(self, key: str, lease: BaseLease | None, facts: dict[str, Any], seen: Seen, held: Any) -> Seen | None:
        """What the next write may be computed from; None if there is to be none."""
        access = None if lease is None else lease.access(key)
        stamp = access.stamp if access else None
        entry = Entry(self.who, stamp, seen.value + 1, seen.version)
        self.counts["write"] += 1
        said = {**facts, "key": key, "seq": stamp.seq if stamp else None, "asked": self.diary.now()}
        said |= {"value": entry.value, "base": entry.base}
        for attempt in range(1, _ATTEMPTS + 1):
            told = {**said, "attempts": attempt}
            try:
                with self._writing(held, told):
                    self.values.write(key, access, entry)
            except Refused as refused:
                self._refused("wrote", key, lease, told, refused)
                # Overtaken by an access of its own: another enter makes it the newest again.
                return self._read(key, lease, facts) if refused.verdict is Verdict.LATE else None
            except BackendError:
                # Without a stamp, nobody could tell the second one from another write.
                if lease is not None and attempt < _ATTEMPTS and self.dice.random() < 0.6:
                    self.counts["retry"] += 1
                    continue
                self.diary.write("wrote", **told, outcome="unknown")
                self.counts["wrote:unknown"] += 1
                self.counts["went on"] += 1
                return self._read(key, lease, facts)
            self.diary.write("wrote", **told, outcome="done")
            self.counts["wrote:done"] += 1
            return Seen(seen.version + 1, entry.value)
        raise AssertionError("unreachable")

    def _refused(self, ev: str, key: str, lease: Any, facts: dict[str, Any], refused: Refused) -> None:
        self.diary.write(ev, **facts, outcome="refused", verdict=refused.verdict.value, seen=refused.seen)
        self.counts[f"{ev}:{refused.verdict.value}"] += 1
        if self.plan.control:
            return  # what a weakened guard lets pass is not to be hidden by a repair
        if isinstance(refused, StaleToken) and refused.seen is not None and lease is not None and not lease.lost:
            # The store forgot what it had granted: raise it past what the guard has seen.
            with contextlib.suppress(FencepostError):
                self.locks.bump(key, above=refused.seen, force=True)
                self.diary.write("bumped", who=self.who, lock=key, above=refused.seen)
                self.counts["bumped"] += 1

    def _release(self, key: str, lease: Any) -> None:
        facts = {name: value for name, value in self._leases[lease.holder].items() if name != "lease"}
        begun = self.diary.write("releasing", **facts)
        ok = self._give_back(lease)
        self.diary.write("released", **facts, asked=begun, ok=ok)

    def _give_back(self, lease: Any) -> bool | None:
        self._leases.pop(lease.holder, None)
        self.counts["release"] += 1
        try:
            ok = bool(lease.release())
        except BackendError:
            self.counts["release:unknown"] += 1
            return None
        self.counts["not owner"] += not ok
        return ok


class _Peer:
    """A lock of another library: only until when its holder may count on it is known."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline


def _uses() -> list[int]:
    """Resident bytes, open descriptors and threads of this process."""
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return [resident, len(os.listdir("/proc/self/fd")) - 1, len(os.listdir("/proc/self/task"))]


def _left_open() -> dict[str, Any]:
    """What is left when everything was closed: threads but the first, sockets and other descriptors."""
    end = boottime() + 5
    while threading.active_count() > 1 and boottime() < end:
        time.sleep(0.01)
    links = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            links.append(os.readlink(f"/proc/self/fd/{number}"))
    threads = [each.name for each in threading.enumerate() if each is not threading.main_thread()]
    return {"threads": threads, "sockets": sum(link.startswith("socket:") for link in links), "files": len(links)}


def run(config: dict[str, Any], who: str, slot: int, life: int) -> int:
    """A worker's whole life; its exit code."""
    try:
        Worker(config, who, slot, life).main()
    except BaseException as error:
        import traceback

        traceback.print_exc(file=sys.stderr)
        say({"ev": "broke", "who": who, "why": f"{type(error).__name__}: {error}"[:500]})
        return 1
    return 0
