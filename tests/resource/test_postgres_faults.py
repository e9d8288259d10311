"""The resource on a Postgres that is slow, silent, out of reach, or loses an answer."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import psycopg
import pytest

from fencepost.errors import BackendError
from fencepost.events import Hook
from fencepost.resource import ledger_postgres
from fencepost.resource.ledger import Found, Ledger
from fencepost.resource.ledger_postgres import PostgresLedger
from fencepost.resource.store import Store, opener
from fencepost.rule import Stamp
from fencepost_lab.faults.proxy import Proxy
from fencepost_lab.faults.record import Faults
from fencepost_lab.servers import Postgres
from tests.harness.resource import Service
from tests.harness.servers import Endpoint, running
from tests.harness.waiting import GIVES_UP, PATIENCE, run, until_async

pytestmark = pytest.mark.postgres

IN_TRANSACTION = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'"


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A server that tests may pause."""
    with running(Postgres()) as started:
        yield started


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent server is given up soon, but answers every other request in time, on a busy machine too."""
    monkeypatch.setattr(ledger_postgres, "_PATIENCE", GIVES_UP)


@contextlib.contextmanager
def opened(url: str) -> Iterator[Store]:
    store = Store(opener(url))
    try:
        yield store
    finally:
        store.close()


@contextlib.contextmanager
def database(server: Endpoint) -> Iterator[str]:
    """The name of a new and empty database."""
    name = f"faults_{secrets.token_hex(4)}"
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
        try:
            yield name
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


def at(url: str, *, name: str | None = None, port: int | None = None) -> str:
    """The URL of another database, or through another port."""
    start, _, path = url.rpartition("/")
    start = f"{start.rpartition(':')[0]}:{port}" if port else start
    return f"{start}/{name or path}"


async def together(store: Store, *calls: Callable[[], Awaitable[Any]]) -> list[Any]:
    """The outcomes of accesses that make one group."""
    busy, gate = threading.Event(), threading.Event()

    def hold(ledger: Ledger, hook: Hook) -> bool:
        busy.set()
        return gate.wait(PATIENCE)

    held = asyncio.ensure_future(store._writer.run("", hold))
    assert await asyncio.to_thread(busy.wait, PATIENCE)
    asked = [asyncio.ensure_future(call()) for call in calls]
    await asyncio.sleep(0)  # each of them has now put its access into the queue
    gate.set()
    await held
    return await asyncio.gather(*asked, return_exceptions=True)


def writing(store: Store, key: str, token: int, holder: str = "") -> Callable[[], Awaitable[Any]]:
    return lambda: store.write(key, b"by %d" % token, Stamp(token, 1, holder))


def doing(store: Store, key: str, act: Callable[[Ledger], Any]) -> Callable[[], Awaitable[Any]]:
    return lambda: store._writer.run(key, lambda ledger, hook: act(ledger))


def test_writes_whose_commit_was_not_answered_are_not_refused(server: Postgres) -> None:
    faults = Faults()

    async def use(store: Store, proxy: Proxy) -> None:
        outcomes = await together(
            store,
            doing(store, "", lambda ledger: proxy.drop_after(b"COMMIT")),
            writing(store, "a", 7),
            writing(store, "b", 8, "ann"),
            lambda: store.enter("b", Stamp(9, 1, "bob")),
        )
        assert len(faults.of("lose")) == 1, "the answer to COMMIT was lost"
        for outcome in outcomes:
            assert isinstance(outcome, BackendError), outcomes
            assert outcome.ambiguous
        assert await store.read("a") == Found(b"by 7", Stamp(7, 1, "")), "it was carried out"
        data, mark = await store.read("b")
        assert (data, mark and mark.token) == (b"by 8", 9)

    with (
        database(server) as name,
        Proxy(server.port, faults=faults) as proxy,
        opened(at(server.url, name=name, port=proxy.port)) as store,
    ):
        run(use(store, proxy))


def test_a_connection_that_breaks_in_a_group_never_commits_the_rest_of_it(postgres_server: Endpoint) -> None:
    """What came before the break was on the old connection, so it must not be acknowledged."""

    def broken(ledger: Ledger) -> Found:
        assert isinstance(ledger, PostgresLedger)
        with psycopg.connect(url, autocommit=True) as other:
            (ended,) = other.execute(
                "SELECT pg_terminate_backend(%s, 10000)", (ledger._link.info.backend_pid,)
            ).fetchone() or (False,)
            assert ended
        return ledger.find("b")

    async def use(store: Store) -> None:
        outcomes = await together(store, writing(store, "a", 7), doing(store, "b", broken))
        data = (await store.read("a")).data
        assert data == (None if isinstance(outcomes[0], BackendError) else b"by 7"), outcomes
        assert isinstance(outcomes[1], BackendError)

    with database(postgres_server) as name:
        url = at(postgres_server.url, name=name)
        with opened(url) as store:
            run(use(store))


def test_a_row_that_somebody_keeps_locked_fails_only_the_writes_to_it(postgres_server: Endpoint) -> None:
    async def use(store: Store) -> None:
        await store.write("busy", b"before", Stamp(1, 1, ""))
        with psycopg.connect(url) as other:
            other.execute("UPDATE fencepost_mark SET seq = seq WHERE resource = 'busy'")
            outcomes = await together(
                store,
                writing(store, "a", 2),
                writing(store, "busy", 2),
                writing(store, "busy", 3),
                writing(store, "z", 2),
            )
            assert [isinstance(each, BackendError) for each in outcomes] == [False, True, True, False], outcomes
            assert (await store.read("z")).data == b"by 2"
            with psycopg.connect(url, autocommit=True) as third:
                (left,) = third.execute(f"{IN_TRANSACTION} AND pid <> {other.info.backend_pid}").fetchone() or (None,)
                assert left == 0, "no transaction is left open"
        assert not (await store.write("busy", b"after", Stamp(4, 1, ""))).replay
        assert not (await store.write("other", b"after", Stamp(4, 1, ""))).replay

    with database(postgres_server) as name:
        url = at(postgres_server.url, name=name)
        with opened(url) as store:
            run(use(store))


@pytest.mark.usefixtures("hasty")
def test_a_server_that_was_silent_is_used_again_once_it_answers(server: Postgres) -> None:
    async def use(store: Store) -> None:
        await store.write("thing", b"before", Stamp(1, 1, "ann"))
        await store.read("thing")
        with server.paused():
            for attempt in (
                store.write("thing", b"lost?", Stamp(2, 1, "ann")),
                store.read("thing"),
                store.check(),
            ):
                with pytest.raises(BackendError):
                    await attempt
        assert not (await store.write("other", b"after", Stamp(2, 1, "ann"))).replay
        assert (await store.read("other")).data == b"after"
        await store.check()

    with database(server) as name, opened(at(server.url, name=name)) as store:
        run(use(store))


@pytest.mark.usefixtures("hasty")
def test_a_transaction_that_was_cut_off_does_not_keep_its_rows_locked(server: Postgres) -> None:
    """The server does not learn that the client is gone: it is told so when the client connects again."""

    async def use(store: Store, proxy: Proxy) -> None:
        await store.write("a", b"before", Stamp(1, 1, "ann"))
        outcomes = await together(store, writing(store, "a", 2), doing(store, "b", lambda ledger: cut(proxy, ledger)))
        assert all(isinstance(each, BackendError) for each in outcomes)
        assert proxy.held, "the cut held something back"
        assert (await store.write("a", b"after", Stamp(3, 1, "ann"))).replay is False

    def cut(proxy: Proxy, ledger: Ledger) -> Found:
        proxy.cut(newcomers=False)
        return ledger.find("b")

    with (
        database(server) as name,
        Proxy(server.port) as proxy,
        opened(at(server.url, name=name, port=proxy.port)) as store,
    ):
        run(use(store, proxy))


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("how", ["write", "read"])
def test_a_server_out_of_reach_is_tried_once_for_all_who_wait(
    server: Postgres, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    tried: list[str] = []
    connect = PostgresLedger._connect

    def counted(ledger: PostgresLedger) -> Any:
        tried.append(threading.current_thread().name)
        return connect(ledger)

    async def use(store: Store, proxy: Proxy) -> None:
        await store.write("thing", b"before", Stamp(1, 1, "ann"))
        proxy.cut()
        proxy.drop()
        monkeypatch.setattr(PostgresLedger, "_connect", counted)
        numbers = range(20)
        calls = [
            store.write(f"k{n}", b"x", Stamp(2, 1, "ann")) if how == "write" else store.read("thing") for n in numbers
        ]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(each, BackendError) for each in outcomes), outcomes
        # The first one may have been alone in its group.
        assert 1 <= len(tried) <= 2, tried
        proxy.heal()

    with (
        database(server) as name,
        Proxy(server.port) as proxy,
        opened(at(server.url, name=name, port=proxy.port)) as store,
    ):
        run(use(store, proxy))


def test_behind_a_pooler_every_commit_waits_for_the_disk(postgres_server: Endpoint, pgbouncer_server: Endpoint) -> None:
    async def use(store: Store) -> None:
        await store.write("thing", b"before", Stamp(1, 1, "ann"))
        with psycopg.connect(url, autocommit=True) as admin:
            ended = admin.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ).fetchall()
            assert ended, "the pooler has to give its clients other sessions"

        async def setting() -> Any:
            def ask(ledger: Ledger, hook: Hook) -> Any:
                assert isinstance(ledger, PostgresLedger)
                return ledger._link.execute("SHOW synchronous_commit").fetchone()

            with contextlib.suppress(BackendError):  # the pooler may not have noticed yet
                return await store._writer.run("", ask)

        end = asyncio.get_running_loop().time() + PATIENCE
        while (found := await setting()) is None:
            assert asyncio.get_running_loop().time() < end
        assert found == ("on",)

    with database(postgres_server) as name:
        url = at(postgres_server.url, name=name)
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
        with opened(at(pgbouncer_server.url, name=name)) as store:
            run(use(store))


def test_health_looks_at_the_writer_too(postgres_server: Endpoint) -> None:
    with database(postgres_server) as name:
        url = at(postgres_server.url, name=name)
        with Service(args=["--store", url]) as service, psycopg.connect(url) as other:
            assert service.put("thing", b"x", 1).status == 200
            other.execute("LOCK fencepost_mark IN EXCLUSIVE MODE")
            assert service.get("thing").status == 200, "it can still be read"
            assert service.ask("GET", "/healthz").status == 503
            assert service.put("thing", b"y", 2).status == 503
            other.rollback()
            assert service.ask("GET", "/healthz").status == 200
            assert service.put("thing", b"y", 2).status == 200


def test_a_write_that_waited_for_a_row_is_made_whatever_isolation_is_the_default(postgres_server: Endpoint) -> None:
    async def use(store: Store) -> None:
        await store.write("thing", b"before", Stamp(1, 1, ""))
        with psycopg.connect(url) as other, psycopg.connect(url, autocommit=True) as watch:
            other.execute("UPDATE fencepost_mark SET seq = seq WHERE resource = 'thing'")
            asked = asyncio.ensure_future(store.write("thing", b"after", Stamp(2, 1, "")))
            blocked = f"SELECT FROM pg_stat_activity WHERE {other.info.backend_pid} = ANY (pg_blocking_pids(pid))"
            await until_async(lambda: watch.execute(blocked).rowcount, "it waits for the row", watching=[asked])
            other.commit()
            assert not (await asked).replay
        assert (await store.read("thing")).data == b"after"

    with database(postgres_server) as name:
        url = at(postgres_server.url, name=name)
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'")
        with opened(url) as store:
            run(use(store))
