"""The resource on each of its stores: shared by several processes, and killed."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import itertools
import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from fencepost.cli import app as root
from fencepost.errors import BackendError
from fencepost.events import Hook
from fencepost.resource.ledger import Found, Ledger
from fencepost.resource.store import Store, Written, opener
from fencepost.rule import MAX_TOKEN, Stamp
from fencepost_lab.servers import Postgres
from tests.harness.child import Child
from tests.harness.resource import Service
from tests.harness.servers import Endpoint, running
from tests.harness.threads import background
from tests.harness.waiting import PATIENCE, run, until


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A new and empty store."""
    if request.param == "sqlite":
        yield str(tmp_path / "folder" / "store.sqlite3")
        return
    server: Endpoint = request.getfixturevalue("postgres_server")
    name = f"store_{secrets.token_hex(4)}"
    with psycopg.connect(server.url, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name}")
        yield f"{server.url.rpartition('/')[0]}/{name}"
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextlib.contextmanager
def services(place: str, count: int) -> Iterator[Sequence[Service]]:
    """So many services on one store, all started at the same moment."""
    with contextlib.ExitStack() as stack:
        several = [Service(args=["--store", place]) for _ in range(count)]
        for starting in [background(functools.partial(stack.enter_context, each)) for each in several]:
            starting.result()
        assert all(each.running for each in several)
        yield several


def test_a_malformed_read_gets_400_and_is_not_taken_to_the_store(place: str) -> None:
    """There it would end the transaction of all that are served together, and fill the log."""
    with services(place, 1) as (service,):
        said = service.log.read_bytes()
        for seq in (MAX_TOKEN + 1, 10**19 - 1):
            answer = service.get("thing", X_Fence_Token="5", X_Fence_Seq=str(seq), X_Fence_Holder="ann")
            assert (answer.status, "2^63-1" in answer.json["error"]) == (400, True)
        assert service.get("thing", X_Fence_Token="5", X_Fence_Seq=str(MAX_TOKEN), X_Fence_Holder="ann").status == 404
        assert service.log.read_bytes() == said


@pytest.mark.slow
def test_services_that_start_at_once_on_a_new_store_share_it(place: str) -> None:
    with services(place, 5) as several:
        for token, service in enumerate(several, 1):
            assert service.put("thing", b"%d" % token, token).status == 200
        for service in several:
            assert service.get("thing").body == b"5"
            refused = service.put("thing", b"zombie", 4)
            assert (refused.status, refused.json["seen"]) == (409, 5)
            assert service.get("thing", X_Fence_Token="4").status == 409


@pytest.mark.slow
def test_through_several_services_admitted_tokens_never_go_back(place: str) -> None:
    """Writers of every service at the same keys: what is admitted last has the largest token, and is what is read."""
    tokens = itertools.count(1)
    admitted: dict[str, list[int]] = {f"key-{number}": [] for number in range(3)}
    strange: list[int] = []

    def write(service: Service, keys: Sequence[str]) -> None:
        with contextlib.closing(service.connection()) as connection:
            for round in range(30):
                key, token = keys[round % len(keys)], next(tokens)
                headers = {"X-Fence-Token": str(token)}
                answer = service.ask("PUT", f"/r/{key}", b"%d" % token, headers, over=connection)
                if answer.status == 200:
                    admitted[key].append(token)
                elif answer.status != 409:
                    strange.append(answer.status)

    with services(place, 2) as several:
        keys = list(admitted)
        # Half of them go through the keys backwards: services must not wait for each other in a circle.
        writers = [
            background(functools.partial(write, service, order))
            for service in several
            for order in (keys, keys[::-1], keys, keys[::-1])
        ]
        for writer in writers:
            writer.result()
        assert not strange
        for key, tokens_in in admitted.items():
            assert len(tokens_in) > 10
            assert several[0].get(key).body == b"%d" % max(tokens_in)


