"""`fencepost run`: real processes, real signals, a real terminal."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shlex
import signal
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import fencepost
from fencepost import sync
from fencepost.cli import app as root
from fencepost.cli import child as cli_child
from fencepost.cli import launch
from fencepost_lab.servers.processes import ENDED, STILL, state_of
from tests.harness.child import Child
from tests.harness.isolated import isolated
from tests.harness.servers import Endpoint
from tests.harness.terminal import Terminal
from tests.harness.waiting import PATIENCE, until

pytestmark = pytest.mark.slow  # each test starts several processes

RENEWED = ("--ttl", "9s")
"""The lease is renewed every 3 s, when a loss is noticed. It survives a machine that stands still for 5 s."""
EXPIRES = ("--ttl", "6s")
"""For a test that waits until the lease expires. It survives a machine that stands still for 3 s."""


class Runner:
    """Starts `fencepost run` on locks of the test's own."""

    def __init__(self, folder: Path, started: contextlib.ExitStack) -> None:
        self.folder = folder
        self.url = f"sqlite://{folder}/locks.db"
        self._started = started

    def arguments(self, *options: str, command: Sequence[str]) -> list[str]:
        return ["run", "job", "--backend", self.url, *options, "--", *command]

    def start(self, *options: str, command: Sequence[str]) -> Child:
        return self._started.enter_context(Child.unhurried(*self.arguments(*options, command=command)))

    def run(self, *options: str, command: Sequence[str]) -> Child:
        """A runner that has ended."""
        process = self.start(*options, command=command)
        process.wait()
        return process

    def under(self, prepare: str, *options: str, command: Sequence[str]) -> Child:
        """A runner whose own process was prepared by a line of shell."""
        program = [sys.executable, "-m", "fencepost", *self.arguments(*options, command=command)]
        return self._started.enter_context(Child(["sh", "-c", f'{prepare}; exec "$@"', "sh", *program]))

    def sleeper(self, *options: str, traps: str = "") -> tuple[Child, int]:
        """A runner whose command waits until a signal ends it, and the command's pid."""
        # It starts no programs meanwhile: a shell does that by vfork, and a shell whose new child is stopped before
        # its exec is not stopped itself, but waits in state D.
        process = self.start(*options, command=["sh", "-c", f"{traps}\necho $$; while :; do read x; done"])
        return process, int(process.line())

    def freeze(self, process: Child) -> None:
        """SIGSTOP the runner."""
        process.freeze(self.url)


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    with contextlib.ExitStack() as started:
        yield Runner(tmp_path, started)


@pytest.fixture
def locks(runner: Runner) -> Iterator[sync.Locks]:
    with fencepost.connect(runner.url, ttl=60) as locks:
        yield locks


def ends(pid: int) -> None:
    until(lambda: state_of(pid) in ENDED, f"the end of process {pid}")


def waiters(locks: sync.Locks) -> int:
    status = locks.status("job")
    return len(status.waiters) if status else 0


def stays_held(locks: sync.Locks, process: Child | None = None) -> None:
    """Return once the lease on the job, one with RENEWED, was renewed twice; fail if it was lost meanwhile."""
    status = locks.status("job")
    assert status is not None, process and process.story
    token, renewals, remaining = status.token, 0, status.remaining

    def renewed() -> bool:
        nonlocal renewals, remaining
        now = locks.status("job")
        assert now is not None, process and process.story
        assert now.token == token
        renewals, remaining = renewals + (now.remaining > remaining), now.remaining
        return renewals >= 2

    until(renewed, "two renewals", poll=0.05, watching=[process] if process else [])


def test_the_command_knows_its_lease_and_its_exit_code_is_ours(runner: Runner, locks: sync.Locks) -> None:
    done = runner.run(command=["sh", "-c", "echo $FENCE_NAME $FENCE_TOKEN $FENCE_HOLDER; exit 41"])
    assert done.wait() == 41, done.story
    name, token, holder = done.line().split()
    assert name == "job"
    assert int(token) > 0
    assert len(holder) == 32
    lease = locks.try_acquire("job")
    assert lease is not None, "it was released"
    assert lease.token > int(token)


