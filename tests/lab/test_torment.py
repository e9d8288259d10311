"""``fencepost torture`` at a small size: it finds nothing in the product, and something in what is broken."""

import gzip
import json
import re
import signal
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fencepost.cli.app import app
from fencepost.errors import ConfigError, StaleToken
from fencepost.lease import Access
from fencepost.rule import Stamp
from fencepost_lab.history.checks import check
from fencepost_lab.history.format import decode
from fencepost_lab.torture import campaign, crew, page, slices
from fencepost_lab.torture.board import At, Board, Do, Order
from fencepost_lab.torture.faults import CATALOGUE
from fencepost_lab.torture.nemesis import menu
from fencepost_lab.torture.plan import STORES, Plan
from fencepost_lab.torture.registers import Entry, Register, Seen, register
from fencepost_lab.torture.site import Site, checked
from tests import ROOT
from tests.harness.child import Child
from tests.harness.waiting import until


def small(store: str, **options: Any) -> Plan:
    """A slice of a few seconds: many pauses, few locks, so that somebody is always replaced."""
    given = {"workers": 6, "locks": 2, "pauses": 0.5, "operations": 160, "seconds": None, "server_every": 0.4}
    return Plan(**{"store": store, "seed": 5, **given, **options})


def history(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rb") as file:
        return [decode(line) for line in file]


@pytest.mark.slow
@pytest.mark.experiment
@pytest.mark.parametrize(
    ("store", "faults"),
    [
        pytest.param("sqlite", "pause,kill,fork,hostile,high-tokens"),
        pytest.param("redis", "pause,kill,server-kill,answer-lost,values-cut,flushall", marks=pytest.mark.redis),
        pytest.param("postgres", "pause,kill,terminate-backend,restore", marks=pytest.mark.postgres),
    ],
)
def test_nothing_is_lost_on_a_store_that_is_harmed(store: str, faults: str, tmp_path: Path) -> None:
    wanted = tuple(faults.split(","))
    found = slices.run(small(store, faults=wanted), keep=tmp_path / "history.gz")
    assert found["ok"], (found["examples"], found["wrong"])
    assert found["unchecked"] == {}
    counts = found["counts"]
    assert counts["pauses that outlived the lease"] > 2
    assert found["overlapping_beliefs"] > 0
    assert set(found["faults"]) <= set(wanted)
    assert found["faults"], "no fault of the store happened"
    assert not any(found["left"][what] for what in ("threads", "sockets", "locks"))
    t, resident, descriptors, threads = found["memory"]["samples"][-1]
    assert t > 0
    assert resident > 2**20
    assert descriptors > 3, "standard input, output and error, and more"
    assert threads >= 1
    lines = history(tmp_path / "history.gz")
    assert check(lines).verdict == "kept"
    assert sum(line["ev"] == "fault" and line["do"] == "pause" for line in lines) >= counts["pauses"]


@pytest.mark.slow
@pytest.mark.experiment
def test_a_guard_that_admits_replaced_holders_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    imports = crew._imports
    monkeypatch.setattr(crew, "_imports", lambda guard: [*imports(guard), "tests.programs.broken_guard"])
    found = slices.run(small("sqlite", faults=("pause",)))
    assert not found["ok"]
    assert found["violations"] > 0
    assert any("data" in each for each in found["examples"]), found["examples"]


@pytest.mark.slow
@pytest.mark.experiment
@pytest.mark.parametrize(
    ("store", "control"),
    [("sqlite", "off"), pytest.param("redis", "set-nx", marks=pytest.mark.redis)],
)
def test_a_control_shows_violations(store: str, control: str) -> None:
    found = slices.run(small(store, control=control))
    assert found["ok"], found["wrong"]
    assert found["violations"] > 0


@pytest.mark.slow
@pytest.mark.experiment
def test_ctrl_c_ends_with_a_verdict_and_the_run_goes_on_later(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("torture", "sqlite", "--faults", "pause,kill", "--workers", 6, "--out", out, "--json")
    with Child.fencepost(*words, "--minutes", 10, "--seed", 3) as first:
        until(lambda: " pauses" in first.errors, "the run has begun", watching=[first])
        first.signal(signal.SIGINT)
        assert first.wait() == 0, first.story
        told = json.loads(first.output[-1])
    done = told["stores"]["sqlite"]
    assert done["operations"] > 0
    assert done["seeds"] == [3]
    assert told["ok"]
    with Child.fencepost(*words, "--operations", 100) as refused:
        assert refused.wait() == 2
        assert "--resume" in refused.errors
    with Child.fencepost(*words, "--resume", "--operations", done["operations"] + 100, "--seed", 3) as second:
        assert second.wait() == 0, second.story
        more = json.loads(second.output[-1])
    assert more["stores"]["sqlite"]["seeds"] == [3, 4]
    assert json.loads((out / "summary.json").read_text()) == more
    assert sorted(path.name for path in (out / "histories").iterdir()) == ["sqlite-3.jsonl.gz", "sqlite-4.jsonl.gz"]


@pytest.mark.slow
@pytest.mark.experiment
def test_a_stack_that_is_not_ours_is_not_harmed(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path / 'theirs.db'}"
    with Child.fencepost("torture", url, "--operations", 100, "--out", tmp_path / "out") as refused:
        assert refused.wait() == 2
        assert "--on" in refused.errors
    plan = small(url, staging="my-staging", operations=150, guard=f"sqlite:{tmp_path / 'values.db'}")
    found = slices.run(plan)
    assert found["ok"], found["wrong"]
    assert found["faults"] == {}
    assert found["counts"]["pauses"] > 0
    assert set(found["without"]) == {name for name, each in CATALOGUE.items() if each.group != "client"}


_READER = """
import sys
from pathlib import Path
from fencepost_lab.torture.board import At, Board, Do
board = Board(Path(sys.argv[1]), 2)
seen, orders = {0: 0, 1: 0}, {0: (Do.KILL, At.WROTE), 1: (Do.PAUSE, At.ASKING)}
while min(seen.values()) < 10_000:
    if (order := board.look(1)) is not None:
        assert orders[order.number % 2] == (order.do, order.at), order
        seen[order.number % 2] += 1
"""


def test_an_order_is_read_whole_while_the_next_one_is_written(tmp_path: Path) -> None:
    board = Board(tmp_path / "board", 2)
    numbers = count(2, 2)
    with Child.python("-c", _READER, tmp_path / "board") as reader:
        while reader.running:
            for number in islice(numbers, 500):
                board.give(1, Order(number, Do.KILL, At.WROTE))
                board.give(1, Order(number + 1, Do.PAUSE, At.ASKING))
        reader.succeed()
    assert board.look(0) is None
    board.withdraw(1)
    assert board.look(1) is None
    board.close()


@pytest.mark.slow
def test_the_faults_are_listed_without_a_store_and_a_run_needs_one() -> None:
    listed = CliRunner().invoke(app, ["torture", "--faults", "list"])
    assert listed.exit_code == 0
    assert [line.split()[0] for line in listed.stdout.splitlines()] == list(CATALOGUE)
    with Child.fencepost("torture") as refused:
        assert refused.wait() == 2
        assert "say what to torture: sqlite," in refused.errors


def test_every_store_says_which_faults_it_cannot_meet_and_why() -> None:
    for store in STORES:
        site = Site(store, "", "")
        chosen = menu(Plan(store=store, seed=0), site)
        assert all(chosen.without.values()), chosen.without
        assert set(chosen.without).isdisjoint(each.name for each in chosen.drawn)
    with pytest.raises(ConfigError, match="no fault 'earthquake'"):
        menu(Plan(store="sqlite", faults=("earthquake",)), Site("sqlite", "", ""))
    with pytest.raises(ConfigError, match="no store 'oracle'"):
        checked("oracle", "")
    for guard in ("oracle:x", "redis"):
        with pytest.raises(ConfigError, match="KIND:ADDRESS"):
            checked("redis", guard)
    with pytest.raises(ConfigError, match="name the address of yours"):
        checked("redis://staging", "file")
    weakened = campaign.controls(Plan(store="redis", guard="http"))
    assert weakened[0] == [], "the service's rule is its own, and a write without a token needs one that is off"
    assert campaign.controls(Plan(store="redis", guard="file"))[0][-2:] == ["redis-py", "set-nx"]


def keeps_a_journal(values: Register, key: str) -> None:
    """What each write was computed from, and in which order they were made, is in the value itself."""
    ann, bob = (Stamp(token, 1, holder) for token, holder in ((5, "ann"), (6, "bob")))
    assert values.read(key, Access(key, ann)) == Seen(0, 0)
    first = Entry("w1", ann._replace(seq=2), 1, 0)
    for _ in range(2):  # the second time it is a replay
        values.write(key, Access(key, first.stamp or ann), first)
    assert values.read(key, Access(key, bob)) == Seen(1, 1)
    late = Entry("w1", ann._replace(seq=3), 2, 1)
    with pytest.raises(StaleToken) as refused:
        values.write(key, Access(key, late.stamp or ann), late)
    assert refused.value.seen == 6
    second = Entry("w2", bob._replace(seq=2), 2, 1)
    values.write(key, Access(key, second.stamp or bob), second)
    assert values.journal(key) == [first, second]
    mark = values.mark(key)
    assert mark is not None
    assert mark.token == 6
    values.raise_mark(key, to=9)
    with pytest.raises(StaleToken):
        values.read(key, Access(key, bob))
    values.close()


def test_values_in_files_keep_a_journal_of_what_was_made(tmp_path: Path) -> None:
    keeps_a_journal(register(f"file:{tmp_path / 'values'}"), "torture/1/2")
    off = register(f"file:{tmp_path / 'off'}", "off")
    for value in (1, 2):  # both computed from nothing: one is lost, and not in the journal
        off.write("k", None, Entry(f"w{value}", None, value, 0))
    assert [each.who for each in off.journal("k")] == ["w2"]


def result(control: str, violations: int) -> dict[str, Any]:
    """What a slice found, as it is kept."""
    return {
        "plan": Plan(store="sqlite", control=control).data(),
        "ok": bool(violations) == bool(control),
        "operations": 10,
        "seconds": 1.0,
        "promises": ["data"],
        "violations": violations,
        "examples": [],
        "wrong": [],
        "counts": {"pauses": 2},
        "faults": {"migration": 1, "restore": 3},
        "without": {"flushall": "it has no such command"},
        "lost_updates": 0,
        "overlapping_beliefs": 1,
        "stale_refused": 1,
        "served": 0.1,
        "left": {"locks": 0},
        "memory": {"samples": [[0.5, 1000], [1.0, 1000]], "growth": 0},
    }


def test_a_slice_without_kills_is_a_soak_and_shows_what_its_worst_worker_grew_by() -> None:
    def life(*descriptors: int) -> list[tuple[float, int, int, int]]:
        return [(number / 2, 10**6 * (1 + number // 12), count, 3) for number, count in enumerate(descriptors)]

    uses = slices._uses({"w0": life(*[7] * 16), "w1": life(*range(7, 31))})
    assert uses == {"samples": [[t, *rest] for t, *rest in life(*range(7, 31))]} | {
        "growth": 1_000_000,
        "descriptors": 12,
        "threads": 0,
    }
    kept = result("", 0) | {"memory": uses, "seconds": 330.0}
    killed = kept | {"plan": Plan(store="sqlite", faults=("pause", "kill")).data()}
    soak = kept | {"plan": Plan(store="sqlite", faults=("pause",)).data()}
    assert "A soak" not in page.figures([kept, killed, soak | {"seconds": 299.0}])
    assert "| sqlite | 5.5 | 10 | 2 | 4 | 1.0 MB | 12 | 0 |" in page.figures([killed, soak])
    assert "Together 6 minutes (release size: 120)" in page.figures([killed, soak])


def test_a_summary_fails_where_a_control_showed_nothing() -> None:
    good = campaign.summarise([result("off", 4), result("", 0)])
    assert good["ok"]
    assert (good["total"]["migrations"], good["total"]["losses of state"]) == (1, 3)
    assert not campaign.summarise([result("off", 0), result("", 0)])["ok"]
    assert not campaign.summarise([result("off", 4), result("", 1)])["ok"]
    assert not campaign.summarise([])["ok"]


def test_a_run_of_a_few_faults_does_not_say_that_the_store_could_meet_the_others() -> None:
    few = result("", 0) | {"plan": Plan(store="sqlite", faults=("pause",)).data(), "without": {}}
    for slices_ in ([result("", 0), few], [few, result("", 0)]):
        assert campaign.summarise(slices_)["stores"]["sqlite"]["without"] == {"flushall": "it has no such command"}
    assert campaign.summarise([few])["stores"]["sqlite"]["without"] == {}


def test_the_figures_of_the_docs_are_those_of_the_slices_that_are_kept_beside_them() -> None:
    docs = ROOT / "docs"
    dated = re.compile("^Written on .*? by ", re.MULTILINE)
    kept = page.results(docs / "torture-slices.json")
    assert dated.sub("", page.figures(kept)) in dated.sub("", (docs / "torture.md").read_text("utf-8"))
    total = campaign.summarise(kept)["total"]
    said = f"{total['operations']:,} checked operations on nine kinds of store, {total['pauses']:,} pauses, "
    said += f"{total['client kills']:,} killed workers, {total['server kills']:,} killed servers, "
    said += f"{total['partitions']:,} partitions, and **{total['violations']} violations**"
    assert said in (ROOT / "README.md").read_text("utf-8")


@pytest.mark.slow
@pytest.mark.experiment
def test_the_page_is_written_from_what_was_kept(tmp_path: Path) -> None:
    run, kept, doc = tmp_path / "run", tmp_path / "kept.json", tmp_path / "torture.md"
    run.mkdir()
    lines = [json.dumps(each) for each in (result("off", 4), result("", 0))]
    (run / "slices.jsonl").write_text("\n".join([*lines, lines[0][:40]]))  # the last one was not written to its end
    doc.write_text("before\n<!-- figures -->\nof yesterday\n<!-- end of figures -->\nafter\n")
    for source, options in ((run, ["--keep", kept]), (kept, [])):
        with Child.python("-m", "fencepost_lab.torture.page", source, "--page", doc, *options) as child:
            child.succeed()
        text = doc.read_text()
        assert text.startswith("before\n<!-- figures -->")
        assert text.endswith("<!-- end of figures -->\nafter\n")
        assert "of yesterday" not in text
        assert "| sqlite | 10 (short) | 2 |" in text
        assert "| operations | 10 | 1,000,000 (not reached) |" in text
        assert "| sqlite | off | 10 | 4 | 0 | 0 |" in text
    assert (tmp_path / "torture-memory.svg").read_text().startswith("<?xml")
