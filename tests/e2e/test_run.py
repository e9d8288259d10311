"""`fencepost run`: real processes, real signals, a real terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import fencepost
from fencepost import sync
from fencepost.lab.servers.processes import ENDED, STILL, dying_with_us, state_of, wait_until
from tests.harness.servers import Endpoint

PATIENCE = 30.0


class Runner:
    """Starts `fencepost run` on locks of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite://{folder}/locks.db"
        self.started: list[subprocess.Popen[str]] = []

    def command(self, *options: str, command: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "fencepost", "run", "job", "--backend", self.url, *options, "--", *command]

    def start(self, *options: str, command: Sequence[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            dying_with_us(self.command(*options, command=command)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def run(self, *options: str, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        process = self.start(*options, command=command)
        out, err = process.communicate(timeout=PATIENCE)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def sleeper(self, *options: str, traps: str = "") -> tuple[subprocess.Popen[str], int]:
        """A runner whose command waits for ever, and the command's pid."""
        script = f"{traps}\necho $$; exec 3>&1; while :; do sleep 0.05 3>&-; done"
        process = self.start(*options, command=["sh", "-c", script])
        assert process.stdout is not None
        return process, int(process.stdout.readline())


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    runner = Runner(tmp_path)
    yield runner
    for process in runner.started:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def locks(runner: Runner) -> Iterator[sync.Locks]:
    with fencepost.connect(runner.url, ttl=60) as locks:
        yield locks


def gone(pid: int) -> bool:
    return wait_until(lambda: state_of(pid) in ENDED, timeout=PATIENCE)


def test_the_command_knows_its_lease_and_its_exit_code_is_ours(runner: Runner, locks: sync.Locks) -> None:
    done = runner.run(command=["sh", "-c", "echo $FENCE_NAME $FENCE_TOKEN $FENCE_HOLDER; exit 41"])
    assert done.returncode == 41, done.stderr
    name, token, holder = done.stdout.split()
    assert name == "job"
    assert int(token) > 0
    assert len(holder) == 32
    lease = locks.try_acquire("job")
    assert lease is not None, "it was released"
    assert lease.token > int(token)


def test_arguments_and_streams_go_through_unchanged(runner: Runner) -> None:
    code = "import json, sys; print(json.dumps(sys.argv[1:])); print('oops', file=sys.stderr)"
    done = runner.run(command=[sys.executable, "-c", code, "--ttl", "a b", "", "--", "-x"])
    assert json.loads(done.stdout) == ["--ttl", "a b", "", "--", "-x"]
    assert (done.returncode, done.stderr) == (0, "oops\n"), "nothing of ours in between"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_and_we_say_which(runner: Runner, locks: sync.Locks, number: signal.Signals) -> None:
    process, child = runner.sleeper()
    process.send_signal(number)
    assert process.wait(PATIENCE) == 128 + number
    assert gone(child)
    assert locks.try_acquire("job"), "released at once"


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGHUP, signal.SIGWINCH])
def test_a_signal_that_the_command_handles_is_its_own_business(runner: Runner, number: signal.Signals) -> None:
    process, _ = runner.sleeper(traps=f"trap 'echo got; exit 7' {number.value}")
    process.send_signal(number)
    assert process.wait(PATIENCE) == 7
    assert process.stdout is not None
    assert process.stdout.read() == "got\n"


def test_a_command_that_killed_itself_is_told_by_its_code(runner: Runner) -> None:
    assert runner.run(command=["sh", "-c", "kill -9 $$"]).returncode == 128 + 9


@pytest.mark.parametrize(
    ("command", "code"),
    [("no-such-command", 127), ("/etc/passwd", 126), ("", 127)],
    ids=["missing", "not executable", "empty"],
)
def test_what_cannot_be_run_is_told_apart_and_leaves_the_lock_free(
    runner: Runner, locks: sync.Locks, command: str, code: int
) -> None:
    done = runner.run(command=[command])
    assert done.returncode == code
    assert done.stderr.startswith(f"fencepost: {command}: ")
    assert done.stderr.count("\n") == 1
    assert locks.try_acquire("job")


@pytest.mark.parametrize("option", [("--no-wait",), ("--timeout", "200ms")])
def test_a_lock_that_is_not_to_be_had_is_75_and_the_command_never_starts(
    runner: Runner, locks: sync.Locks, option: tuple[str, ...]
) -> None:
    with locks.lock("job"):
        done = runner.run(*option, command=["touch", str(runner.folder / "started")])
    assert done.returncode == 75
    assert "job" in done.stderr
    assert not (runner.folder / "started").exists()


def test_wrong_usage_is_2(runner: Runner) -> None:
    assert runner.run("--no-wait", "--timeout", "1s", command=["true"]).returncode == 2
    assert runner.run("--ttl", "soon", command=["true"]).returncode == 2
    assert runner.run("--ttl", "0", command=["true"]).returncode == 2


def test_one_that_waits_gets_the_lock_when_it_is_free(runner: Runner, locks: sync.Locks) -> None:
    with locks.lock("job") as lease:
        process = runner.start("--timeout", "30s", command=["sh", "-c", "echo $FENCE_TOKEN"])
        assert wait_until(lambda: bool((locks.status("job") or lease).waiters), timeout=PATIENCE)  # type: ignore[union-attr]
    out, _ = process.communicate(timeout=PATIENCE)
    assert int(out) > lease.token


def test_one_that_waits_can_be_told_to_stop_and_leaves_the_line(runner: Runner, locks: sync.Locks) -> None:
    with locks.lock("job"):
        process = runner.start(command=["touch", str(runner.folder / "started")])

        def waiters() -> int:
            status = locks.status("job")
            return len(status.waiters) if status else 0

        assert wait_until(lambda: waiters() == 1, timeout=PATIENCE)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 128 + signal.SIGTERM
        assert waiters() == 0
    assert not (runner.folder / "started").exists()


def test_the_lease_is_renewed_for_as_long_as_the_command_runs(runner: Runner, locks: sync.Locks) -> None:
    begun = time.monotonic()
    process = runner.start("--ttl", "300ms", command=["sleep", "1.5"])
    assert wait_until(lambda: locks.status("job") is not None, timeout=PATIENCE)
    first = locks.status("job")
    while process.poll() is None:
        lease = locks.try_acquire("job")
        assert lease is None or process.wait(PATIENCE) == 0
        time.sleep(0.05)
    assert process.returncode == 0
    assert time.monotonic() - begun > 1.5
    assert first is not None


def test_a_lost_lease_ends_the_command_at_once(runner: Runner, locks: sync.Locks) -> None:
    process, child = runner.sleeper("--ttl", "600ms", "--grace", "30s")
    assert locks.evict("job")
    began = time.monotonic()
    assert process.wait(PATIENCE) == 76
    assert time.monotonic() - began < 15, "long before the grace period is over"
    assert gone(child)
    assert process.stderr is not None
    assert "lost" in process.stderr.read()


def test_a_command_that_will_not_end_is_killed_after_the_grace_period(runner: Runner, locks: sync.Locks) -> None:
    process, child = runner.sleeper("--ttl", "600ms", "--grace", "500ms", traps="trap 'echo no' TERM")
    assert locks.evict("job")
    assert process.wait(PATIENCE) == 76
    assert gone(child)
    assert process.stdout is not None
    assert "no\n" in process.stdout.read(), "it was asked first"


def test_what_the_command_has_started_ends_with_it_when_the_lease_is_lost(runner: Runner, locks: sync.Locks) -> None:
    script = "trap '' TERM; (trap '' TERM; echo $$; sleep 60) & wait; sleep 60"
    process = runner.start("--ttl", "600ms", "--grace", "300ms", command=["sh", "-c", f"sh -c {shlex.quote(script)}"])
    assert process.stdout is not None
    grandchild = int(process.stdout.readline())
    assert locks.evict("job")
    assert process.wait(PATIENCE) == 76
    assert gone(grandchild)


def test_a_runner_frozen_past_its_ttl_ends_the_command_when_it_wakes(runner: Runner, locks: sync.Locks) -> None:
    process, child = runner.sleeper("--ttl", "500ms", "--grace", "30s")
    process.send_signal(signal.SIGSTOP)
    assert wait_until(lambda: state_of(process.pid) in STILL, timeout=PATIENCE)
    other = locks.acquire("job", timeout=PATIENCE)
    assert state_of(child) not in ENDED, "nobody could stop it: this is what the token is for"
    process.send_signal(signal.SIGCONT)
    assert gone(child)
    assert process.wait(PATIENCE) == 76
    other.check()
    assert other.release(), "the newer hold was left alone"


def test_a_stopped_command_keeps_its_lease_and_can_go_on(runner: Runner, locks: sync.Locks) -> None:
    """Without a terminal, somebody else stopped it, and will continue it: the hold is renewed meanwhile."""
    process, child = runner.sleeper("--ttl", "400ms", traps="trap 'exit 5' USR1")
    process.send_signal(signal.SIGTSTP)
    assert wait_until(lambda: state_of(child) in STILL, timeout=PATIENCE)
    status = locks.status("job")
    assert status is not None
    time.sleep(1.0)
    assert (locks.status("job") or status).token == status.token
    assert locks.try_acquire("job") is None
    process.send_signal(signal.SIGCONT)
    assert wait_until(lambda: state_of(child) not in STILL, timeout=PATIENCE)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(PATIENCE) == 5


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children of their parent's death")
def test_a_killed_runner_takes_the_command_along(runner: Runner, locks: sync.Locks) -> None:
    process, child = runner.sleeper("--ttl", "1s")
    process.kill()
    assert gone(child)
    assert locks.acquire("job", timeout=PATIENCE).release()


def test_no_zombie_is_left(runner: Runner) -> None:
    process = runner.start(command=["sh", "-c", "echo $$; sleep 0.1"])
    out, _ = process.communicate(timeout=PATIENCE)
    assert state_of(int(out)) == "gone"


class Terminal:
    """A shell with job control on a terminal of its own, to type into."""

    def __init__(self) -> None:
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], os.environ | {"PS1": "$ "})
        os.set_blocking(self.master, False)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def shows(self, text: str) -> bool:
        """Whether the text comes up on the screen, after what was shown before."""

        def read() -> bool:
            with contextlib.suppress(BlockingIOError, OSError):
                self.seen += os.read(self.master, 65536).decode(errors="replace")
            return text in self.seen

        if not wait_until(read, timeout=PATIENCE):
            return False
        self.seen = self.seen.partition(text)[2]
        return True

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.close(self.master)
        os.waitpid(self.pid, 0)