def test_arguments_and_streams_go_through_unchanged(runner: Runner) -> None:
    code = "import json, sys; print(json.dumps(sys.argv[1:])); print('oops', file=sys.stderr)"
    done = runner.run(command=[sys.executable, "-c", code, "--ttl", "a b", "", "--", "-x"])
    assert done.json() == ["--ttl", "a b", "", "--", "-x"]
    assert (done.wait(), done.errors) == (0, "oops\n"), "nothing of ours in between"


@pytest.mark.parametrize("option", ["-v", "--verbose"])
def test_it_says_what_happens_if_it_is_asked_to(runner: Runner, option: str) -> None:
    ask = "import os; from urllib.request import urlopen; print(urlopen(os.environ['FENCE_METRICS']).read().decode())"
    script = f'echo $FENCE_TOKEN; echo $FENCE_METRICS; {shlex.quote(sys.executable)} -c "{ask}"; exit 3'
    done = runner.run(option, command=["sh", "-c", script])
    assert done.wait() == 3, done.story
    holding, metrics, ended = done.errors.splitlines()
    assert holding == f"fencepost: holding 'job' in {runner.url}, token {done.line()}"
    assert metrics == f"fencepost: metrics at {done.line()}"
    assert "fencepost_lock_acquire_success_total 1.0" in done.output
    assert ended == "fencepost: sh ended with 3"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_and_we_say_which(runner: Runner, locks: sync.Locks, number: signal.Signals) -> None:
    process, child = runner.sleeper()
    process.signal(number)
    assert process.wait() == 128 + number, process.story
    ends(child)
    assert locks.try_acquire("job"), "released at once"


def test_a_signal_that_the_command_handles_is_its_own_business(runner: Runner) -> None:
    handled = [signal.SIGUSR1, signal.SIGHUP, signal.SIGWINCH]
    traps = "; ".join(f"trap 'echo got {each.value}' {each.value}" for each in handled) + "; trap 'exit 7' USR2"
    process, _ = runner.sleeper(traps=traps)
    for each in handled:
        process.signal(each)
        assert process.line() == f"got {each.value}"
    process.signal(signal.SIGUSR2)
    assert process.wait() == 7, process.story


def test_a_command_that_killed_itself_is_told_by_its_code(runner: Runner) -> None:
    done = runner.run(command=["sh", "-c", "kill -9 $$"])
    assert done.wait() == 128 + 9, done.story


@pytest.mark.parametrize(
    ("command", "code"),
    [("no-such-command", 127), ("/etc/passwd", 126), ("", 127)],
    ids=["missing", "not executable", "empty"],
)
def test_what_cannot_be_run_is_told_apart_and_leaves_the_lock_free(
    runner: Runner, locks: sync.Locks, command: str, code: int
) -> None:
    done = runner.run(command=[command])
    assert done.wait() == code, done.story
    assert done.errors.startswith(f"fencepost: {command}: ")
    assert done.errors.count("\n") == 1
    assert locks.try_acquire("job")


