"""`fencepost worker`: what it does at each pause, and what it says about it."""

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fencepost
from fencepost.cli import app as root
from fencepost_lab.servers.processes import state_of
from tests.harness.child import Child
from tests.harness.resource import Service
from tests.harness.waiting import PATIENCE
from tests.lab.worker import WorkerProcess

pytestmark = pytest.mark.slow  # each test starts several processes

SHORT = ["--ttl", "400ms"]
"""For leases that are to be lost."""
LONG = 1.0


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service() as started:
        yield started


@pytest.fixture
def locks(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/locks.db"


@pytest.fixture
def common(service: Service, locks: str, tmp_path: Path) -> list[str]:
    return ["--resource", service.url, "--backend", locks, "--key", tmp_path.name, "--ttl", "60s"]


def test_a_round_acquires_reads_writes_and_releases(common: list[str], service: Service, tmp_path: Path) -> None:
    with WorkerProcess(*common, "--iterations", "3") as worker:
        assert worker.end() == 0, worker.story
    assert worker.events == ["acquired", "read", "sent", "accepted", "released"] * 3
    assert [fact["token"] for fact in worker.facts if fact["event"] == "acquired"] == [1, 2, 3]
    assert service.get(tmp_path.name).body == b"3"


def test_lines_are_appended_under_one_lease(common: list[str], service: Service, tmp_path: Path) -> None:
    with WorkerProcess(*common, "--edit", "append", "--writes", "2", "--name", "W") as worker:
        assert worker.end() == 0, worker.story
    assert worker.events.count("acquired") == 1
    assert service.get(tmp_path.name).body == b"W: line 1 of 2\nW: line 2 of 2\n"


def test_a_stop_freezes_the_whole_process_and_its_renewals(common: list[str], locks: str, tmp_path: Path) -> None:
    with WorkerProcess(*common, *SHORT, "--pause", "1h") as worker, fencepost.connect(locks) as other:
        assert worker.frozen()["mode"] == "stop"
        heir = other.acquire(tmp_path.name, ttl=60, timeout=PATIENCE)
        assert heir.token > worker.facts[0]["token"]
        assert state_of(worker.pid) == "T"
        worker.thaw()
        assert worker.until("lost")["token"] == worker.facts[0]["token"]


def test_a_stop_ends_by_itself(common: list[str]) -> None:
    with WorkerProcess(*common, *SHORT, "--pause", f"{LONG}s") as worker:
        worker.until("paused")
        assert worker.until("resumed")["seconds"] >= LONG
        assert worker.end() == 76, worker.story


def test_a_sleep_leaves_the_renewals_running(common: list[str], locks: str, tmp_path: Path) -> None:
    with (
        WorkerProcess(*common, "--ttl", "6s", "--pause", "12s", "--pause-mode", "sleep") as worker,
        fencepost.connect(locks) as other,
    ):
        worker.until("paused")
        with pytest.raises(fencepost.NotAcquired):
            other.acquire(tmp_path.name, timeout=6.5)
        assert worker.end() == 0, worker.story
    assert worker.events[-3:] == ["sent", "accepted", "released"]


def test_without_renewal_a_sleep_loses_the_lease(common: list[str]) -> None:
    with WorkerProcess(*common, *SHORT, "--no-renew", "--pause", f"{LONG}s", "--pause-mode", "sleep") as worker:
        assert worker.end() == 76
    assert worker.events[-2:] == ["accepted", "lost"]


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ("before-read", ["acquired", "paused", "resumed", "read", "sent", "accepted"]),
        ("before-write", ["acquired", "read", "paused", "resumed", "sent", "accepted"]),
        ("after-send", ["acquired", "read", "sent", "paused", "resumed", "accepted"]),
    ],
)
def test_the_pause_comes_where_it_is_asked_for(common: list[str], at: str, expected: list[str]) -> None:
    with WorkerProcess(*common, "--pause", "10ms", "--pause-mode", "sleep", "--pause-at", at) as worker:
        assert worker.end() == 0, worker.story
    assert worker.events == [*expected, "released"]