@pytest.fixture
def terminal(runner: Runner) -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


def test_at_a_terminal_the_command_reads_what_is_typed_and_ctrl_c_reaches_it(
    runner: Runner, terminal: Terminal
) -> None:
    script = "trap 'echo caught; exit 9' INT; echo ready; read x; echo got=$x; while :; do sleep 0.1; done"
    terminal.type(shlex.join(runner.command(command=["sh", "-c", script])) + "; echo code=$?\n")
    assert terminal.shows("ready\r\n"), terminal.seen
    terminal.type("hello\n")
    assert terminal.shows("got=hello"), terminal.seen
    terminal.type("\x03")
    assert terminal.shows("caught"), terminal.seen
    assert terminal.shows("code=9"), terminal.seen


def test_at_a_terminal_ctrl_z_stops_both_and_fg_continues_them(runner: Runner, terminal: Terminal) -> None:
    script = "echo ready; read x; echo got=$x"
    terminal.type(shlex.join(runner.command("--ttl", "60s", command=["sh", "-c", script])) + "\n")
    assert terminal.shows("ready\r\n"), terminal.seen
    terminal.type("\x1a")
    assert terminal.shows("Stopped"), terminal.seen
    terminal.type("fg\n")
    assert terminal.shows("fencepost"), terminal.seen
    terminal.type("hello\n")
    assert terminal.shows("got=hello"), terminal.seen
    terminal.type("echo code=$?\n")
    assert terminal.shows("code=0"), terminal.seen


def test_a_job_stopped_past_its_ttl_is_ended_when_it_continues(
    runner: Runner, terminal: Terminal, locks: sync.Locks
) -> None:
    script = "echo ready; while :; do sleep 0.1; done"
    terminal.type(shlex.join(runner.command("--ttl", "500ms", command=["sh", "-c", script])) + "; echo code=$?\n")
    assert terminal.shows("ready\r\n"), terminal.seen
    terminal.type("\x1a")
    assert terminal.shows("Stopped"), terminal.seen
    lease = locks.acquire("job", timeout=PATIENCE)
    terminal.type("fg\n")
    assert terminal.shows("is lost"), terminal.seen
    terminal.type("echo code=$?\n")
    assert terminal.shows("code=76"), terminal.seen
    lease.check()


def test_a_command_begins_every_time_although_grpc_is_at_work(etcd_server: Endpoint) -> None:
    """Python that runs between fork and exec shares the process with gRPC's threads, and now and then aborted there."""

    def run(number: int) -> int:
        job = [sys.executable, "-m", "fencepost", "run", f"job/{number}", "--backend", etcd_server.url, "--", "true"]
        return subprocess.run(job, capture_output=True, timeout=PATIENCE).returncode

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(16))) == [0] * 16
