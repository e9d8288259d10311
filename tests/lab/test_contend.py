"""Contention on real servers, with real processes."""

import json
import queue
import re
import secrets
import signal
import sys
import threading
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fencepost
from fencepost.errors import BackendError, ConfigError
from fencepost_lab.contend import clients, report, run
from fencepost_lab.contend.order import order
from fencepost_lab.contend.plan import Plan
from fencepost_lab.contend.run import contend
from fencepost_lab.history import checks
from fencepost_lab.history.format import load
from fencepost_lab.servers import Redis
from fencepost_lab.servers.processes import family_of, state_of
from tests.harness.child import Child
from tests.harness.resource import Service
from tests.harness.servers import Endpoint
from tests.harness.threads import Background, background
from tests.harness.waiting import PATIENCE, until

pytestmark = pytest.mark.experiment

LONG = 600.0
"""Seconds for a run that ends far earlier: with its sections, or when it is told to stop."""


def found(**options: Any) -> dict[str, Any]:
    """The summary of one run."""
    return report.summary(contend(Plan(**({"warmup": 0.2, "work": 0.001} | options))))


def met(history: Path, **options: Any) -> dict[str, Any]:
    """The summary of a run that ends with its sections, all of which are measured; ``history`` gets its history."""
    plan = Plan(**({"work": 0.001} | options), warmup=0, duration=LONG, history=True)
    return report.summary(contend(plan, history=history))


def by_the_history(path: Path) -> dict[str, Any]:
    """The order of service against that of arrival, as the history has them."""
    turns = [(line["lock"], line["asked"], line["t"]) for line in load(path) if line["ev"] == "acquired"]
    numbers = {name: number for number, name in enumerate(sorted({name for name, _, _ in turns}))}
    return order((numbers[name], asked, served) for name, asked, served in turns)._asdict()


