"""What a failed attempt leaves behind: what undoes it undoes nothing else, and no node keeps a note of it for long."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis

import fencepost
from fencepost.backend import Backend
from fencepost.backends.redlock.members import node_scripts
from fencepost.driver import run
from fencepost.driver.threads import Blocking
from fencepost.registry import connect
from fencepost_lab.faults.proxy import Proxy, _Pair
from tests.backends.redlock.conftest import Five
from tests.conformance.faces import FACES, Client
from tests.harness.waiting import PATIENCE, until

TTL = 120.0  # nothing here gets free by expiry


class Meddler(Proxy):
    """Breaks the first connection that has a token remembered, and holds back what gives up a share."""

    def __init__(self, target: int) -> None:
        self.broken = 0
        self.held_leaves = 0
        self.let_go = threading.Event()
        super().__init__(target)

    def _spring(self, pair: _Pair, data: bytes) -> None:
        if b"HELLO" in data:  # every connection begins by teaching the scripts
            return
        if node_scripts().keep.sha.encode() in data and not self.broken:
            self.broken += 1
            raise ConnectionResetError
        leave = node_scripts().leave
        if leave.sha.encode() in data or leave.text.encode() in data:
            self.held_leaves += 1
            self.let_go.wait()


@pytest.fixture
def meddlers(five: Five) -> Iterator[list[Meddler]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Meddler(member.port)) for member in five.members]


@pytest.fixture
def backend(meddlers: list[Meddler]) -> Iterator[Backend]:
    made = connect(f"redlock://{','.join(each.address for each in meddlers)}/0?node_timeout=10s", Blocking())
    yield made
    for each in meddlers:
        each.let_go.set()
    run(made.close())


def freed(five: Five) -> int:
    """How many servers carried out at least one request to give up a share, which is what they were told in full."""
    count = 0
    for index in range(5):
        with five.at(index) as client:
            count += "cmdstat_eval" in client.info("commandstats")
    return count


@pytest.mark.parametrize("bumped", [False, True], ids=["", "bumped"])
def test_a_late_clean_up_leaves_the_next_attempt_of_the_same_waiter_alone(
    five: Five, meddlers: list[Meddler], backend: Backend, bumped: bool
) -> None:
    """Past the clocks, two attempts that no server remembers would find the same token."""
    holder = secrets.token_hex(16)
    if bumped:
        run(backend.bump("a", 2**62))
    for index in range(5):
        with five.at(index) as client:
            client.config_resetstat()
    assert run(backend.take("a", holder, TTL, None)) is None
    assert [each.broken for each in meddlers] == [1] * 5, "every server was cut off before it remembered the token"
    grant = run(backend.take("a", holder, TTL, None))
    assert grant is not None
    held = [f"{holder}:{grant.token}"] * 5
    assert [five.value(index) for index in range(5)] == held
    until(lambda: all(each.held_leaves for each in meddlers), "every server is to be told that the first one failed")
    for each in meddlers:
        each.let_go.set()
    until(lambda: freed(five) == 5, "every server was told")
    assert [five.value(index) for index in range(5)] == held
    with fencepost.connect(five.url) as others:
        assert others.try_acquire("a") is None
    assert run(backend.release("a", holder, grant.token))


def test_a_waiter_whose_clean_up_arrived_gets_the_lock_at_once(
    five: Five, meddlers: list[Meddler], backend: Backend
) -> None:
    holder = secrets.token_hex(16)
    for index in range(5):
        with five.at(index) as client:
            client.config_resetstat()
    assert run(backend.take("a", holder, TTL, None)) is None
    assert [each.broken for each in meddlers] == [1] * 5
    until(lambda: all(each.held_leaves for each in meddlers), "every server is to be told that the attempt failed")
    for each in meddlers:
        each.let_go.set()
    until(lambda: freed(five) == 5, "every server was told")
    assert [five.value(index) for index in range(5)] == [None] * 5
    grant = run(backend.take("a", holder, TTL, None))
    assert grant is not None
    assert run(backend.release("a", holder, grant.token))


@pytest.mark.parametrize("face", FACES)
async def test_releases_beside_a_dead_node_leave_nothing_at_the_others(five: Five, face: str) -> None:
    client = Client(face, five.url, ttl=TTL)
    assert await (await client.acquire("a")).release()
    five.kill(2)
    for _ in range(20):
        assert await (await client.acquire("a", timeout=PATIENCE)).release()
    for index in (0, 1, 3, 4):
        with five.at(index) as node:
            assert node.keys("*") == ["fencepost:lock:\x1ftoken"]
    await client.close()


def test_each_note_of_an_attempt_that_was_cut_off_expires_by_itself(five: Five) -> None:
    """The lock may be in use all the time: what is noted in one key for all holders would never go."""
    with five.at(0) as node:
        for holder in ("one", "two"):
            leave(node, holder, attempt=7)
        keys = node.keys("fencepost:lock:a\x1fgone*")
        assert len(keys) == 2
        assert all(0 < node.pttl(key) <= 60_000 for key in keys)
        for attempt, told in ((7, -2), (8, None)):
            arguments = (
                "fencepost:lock:a",
                "fencepost:lock:a\x1fgone\x1fone",
                "fencepost:lock:\x1ftoken",
                "one",
                attempt,
                60_000,
            )
            said = node.eval(node_scripts().take.text, 3, *arguments)
            assert said == told or (told is None and isinstance(said, list))


def leave(node: Any, holder: str, *, attempt: int, token: str = "*") -> int:
    """Have a server give up what a holder has, and refuse its attempts for a minute."""
    gone = f"fencepost:lock:a\x1fgone\x1f{holder}"
    return int(node.eval(node_scripts().leave.text, 2, "fencepost:lock:a", gone, holder, attempt, token, 60_000))


@pytest.mark.parametrize("value", ["two:9", "two:-3", "one:-8", "somebody"])
def test_a_token_is_remembered_only_where_the_share_still_belongs_to_the_attempt(five: Five, value: str) -> None:
    """Between the two steps it may expire and become another's, or that of a later attempt of the same waiter."""
    with five.at(0) as node:
        node.set("fencepost:lock:a", value, px=60_000)
        said = node.eval(
            node_scripts().keep.text, 2, "fencepost:lock:a", "fencepost:lock:\x1ftoken", "one:-7", "one:12", "12"
        )
        assert said == 0
        assert node.get("fencepost:lock:a") == value
        assert node.get("fencepost:lock:\x1ftoken") is None


def test_giving_up_an_attempt_leaves_the_next_one_that_has_no_token_yet(five: Five) -> None:
    with five.at(0) as node:
        node.set("fencepost:lock:a", "one:-8", px=60_000)
        leave(node, "one", attempt=7, token="")
        assert node.get("fencepost:lock:a") == "one:-8"
        leave(node, "one", attempt=8, token="")
        assert node.get("fencepost:lock:a") is None


def test_a_server_that_is_out_of_memory_frees_a_share_all_the_same(five: Five) -> None:
    with five.at(0) as node:
        node.set("fencepost:lock:a", "one:5", px=60_000)
        node.config_set("maxmemory", 1)
        try:
            with pytest.raises(redis.exceptions.OutOfMemoryError):
                node.set("b", "more")
            assert leave(node, "two", attempt=1) == 0
            assert leave(node, "one", attempt=1, token="5") == 1
            assert node.get("fencepost:lock:a") is None
        finally:
            node.config_set("maxmemory", 0)
