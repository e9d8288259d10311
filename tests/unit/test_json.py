"""Tokens in JSON that others read: numbers up to 2^53-1, text above. The resource service has a test of its own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fencepost.backend import Status
from fencepost.cli.fleet import told
from fencepost.cli.guard import app
from fencepost.cli.text import as_fact
from fencepost.events import Event
from fencepost.fleet import view
from fencepost_lab.contend.diary import Diary
from fencepost_lab.history.format import decode, lines


def status(name: str, token: int) -> Status:
    return Status(name, "ann", token, 1.0, ())


def guard(token: int, folder: Path) -> dict[str, Any]:
    (folder / "values").mkdir()
    where = ("raise", f"file://{folder / 'values'}", "thing", "--reason", "test", "--audit", str(folder / "audit"))
    for _ in range(2):
        done = CliRunner().invoke(app, [*where, "--to", str(token), "--json"])
        assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["before"] == found["mark"], "raised once, then left as it is"
    return {"token": found["mark"]}


def diary(token: int, folder: Path) -> dict[str, Any]:
    written = Diary(folder / "history.jsonl", 0.0)
    written.write("acquired", who="A", token=token)
    written.close()
    return dict(json.loads((folder / "history.jsonl").read_text()))


def fleet(token: int, folder: Path) -> dict[str, Any]:
    return dict(told(view("orders", [status("orders/members/1/a", 1), status("orders/0", token)]))["partitions"][0])


JSON: dict[str, Callable[[int, Path], dict[str, Any]]] = {
    "fencepost ls": lambda token, folder: as_fact(status("lock", token)),
    "fencepost fleet": fleet,
    "fencepost guard raise": guard,
    "the audit log": lambda token, folder: Event(kind="acquired", name="lock", source="", token=token).facts(),
    "a history": lambda token, folder: dict(json.loads(lines([{"t": 0, "ev": "acquired", "token": token}]))),
    "a history of contend": diary,
}


@pytest.mark.parametrize("where", JSON)
def test_a_token_that_readers_of_doubles_would_round_is_text(where: str, tmp_path: Path) -> None:
    for token, expected in ((2**53 - 1, 2**53 - 1), (2**53, str(2**53))):
        folder = tmp_path / str(token)
        folder.mkdir()
        assert JSON[where](token, folder)["token"] == expected


def test_a_history_is_read_as_it_was_written() -> None:
    line = {"t": 0, "ev": "access", "token": 2**53, "mark": 2**62, "seen": None, "holder": "53"}
    assert decode(lines([line])) == line
