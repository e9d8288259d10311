"""The ladder: which rung each set of answers comes to, which answers contradict each other, and what metrics add."""

import ast
import json
import math
import sys
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from typer.testing import CliRunner

from fencepost import registry
from fencepost.cli import app as root
from fencepost.errors import ConfigError
from fencepost.events import Event
from fencepost.hooks.prometheus import Metrics
from fencepost_lab import advise as advising
from fencepost_lab.advise import Answers, advise
from fencepost_lab.advise.measured import Bounds, Histogram, histograms, measured
from tests.harness.terminal import Terminal
from tests.harness.waiting import PATIENCE

run = CliRunner().invoke


@pytest.mark.parametrize(
    ("answers", "rung", "block", "guarantee"),
    [
        ({"twice": "nothing"}, "avoid", ("avoid", "other"), "however often"),
        ({"twice": "nothing", "resource": "postgres"}, "avoid", ("avoid", "postgres"), "however often"),
        ({"twice": "harm", "resource": "sqlite", "run_id": True}, "once", ("once", "sqlite"), "exactly once"),
        ({"twice": "waste", "resource": "redis", "run_id": True}, "once", ("once", "redis"), "as far as your Redis"),
        ({"twice": "harm", "resource": "http", "run_id": True}, "once", ("once", "http"), "if the receiver remembers"),
        ({"twice": "waste", "resource": "postgres"}, "lease", ("effort", "waste"), "best effort"),
        ({"twice": "harm", "resource": "other"}, "lease", ("effort", "other"), "best effort"),
        ({"twice": "harm", "resource": "other", "run_id": True}, "lease", ("effort", "other"), "best effort"),
        ({"twice": "harm", "resource": "http", "checks": False}, "lease", ("effort", "other"), "best effort"),
        (
            {"twice": "harm", "resource": "postgres", "together": True},
            "transaction",
            ("transaction", "postgres"),
            "no up",
        ),
        (
            {"twice": "harm", "resource": "postgres", "together": True, "work": 900},
            "lease",
            ("lease", "postgres"),
            "no up",
        ),
        ({"twice": "harm", "resource": "s3"}, "lease", ("lease", "s3"), "no update is lost"),
        ({"twice": "harm", "resource": "redis", "survive": True}, "consensus", ("lease", "redis"), "no update is lost"),
        (
            {"twice": "harm", "resource": "redis", "survive": True, "store": "redlock"},
            "quorum",
            ("lease", "redis"),
            "no update is lost",
        ),
        (
            {"twice": "harm", "resource": "file", "survive": True, "store": "consul"},
            "consensus",
            ("lease", "file"),
            "no",
        ),
    ],
)
def test_the_lowest_rung_that_is_correct(answers: Any, rung: str, block: Any, guarantee: str) -> None:
    found = advise(Answers(**answers))
    assert (found.rung, found.block) == (rung, block)
    assert found.guarantee.startswith(guarantee) or guarantee in found.guarantee
    assert (found.ttl is None) == (rung in ("avoid", "once", "transaction")), (
        "without a lease there is nothing to renew"
    )
    assert found.fenced == (block[0] == "lease")


