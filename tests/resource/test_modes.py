"""The service on its way to strict: each mode, changes of it while clients write, and limits on keys."""

import asyncio
import itertools
import logging
import os
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fencepost.errors import ConfigError, MissingToken, Refused, StaleToken
from fencepost.events import Event
from fencepost.guards.policy import STEPS, Policy, position
from fencepost.hooks.audit import read
from fencepost.resource import census
from fencepost.resource.census import NoRoom
from fencepost.resource.ledger import SqliteLedger
from fencepost.resource.mode import ModeFile
from fencepost.resource.store import Store, opener
from fencepost.rule import Stamp
from tests.harness.logs import logged
from tests.harness.resource import Service
from tests.harness.threads import background
from tests.harness.waiting import run, until


def with_store(
    place: str | Path,
    use: Callable[[Store], Coroutine[Any, Any, None]],
    mode: str = "strict",
    told: list[Event] | None = None,
    **options: Any,
) -> None:
    store = Store(opener(place), policy=Policy(mode), hooks=[] if told is None else [told.append], **options)
    try:
        run(use(store))
    finally:
        store.close()


async def outcome(store: Store, key: str, offer: Stamp | None) -> str:
    """How a write fares, asked as the HTTP face asks it."""
    try:
        store.require(key, offer)
        written = await store.write(key, b"x", offer)
    except Refused as error:
        return type(error).__name__
    except NoRoom:
        return "no room"
    return f"made, mark {written.mark.token if written.mark else 0}"


IN, OUT = "canary-in", "canary-out"


UNMARKED, MADE = "made, mark 0", "made, mark 5"
GOOD, MISSING = ("admit", None), ("missing", False)


@pytest.mark.parametrize(
    ("mode", "key", "good", "stale", "missing", "verdicts"),
    [
        ("off", "a", UNMARKED, UNMARKED, UNMARKED, []),
        ("passive", "a", UNMARKED, UNMARKED, UNMARKED, [(None, None), (None, None), ("missing", None)]),
        ("shadow", "a", MADE, MADE, MADE, [GOOD, ("stale", False), MISSING]),
        ("canary:50%", OUT, MADE, MADE, MADE, [GOOD, ("stale", False), MISSING]),
        ("canary:50%", IN, MADE, "StaleToken", MADE, [GOOD, ("stale", True), MISSING]),
        ("enforce", "a", MADE, "StaleToken", MADE, [GOOD, ("stale", True), MISSING]),
        ("strict", "a", MADE, "StaleToken", "MissingToken", [GOOD, ("stale", True), ("missing", True)]),
    ],
)
def test_each_mode_does_what_the_guards_of_the_library_do_and_tells_each_access_once(
    tmp_path: Path, mode: str, key: str, good: str, stale: str, missing: str, verdicts: list[tuple[str, bool]]
) -> None:
    found = next(name for n in itertools.count() if (position(name := f"{key}-{n}") < 0.5) == (key != OUT))
    told: list[Event] = []

    async def use(store: Store) -> None:
        assert await outcome(store, found, Stamp(5, 1, "new")) == good
        assert await outcome(store, found, Stamp(4, 1, "old")) == stale
        assert await outcome(store, found, None) == missing

    with_store(tmp_path / "store", use, mode, told)
    assert [(each.verdict and each.verdict.value, each.enforced) for each in told] == verdicts
    assert {each.detail for each in told} <= {mode}