@isolated
def test_a_folder_of_the_path_that_may_not_be_read_is_passed_over(tmp_path: Path) -> None:
    """execvp() says EACCES of a command that is nowhere, if it could not look into one of the folders."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    os.environ["PATH"] = str(closed)
    if os.geteuid() == 0:
        os.setresuid(65534, 65534, 65534)
    reader, writer = os.pipe()
    launch.main(os.getppid(), -1, writer, ["no-such-command"])
    assert os.read(reader, 9) == b"%d" % errno.ENOENT


@pytest.mark.parametrize("option", [("--no-wait",), ("--timeout", "3s")])
def test_a_lock_that_is_not_to_be_had_is_75_and_the_command_never_starts(
    runner: Runner, locks: sync.Locks, option: tuple[str, ...]
) -> None:
    with locks.lock("job") as lease:
        done = runner.run(*option, command=["touch", str(runner.folder / "started")])
    assert done.wait() == 75, done.story
    assert f"[{os.getpid()}] " in done.errors, "it says who holds the lock"
    assert lease.holder in done.errors
    assert "--timeout" in done.errors
    assert not (runner.folder / "started").exists()


@pytest.mark.parametrize("option", [("--no-wait",), ("--timeout", "3s")])
def test_a_skipped_run_ends_as_cron_wants_it(runner: Runner, locks: sync.Locks, option: tuple[str, ...]) -> None:
    with locks.lock("job"):
        done = runner.run(*option, "--quiet", "--busy-exit", "0", command=["false"])
        again = runner.run(*option, "-E", "9", command=["false"])
    assert (done.wait(), done.errors) == (0, ""), done.story
    assert again.wait() == 9, again.story
    assert runner.run("-q", "--busy-exit", "0", command=["sh", "-c", "exit 3"]).wait() == 3, "the command's own"


def test_the_holder_is_told_as_the_command_that_runs(runner: Runner, locks: sync.Locks) -> None:
    process, _ = runner.sleeper()
    status = locks.status("job")
    assert status is not None
    assert status.labels[status.holder].startswith(f"sh[{process.pid}] ")
    process.kill()


@pytest.mark.parametrize(
    "options",
    [
        ("--no-wait", "--timeout", "1s"),
        ("--ttl", "soon"),
        ("--ttl", "0"),
        ("--busy-exit", "256"),
        ("--busy-exit", "-1"),
        ("--quiet", "--verbose"),
    ],
)
def test_wrong_usage_is_2(runner: Runner, options: tuple[str, ...]) -> None:
    done = CliRunner().invoke(root.app, runner.arguments(*options, command=["true"]))
    assert done.exit_code == 2, done.output


def test_one_that_waits_gets_the_lock_when_it_is_free(runner: Runner, locks: sync.Locks) -> None:
    with locks.lock("job") as lease:
        process = runner.start("--timeout", "60s", command=["sh", "-c", "echo $FENCE_TOKEN"])
        until(lambda: waiters(locks), "a waiter", watching=[process])
    assert int(process.line()) > lease.token


def test_one_that_waits_can_be_told_to_stop_and_leaves_the_line(runner: Runner, locks: sync.Locks) -> None:
    with locks.lock("job"):
        process = runner.start(command=["touch", str(runner.folder / "started")])
        until(lambda: waiters(locks), "a waiter", watching=[process])
        process.signal(signal.SIGTERM)
        assert process.wait() == 128 + signal.SIGTERM, process.story
        assert waiters(locks) == 0
    assert not (runner.folder / "started").exists()


def test_the_lease_is_renewed_for_as_long_as_the_command_runs(runner: Runner, locks: sync.Locks) -> None:
    process, _ = runner.sleeper(*RENEWED, traps="trap 'exit 5' USR1")
    stays_held(locks, process)
    process.signal(signal.SIGUSR1)
    assert process.wait() == 5, process.story


def test_a_lost_lease_ends_the_command_long_before_the_grace_period_is_over(runner: Runner, locks: sync.Locks) -> None:
    process, child = runner.sleeper(*RENEWED, "--grace", "1h", traps="trap 'echo asked; exit 3' TERM")
    locks.break_lock("job")
    assert process.wait() == 76, process.story
    ends(child)
    assert process.line() == "asked"
    assert "lost" in process.errors


def test_a_command_that_will_not_end_is_killed_after_the_grace_period(runner: Runner, locks: sync.Locks) -> None:
    """And so is what it has started."""
    script = "trap '' TERM; echo $$; sh -c 'echo $$; while :; do read x; done'; sleep 60"
    process = runner.start(*RENEWED, "--grace", "100ms", command=["sh", "-c", script])
    child, grandchild = int(process.line()), int(process.line())
    locks.break_lock("job")
    assert process.wait() == 76, process.story
    ends(child)
    ends(grandchild)


NO_READER = "mkfifo {0}/p; exec 3<>{0}/p 2>{0}/p 3<&-"
BROKEN = {"full disk": "exec 2>/dev/full", "nobody reads": NO_READER, "closed": "exec 2>&-"}
# What it starts ignores SIGTERM, and ends with its input in any case.
STUBBORN = """
trap 'echo asked; exit 3' TERM; exec 4<&0
sh -c 'trap "" TERM; echo $$; while read x; do :; done' <&4 & wait
"""


@pytest.mark.parametrize("broken", BROKEN)
def test_a_lost_lease_ends_the_command_although_it_cannot_be_told(
    runner: Runner, locks: sync.Locks, broken: str
) -> None:
    prepare = BROKEN[broken].format(shlex.quote(str(runner.folder)))
    process = runner.under(prepare, *RENEWED, "--grace", "3s", "-v", command=["sh", "-c", STUBBORN])
    grandchild = int(process.line())
    locks.break_lock("job")
    assert process.wait() == 76, process.story
    ends(grandchild)
    assert process.line() == "asked"
    assert process.errors == "", "nothing could be written"
    with locks.lock("job"):
        assert runner.under(prepare, "--no-wait", command=["true"]).wait() == 75


def test_a_lost_lease_ends_the_command_although_nobody_takes_our_words(runner: Runner, locks: sync.Locks) -> None:
    """As at a terminal that was stopped by Ctrl-S."""
    path = runner.folder / "stuck"
    os.mkfifo(path)
    with open(os.open(path, os.O_RDWR | os.O_NONBLOCK), "r+b", buffering=0) as stuck:
        prepare = f"exec 2>{shlex.quote(str(path))}"
        process = runner.under(prepare, *RENEWED, "--grace", "3s", command=["sh", "-c", STUBBORN])
        grandchild = int(process.line())
        while stuck.write(bytes(4096)):
            pass
        locks.break_lock("job")
        assert process.line() == "asked"
        ends(grandchild)
        assert process.running, "it still wants to say why"
        said = b""
        while b"is lost" not in said:
            said = said[-100:] + until(stuck.read, "the reason")
        assert process.wait() == 76, process.story


SUDO = """
import os, sys
from fencepost.cli.app import app
def killpg(group, number):
    print("refused", number, flush=True)
    raise PermissionError(1, "Operation not permitted")
