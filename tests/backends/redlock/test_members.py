"""Nodes that are out: they are looked after until they vote again, and are told what still matters."""

from __future__ import annotations

import threading
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import fencepost
from fencepost.backends.redlock import broadcast
from fencepost.backends.redlock.backend import Redlock
from fencepost.driver import run
from fencepost.driver.threads import Blocking
from fencepost.registry import connect
from fencepost_lab.faults.proxy import Proxy, _Pair
from tests.backends.redlock.conftest import Five
from tests.harness.waiting import GIVES_UP, PATIENCE, until

TTL = 120.0  # nothing here gets free by expiry


def test_a_node_that_refuses_what_it_is_told_for_good_is_asked_again(five: Five) -> None:
    """Such as one where the key is in use for something else."""
    with fencepost.connect(five.url, ttl=TTL) as locks, five.at(1) as node:
        lease = locks.acquire("a")
        node.delete("fencepost:lock:a")
        node.rpush("fencepost:lock:a", "no lock")
        assert lease.release()
        five.kill(1)
        assert locks.acquire("b").release()
        five.revive(1)
        node.rpush("fencepost:lock:a", "no lock")

        def votes() -> bool:
            with locks.lock("b", timeout=PATIENCE):
                return five.value(1, "fencepost:lock:b") is not None

        until(votes, "the node votes again")


def test_what_a_node_must_be_told_is_dropped_once_it_no_longer_matters(five: Five) -> None:
    clock = [1000.0]
    backend = connect(five.url, Blocking(lambda: clock[0]))
    assert isinstance(backend, Redlock)
    grant = run(backend.take("a", "one", TTL, None))
    assert grant is not None
    five.kill(1)
    member = backend._nodes.all[1]
    assert run(backend.release("a", "one", grant.token))
    assert len(member.owed) == 1
    clock[0] += 10 * TTL  # no share of it is left anywhere
    until(lambda: not member.owed, "it is forgotten although the node never came back")
    run(backend.close())


class Crowded(Blocking):
    """A driver in a process that can start no more threads."""

    refuse = False
    refused = 0

    def spawn(self, job: Coroutine[Any, Any, None], name: str) -> None:
        if self.refuse:
            self.refused += 1
            job.close()
            raise RuntimeError("can't start new thread")
        super().spawn(job, name)


def test_a_node_is_looked_after_although_no_thread_could_be_started_at_first(five: Five) -> None:
    driver = Crowded()
    backend = connect(five.url, driver)
    grant = run(backend.take("a", "one", TTL, None))
    assert grant is not None
    five.members[3].pause()
    driver.refuse = True
    assert run(backend.release("a", "one", grant.token))
    assert driver.refused, "nothing could look after the node"
    driver.refuse = False
    five.members[3].resume()

    def told() -> bool:
        assert run(backend.status("b")) == []
        return five.value(3) is None

    until(told, "the node is told of the release")
    run(backend.close())


def test_servers_are_connected_to_one_after_the_other_where_no_thread_can_be_started(
    five: Five, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = []
    start = threading.Thread.start

    def refusing(thread: threading.Thread) -> None:
        if thread.name == "fencepost-redlock":
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refusing)
    with fencepost.connect(five.url, ttl=TTL) as locks:
        assert locks.acquire("a").release()
    assert len(refused) == 5


class Counting(Proxy):
    """Counts the connections on which something was asked that no longer gets through."""

    def __init__(self, target: int) -> None:
        self.stuck: set[_Pair] = set()
        super().__init__(target)

    def _spring(self, pair: _Pair, data: bytes) -> None:
        if not pair.gates.up.is_set():
            self.stuck.add(pair)


def test_after_one_request_without_an_answer_no_idle_connection_to_that_node_is_trusted(five: Five) -> None:
    with Counting(five.members[0].port) as proxy:
        hosts = ",".join([proxy.address, *(member.address for member in five.members[1:])])
        with fencepost.connect(f"redlock://{hosts}/0?node_timeout={GIVES_UP:g}s", ttl=TTL) as locks:
            with ThreadPoolExecutor(8) as crowd:
                together = threading.Barrier(8, timeout=PATIENCE)

                def hold(number: int) -> None:
                    together.wait()
                    with locks.lock(f"lock {number}"):
                        together.wait()

                list(crowd.map(hold, range(8)))
            assert len(proxy._pairs) > 1, "there are several connections"
            proxy.cut(newcomers=False)  # those there are lead nowhere from now on

            def votes() -> bool:
                with locks.lock("a", timeout=PATIENCE):
                    return five.value(0) is not None

            until(votes, "the node votes again")
            assert len(proxy.stuck) == 1


def test_answers_that_came_while_the_client_stood_still_count(five: Five, monkeypatch: pytest.MonkeyPatch) -> None:
    def carried_out() -> list[int]:
        counts = []
        for index in range(5):
            with five.at(index) as node:
                counts.append(int(node.info("commandstats")["cmdstat_evalsha"]["calls"]))
        return counts

    with fencepost.connect(five.url, ttl=TTL) as locks:
        assert locks.acquire("a").release()
        before, looks = carried_out(), 0

        def clock() -> float:
            """It stands still from the moment when it has asked until all have answered, long after its time-out."""
            nonlocal looks
            looks += 1
            if looks == 2:
                until(lambda: all(map(int.__gt__, carried_out(), before)), "all have answered")
            return time.monotonic() + (2 * GIVES_UP if looks > 1 else 0.0)

        monkeypatch.setattr(broadcast, "monotonic", clock)
        lease = locks.acquire("a")
        assert looks > 2
        assert lease.release()
