"""``fencepost drill``: a real holder, frozen past its ttl, is refused by a guard, or it is seen that it was not."""

import json
import os
import secrets
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import fencepost
from fencepost.errors import ConfigError
from fencepost_lab.drill import Drill, Evidence, Tail, Target, checked, scrape
from fencepost_lab.servers.freeze import is_stopped
from tests.harness.child import Child
from tests.harness.servers import Endpoint
from tests.harness.waiting import until


class Staging:
    """Somebody's stack: a lock, a guarded database with an audit log, and holders."""

    def __init__(self, url: str, folder: Path, name: str, ends: ExitStack) -> None:
        self.url, self.name = url, name
        self.audit = folder / "audit.jsonl"
        self.audit.touch()
        self._database = folder / "data.db"
        self._ends = ends

    def holder(self, mode: str = "enforce") -> Child:
        words = (self.url, self.name, self._database, self.audit, mode)
        return self._ends.enter_context(Child.python("-m", "tests.programs.drilled", *words))

    def drill(self, pid: int, *options: object) -> Child:
        words = ("--pid", pid, "--name", self.name, "--backend", self.url, "--audit", self.audit, "--yes", "--json")
        return self._ends.enter_context(Child.fencepost("drill", *words, *options))


@pytest.fixture
def staging(redis_server: Endpoint, tmp_path: Path) -> Iterator[Staging]:
    with ExitStack() as ends:
        yield Staging(redis_server.url, tmp_path, secrets.token_hex(4), ends)


@pytest.mark.parametrize(
    ("mode", "code", "outcome", "said"),
    [
        ("enforce", 0, "refused", "REFUSED: the sqlite guard refused its write"),
        ("shadow", 1, "admitted", "its policy does not enforce"),
        ("none", 3, "nothing seen", "it gave up by itself"),
    ],
)
def test_a_drill_tells_whether_the_guard_refused(
    staging: Staging, mode: str, code: int, outcome: str, said: str
) -> None:
    first = staging.holder(mode)
    token = int(first.heard(lambda line: line.startswith("holds")).split()[1])
    second = staging.holder("enforce")
    drill = staging.drill(first.pid, "--watch", "5s" if mode == "none" else "1m")
    second.heard(lambda line: line.startswith("holds"))
    assert drill.wait() == code, drill.story
    facts = json.loads(drill.output[-1])
    assert (facts["outcome"], facts["token"]) == (outcome, token)
    assert facts["successor"] > token
    assert any(said in line for line in facts["evidence"]), facts["evidence"]
    assert not is_stopped(first.pid)
    first.heard("wrote")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_the_holder_is_woken_when_the_drill_dies(staging: Staging, how: signal.Signals) -> None:
    holder = staging.holder()
    holder.heard(lambda line: line.startswith("holds"))
    drill = staging.drill(holder.pid, "--wait", "5m")
    until(lambda: is_stopped(holder.pid), "the holder is frozen", watching=[drill])
    drill.signal(how)
    assert drill.wait() == (-signal.SIGKILL if how is signal.SIGKILL else 130), drill.story
    until(lambda: not is_stopped(holder.pid), "the holder is awake")


def test_what_must_not_be_frozen_is_refused() -> None:
    cases = {
        1: "first process",
        os.getpid(): "this command itself",
        os.getppid(): "a parent of this command",
        2**22 + 1: "there is no process",
        -3: "no process id",
    }
    for pid, said in cases.items():
        with pytest.raises(ConfigError, match=said):
            checked(Target(pid))
    for target, said in (
        (Target(), "name what to freeze"),
        (Target(freeze="x"), "needs --thaw-command"),
        (Target(7, "x", "y"), "name what to freeze"),
        (Target(7, thaw="y"), "is for --freeze-command"),
    ):
        with pytest.raises(ConfigError, match=said):
            checked(target)
    with pytest.raises(ConfigError, match="http:// URL"):
        scrape("localhost:9000")


def test_commands_freeze_what_is_elsewhere(staging: Staging) -> None:
    first = staging.holder()
    first.heard(lambda line: line.startswith("holds"))
    second = staging.holder()
    commands = ("--freeze-command", f"kill -STOP {first.pid}", "--thaw-command", f"kill -CONT {first.pid}")
    words = ("--name", staging.name, "--backend", staging.url, "--audit", staging.audit, "--yes", "--json")
    with Child.fencepost("drill", *words, *commands) as drill:
        second.heard(lambda line: line.startswith("holds"))
        assert drill.wait() == 0, drill.story


def test_nobody_is_frozen_without_a_yes(staging: Staging) -> None:
    with Child.python("-c", "input()") as victim:
        words = ("--pid", victim.pid, "--name", "a", "--audit", staging.audit)
        with Child.fencepost("drill", *words) as drill:
            assert drill.wait() == 2
            assert "say --yes" in drill.errors
        assert not is_stopped(victim.pid)


class Counters(BaseHTTPRequestHandler):
    """A metrics endpoint whose counter of refusals grows by one with each look."""

    looks = 0

    def do_GET(self) -> None:
        type(self).looks += 1
        text = f'# HELP x\nfencepost_fencing_reject_total{{class="a",verdict="stale"}} {self.looks}.0\nother 1\n'
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


def test_a_counter_that_grows_is_evidence(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Counters) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/metrics"
            name = 'fencepost_fencing_reject_total{class="a",verdict="stale"}'
            assert scrape(url) == {name: 1.0}
            evidence = Evidence("a", token=1, successor=2)
            with fencepost.connect(f"sqlite://{tmp_path / 'locks.db'}") as locks:
                Drill(locks, "a", Target(1), [], [url])._watch(evidence, {url: {name: 1.0}})
        finally:
            server.shutdown()
            thread.join()
    assert evidence.outcome == "refused"
    assert evidence.lines == [f"REFUSED: {url} has {name} +1 since the freeze"]


def test_an_audit_log_is_read_from_its_end_on_also_after_it_was_rotated(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    log.write_text('{"kind":"old"}\n')
    tail = Tail(log)
    assert tail.read() == []
    with log.open("a") as file:
        file.write('{"kind":"a"}\nnot json\n{"kind":')
    assert tail.read() == [{"kind": "a"}]
    with log.open("a") as file:
        file.write('"b"}\n')
    assert tail.read() == [{"kind": "b"}]
    log.rename(tmp_path / "audit.1")
    assert tail.read() == []
    log.write_text('{"kind":"c"}\n')
    assert tail.read() == [{"kind": "c"}]
    with pytest.raises(ConfigError, match="cannot be read"):
        Tail(tmp_path / "none")