os.killpg = killpg
app(sys.argv[1:])
"""


def test_a_command_that_may_not_be_signalled_is_waited_for(runner: Runner, locks: sync.Locks) -> None:
    """As with sudo: every process of the group is another user's."""
    script = "echo ready; read x; echo went on; exit 3"
    arguments = runner.arguments(*RENEWED, "--grace", "100ms", command=["sh", "-c", script])
    with Child.python("-c", SUDO, *arguments) as process:
        process.heard("ready")
        process.signal(signal.SIGUSR1)
        process.heard(f"refused {signal.SIGUSR1.value}")
        locks.break_lock("job")
        process.heard(f"refused {signal.SIGTERM.value}")
        process.heard(f"refused {signal.SIGKILL.value}")
        process.tell("")
        process.heard("went on")
        assert process.wait() == 76, process.story
    assert f"{signal.SIGUSR1.name} is not passed on" in process.errors
    assert "the command goes on: it runs as another user" in process.errors
    assert "'sh' ended with 3" in process.errors
    assert "Traceback" not in process.errors


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM])
def test_a_signal_that_was_ignored_at_the_start_stays_ignored(
    runner: Runner, locks: sync.Locks, number: signal.Signals
) -> None:
    """As nohup, and a shell's background jobs, want it; for the command too."""
    ignoring = f"trap '' {number.name.removeprefix('SIG')}"
    script = "echo $$; read x; kill -s $0 $$; echo still here; exit 5"
    command = ["sh", "-c", script, number.name.removeprefix("SIG")]
    with locks.lock("job"):
        process = runner.under(ignoring, command=command)
        until(lambda: waiters(locks), "a waiter", watching=[process])
        process.signal(number)
    process.line()
    process.signal(number)
    process.tell("")
    assert process.line() == "still here"
    assert process.wait() == 5, process.story


