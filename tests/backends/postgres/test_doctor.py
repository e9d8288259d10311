"""`fencepost doctor` on a Postgres: what its settings mean for locks."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

import fencepost
from fencepost.backends.postgres import doctor
from fencepost.backends.postgres.backend import Postgres as Backend
from fencepost.driver import run
from fencepost_lab.servers import HOST, Postgres
from tests.harness.pgbouncer import PgBouncer


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres(fsync=True) as started:
        yield started


def examine(url: str) -> tuple[int, dict[str, str]]:
    """The exit code, and what was found: its level and words, by what it means."""
    command = [sys.executable, "-m", "fencepost", "doctor", url, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, {each["what"]: each["level"] for each in json.loads(done.stdout)}


def only(found: dict[str, str], level: str) -> list[str]:
    return [what for what, is_level in found.items() if is_level == level]


def test_a_server_with_its_defaults_is_well(server: Postgres) -> None:
    code, found = examine(server.url)
    assert (code, only(found, "warn"), only(found, "risk")) == (0, [], [])
    assert any(what.startswith("PostgreSQL 1") for what in found)
    assert "fsync=on, synchronous_commit=on" in found


def test_a_server_that_does_not_write_to_disk_is_a_risk() -> None:
    with Postgres() as careless:
        code, found = examine(careless.url)
    assert (code, only(found, "risk")) == (1, ["fsync=off, full_page_writes=on"])


@pytest.mark.parametrize("mode", ["", "?sslmode=disable"])
def test_a_server_elsewhere_that_is_not_verified_is_a_risk(server: Postgres, mode: str) -> None:
    # 127.1 is this machine too, which only the resolver knows: it stands for any name.
    code, found = examine(server.url.replace(f"@{HOST}", "@127.1") + mode)
    [risk] = only(found, "risk")
    assert (code, risk) == (1, f"sslmode={mode[9:] or 'prefer'} to 127.1: nothing is encrypted")


def test_a_pooler_a_loose_commit_a_strict_isolation_and_bumped_tokens_are_named(server: Postgres) -> None:
    with fencepost.connect(f"{server.url}?schema=bumped") as locks:
        locks.bump("job", above=2**60, force=True)
    server.psql("ALTER ROLE postgres SET synchronous_commit = off")
    server.psql("ALTER ROLE postgres SET default_transaction_isolation = 'repeatable read'")
    try:
        with PgBouncer(target=server.url) as bouncer:
            code, found = examine(f"{bouncer.url}?schema=bumped")
    finally:
        server.psql("ALTER ROLE postgres RESET ALL")
    assert code == 0
    assert only(found, "warn") == [
        "synchronous_commit=off",
        "some tokens are ahead of the clock",
        "default_transaction_isolation=repeatable read",
        "a connection pooler stands in between",
    ]


@pytest.mark.parametrize(("behind", "takes", "level"), [(0.0, 8.0, "ok"), (5.0, 8.0, "ok"), (30.0, 8.0, "warn")])
def test_a_clock_is_wrong_only_if_the_time_that_the_answer_took_does_not_explain_it(
    server: Postgres, behind: float, takes: float, level: str
) -> None:
    """As on a host that stands still for some seconds between its request and the answer."""
    looks: list[float] = []

    def wall() -> float:
        looks.append(time.time() - behind + takes * len(looks))
        return looks[-1]

    with fencepost.connect(server.url) as locks:
        backend = locks._core.backend
        assert isinstance(backend, Backend)
        found = run(doctor.examine(backend._links, backend._schema, wall))
    [clock] = [each for each in found if "clock differs" in each.what]
    assert clock.level == level, clock.what
    assert len(looks) == 2