@pytest.mark.parametrize(
    ("options", "step"), [(["--pause-at", "before-write"], "write"), (["--pause-at", "before-read"], "read")]
)
def test_a_replaced_holder_is_refused(
    common: list[str], service: Service, tmp_path: Path, options: list[str], step: str
) -> None:
    with WorkerProcess(*common, *SHORT, "--pause", "1h", *options) as worker:
        worker.frozen()
        with WorkerProcess(*common) as heir:
            assert heir.end() == 0, heir.story
        worker.thaw()
        refused = worker.until("refused")
        assert (refused["step"], refused["status"], refused["verdict"]) == (step, 409, "stale")
        assert (refused["got"], refused["seen"]) == (worker.facts[0]["token"], heir.facts[0]["token"])
        assert worker.end() == 77
    assert service.get(tmp_path.name).body == b"1"


def test_a_worker_that_sends_no_token_is_refused_by_a_fenced_resource(common: list[str]) -> None:
    with WorkerProcess(*common, "--fence", "off") as worker:
        assert worker.end() == 77
    assert [fact["status"] for fact in worker.facts if fact["event"] == "refused"] == [428]


def test_a_plain_read_does_not_enter(common: list[str], service: Service, tmp_path: Path) -> None:
    with WorkerProcess(*common, "--no-enter", "--steps") as worker:
        worker.go("acquire", "read")
        worker.until("read")
        assert service.get(tmp_path.name).headers["X-Fence-Mark"] is None
        worker.go("write", "release")
        assert worker.end() == 0, worker.story


def test_a_fenced_read_enters(common: list[str], service: Service, tmp_path: Path) -> None:
    with WorkerProcess(*common, "--enter", "--steps") as worker:
        worker.go("acquire", "read")
        worker.until("read")
        assert service.get(tmp_path.name).headers["X-Fence-Mark"] == "1"


def test_a_worker_whose_steps_nobody_leads_any_more_ends_and_lets_go(
    common: list[str], locks: str, tmp_path: Path
) -> None:
    with WorkerProcess(*common, "--ttl", "1h", "--steps") as worker, fencepost.connect(locks) as other:
        worker.go("acquire")
        worker.until("acquired")
        assert worker.finish() == 1, worker.story
        assert other.try_acquire(tmp_path.name) is not None


def test_metrics_are_served_while_it_runs(common: list[str]) -> None:
    with WorkerProcess(*common, "--steps", "--metrics", "auto") as worker:
        url = worker.until("metrics")["url"]
        worker.go("acquire", "read")
        worker.until("read")
        with urllib.request.urlopen(url) as page:
            assert "fencepost_lock_acquire_success_total 1.0" in page.read().decode()


def test_without_json_it_tells_a_story(common: list[str]) -> None:
    with Child.fencepost("worker", *common, "--pause", "10ms", "--name", "W", "--metrics", "off") as worker:
        said = [line.partition(" ")[2] for line in worker.succeed()]
    assert [re.sub(r"wakes after .* s", "wakes", line) for line in said] == [
        "W acquires the lock: token 1, ttl 60 s",
        "W reads nothing yet with token 1",
        "W freezes: SIGSTOP for 0.01 s",
        "W wakes",
        "W sends '1' with token 1",
        "W writes '1' with token 1: 200, accepted",
        "W releases the lock",
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--resource", "ftp://x"], "http://"),
        (["--resource", "s3+http://localhost"], "s3+http://user:password@host:9000/bucket"),
        (["--resource", "column+postgresql://x:secret@127.0.0.1:1/x"], "--no-enter"),
        (["--margin", "1s", "--ttl", "1s"], "two thirds"),
        (["--patience", "0s"], "patience"),
        (["--iterations", "0"], "iterations"),
        (["--ttl", "0s"], "ttl"),
        (["--backend", "nowhere://"], "nowhere"),
    ],
)
def test_what_cannot_be_meant_is_refused(common: list[str], options: list[str], says: str) -> None:
    done = CliRunner().invoke(root.app, ["worker", *common, *options])
    assert done.exit_code == 2, done.output
    assert says in done.stderr


def test_a_resource_that_is_not_there_is_told_in_one_line(locks: str) -> None:
    done = CliRunner().invoke(root.app, ["worker", "--backend", locks, "--resource", "http://127.0.0.1:1"])
    assert done.exit_code == 69, done.output
    assert done.stderr.count("\n") == 1
    assert "did not answer" in done.stderr