def test_a_runner_frozen_past_its_ttl_ends_the_command_when_it_wakes(runner: Runner, locks: sync.Locks) -> None:
    process, child = runner.sleeper(*EXPIRES, "--grace", "1h")
    runner.freeze(process)
    other = locks.acquire("job", timeout=PATIENCE)
    assert state_of(child) not in ENDED, "nobody could stop it: this is what the token is for"
    process.thaw()
    ends(child)
    assert process.wait() == 76, process.story
    other.check()
    assert other.release(), "the newer hold was left alone"


def test_a_stopped_command_keeps_its_lease_and_can_go_on(runner: Runner, locks: sync.Locks) -> None:
    """Without a terminal, somebody else stopped it, and will continue it: the hold is renewed meanwhile."""
    process, child = runner.sleeper(*RENEWED, traps="trap 'exit 5' USR1")
    process.signal(signal.SIGTSTP)
    until(lambda: state_of(child) in STILL, "the command stops", watching=[process])
    stays_held(locks, process)
    assert state_of(child) in STILL
    process.thaw()
    until(lambda: state_of(child) not in STILL, "the command goes on", watching=[process])
    process.signal(signal.SIGUSR1)
    assert process.wait() == 5, process.story


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children of their parent's death")
def test_a_killed_runner_takes_the_command_along(runner: Runner, locks: sync.Locks) -> None:
    process, child = runner.sleeper(*EXPIRES)
    process.kill()
    ends(child)
    assert locks.acquire("job", timeout=PATIENCE).release()


def test_no_zombie_is_left(runner: Runner) -> None:
    done = runner.run(command=["sh", "-c", "echo $$"])
    assert state_of(int(done.line())) == "gone"


class Shell(Terminal):
    """A shell with job control."""

    def __init__(self) -> None:
        super().__init__(["bash", "--norc", "--noprofile", "-i"], env={"PS1": "$ "})

    def run(self, runner: Runner, *options: str, script: str, then: str = "") -> None:
        self.type(f"{line(runner, *options, script=script)}{then}\n")
        self.shows("ready\r\n")

    def run_script(self, runner: Runner, *options: str, script: str, before: str = "", then: str = "") -> None:
        """Run it inside of a shell script, which shares its process group."""
        lines = f"{before}{line(runner, *options, script=script)}{then}"
        self.type(f"{shlex.join(['sh', '-c', lines])}\n")
        self.shows("ready\r\n")


def line(runner: Runner, *options: str, script: str) -> str:
    """What is typed to run a line of shell under the lock."""
    job = runner.arguments(*options, command=["sh", "-c", script])
    return shlex.join([sys.executable, "-m", "fencepost", *job])


@pytest.fixture
def shell() -> Iterator[Shell]:
    with Shell() as shell:
        yield shell


def test_at_a_terminal_the_command_reads_what_is_typed_and_ctrl_c_reaches_it(runner: Runner, shell: Shell) -> None:
    script = "trap 'echo caught; exit 9' INT; echo ready; read x; echo got=$x; while :; do read x; done"
    shell.run(runner, script=script, then="; echo code=$?")
    shell.type("hello\n")
    shell.shows("got=hello")
    shell.type("\x03")
    shell.shows("caught")
    shell.shows("code=9")


def test_at_a_terminal_ctrl_z_stops_both_and_fg_continues_them(runner: Runner, shell: Shell) -> None:
    shell.run(runner, "--ttl", "1h", script="echo ready; read x; echo got=$x")
    shell.type("\x1a")
    shell.shows("Stopped")
    shell.type("fg\n")
    shell.shows("fencepost")
    shell.type("hello\n")
    shell.shows("got=hello")
    shell.type("echo code=$?\n")
    shell.shows("code=0")


