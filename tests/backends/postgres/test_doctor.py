"""`fencepost doctor` on a Postgres: what its settings mean for locks."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

import fencepost
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
