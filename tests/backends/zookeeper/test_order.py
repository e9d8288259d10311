"""Who comes first in ZooKeeper: by number, past the number's end, and without waking anybody else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import fencepost
from fencepost.backends.zookeeper import names
from fencepost.driver import run
from fencepost.driver.threads import Blocking
from fencepost.registry import connect
from fencepost_lab.servers import ZooKeeper, ask
from tests.backends.zookeeper.tools import LONG, WornZooKeeper, kazoo
from tests.harness.threads import background, waiters_of
from tests.harness.waiting import PATIENCE, until

LAST = 2**31 - 1


@pytest.mark.parametrize(
    ("node", "number"),
    [
        ("0123456789abcdef__lock__0000000007", 7),
        ("_c_6f1b2c3d-aaaa-bbbb-cccc-0123456789ab-lock-0000000007", 7),
        ("x-72057594037927936-0000000007", 7),
        ("n-2147483647", LAST),
        ("0123456789abcdef__lock__-2147483648", -(2**31)),
        ("_c_6f1b2c3d-aaaa-bbbb-cccc-0123456789ab-lock--2147483648", -(2**31)),
        ("x-72057594037927936--000000005", -5),
        ("0123456789abcdef__lock__-000000005", -5),
        ("config", None),
        ("a9999999999", None),
        ("lease", None),
    ],
)
def test_every_sequential_child_is_known_by_its_number(node: str, number: int | None) -> None:
    assert names.sequence(node) == number


@pytest.mark.parametrize("name", ["plain-Name_1.~", "a/b", ".", "..", "zookeeper", "%2E", "ü", "a b", "\ue000", "😀/%"])
def test_a_name_is_one_path_component_and_back(name: str) -> None:
    component = names.encode(name)
    assert re.fullmatch(r"[A-Za-z0-9_.~%-]+", component)
    assert component not in (".", "..", "zookeeper")
    assert names.decode(component) == name
    assert (component == name) == (name == "plain-Name_1.~")


@pytest.fixture(scope="module")
def worn() -> Iterator[WornZooKeeper]:
    with WornZooKeeper(worn="/locks/worn", count=LAST - 3) as server:
        yield server


def crowd(other: Any) -> list[str]:
    """Foreign contenders; made many at a time, so that the server takes some numbers from what it has not yet done."""
    made: list[str] = []
    while not any((names.sequence(path) or 0) < 0 for path in made):
        assert len(made) < 400, "the number was to wrap"
        stems = [f"/locks/worn/{len(made) + each}-" for each in range(8)]
        made += [each.get(timeout=PATIENCE) for each in [other.create_async(x, b"", None, True, True) for x in stems]]
    return made


def test_the_order_survives_the_end_of_the_numbers(worn: WornZooKeeper) -> None:
    """ZooKeeper then repeats 2147483647, and under load also turns negative; both happen here."""
    with fencepost.connect(f"{worn.url}/locks", ttl=LONG) as locks, kazoo(worn.url) as other:
        holder = locks.acquire("worn")
        served: list[int] = []

        def turn() -> None:
            lease = locks.acquire("worn", timeout=PATIENCE)
            served.append(lease.token)
            lease.release()

        waiting = []
        for count in range(1, 7):
            waiting.append(background(turn))
            waiters_of(locks, "worn", count)
        foreign = crowd(other)
        waiting.append(background(turn))
        waiters_of(locks, "worn", 7 + len(foreign))
        numbers = [names.sequence(child) for child in other.get_children("/locks/worn")]
        assert numbers.count(LAST) > 1, "the number was to be repeated"
        assert holder.release()
        until(lambda: len(served) == 6, "all six are served")
        for path in foreign:
            assert len(served) == 6, "the foreign ones came before the last of ours"
            other.delete(path)
        for thread in waiting:
            thread.join(PATIENCE)
        assert len(served) == 7
        assert served == sorted(served)
        assert served[0] > holder.token


def test_doctor_warns_of_numbers_that_come_to_their_end(worn: WornZooKeeper) -> None:
    backend = connect(f"{worn.url}/locks", Blocking())
    findings = run(backend.doctor())
    run(backend.close())
    assert any("/locks/worn" in finding.what for finding in findings if finding.level == "risk")


def received(server: ZooKeeper) -> int:
    """How many requests the server has had."""
    found = re.search(rb"Received: (\d+)", ask(server.port, b"srvr"))
    assert found
    return int(found[1])


@pytest.mark.parametrize("size", [50, 200])
def test_a_hand_over_wakes_one_waiter_only(size: int) -> None:
    with ZooKeeper() as server, fencepost.connect(f"{server.url}/locks", ttl=LONG) as locks:
        holder = locks.acquire("hot")
        served: list[int] = []

        def turn() -> None:
            lease = locks.acquire("hot", timeout=PATIENCE)
            served.append(lease.token)
            lease.release()

        threads = [background(turn) for _ in range(size)]
        waiters_of(locks, "hot", size)
        before = received(server)
        assert holder.release()
        for thread in threads:
            thread.join(PATIENCE)
        spent = received(server) - before
        assert served == sorted(served), "no inversion"
        assert len(served) == size
        # Each hand-over: the one woken looks at the line, after a sync, and later deletes its node. Were all of them
        # woken each time, it would be hundreds. A few pings come on top.
        assert spent <= 3 * size + 20