def test_at_a_terminal_a_script_reads_on_after_a_command_that_cannot_be_run(runner: Runner, shell: Shell) -> None:
    program = [sys.executable, "-m", "fencepost", *runner.arguments(command=["no-such-command"])]
    shell.type(f"{shlex.join(['sh', '-c', f'{shlex.join(program)}; echo code=$?; read x; echo got=$x'])}\n")
    shell.shows("code=127")
    shell.type("hello\n")
    shell.shows("got=hello")


def test_in_a_pipeline_the_reader_has_the_terminal_and_the_lease_is_renewed(
    runner: Runner, shell: Shell, locks: sync.Locks
) -> None:
    pid = runner.folder / "pid"
    job = line(runner, *RENEWED, script=f"echo $$ >{pid}; while :; do sleep 0.1; done")
    shell.type(f"{job} | sh -c 'read key </dev/tty; echo key=$key; cat'\n")
    until(lambda: pid.exists() and pid.read_text().strip(), "the command runs")
    stays_held(locks)
    shell.type("hello\n")
    shell.shows("key=hello")
    shell.type("\x03")
    ends(int(pid.read_text()))


def test_a_command_in_a_pipeline_gets_the_terminal_when_it_reads_from_it(runner: Runner, shell: Shell) -> None:
    shell.run(runner, script="echo ready; read x; echo got=$x", then=" | sh -c 'cat; read y </dev/tty; echo y=$y'")
    shell.type("hello\n")
    shell.shows("got=hello")
    shell.type("world\n")
    shell.shows("y=world")


def test_a_reader_that_wants_the_terminal_while_the_command_has_it_stops_alone_until_its_end(
    runner: Runner, shell: Shell, locks: sync.Locks
) -> None:
    pid = runner.folder / "pid"
    job = line(runner, *RENEWED, script="read x; echo ready; read x; echo got=$x")
    shell.type(f"{job} | sh -c 'echo $$ >{pid}; read x; echo $x; read y </dev/tty; echo y=$y; cat'\n")
    until(pid.exists, "the reader runs")
    shell.type("go\n")
    shell.shows("ready\r\n")
    until(lambda: state_of(int(pid.read_text())) in STILL, "the reader stops")
    stays_held(locks)
    shell.type("hello\n")
    shell.type("world\n")
    shell.shows("y=world")
    shell.shows("got=hello")


def test_at_a_terminal_ctrl_z_stops_the_script_around_us_too(runner: Runner, shell: Shell) -> None:
    shell.run_script(runner, "--ttl", "1h", script="echo ready; read x; echo got=$x", then="; echo code=$?")
    shell.type("\x1a")
    shell.shows("Stopped")
    shell.type("fg\n")
    shell.shows("fencepost")
    shell.type("hello\n")
    shell.shows("got=hello")
    shell.shows("code=0")


def test_ctrl_z_stops_also_what_ignores_it_in_the_command(runner: Runner, shell: Shell) -> None:
    """We stop too, and nobody renews the lease."""
    pid, never = runner.folder / "pid", runner.folder / "never"
    os.mkfifo(never)
    ignores = f"(trap '' TSTP; exec sh -c 'echo $$ >{pid}; read x <{never}') &"
    shell.run(runner, "--ttl", "1h", script=f"{ignores} echo ready; read x")
    until(lambda: pid.exists() and pid.read_text().strip(), "the other process runs")
    shell.type("\x1a")
    shell.shows("Stopped")
    until(lambda: state_of(int(pid.read_text())) in STILL, "it stops")


def test_ctrl_z_does_not_stop_a_command_where_nobody_could_continue_it(runner: Runner) -> None:
    job = runner.arguments(command=["sh", "-c", "echo ready; read x; echo got=$x"])
    with Terminal([sys.executable, "-m", "fencepost", *job]) as alone:
        alone.shows("ready\r\n")
        alone.type("\x1a")
        alone.shows("^Z")
        alone.type("hello\n")
        alone.shows("got=hello")