def test_a_mode_that_changes_while_clients_write_loses_no_refusal_and_tells_each_access_once(tmp_path: Path) -> None:
    told: list[Event] = []
    over = threading.Event()

    async def use(store: Store) -> None:
        def flip() -> None:
            for mode in itertools.cycle(("strict", "shadow", "canary:50%", "enforce")):
                if over.is_set():
                    return
                store.policy.mode = mode

        flipping = background(flip)
        await outcome(store, "a", Stamp(1000, 1, "new"))
        offers = [Stamp(token, 1, "old") for token in range(1, 101)] + [None] * 100
        found = Counter(await asyncio.gather(*(outcome(store, "a", offer) for offer in offers)))
        over.set()
        flipping.result()
        assert set(found) <= {"StaleToken", "MissingToken", "made, mark 1000"}, "nothing lowered the mark"
        refused = Counter(type(None) if each.enforced is None else each.enforced for each in told)
        assert (refused[True], refused[False]) == (200 - found["made, mark 1000"], found["made, mark 1000"])
        store.policy.mode = "strict"
        with pytest.raises(StaleToken):
            await store.write("a", b"x", Stamp(999, 1, "old"))
        with pytest.raises(MissingToken):
            await store.write("a", b"x", None)

    with_store(tmp_path / "store", use, told=told)
    assert len(told) == 203


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "store")
        return
    import psycopg

    server = request.getfixturevalue("postgres_server")
    name = f"store_{secrets.token_hex(4)}"
    with psycopg.connect(server.url, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name}")
        yield f"{server.url.rpartition('/')[0]}/{name}"
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_as_many_keys_as_there_may_be_and_no_more_however_many_ask_at_once(place: str) -> None:
    async def use(store: Store) -> None:
        keys = [f"key-{number}" for number in range(20)]
        found = Counter(await asyncio.gather(*(outcome(store, key, Stamp(1, 1, "ann")) for key in keys)))
        assert found == {"made, mark 1": 3, "no room": 17}
        (known, *_), new = [key for key in keys if (await store.read(key)).mark], "another"
        assert await outcome(store, known, Stamp(2, 1, "ann")) == "made, mark 2"
        assert await outcome(store, known, Stamp(1, 1, "zombie")) == "StaleToken"
        await store.write(known, None, Stamp(2, 2, "ann"))
        assert await outcome(store, new, Stamp(1, 1, "ann")) == "no room", "the mark of what was deleted stays"
        with pytest.raises(NoRoom):
            await store.enter(new, Stamp(1, 1, "ann"))
        assert (await store.enter(known, Stamp(3, 1, "bob"))).mark == Stamp(3, 1, "bob")
        store.policy.mode = "passive"
        assert await outcome(store, new, None) == "no room"
        assert await outcome(store, known, None) == "made, mark 3"
        assert store.census.count == 3

    with_store(place, use, max_keys=3)

    async def again(store: Store) -> None:
        assert [await outcome(store, key, None) for key in ("a", "b", "a")] == [
            "made, mark 0",
            "no room",
            "made, mark 0",
        ]
        assert [await outcome(store, "b", Stamp(1, 1, "ann"))] == ["no room"]
        assert store.census.count == 4

    with_store(place, again, "enforce", max_keys=4)


def test_keys_that_others_made_are_counted_and_a_full_store_is_not_counted_for_each_who_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, count = [], SqliteLedger.count

    def counted(ledger: SqliteLedger, most: int) -> int:
        counts.append(most)
        return count(ledger, most)

    monkeypatch.setattr(SqliteLedger, "count", counted)
    monkeypatch.setattr(census, "_PAUSE", 3600.0)

    async def fill(store: Store) -> None:
        assert await outcome(store, "ours", Stamp(1, 1, "ann")) == "made, mark 1"

        async def other(other: Store) -> None:
            assert await outcome(other, "theirs", Stamp(1, 1, "bob")) == "made, mark 1"

        there = Store(opener(tmp_path / "store"))
        await other(there)
        await asyncio.to_thread(there.close)
        counts.clear()
        store.census._at -= 61
        assert await outcome(store, "new", Stamp(1, 1, "ann")) == "made, mark 1"
        assert (store.census.count, counts) == (3, [3])
        assert [await outcome(store, f"no-{each}", Stamp(1, 1, "ann")) for each in range(50)] == ["no room"] * 50
        assert counts == [3], "it was counted a moment ago"
        store.census._at -= 3601
        store.census._took = 0.0
        assert await outcome(store, "no", Stamp(1, 1, "ann")) == "no room"
        assert counts == [3, 3]

    with_store(tmp_path / "store", fill, max_keys=3)