def test_everybody_is_served_and_the_history_keeps_its_promises(redis_server: Endpoint, tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    options = ["--contenders", "24", "--processes", "3", "--sections", "300", "--duration", f"{LONG:g}s"]
    options += ["--warmup", "200ms", "--work", "1ms", "--history", str(history), "--json"]
    with Child.fencepost("contend", "--backend", redis_server.url, *options) as child:
        said = json.loads("\n".join(child.succeed()))
    assert said["never_served"] == 0
    assert said["wait"]["p50"] <= said["wait"]["p99"] <= said["wait"]["max"]
    assert said["ceiling"] == pytest.approx(1 / sum(said["alone"][part] for part in ("work", "acquire", "release")))
    assert said["throughput"] * said["work"] < 1.05, "one works at a time"
    assert said["server"]["per_section"]["reads"] > 1
    lines = list(load(history))
    assert [line["t"] for line in lines] == sorted(line["t"] for line in lines)
    judged = checks.check(lines)
    assert judged.ok, judged.violations[:3]
    assert judged.promises == ("order", "deadline", "exclusion")
    assert judged.counts["acquired"] >= said["sections"] > 24


def test_a_number_of_sections_is_met_exactly(redis_server: Endpoint, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    told = met(path, backend=redis_server.url, contenders=7, processes=2, sections=101, work=0)
    assert told["sections"] == told["order"]["turns"] == 101
    assert told["waiting_at_end"]["count"] == 0
    assert told["order"] == by_the_history(path)
    assert checks.check(load(path)).counts["acquired"] == 101


def test_a_thousand_contenders_are_all_served(redis_server: Endpoint) -> None:
    told = found(backend=redis_server.url, contenders=1000, sections=1200, work=0, warmup=0, duration=LONG)
    assert told["never_served"] == 0
    assert told["sections"] == 1200


def test_the_store_serves_its_queue_in_order(redis_server: Endpoint, tmp_path: Path) -> None:
    """By the store's own queue: the clock of a process that has to wait for a CPU does not tell when it came."""
    history = tmp_path / "history.jsonl"
    options = [
        "--contenders",
        "24",
        "--processes",
        "3",
        "--duration",
        f"{LONG:g}s",
        "--ttl",
        "5m",
        "--warmup",
        "0s",
        "--work",
        "1ms",
    ]
    options += ["--key", (key := f"queue-{secrets.token_hex(4)}"), "--history", str(history), "--json"]
    queues: list[tuple[str, ...]] = []

    def seen() -> bool:
        found = locks.status(key)
        queue = (found.holder, *found.waiters) if found else ()
        if len(queue) > 2:
            queues.append(queue)
        return len(queues) >= 20 and bool(queue) and queues[0][-1] not in queue

    with (
        fencepost.connect(redis_server.url) as locks,
        Child.fencepost("contend", "--backend", redis_server.url, *options) as child,
    ):
        until(seen, "all of the first queue are served", watching=[child])
        child.signal(signal.SIGINT)
        child.succeed()
    tokens = {line["holder"]: line["token"] for line in load(history) if line["ev"] == "acquired"}
    assert set(queues[0]) <= set(tokens)
    for each in queues:
        served = [tokens[holder] for holder in each if holder in tokens]
        assert served == sorted(served)


def test_many_locks_have_an_order_each(redis_server: Endpoint, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    told = met(path, backend=redis_server.url, contenders=20, keys=5, sections=300)
    assert told["ceiling"] is None
    assert told["order"] == by_the_history(path)
    assert told["order"]["pairs"] < told["order"]["turns"] * (told["order"]["turns"] - 1) / 4


def test_an_open_load_beyond_the_ceiling_builds_a_backlog_and_waits_count_from_the_schedule(
    redis_server: Endpoint,
) -> None:
    told = found(backend=redis_server.url, contenders=4, rate=200, work=0.02, duration=2, warmup=0)
    counts = [count for _, count in told["backlog"]]
    assert counts[-1] > counts[1] > 0
    assert told["wait"]["p50"] > 2 * told["acquire"]["p50"], "those whom no contender could take yet wait, too"
    assert told["waiting_at_end"]["count"] > 100


def test_an_open_load_below_the_ceiling_keeps_its_schedule(redis_server: Endpoint) -> None:
    plan = Plan(backend=redis_server.url, contenders=10, rate=40, work=0, warmup=0, duration=2)
    asked = sorted(turn[1] for turn in contend(plan).turns)
    assert len(asked) == 80
    assert all(t >= number / 40 for number, t in enumerate(asked)), "nobody comes before his time"


def test_an_open_load_that_is_stopped_past_its_end_counts_each_arrival_once(redis_server: Endpoint) -> None:
    plan = Plan(backend=redis_server.url, contenders=10, processes=2, rate=40, work=0, warmup=0, duration=2, pause=2)
    result = contend(plan)
    assert result.pauses[0] > 1, "it was stopped from half way past the end"
    assert len(result.turns) == 80


@pytest.mark.redis
def test_a_store_that_stalls_is_felt_by_all_who_were_due(tmp_path: Path) -> None:
    """What a closed loop would leave out: it would have met the stall once."""
    stalls: list[Background[float]] = []
    with Redis() as server:

        def stall(*_: object) -> None:
            if not stalls:  # at once: a thread may get no time until the load is over
                begun = time.monotonic()
                server.pause()
                stalls.append(background(lambda: resume(begun)))

        def resume(begun: float) -> float:
            time.sleep(0.8)
            server.resume()
            return time.monotonic() - begun

        plan = Plan(backend=server.url, contenders=1, processes=1, rate=100, work=0, duration=2.4, warmup=0)
        told = report.summary(contend(plan, progress=stall))
        stalled = stalls[0].result()
    assert told["wait"]["p90"] > stalled / 4, "a third was due while it stalled"
    assert told["acquire"]["p90"] < told["wait"]["p90"] / 2, "few asked while it stalled"


@pytest.mark.parametrize("fence", ["on", "off"])
def test_a_process_stopped_past_its_ttl_is_refused_with_the_guard_and_does_harm_without(
    redis_server: Endpoint, tmp_path: Path, fence: str
) -> None:
    history = tmp_path / "history.jsonl"
    with Service(args=["--fence", fence]) as service:
        plan = Plan(
            backend=redis_server.url,
            contenders=4,
            ttl=0.5,
            work=0.02,
            warmup=0,
            duration=5,
            pause=2,
            resource=service.url,
            fence=fence == "on",
            history=True,
        )
        told = report.summary(contend(plan, history=history))
    judged = checks.check(load(history))
    assert told["pauses"][0] > plan.ttl
    assert judged.counts["fault:pause"] == judged.counts["fault:resume"] == 2, "both contenders of that process"
    assert judged.counts["overlapping_beliefs"] > 0
    assert judged.counts["lost"] >= 1
    assert "data" in judged.promises
    if fence == "on":
        assert judged.ok, judged.violations[:3]
        assert told["writes"]["refused"] >= 1
        assert judged.counts["lost_updates"] == 0
    else:
        assert {each.check for each in judged.violations} == {"data"}
        assert judged.counts["lost_updates"] >= 1


def test_ctrl_c_ends_with_the_summary_so_far(redis_server: Endpoint) -> None:
    options = ["--backend", redis_server.url, "--duration", "10m", "--warmup", "0s", "--json", "--metrics", "0"]
    with Child.fencepost("contend", *options) as child:
        (url,) = until(lambda: re.findall(r"metrics at (\S+)\n", child.errors), "its metrics", watching=[child])

        def scraped() -> str:
            with urllib.request.urlopen(url) as reply:
                text: str = reply.read().decode()
            return text

        def counted() -> bool:
            lines = scraped().splitlines()
            return any(
                line.startswith("fencepost_lock_acquire_success_total") and not line.endswith(" 0.0") for line in lines
            )

        until(counted, "sections are counted", watching=[child])
        assert 'fencepost_lock_acquire_latency_seconds_bucket{le="+Inf"}' in scraped()
        children = family_of(child.pid)[1:]
        assert len(children) == 2
        child.signal(signal.SIGINT)
        told = json.loads("\n".join(child.succeed()))
    assert told["interrupted"] is True
    assert told["sections"] > 0
    assert all(state_of(pid) == "gone" for pid in children)


PEERS = [
    ("redis-spin", "redis_server"),
    ("redis-py", "redis_server"),
    ("fencepost-threads", "redis_server"),
    ("kazoo", "zookeeper_server"),
    ("fencepost", "etcd_server"),
]


@pytest.mark.parametrize(("client", "server"), PEERS)
def test_peers_meet_the_same_load(client: str, server: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    backend = request.getfixturevalue(server).url
    told = met(path, backend=backend, client=client, contenders=6, sections=60)
    assert told["sections"] > 0
    assert told["failures"] == {}
    assert checks.check(load(path)).ok
    assert any("throughput" in row for row in report.rows(told))


def test_the_pipes_of_a_run_are_closed_once_they_were_read_to_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(queue.SimpleQueue[Any]):
        """Leaves time to end the run between the last word of a process and the end of its pipe."""

        def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
            super().put(item)
            time.sleep(0.1)

    before = set(threading.enumerate())
    monkeypatch.setattr(run, "queue", SimpleNamespace(SimpleQueue=Slow, Empty=queue.Empty))
    told = found(backend=f"sqlite://{tmp_path}/locks.db", contenders=2, processes=2, sections=20, warmup=0)
    assert told["sections"] > 0
    for each in set(threading.enumerate()) - before:  # one that still reads fails this test by what it raises
        each.join(PATIENCE)


def test_one_who_barges_in_is_seen(redis_server: Endpoint) -> None:
    """Who has just released the lock finds it free, and the others only look now and then."""
    told = found(backend=redis_server.url, client="redis-spin", contenders=30, sections=600, duration=600, warmup=0)
    assert told["order"]["overtakes"] > 0
    assert told["order"]["tau"] < 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"client": "nobody"}, "there is no client 'nobody'"),
        ({"client": "kazoo", "backend": "redis://localhost"}, "needs --backend zookeeper://"),
        ({"client": "redis-py"}, "needs --backend redis://..., not none"),
        ({"client": "kazoo", "backend": "zookeeper://localhost", "pause": 1}, "pause needs one that runs tasks"),
        ({"backend": "memory://here"}, "is for one process"),
        ({"backend": "consul://127.0.0.1:1", "ttl": 1}, "takes a ttl from 10"),
        (
            {"client": "redis-spin", "backend": "redis://localhost", "resource": "http://127.0.0.1:1"},
            "no tokens to send",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        contend(Plan(**options))


def test_a_store_or_a_resource_that_is_not_there_is_an_error() -> None:
    with pytest.raises(BackendError, match="cannot connect"):
        contend(Plan(backend="redis://127.0.0.1:1", contenders=2))
    with pytest.raises(BackendError, match="did not answer"):
        contend(Plan(backend="redis://127.0.0.1:1", contenders=2, resource="http://127.0.0.1:1"))


def test_a_peer_that_is_not_installed_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, row in clients.CLIENTS.items():
        kind = clients.find("fencepost", None) if not row.schemes else None
        if kind is not None or row.package in ("redis", "kazoo"):
            continue
        module = {"python-redis-lock": "redis_lock"}.get(row.package, row.package)
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ConfigError, match=rf"'{module}': pip install 'fencepost-lab\[peers\]'$"):
            clients.find(name, f"{row.schemes[0]}://localhost")