def test_after_bg_the_shell_keeps_the_terminal_when_the_command_ends(runner: Runner, shell: Shell) -> None:
    pid, go = runner.folder / "pid", runner.folder / "go"
    os.mkfifo(go)
    shell.run(runner, "--ttl", "1h", script=f"echo $PPID >{pid}; echo ready; read x <{go}")
    shell.type("\x1a")
    shell.shows("Stopped")
    shell.type("bg\n")
    shell.shows("&")
    go.write_text("go\n")
    ends(int(pid.read_text()))
    shell.type("echo still $((20 + 3))\n")
    shell.shows("still 23")


def test_a_command_gets_the_terminal_although_its_input_is_a_pipe(runner: Runner, shell: Shell) -> None:
    shell.type(f"echo input | {line(runner, script='cat; echo ready; read x </dev/tty; echo got=$x')}\n")
    shell.shows("ready\r\n")
    shell.type("hello\n")
    shell.shows("got=hello")


def test_a_background_job_that_reads_from_the_terminal_stops_and_fg_continues_it(runner: Runner, shell: Shell) -> None:
    shell.run(runner, "--ttl", "1h", script="echo ready; read x; echo got=$x", then=" &")
    # fg continues only what the shell knows to be stopped: it is told after the last of our threads has stopped
    shell.type('until [ "$(jobs -s)" ]; do sleep 0.01; done; fg\n')
    shell.shows("fencepost")
    shell.type("hello\n")
    shell.shows("got=hello")


def test_a_stopped_command_is_continued_to_end_when_it_is_told_to(runner: Runner) -> None:
    process, child = runner.sleeper(traps="trap 'exit 5' TERM")
    os.kill(child, signal.SIGSTOP)
    until(lambda: state_of(child) in STILL, "the command stops", watching=[process])
    process.signal(signal.SIGTERM)
    assert process.wait() == 5, process.story


async def test_ctrl_z_stops_us_where_we_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    @contextlib.contextmanager
    def still() -> Iterator[None]:
        told.append("still")
        yield
        told.append("on again")

    states = iter([(7, signal.SIGTSTP << 8 | 0x7F), (7, 0)])  # stopped, then ended
    monkeypatch.setattr(os, "waitpid", lambda pid, options: next(states))
    monkeypatch.setattr(os, "kill", lambda pid, number: told.append(f"{signal.Signals(number).name} for {pid}"))
    child = cli_child.Child.__new__(cli_child.Child)
    child.group, child._still, child._terminal, child._lent = 7, still, None, True
    child._changed, child._process = asyncio.Event(), SimpleNamespace()  # type: ignore[assignment]
    monkeypatch.setattr(child, "_take_terminal", lambda: None)
    monkeypatch.setattr(child, "send", lambda number: told.append(f"{signal.Signals(number).name} for the command"))
    child._may_go_on = lambda: False
    assert await child.wait() == 0
    assert told == ["SIGSTOP for the command", "still", "SIGTSTP for 0", "on again"], "all of our process group"


async def test_a_signal_that_stops_us_is_heeded_again_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTSTP, int)
    heeded = signal.getsignal(signal.SIGTSTP)
    found: list[object] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: found.append((number, signal.getsignal(number))))
    cli_child.stop(contextlib.nullcontext, signal.SIGTSTP)
    assert found == [(signal.SIGTSTP, signal.SIG_DFL)]
    assert signal.getsignal(signal.SIGTSTP) is heeded


IN_TRANSACTION = """
import contextlib, sys, threading
from fencepost.backends.sqlite.file import File
from fencepost.cli import main
from fencepost.driver.gate import Gate

told_to_stop = threading.Event()
writing, hold = File.writing, Gate.hold

@contextlib.contextmanager
def long(file, **options):
    with writing(file, **options) as db:
        print("in a transaction", flush=True)
        told_to_stop.wait(60)
        yield db

def patient(gate, seconds):
    told_to_stop.set()
    return hold(gate, 60)

File.writing, Gate.hold = long, patient
main()
"""