def test_a_file_has_the_mode_and_what_it_says_wrong_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencepost.resource.mode._EVERY", 3600.0)
    file = tmp_path / "mode"
    for content in (b"", b"strickt\n", b"canary:101%", b"\xff", b"strict " * 100):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match="no mode"):
            ModeFile(file)
    file.write_text(" shadow\n")
    mode = ModeFile(file)
    policy = Policy(mode)

    def later() -> str:
        mode._next = 0.0
        return policy.mode

    assert later() == "shadow"
    file.write_text("canary:10%")
    assert policy.mode == "shadow", "it is not looked at for each access"
    with caplog.at_level(logging.WARNING, logger="fencepost"):
        assert later() == "canary:10%"
        file.write_text("")
        assert [later(), later()] == ["canary:10%"] * 2
        file.unlink()
        os.mkfifo(file)
        assert later() == "canary:10%", "and the service does not wait for a writer of the pipe"
        file.unlink()
        assert later() == "canary:10%"
        file.write_text("strict")
        assert later() == "strict"
    said = [record.getMessage().partition(":")[0] for record in logged(caplog)]
    assert said == [
        "the service goes from mode shadow to canary",
        *["the service stays in mode canary"] * 3,
        "the service goes from mode canary",
    ]


@pytest.mark.slow
def test_an_operator_changes_the_mode_of_a_running_service_and_sees_it(tmp_path: Path) -> None:
    mode, log = tmp_path / "mode", tmp_path / "audit.jsonl"
    mode.write_text("shadow")
    options = ["--mode-file", str(mode), "--max-keys", "2", "--max-queue", "7", "--audit", str(log)]
    with Service(args=options) as service:
        assert service.ask("GET", "/healthz").json == {"status": "ok", "mode": "shadow"}
        assert service.put("a", b"new", 7).status == 200
        assert service.put("a", b"zombie", 6).status == 200
        assert service.ask("DELETE", "/r/a").status == 200, "without a token"
        mode.write_text("strict")
        until(lambda: service.ask("GET", "/healthz").json["mode"] == "strict", "the change")
        assert service.put("a", b"zombie", 6).status == 409
        assert service.ask("DELETE", "/r/a").status == 428
        shown = {step: service.metric(f'fencepost_resource_mode{{mode="{step}"}}') for step in STEPS}
        assert shown == {step: float(step == "strict") for step in STEPS}
        assert service.metric("fencepost_resource_enforced_ratio") == 1
        assert service.put("b", b"", 1).status == 200
        for full in (service.put("c", b"", 1), service.get("c", X_Fence_Token="1"), delete(service, "c", 1)):
            assert (full.status, "--max-keys" in full.json["error"]) == (507, True)
        assert service.get("c").status == 404
        assert service.put("b", b"more", 2).status == 200
        away = [f'turned_away_total{{limit="{limit}"}}' for limit in ("keys", "writer")]
        limits = ["keys", "keys_limit", "queue_limit", *away]
        assert [service.metric(f"fencepost_resource_{name}") for name in limits] == [2, 2, 7, 3, 0]
    decisions = [(fact["name"], fact["detail"], fact.get("enforced")) for fact in read(log) if "verdict" in fact]
    assert decisions[:3] == [("a", "shadow", None), ("a", "shadow", False), ("a", "shadow", False)]
    assert decisions[3:5] == [("a", "strict", True)] * 2


def delete(service: Service, key: str, token: int) -> Any:
    with closing(service.connection()) as connection:
        return service.ask("DELETE", f"/r/{key}", headers={"X-Fence-Token": str(token)}, over=connection)