@pytest.mark.parametrize(
    ("answers", "complaint"),
    [
        ({"twice": "harm", "resource": "s3", "together": True}, "s3 is none"),
        ({"twice": "harm", "resource": "sqlite", "together": True, "store": "etcd"}, "cannot live in etcd"),
        ({"twice": "harm", "resource": "sqlite", "together": True, "checks": False}, "can check a token too"),
        ({"twice": "harm", "resource": "other", "checks": True}, "is yours"),
        ({"twice": "harm", "resource": "s3", "survive": True, "store": "redis"}, "do not go on when it dies"),
        ({"twice": "harm", "resource": "s3", "store": "consul", "free": 15}, "may take 20 s to free"),
        ({"twice": "harm", "resource": "s3", "store": "zookeeper", "free": 1}, "may take 1.5 s to free"),
        ({"twice": "harm", "resource": "s3", "survive": True, "free": 0.5}, "live in etcd, which may take 1 s"),
        ({"twice": "harm", "free": 0}, "greater than 0"),
        ({"twice": "harm", "work": -1}, "work must lie"),
        ({"twice": "perhaps"}, "twice is one of nothing, waste, harm"),
        ({"twice": "harm", "resource": "paper"}, "resource is one of"),
    ],
)
def test_answers_that_contradict_each_other(answers: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        advise(Answers(**answers))


def test_every_set_of_answers_comes_to_something_and_only_the_fenced_promise_that_no_update_is_lost() -> None:
    seen = set()
    flags = [False, True]
    for twice, resource, checks, together, run_id, survive in product(
        ("nothing", "waste", "harm"), advising.code.DATA | {"other": ""}, [None, *flags], flags, flags, flags
    ):
        answers: Any = {"twice": twice, "resource": resource, "checks": checks}
        try:
            found = advise(Answers(**answers, together=together, run_id=run_id, survive=survive))
        except ConfigError:
            continue
        seen.add(found.block)
        if twice == "harm" and not found.fenced and found.rung not in ("once", "transaction"):
            assert found.guarantee.startswith("best effort")
        assert found.ttl is None or found.ttl <= 15
    assert seen == set(advising.code.names()), "every block is printed for some answers"


def test_the_ttl_is_what_a_dead_holder_may_keep() -> None:
    found = advise(Answers(twice="harm", resource="s3", free=6, work=40))
    assert (found.ttl, found.renew, found.max_hold, found.store) == (6, 2, 120, "redis")
    assert (found.unrenewed, found.margin) == (44, 4), "by the work: and a tenth of it"
    assert any("pauses for 0.5 s" in each for each in advise(Answers(twice="harm", resource="s3", free=0.5)).why)


def test_the_shortest_ttls_are_those_that_the_backends_promise() -> None:
    for scheme, path in registry.SCHEMES.items():
        module, _, name = str(getattr(path, "target", path)).partition(":")
        promises = getattr(__import__(module, fromlist=[name]), name).promises
        if scheme in advising._SHORTEST:
            assert advising._SHORTEST[scheme] == promises.min_ttl


@pytest.mark.parametrize(("store", "free", "ttl"), [("consul", 30, 15), ("zookeeper", 22.5, 15), ("etcd", 15, 15)])
def test_the_ttl_leaves_room_for_stores_that_free_a_dead_holders_lock_late(store: Any, free: float, ttl: float) -> None:
    found = advise(Answers(twice="harm", resource="s3", store=store, free=free))
    assert (found.ttl, found.renew) == (ttl, 5)
    assert any(f"{free} s at the latest" in each for each in found.why)
    assert advise(Answers(twice="harm", resource="s3", store="consul")).ttl == 10, "as soon as Consul can"


def test_the_url_of_the_locks_says_where_they_live() -> None:
    command = ["advise", "--twice", "harm", "--resource", "s3", "--json", "--backend"]
    for place, store in (("etcd://a,b:2379", "etcd"), ("rediss+sentinel://a/m", "redis"), ("zk://a", "zookeeper")):
        assert json.loads(run(root.app, [*command, place]).stdout)["store"] == store
    for place, more, complaint in (
        ("etcd://a", ["--store", "redis"], "cannot live in redis, for etcd:// is etcd"),
        ("redis://a", ["--survive"], "do not go on when it dies"),
        ("consul://a", ["--free", "15s"], "may take 20 s"),
        ("memory://", [], "nobody outside their process"),
        ("rediz://a", [], "did you mean 'redis://'"),
        ("nowhere", [], "nowhere"),
    ):
        done = run(root.app, [*command, place, *more])
        assert (done.exit_code, complaint in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("block", advising.code.names(), ids="-".join)
@pytest.mark.parametrize("place", ['a"b', "C:\\new\\bucket", "redis://:p$ttl@h/0", "é\n"])
def test_a_place_of_any_spelling_stands_in_the_code_as_it_is(block: tuple[str, str], place: str) -> None:
    tree = ast.parse(advising.code.block(*block, ttl=15, data=place, locks=place))
    texts = [each.value for each in ast.walk(tree) if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    named = "$data" in "".join(advising.code._BLOCKS[block]) or "$locks" in "".join(advising.code._BLOCKS[block])
    assert any(text.startswith(place) for text in texts) == named


def page(*, held: float = 2.0, latency: float = 0.001, slack: float = 0.66, count: int = 200) -> str:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    for _ in range(count):
        metrics(Event(kind="acquired", name="n", source="redis", seconds=latency))
        metrics(Event(kind="released", name="n", source="redis", seconds=held))
        metrics(Event(kind="renewed", name="n", source="redis", ratio=slack))
    return generate_latest(registry).decode()


def test_quantiles_are_bounds_and_no_guess() -> None:
    found = measured(page())
    assert found.work == Bounds(1, 5, 200), "2 s lies between 1 and 5: more the histogram does not say"
    assert found.trip == Bounds(-math.inf, 0.001, 200)
    assert found.slack == Bounds(0.6, 0.7, 200)
    assert measured(page(held=9999)).work == Bounds(3600, math.inf, 200)
    assert Histogram({1.0: 0, math.inf: 0}).quantile(0.99) is None
    assert Histogram({1.0: 98, 2.0: 99, math.inf: 100}).quantile(0.99) == Bounds(1, 2, 100)


def test_series_with_other_labels_are_added_up() -> None:
    text = "\n".join(
        f'lock_held_seconds_bucket{{instance="{name}",le="{le}"}} {count}'
        for name, counts in (("a", (1, 1)), ("b", (0, 9)))
        for le, count in zip(("1.0", "+Inf"), counts, strict=True)
    )
    assert histograms(text)["lock_held_seconds"].quantile(0.5) == Bounds(1, math.inf, 10)
    with pytest.raises(ConfigError, match=r"fencepost\.hooks\.prometheus\.Metrics"):
        histograms("up 1")


def test_what_was_measured_bounds_the_ttl_from_below() -> None:
    answers = Answers(twice="harm", resource="s3", free=5)
    assert advise(answers, measured=measured(page())).ttl == 5
    late = advise(replace(answers, work=5), measured=measured(page(slack=0.45)), now=3)
    assert (late.ttl, late.unrenewed, late.margin) == (5, 5.801, 0.801), "by the work: holders were seen to pause"
    for held, work, known in ((2.0, 5, True), (9999.0, 3600, False), (9999.0, 9000, True)):
        found = advise(replace(answers, work=work), measured=measured(page(held=held)))
        assert (found.unrenewed is not None) is known, "above its last bound a histogram says nothing"
    with pytest.raises(ConfigError, match=r"takes up to 1 s to answer .* keep its for 10 s"):
        advise(answers, measured=measured(page(latency=0.7)))
    with pytest.raises(ConfigError, match=r"8.5 s late or less .* keep its for 25.5 s"):
        advise(answers, measured=measured(page(slack=0.15)), now=15)


@pytest.mark.slow
def test_from_metrics_and_json() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    for seconds in [100.0] * 998 + [1000.0]:
        metrics(Event(kind="released", name="n", source="redis", seconds=seconds))
    server, thread = start_http_server(0, "127.0.0.1", registry=registry)
    try:
        address = f"http://127.0.0.1:{server.server_port}/metrics"
        command = ["advise", "--twice", "harm", "--resource", "postgres", "--together", "--from-metrics", address]
        done = run(root.app, [*command, "--json"])
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        assert (found["rung"], found["answers"]["work"]) == ("lease", 1800), "the longest of a thousand"
        assert found["measured"] == {"work": {"low": 300, "high": 1800, "seen": 999}, "trip": None, "slack": None}
        told = run(root.app, command).stdout
        assert "measured: held for at most 1800, 99.9 % of 999; too few to tell" in told
        assert "if nobody renews it (renew=False, a lock of another library): ttl 1980 s" in told
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    gone = run(root.app, ["advise", "--twice", "harm", "--from-metrics", address])
    assert (gone.exit_code, "cannot be read" in gone.stderr) == (69, True)


def test_a_script_is_told_which_question_it_left_open_and_what_contradicts() -> None:
    assert "say --twice" in run(root.app, ["advise"]).stderr
    done = run(root.app, ["advise", "--twice", "harm", "--resource", "other", "--together"])
    assert (done.exit_code, "other is none" in done.stderr) == (2, True)


def test_at_a_terminal_it_asks_only_what_is_not_known_and_still_matters() -> None:
    command = [sys.executable, "-m", "fencepost", "advise", "--resource", "postgres"]
    with Terminal(command, env={"TERM": "dumb"}) as terminal:
        for question, answer in {
            "What breaks": "harm",
            "Has each run a name": "n",
            "share that database": "y",
            "How long does the work take": "soon",
            "is not a duration": "2s",
            "must a dead holder": "",
        }.items():
            terminal.shows(question)
            terminal.type(f"{answer}\n")
        terminal.shows("rung 3 of 6: transaction")
        assert terminal.process.wait(PATIENCE) == 0
        assert "Where is its effect" not in terminal.screen