def test_at_a_terminal_ctrl_z_stops_one_that_waits_outside_of_its_transactions(
    runner: Runner, shell: Shell, locks: sync.Locks
) -> None:
    program = runner.folder / "fencepost"
    program.write_text(IN_TRANSACTION)
    with locks.lock("job"):
        options = runner.arguments("--ttl", "1h", command=["sh", "-c", "echo ready; read x; echo got=$x"])
        shell.type(f"{shlex.join([sys.executable, str(program), *options])}\n")
        shell.shows("in a transaction\r\n")
        shell.type("\x1a")
        shell.shows("Stopped")
        file = sqlite3.connect(runner.folder / "locks.db", timeout=0, isolation_level=None)
        with contextlib.closing(file):
            file.execute("BEGIN IMMEDIATE")  # at once: nobody else has the file
            file.execute("ROLLBACK")
        shell.type("fg\n")
        shell.shows("fencepost")
    shell.shows("ready\r\n")
    shell.type("hello\n")
    shell.shows("got=hello")


def test_ctrl_z_does_not_stop_one_that_waits_where_nobody_could_continue_it(runner: Runner, locks: sync.Locks) -> None:
    program = [sys.executable, "-m", "fencepost", *runner.arguments(command=["echo", "ready"])]
    with locks.lock("job") as lease, Terminal(program) as alone:
        until(lambda: (found := locks.status("job")) and found.waiters, "it waits")
        alone.type("\x1a")
        alone.shows("^Z")
        assert lease.release()
        alone.shows("ready\r\n")


def test_a_job_stopped_past_its_ttl_is_ended_when_it_continues(runner: Runner, shell: Shell, locks: sync.Locks) -> None:
    shell.run(runner, *EXPIRES, script="echo ready; while :; do read x; done", then="; echo code=$?")
    shell.type("\x1a")
    shell.shows("Stopped")
    lease = locks.acquire("job", timeout=PATIENCE)
    shell.type("fg\n")
    shell.shows("is lost")
    shell.type("echo code=$?\n")
    shell.shows("code=76")
    lease.check()


TWENTY_COMMANDS = """
import asyncio, sys
from fencepost.cli.holding import hold
for number in range(20):
    job = hold(sys.argv[1], f"job/{number}", ["true"], ttl=15, timeout=None, grace=5, verbose=False)
    print(asyncio.run(job), flush=True)
"""


def test_a_command_begins_every_time_although_threads_are_at_work(etcd_server: Endpoint) -> None:
    """Python that runs between fork and exec would find what those threads were in the middle of."""
    with Child.python("-c", TWENTY_COMMANDS, etcd_server.url) as process:
        assert process.succeed() == ["0"] * 20


def test_a_loss_that_only_the_release_finds_is_76_too(runner: Runner, locks: sync.Locks) -> None:
    process, _ = runner.sleeper("--ttl", "1h", traps="trap 'exit 0' USR1")
    assert locks.break_lock("job")
    process.signal(signal.SIGUSR1)
    assert process.wait() == 76, process.story


def test_a_stopped_command_can_end_by_itself_when_the_lease_is_lost(runner: Runner, locks: sync.Locks) -> None:
    process, child = runner.sleeper(*RENEWED, "--grace", "1h", traps="trap 'echo asked; exit 3' TERM")
    process.signal(signal.SIGTSTP)
    until(lambda: state_of(child) in STILL, "the command stops", watching=[process])
    locks.break_lock("job")
    assert process.wait() == 76, process.story
    ends(child)
    assert process.line() == "asked"


@pytest.mark.parametrize("number", [signal.SIGPIPE, signal.SIGXFSZ])
def test_the_command_does_not_ignore_what_python_ignores(runner: Runner, number: signal.Signals) -> None:
    done = runner.run(command=["sh", "-c", f"ulimit -c 0; kill -{number.value} $$; echo still here"])
    assert (done.wait(), done.output) == (128 + number, []), done.story