def test_what_was_deleted_is_gone_and_its_mark_is_not(place: str) -> None:
    async def use() -> None:
        await store.write("thing", b"kept", Stamp(5, 1, "ann"))
        for replay in (False, True):
            assert await store.write("thing", None, Stamp(5, 2, "ann")) == Written(replay, Stamp(5, 2, "ann"))
        assert await store.read("thing") == Found(None, Stamp(5, 2, "ann"))

    store = Store(opener(place))
    try:
        run(use())
    finally:
        store.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_acknowledged_write_is_found_again_after_each_kill(place: str) -> None:
    tokens = itertools.count(1)
    tried: dict[str, int] = {}
    acknowledged: dict[str, int] = {}

    def write(service: Service, name: str, enough: threading.Event) -> None:
        # The service dies under this writer: whatever it had not answered may or may not be there.
        with (
            contextlib.suppress(OSError, http.client.HTTPException),
            contextlib.closing(service.connection()) as connection,
        ):
            for mine in itertools.count(1):
                token = tried[name] = next(tokens)
                headers = {"X-Fence-Token": str(token)}
                assert service.ask("PUT", f"/r/{name}", b"%d" % token, headers, over=connection).status == 200
                acknowledged[name] = token
                if mine >= 5:
                    enough.set()

    with Service(args=["--store", place]) as service:
        for _ in range(3 if place.startswith("postgresql") else 5):
            enough = [threading.Event() for _ in range(8)]
            writers = [
                background(functools.partial(write, service, f"k{number}", event))
                for number, event in enumerate(enough)
            ]
            until(lambda: all(each.is_set() for each in enough), "load on the service", watching=writers)  # noqa: B023
            service.kill()
            for writer in writers:
                writer.result()
            service.start()
            assert len(acknowledged) == 8
            for name, token in acknowledged.items():
                found = service.get(name)
                mark = int(found.headers["X-Fence-Mark"])
                assert mark in (token, tried[name])
                assert found.body == b"%d" % mark
                assert service.put(name, b"zombie", token).status == 409


@pytest.mark.postgres
def test_when_postgres_dies_clients_get_503_and_nothing_acknowledged_is_lost() -> None:
    with running(Postgres(fsync=True)) as postgres, Service(args=["--store", postgres.url]) as service:
        assert service.put("thing", b"kept", Stamp(5, 1, "ann")).status == 200
        postgres.kill()
        refused = service.put("thing", b"lost?", Stamp(5, 2, "ann"))
        assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
        assert service.get("thing").status == 503
        assert service.ask("GET", "/healthz").status == 503
        postgres.restart()
        until(lambda: service.ask("GET", "/healthz").status == 200, "the store again")
        assert service.get("thing").body == b"kept"
        assert service.put("thing", b"next", Stamp(5, 2, "ann")).status == 200
        assert service.put("thing", b"zombie", Stamp(5, 1, "ann")).status == 409


def test_no_line_it_prints_has_the_password_of_its_store(postgres_server: Endpoint) -> None:
    secret = os.environ["PGPASSWORD"]
    place = postgres_server.url.replace("postgres@", f"postgres:{secret}@")
    assert secret in place
    options = ["resource", "--port", "0", "--store"]
    with Child.fencepost(*options, place, merged=True) as process:
        line = process.line()
        assert "postgresql://***@" in line
        assert secret not in line
    wrong = CliRunner().invoke(root.app, [*options, "postgresql://ann:secret-word@127.0.0.1:1/nowhere"])
    assert (wrong.exit_code, wrong.stdout, wrong.stderr.count("\n")) == (2, "", 1)
    assert "secret-word" not in wrong.stderr


def test_a_write_is_not_acknowledged_when_another_of_its_group_ended_the_transaction(postgres_server: Endpoint) -> None:
    name = f"half_a_store_{secrets.token_hex(4)}"
    url = f"{postgres_server.url.rpartition('/')[0]}/{name}"
    with psycopg.connect(postgres_server.url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
        store = Store(opener(url))

        async def use() -> None:
            busy, gate = threading.Event(), threading.Event()

            def hold(ledger: Ledger, hook: Hook) -> bool:
                busy.set()
                return gate.wait(PATIENCE)

            await store.write("a", b"before", Stamp(1, 1, "ann"))
            held = asyncio.ensure_future(store._writer.run("", hold))
            assert await asyncio.to_thread(busy.wait, PATIENCE)
            with psycopg.connect(url, autocommit=True) as other:
                other.execute("DROP FUNCTION fencepost_judge CASCADE")
            # Raising a mark that is there takes no function; a resource that is new does.
            known = asyncio.ensure_future(store.write("a", b"after", Stamp(2, 1, "ann")))
            new = asyncio.ensure_future(store.write("b", b"new", Stamp(2, 1, "ann")))
            await asyncio.sleep(0)  # both are in the queue then
            assert store._writer._queue.qsize() == 2
            gate.set()
            await held
            assert not (await known).replay
            with pytest.raises(BackendError, match="lacks tables"):
                await new
            assert (await store.read("a")).data == b"after", "what was acknowledged is there"

        try:
            run(use())
        finally:
            store.close()
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
