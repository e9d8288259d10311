"""The rule, the core and the stores, each broken in one place.

    python -m tests.sim.mutants [--seeds 300] [NAME...]     which seed finds each of FAULTS first

It prints each fault with the promise that was broken, in the seeds themselves and with --calm. A change of what a seed
does moves these: put the new seeds into the table.
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from fencepost import rule
from fencepost.backends import memory
from fencepost.backends.memory import Memory
from fencepost.guards import judgement as decision
from fencepost.guards.memory import MemoryGuard
from fencepost.locks import Core
from fencepost.renewals import Renewals
from fencepost_lab.sim.backends import Quorum
from fencepost_lab.sim.seeds import try_seeds
from fencepost_lab.sim.state import LockState
from fencepost_lab.sim.stores import Store

RULE = {
    "an equal token passes": ("offer.token > mark.token:\n        return Verdict.ADMIT", ">", ">="),
    "the last token passes too": ("if offer.token < mark.token:", "mark.token:", "mark.token - 1:"),
    "an equal token is stale": ("if offer.token < mark.token:", "<", "<="),
    "holders are not told apart": ("if offer.holder != mark.holder:", "offer.holder != mark.holder", "False"),
    "the holders' comparison is turned round": ("if offer.holder != mark.holder:", "!=", "=="),
    "a replay passes": ("offer.seq > mark.seq:\n        return Verdict.ADMIT", "> mark.seq", ">= mark.seq"),
    "older writes pass": ("offer.seq > mark.seq:\n        return Verdict.ADMIT", "> mark.seq", "< mark.seq"),
    "a replay is late": ("if offer.seq < mark.seq:", "<", "<="),
    "a late write is a replay": ("if offer.seq < mark.seq:", "<", ">"),
    "a newer token leaves the mark": ("or offer.token > mark.token or offer.seq", "offer.token > mark.token or ", ""),
    "a newer write leaves the mark": (
        "offer.token > mark.token or offer.seq > mark.seq:",
        " or offer.seq > mark.seq",
        "",
    ),
}
"""What is broken -> the place in rule.py, and what becomes what there."""


@contextmanager
def broken_rule(name: str) -> Iterator[None]:
    """Let every guard follow a rule with one comparison changed."""
    place, old, new = RULE[name]
    source = inspect.getsource(rule)
    assert source.count(place) == 1, f"rule.py has changed: {place!r} is there {source.count(place)} times"
    assert place.count(old) == 1
    tree = ast.parse(source.replace(place, place.replace(old, new)))
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    namespace: dict[str, Any] = dict(vars(rule))
    exec(compile(tree, "mutant", "exec"), namespace)
    with pytest.MonkeyPatch.context() as patch:
        for function in ("judge", "raised"):
            patch.setattr(decision, function, namespace[function])
        yield


async def _memory_release(self: Memory, name: str, holder: str, token: int) -> bool:
    with self._store.gate:
        if name not in self._store.locks:
            return False
        self._store.hand_over(name, self.driver.now())
        return True


def _store_release(self: Store, client: str, name: str, holder: str, token: int | None) -> tuple[Any, ...]:
    if self._live(name) is None:
        return ("not_owner",)
    self._free(name)
    return ("released",)


RELEASE: dict[str, tuple[type, str, Callable[..., Any]]] = {
    "the embedded backend": (Memory, "release", _memory_release),
    "a simulated store": (Store, "on_release", _store_release),
}


@contextmanager
def unconditional_release(where: str) -> Iterator[None]:
    """Let a store free the lock for whoever asks."""
    owner, name, broken = RELEASE[where]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, broken)
        yield


class Fault(NamedTuple):
    """One function of the core or of a store, and what becomes what in it."""

    owner: type
    function: str
    old: str
    new: str
    seed: int
    """The first seed that finds it."""
    promise: str
    """What that seed says is broken."""


FAULTS: dict[str, Fault] = {
    "a replay is not compared": Fault(
        MemoryGuard, "_decide", "self._values.get(resource) == value", "True", 30, "data"
    ),
    "a renewal creates a vanished lock again, in a simulated store": Fault(
        Store,
        "on_renew",
        "            mine = lock is not None",
        "            if lock is None:\n"
        "                lock = self.state.locks[name] = LockState(holder, token, ttl, self.clock() + ttl)\n"
        "            mine = lock is not None",
        102,
        "once",
    ),
    "a renewal creates a vanished lock again, in the embedded store": Fault(
        Memory,
        "renew",
        "                held: Lock | Share | None = lock\n",
        "                if lock is None:\n"
        "                    lock = store.locks[name] = Lock(holder, token, now + ttl)\n"
        "                held = lock\n",
        77,
        "once",
    ),
    "a deadline that passes is not told": Fault(
        Renewals, "_look", "self._lose(lease, Reason.EXPIRED)", "pass", 0, "loss"
    ),
    "a cancelled acquire does not leave": Fault(
        Core, "_obtain", "await self.driver.apart(job, grace)", "job.close()", 5, "leaves"
    ),
    "the last waiter is served first, in a simulated store": Fault(
        Store, "_hand_over", "holder = next(iter(waiters))", "holder = next(reversed(waiters))", 3, "turns"
    ),
    "the last waiter is served first, in the embedded store": Fault(
        memory.Store,
        "hand_over",
        "next(iter(lock.waiters.items()))",
        "next(reversed(lock.waiters.items()))",
        0,
        "turns",
    ),
    "who comes last is put first in the queue": Fault(
        Store,
        "_join",
        "            waiters[holder] = Waiter(client, ttl, until)",
        "            rest = dict(waiters)\n"
        "            waiters.clear()\n"
        "            waiters.update({holder: Waiter(client, ttl, until), **rest})",
        3,
        "turns",
    ),
    "a waiter that stopped asking is served": Fault(
        Store, "_hand_over", "if waiter.until >= self.clock():", "if True:", 14, "turns"
    ),
    "who leaves keeps its hold, in a simulated store": Fault(
        Store, "on_leave", "            self._free(name)", "            pass", 17, "leaves"
    ),
    "who leaves keeps its hold, in the embedded store": Fault(
        memory.Store,
        "leave",
        "            self.hand_over(name, now)\n        elif",
        "            pass\n        elif",
        86,
        "leaves",
    ),
    "a quorum takes the smallest token": Fault(Quorum, "take", "max(tokens)", "min(tokens)", 12, "order"),
    "no majority remembers the token": Fault(
        Quorum,
        "take",
        'kept = await self._all("remember", name, value, token, token=token, enough="remembered")',
        'kept = [("remembered",)] * 5',
        12,
        "order",
    ),
    "a release always says that it was done": Fault(
        Core,
        "_released",
        "released = await self.backend.release(lease.name, lease._stored, lease.token)",
        "released = bool(await self.backend.release(lease.name, lease._stored, lease.token)) or True",
        0,
        "freed",
    ),
    "the end of a block does not release": Fault(
        Core,
        "finish",
        "        await self._release_quietly(lease, keep=keep)\n",
        "        lease._reason = Reason.RELEASED\n",
        0,
        "freed",
    ),
}

EQUIVALENT: dict[str, tuple[Fault, str]] = {
    "a renewal revives an expired hold, in the embedded store": (
        Fault(Memory, "renew", " and now < held.expires", "", -1, ""),
        "the core has the same clock and the same deadline, and asks for no renewal once that has passed",
    ),
    "a release does not compare the token": (
        Fault(Store, "on_release", " or (token is not None and lock.token != token)", "", -1, ""),
        "holder ids are never used twice, so that the holder alone says whose hold it is",
    ),
    "Redlock does not look at the validity that is left": (
        Fault(Quorum, "take", "if mine and self.driver.now() - sent < validity:", "if mine:", -1, ""),
        "the core drops a lease that is over when it arrives, and asks again",
    ),
    "every fourth token is not counted, in a simulated store": (
        Fault(Store, "mint", "self.state.counter += 1", "self.state.counter += self.state.counter % 4 != 3", -1, ""),
        "only etcd's store counts this way, and there the deletion between two grants counts too",
    ),
}
"""Faults that change nothing that a promise is about, and why."""


@contextmanager
def broken(fault: Fault) -> Iterator[None]:
    """Let one function run with a fault in it."""
    source = inspect.getsource(getattr(fault.owner, fault.function))
    old, new = fault.old, fault.new
    assert source.count(old) == 1, f"{fault.owner.__name__}.{fault.function} has {old!r} {source.count(old)} times"
    namespace = dict(vars(sys.modules[fault.owner.__module__])) | {"LockState": LockState}
    exec(
        compile("from __future__ import annotations\n" + textwrap.dedent(source.replace(old, new)), "mutant", "exec"),
        namespace,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fault.owner, fault.function, namespace[fault.function])
        yield


def found(fault: Fault, seeds: int, *, calm: bool = False) -> tuple[int, set[str]] | None:
    """The first seed that breaks a promise with the fault in place, and what it breaks."""
    with broken(fault):
        for failure in try_seeds(range(seeds), calm=calm, stop=True).failures:
            return failure.scenario.seed, {each.check for each in failure.violations}
    return None


def main(arguments: list[str]) -> None:
    seeds = int(arguments.pop(arguments.index("--seeds") + 1)) if "--seeds" in arguments else 300
    wanted = {each for each in arguments if each != "--seeds"}
    everything = FAULTS | {name: fault for name, (fault, _) in EQUIVALENT.items()}
    for name, fault in everything.items():
        if not wanted or name in wanted:
            seen = [found(fault, seeds, calm=calm) for calm in (False, True)]
            words = [f"seed {each[0]}: {', '.join(sorted(each[1]))}" if each else f"not in {seeds}" for each in seen]
            print(f"{name} | {words[0]} | {words[1]}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
