"""`fencepost top`, at a terminal and elsewhere."""

import json
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import fencepost
from fencepost import sync
from fencepost.backends.memory import Memory
from fencepost.cli import app as root
from fencepost.cli.top import Refusals, Sort, View
from fencepost.errors import BackendError, ConfigError, StaleToken
from fencepost.guards import MemoryGuard
from fencepost.hooks.audit import Audit
from tests.harness.child import Child
from tests.harness.terminal import Terminal
from tests.harness.threads import background
from tests.harness.waiting import PATIENCE, until

PROGRAM = (sys.executable, "-m", "fencepost")


@pytest.fixture
def where(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/locks.db"


@pytest.fixture
def locks(where: str) -> Iterator[sync.Locks]:
    with fencepost.connect(where, ttl=60, label="billing[1] root@web-1") as locks:
        yield locks


def shown(view: View, width: int = 80, height: int = 24) -> list[str]:
    console = Console(width=width, height=height, color_system=None)
    with console.capture() as screen:
        console.print(view.drawn(width, height))
    return screen.get().splitlines()


def test_it_fits_into_a_terminal_of_any_size(locks: sync.Locks) -> None:
    for number in range(30):
        locks.acquire(f"account/{number:02}/{'x' * 100}")
    view = View(locks, "", Sort.NAME, "sqlite:x", None)
    view.look()
    for width, height in ((80, 24), (120, 50), (40, 10), (20, 5)):
        lines = shown(view, width, height)
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
    lines = shown(view)
    assert "30 held, 0 waiting" in lines[0]
    assert lines[2].split() == ["NAME", "WAITING", "HELD", "LEFT", "TOKEN", "HOLDER"]
    assert lines[3].startswith("account/00/xx")
    assert "billing[1] root@web-1" in lines[3]
    assert lines[-1].endswith("10 more")


def test_what_has_waiters_comes_first_and_every_order_can_be_asked_for(locks: sync.Locks) -> None:
    leases = {"b": locks.acquire("b", ttl=20), "a": locks.acquire("a", ttl=40), "c": locks.acquire("c", ttl=60)}
    waiter = background(lambda: locks.acquire("c", timeout=PATIENCE))
    until(lambda: len(locks.status("c").waiters) == 1, "one waits", watching=[waiter])  # type: ignore[union-attr]
    view = View(locks, "", Sort.WAITING, "", None)
    view.look()
    again = leases["a"].release() and locks.acquire("a", ttl=40)
    view.look()
    orders = {}
    for view.sort in Sort:
        orders[view.sort] = "".join(fact["name"] for fact in view.facts())
    assert orders == {"waiting": "cab", "held": "bca", "left": "bac", "name": "abc"}
    assert again
    assert leases["c"].release()
    assert waiter.result().release()


def test_names_are_shown_and_not_obeyed(locks: sync.Locks, tmp_path: Path) -> None:
    locks.acquire("evil")
    with closing(sqlite3.connect(tmp_path / "locks.db")) as db, db:
        db.execute("UPDATE lock SET name = ?, holder = ? WHERE name = 'evil'", ("a\x1b]0;x\x07", "[bold]b\x9b2J"))
    view = View(locks, "", Sort.NAME, "", None)
    view.look()
    line = shown(view, 120)[3]
    assert "a\\x1b]0;x\\x07" in line
    assert "[bold]b\\x9b2J" in line


def test_refusals_are_counted_where_the_guards_tell_them(locks: sync.Locks, tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    guard = MemoryGuard[str](hooks=[Audit(log)])

    def refuse(resource: str) -> None:
        guard.write(resource, "new", 5)
        with pytest.raises(StaleToken):
            guard.write(resource, "old", 4)

    refuse("account/42")
    locks.acquire("account/42")
    view = View(locks, "", Sort.NAME, "", log)
    view.look()
    assert view.facts()[0]["refused"] == 1
    refuse("account/42/balance")
    refuse("account/421")
    view.look()
    assert view.facts()[0]["refused"] == 2
    log.rename(tmp_path / "audit.1")
    view.look()
    refuse("account/42/name")
    with log.open("a") as torn:
        torn.write('{"kind": "deci')
    view.look()
    assert view.facts()[0]["refused"] == 3
    assert "REFUSED" in shown(view)[2]
    with pytest.raises(ConfigError, match="cannot be read"):
        Refusals(tmp_path / "none")


def test_at_a_terminal_keys_sort_it_and_q_gives_the_terminal_back(locks: sync.Locks, where: str) -> None:
    locks.acquire("a")
    locks.acquire("b/" + "x" * 100)
    with Terminal([*PROGRAM, "top", "--backend", where, "--every", "50ms"]) as screen:
        screen.shows("2 held, 0 waiting")
        screen.shows("billing[1] root@web-1")
        screen.shows("sort: w waiting")
        assert not screen.echoes
        screen.type("n")
        screen.shows("\x1b[1;7mNAME")
        screen.resize(40, 10)
        screen.shows("q quit  sort: w waiting  h held  l left…")
        locks.acquire("c")
        screen.shows("3 held, 0 waiting")
        screen.type("q")
        assert screen.ends() == 0
        assert screen.echoes


def test_ctrl_c_ends_it_and_no_colour_is_no_colour(where: str) -> None:
    with Terminal([*PROGRAM, "top", "--backend", where], env={"NO_COLOR": "1"}) as screen:
        screen.shows("0 held, 0 waiting")
        screen.shows("q quit")
        screen.type("\x03")
        assert screen.ends() == 0
        assert screen.echoes
        assert "\x1b[3" not in screen.screen.replace("\x1b[3J", "")


def test_a_signal_that_stops_or_ends_it_gives_the_terminal_back_too(where: str) -> None:
    with Terminal([*PROGRAM, "top", "--backend", where]) as screen:
        screen.shows("q quit")
        screen.type("\x1a")  # without a shell around nothing is stopped: it goes on at once
        screen.shows("\x1b[?25h\x1b[?1049l")
        screen.shows("q quit")
        screen.process.send_signal(signal.SIGTERM)
        screen.shows("\x1b[?25h\x1b[?1049l")  # the cursor, and the screen that was there before
        assert screen.ends() == 128 + signal.SIGTERM
        assert screen.echoes


def test_elsewhere_it_prints_the_table_once(locks: sync.Locks, where: str) -> None:
    lease = locks.acquire("job")
    done = CliRunner().invoke(root.app, ["top", "--backend", where])
    head, row = done.stdout.splitlines()
    assert head.split()[0] == "NAME"
    assert row.split()[0] == "job"
    told = json.loads(CliRunner().invoke(root.app, ["top", "--backend", where, "--json", "--once"]).stdout)
    assert [(each["name"], each["token"], each["held"] >= 0) for each in told["locks"]] == [("job", lease.token, True)]
    assert CliRunner().invoke(root.app, ["top", "--every", "0"]).exit_code == 2


def test_json_has_a_line_for_each_look(locks: sync.Locks, where: str) -> None:
    with Child.fencepost("top", "--backend", where, "--json", "--every", "20ms") as watching:
        assert watching.json()["locks"] == []
        locks.acquire("job")
        until(lambda: watching.json()["locks"], "it is seen")


def test_what_a_store_has_against_it_is_told(locks: sync.Locks) -> None:
    view = View(locks, "", Sort.NAME, "", None)
    view.error = str(BackendError("no answer\x1b", backend=Memory.scheme, ambiguous=False))
    assert shown(view)[-1] == "no answer\\x1b"
