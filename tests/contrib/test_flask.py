"""Flask under gunicorn: two workers of one fleet on Redis and Postgres, one of them frozen past its ttl."""

import secrets
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from flask import Flask

import fencepost
from fencepost.contrib.flask import Fencepost, fenced
from fencepost.errors import ConfigError
from tests.contrib.http import ask, frozen
from tests.harness.child import Child
from tests.harness.servers import Endpoint
from tests.harness.threads import background
from tests.harness.waiting import PATIENCE


class Fleet(NamedTuple):
    child: Child
    name: str
    port: int
    ran: list[bool]
    folder: Path


@pytest.fixture(scope="module")
def fleet(redis_server: Endpoint, postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    name, folder = secrets.token_hex(4), tmp_path_factory.mktemp("fleet")
    env = {
        "SERVE_REDIS": redis_server.url,
        "SERVE_DATABASE": postgres_url.replace("postgresql://", "postgresql+psycopg://"),
        "SERVE_NAME": name,
        "SERVE_FOLDER": str(folder),
    }
    module = "tests.contrib.serve_flask"
    with Child.python("-m", "gunicorn", "-c", f"python:{module}", f"{module}:app", env=env) as child:
        port = child.event("ready")["port"]
        yield Fleet(child, name, port, [child.event("started")["ran"] for _ in range(2)], folder)
        child.signal(signal.SIGTERM)
        assert [child.event("stopped")["held"] for _ in range(2)] == [[], []]


@pytest.fixture
def number(fleet: Fleet, pg: "psycopg.Connection[Any]") -> int:
    """An account nobody has touched yet, with a balance of 100."""
    number = secrets.randbelow(10**9)
    pg.execute("INSERT INTO account (id, balance) VALUES (%s, 100)", (f"{fleet.name}/{number}",))
    return number


def test_a_job_at_start_up_runs_once_for_the_fleet(fleet: Fleet, pg: "psycopg.Connection[Any]") -> None:
    assert sorted(fleet.ran) == [False, True]
    assert pg.execute("SELECT count(*) FROM account WHERE id = %s", (f"{fleet.name}/seeds",)).fetchone() == (1,)


def test_a_request_whose_lock_is_busy_is_told_when_to_come_again(
    fleet: Fleet, redis_server: Endpoint, number: int
) -> None:
    with fencepost.connect(redis_server.url, ttl=PATIENCE) as locks, locks.lock(f"{fleet.name}/{number}"):
        for path in (f"/hurried/{number}", f"/hurried/00{number}"):
            busy = ask(fleet.port, "POST", path)
            assert (busy.status, busy.headers["retry-after"]) == (409, "3"), busy
            assert fleet.name not in busy.body


def test_a_worker_frozen_past_its_ttl_is_refused(fleet: Fleet, pg: "psycopg.Connection[Any]", number: int) -> None:
    zombie = background(lambda: ask(fleet.port, "POST", f"/zombie/{number}"))
    waiting = fleet.child.event("waiting")
    with frozen(waiting["pid"]):
        paid = ask(fleet.port, "POST", f"/pay/{number}")  # waits until the frozen worker's lease has expired
        assert paid.status == 200
        assert paid.json["token"] > waiting["token"]
    Path(fleet.folder, "go").touch()
    refused = fleet.child.event("refused")
    assert (refused["verdict"], refused["token"], refused["seen"]) == ("stale", waiting["token"], paid.json["token"])
    answer = zombie.result()
    assert (answer.status, answer.headers["x-fence-verdict"]) == (409, "stale")
    assert pg.execute("SELECT balance FROM account WHERE id = %s", (f"{fleet.name}/{number}",)).fetchone() == (90,)


def test_a_lock_is_free_after_a_request_that_failed_or_lost_it(fleet: Fleet, number: int) -> None:
    for _ in range(2):
        assert ask(fleet.port, "POST", f"/fail/{number}").status == 500
    answer = ask(fleet.port, "POST", f"/lost/{number}")
    assert (answer.status, answer.headers["x-fence-verdict"]) == (409, "lost")
    assert ask(fleet.port, "POST", f"/hurried/{number}").status == 200


def test_the_guard_in_front_of_a_view_judges_what_clients_send(fleet: Fleet, number: int) -> None:
    assert ask(fleet.port, "PUT", f"/guarded/{number}").status == 428
    for path, token, status in ((f"/guarded/{number}", 7, 200), (f"/guarded/00{number}", 6, 409)):
        answer = ask(fleet.port, "PUT", path, {"X-Fence-Token": str(token)})
        assert answer.status == status, answer
    assert answer.json["seen"] == 7
    assert answer.headers["x-fence-verdict"] == "stale"
    assert ask(fleet.port, "PUT", "/nothing", {"X-Fence-Token": "9"}).status == 404
    assert ask(fleet.port, "PUT", "/unguarded/1").status == 500, "a forgotten guard is noticed"


def application(**config: Any) -> Flask:
    app = Flask(__name__)
    app.config.update({"FENCEPOST_URL": "memory://", "TESTING": True, **config})
    return app


def test_each_application_has_its_own_locks_and_settings() -> None:
    fence = Fencepost()
    one, two = application(FENCEPOST_BUSY=503), application(FENCEPOST_RETRY_AFTER=9)
    for app in (one, two):
        fence.init_app(app)

        @app.get("/<text>")
        @fence.holding("text/{text}", timeout=0)
        def view(text: str, lease: fencepost.Lease) -> str:
            return lease.name

    with one.app_context():
        mine = fence.locks
        held = mine.acquire("text/a")
    with two.app_context():
        assert fence.locks is not mine
    busy = one.test_client().get("/a")
    assert (busy.status_code, busy.headers["Retry-After"]) == (503, "1")
    assert two.test_client().get("/a").status_code == 423
    held.release()
    assert one.test_client().get("/a").text == "text/a"
    assert one.test_client().get("/" + "x" * 600).status_code == 404, "no lock can have that name"
    with pytest.raises(ConfigError, match="already"):
        fence.init_app(one)
    for app in (one, two):
        fence.close(app)


def test_what_cannot_be_meant_is_said_before_a_request_comes() -> None:
    fence = Fencepost()
    with pytest.raises(ConfigError, match="belong to an application"):
        _ = fence.locks
    with application().app_context(), pytest.raises(ConfigError, match="init_app"):
        _ = fence.locks
    for config in ({"FENCEPOST_BUSY": 200}, {"FENCEPOST_RETRY_AFTER": "soon"}, {"FENCEPOST_URL": "what://"}):
        with pytest.raises(ConfigError):
            fence.init_app(application(**config))
    for template in ("a/{id.x}", "a/{id!r}", "a/{0}", "a/{", "a/{id:3}", ""):
        with pytest.raises(ConfigError):
            fence.holding(template)
    with pytest.raises(ConfigError, match="status"):
        fence.holding("a", busy=302)
    with pytest.raises(ConfigError, match="takes no 'lease'"):
        fence.holding("a/{id}")(lambda id: id)
    with pytest.raises(ConfigError, match=r"which 'a/{id}' needs"):
        fence.holding("a/{id}")(lambda lease: lease)

    def stream(lease: fencepost.Lease) -> Iterator[str]:
        yield "the lock is free by now"

    with pytest.raises(ConfigError, match="'stream' yields its answer, and would run when the lock is free again"):
        fence.holding("a")(stream)


def test_a_guard_of_an_endpoint_that_is_not_there_is_noticed() -> None:
    fence, app = Fencepost(), application()
    fence.guard(app, {"pya": "account/{number}"})

    @app.put("/pay/<int:number>")
    def pay(number: int) -> str:
        return fenced().resource

    with pytest.raises(ConfigError, match="no endpoint 'pya' to guard; there are pay"):
        app.test_client().put("/pay/1")


def test_a_start_up_job_that_failed_was_not_done(tmp_path: Path) -> None:
    app = application()
    fence = Fencepost(app)
    ran: list[str] = []

    def job(lease: fencepost.Lease) -> None:
        ran.append(lease.name)
        if len(ran) == 1:
            raise ZeroDivisionError

    def memory() -> Any:
        return closing(sqlite3.connect(tmp_path / "memory.sqlite3"))

    with app.app_context():
        with pytest.raises(ZeroDivisionError):
            fence.once_per_fleet("warm up", job, memory=memory)
        assert fence.once_per_fleet("warm up", job, memory=memory) is True
        assert fence.once_per_fleet("warm up", job, memory=memory) is False
        assert ran == ["warm up", "warm up"]

        async def later() -> None: ...

        with pytest.raises(ConfigError, match="blocks"):
            fence.once_per_fleet("other", job, memory=later)  # type: ignore[arg-type]

        async def late(lease: fencepost.Lease) -> None: ...

        def steps(lease: fencepost.Lease) -> Iterator[None]:
            yield

        for unfinished in (late, steps, lambda lease: late(lease)):
            with pytest.raises(ConfigError, match="returns before its work is done"):
                fence.once_per_fleet("other", unfinished, memory=memory)
        assert fence.once_per_fleet("other", job, memory=memory) is True, "it was not remembered as done"
    fence.close(app)
