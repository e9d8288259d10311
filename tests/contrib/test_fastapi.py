"""FastAPI under uvicorn: two workers of one fleet on Redis and Postgres, one of them frozen past its ttl."""

import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

import fencepost
from fencepost.guards import postgres
from tests.contrib.http import ask, frozen
from tests.harness.child import Child
from tests.harness.servers import Endpoint
from tests.harness.threads import background


class Fleet(NamedTuple):
    child: Child
    name: str
    pids: list[int]
    ports: list[int]
    ran: list[bool]
    folder: Path


@pytest.fixture(scope="module")
def fleet(redis_server: Endpoint, postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    name, folder = secrets.token_hex(4), tmp_path_factory.mktemp("fleet")
    url = postgres_url.replace("postgresql://", "postgresql+psycopg://")
    with Child.python("-m", "tests.contrib.serve_fastapi", redis_server.url, url, name, folder) as child:
        workers: list[dict[str, Any]] = []
        ran: dict[int, bool] = {}
        while len(ran) < 2:
            fact = child.json()
            if fact["event"] == "forked":
                workers.append(fact)
            else:
                ran[fact["pid"]] = fact["ran"]
        pids = [each["worker"] for each in workers]
        yield Fleet(child, name, pids, [each["port"] for each in workers], [ran[pid] for pid in pids], folder)
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        assert child.event("stopped")["held"] == []
        assert child.event("stopped")["held"] == []
        child.succeed()


@pytest.fixture
def number(fleet: Fleet, pg: "psycopg.Connection[Any]") -> int:
    """An account nobody has touched yet, with a balance of 100."""
    number = secrets.randbelow(10**9)
    pg.execute("INSERT INTO account (id, balance) VALUES (%s, 100)", (f"{fleet.name}/{number}",))
    return number


def balance(pg: "psycopg.Connection[Any]", fleet: Fleet, number: int) -> int:
    row = pg.execute("SELECT balance FROM account WHERE id = %s", (f"{fleet.name}/{number}",)).fetchone()
    assert row is not None
    return int(row[0])


def test_a_job_at_start_up_runs_once_for_the_fleet(fleet: Fleet, pg: "psycopg.Connection[Any]") -> None:
    assert sorted(fleet.ran) == [False, True]
    assert pg.execute("SELECT count(*) FROM account WHERE id = %s", (f"{fleet.name}/seeds",)).fetchone() == (1,)


def test_a_request_whose_lock_is_busy_is_told_when_to_come_again(fleet: Fleet, number: int) -> None:
    one, two = fleet.ports
    holding = background(lambda: ask(one, "POST", f"/hold/{number}"))
    fleet.child.event("holding")
    for path in (f"/hold/{number}", f"/hold/00{number}"):  # the same account, written in two ways
        busy = ask(two, "POST", path)
        assert (busy.status, busy.headers["retry-after"]) == (423, "7"), busy
        assert fleet.name not in busy.body
    assert ask(one, "POST", "/go").status == 200
    answer = holding.result()
    assert answer.json == {"name": f"{fleet.name}/{number}", "number": number}


def test_a_lock_is_free_after_a_request_that_failed(fleet: Fleet, number: int) -> None:
    for port in fleet.ports:
        assert ask(port, "POST", f"/fail/{number}").status == 500
    assert ask(fleet.ports[0], "POST", "/fail/what").status == 422, "FastAPI validates the parameter before the lock"


def test_a_store_that_cannot_be_reached_is_503(fleet: Fleet, number: int) -> None:
    answer = ask(fleet.ports[0], "POST", f"/nowhere/{number}")
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert "127.0.0.1" not in answer.body


def test_a_worker_frozen_past_its_ttl_is_refused(
    fleet: Fleet, redis_server: Endpoint, pg: "psycopg.Connection[Any]", number: int
) -> None:
    one, two = fleet.ports
    asleep = number + 1
    zombie = background(lambda: ask(one, "POST", f"/zombie/{number}"))
    old = fleet.child.event("waiting")["token"]
    sleeper = background(lambda: ask(one, "POST", f"/sleep/{asleep}"))
    fleet.child.event("sleeping")
    with frozen(fleet.pids[0]):
        paid = ask(two, "POST", f"/pay/{number}")  # waits until the frozen worker's lease has expired
        assert paid.status == 200
        assert paid.json > old
        with fencepost.connect(redis_server.url) as locks:
            locks.acquire(f"{fleet.name}/{asleep}", timeout=20).release()
    answer = sleeper.result()
    assert (answer.status, answer.headers["x-fence-verdict"]) == (409, "lost")
    assert fleet.child.event("cancelled")["lost"] is True
    answer = zombie.result()
    assert (answer.status, answer.headers["x-fence-verdict"]) == (409, "lost"), "answered while its thread goes on"
    Path(fleet.folder, "go").touch()
    refused = fleet.child.event("refused")
    assert (refused["verdict"], refused["token"], refused["seen"]) == ("stale", old, paid.json)
    assert balance(pg, fleet, number) == 90


def test_a_write_that_the_guard_refuses_is_409(fleet: Fleet, number: int) -> None:
    answer = ask(fleet.ports[0], "POST", f"/stale/{number}")
    assert (answer.status, answer.headers["x-fence-verdict"]) == (409, "stale")
    assert "retry-after" not in answer.headers


def test_the_guard_in_front_of_a_path_judges_what_clients_send(
    fleet: Fleet, pg: "psycopg.Connection[Any]", number: int
) -> None:
    one = fleet.ports[0]
    assert ask(one, "PUT", f"/guarded/{number}").status == 428
    resource = f"{fleet.name}/guarded/{number}"
    for path, token, status in ((f"/guarded/{number}", 7, 200), (f"/guarded/00{number}", 6, 409)):
        answer = ask(one, "PUT", path, {"X-Fence-Token": str(token)})
        assert answer.status == status, answer
    with pg.transaction():
        mark = postgres.mark(pg, resource)
    assert mark is not None
    assert mark.token == 7
    assert ask(one, "PUT", f"/guarded/{number}.0", {"X-Fence-Token": "9"}).status == 404
    assert ask(one, "PUT", "/unguarded/1").status == 500, "a forgotten guard is noticed"
