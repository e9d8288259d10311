"""The harness itself: a failure shows its cause."""

import asyncio
import contextlib
import os
import re
import secrets
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from fencepost_lab.servers import Missing
from tests import ROOT
from tests.harness import keeper, scratch, servers
from tests.harness.child import Child, ChildFailed
from tests.harness.isolated import IsolatedFailure, call_apart, in_fork
from tests.harness.terminal import Terminal
from tests.harness.threads import background
from tests.harness.waiting import PATIENCE, until, until_async


def never() -> bool:
    return False


def broken() -> None:
    raise ZeroDivisionError("on the other side")


def test_until_says_what_never_came_and_what_there_was_instead() -> None:
    with pytest.raises(AssertionError, match=r"within 0\.01 s: a miracle; the condition was last 0"):
        until(lambda: 0, "a miracle", deadline=0.01)


def test_until_raises_what_a_watched_thread_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        until(never, "a miracle", watching=[background(broken)])


def test_until_raises_what_a_watched_child_said() -> None:
    with Child.python("-c", "1 / 0") as child, pytest.raises(ChildFailed, match="ZeroDivisionError"):
        until(never, "a miracle", watching=[child])


async def test_until_in_a_loop_raises_what_a_watched_task_raised() -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        broken()

    with pytest.raises(ZeroDivisionError):
        await until_async(never, "a miracle", watching=[asyncio.ensure_future(fail())])
    with pytest.raises(ZeroDivisionError):
        await until_async(never, "a miracle", watching=[background(broken)])


async def test_until_in_a_loop_names_the_tasks_that_failed_meanwhile() -> None:
    async def fail() -> None:
        broken()

    failing = asyncio.create_task(fail(), name="the culprit")
    await asyncio.wait([failing])
    with pytest.raises(AssertionError, match="a miracle") as raised:
        await until_async(never, "a miracle", deadline=0.05)
    assert any("the culprit" in note and "ZeroDivisionError" in note for note in raised.value.__notes__)
    with pytest.raises(ZeroDivisionError):
        await failing


def test_a_child_shows_its_side_of_a_failure() -> None:
    with Child.python("-c", "print('begun', flush=True); 1 / 0") as child:
        assert child.line() == "begun"
        with pytest.raises(ChildFailed, match=r"status 1(.|\n)*begun(.|\n)*ZeroDivisionError"):
            child.line()
        with pytest.raises(ChildFailed, match="ZeroDivisionError"):
            child.succeed()
        with pytest.raises(ChildFailed, match="ZeroDivisionError"):
            child.tell("anything")
    with pytest.raises(KeyError) as raised:  # noqa: PT012, SIM117 - the error is to leave the inner block
        with Child.python("-c", "print('begun')") as child:
            child.wait()
            raise KeyError("the test's own error")
    assert "begun" in "".join(raised.value.__notes__)


def test_a_child_that_stays_silent_is_named_with_what_it_said() -> None:
    with Child.python("-c", "print('begun', flush=True); input()") as child:
        child.line()
        with pytest.raises(ChildFailed, match=r"said nothing for 0\.01 s: (.|\n)*still runs(.|\n)*begun"):
            child.line(0.01)
        with pytest.raises(ChildFailed, match=r"still runs after 0\.01 s"):
            child.wait(0.01)
        child.tell("")
        assert child.wait() == 0


def test_a_child_never_outlives_its_block() -> None:
    with Child.python("-c", "print('begun', flush=True); input()") as child:
        child.line()
        child.freeze()
    assert child.process.returncode == -signal.SIGKILL


def fails(number: int) -> None:
    print("before the fall")
    assert number == 8, "not the number"


def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def loses_errors() -> None:
    thread = threading.Thread(target=broken)
    thread.start()
    thread.join()

    class Careless:
        def __del__(self) -> None:
            raise KeyError("lost")

    Careless()
    open(os.devnull)  # noqa: SIM115 - nobody closes it


def is_interrupted() -> None:
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_an_isolated_test_shows_the_childs_traceback_and_output() -> None:
    with pytest.raises(IsolatedFailure, match=r"before the fall(.|\n)*in fails(.|\n)*not the number"):
        call_apart(fails, 7)
    with pytest.raises(IsolatedFailure, match="status -9"):
        call_apart(is_killed)


def test_an_isolated_test_that_lost_errors_fails_and_shows_them() -> None:
    with pytest.raises(IsolatedFailure) as raised:
        call_apart(loses_errors)
    for error in ("ZeroDivisionError", "KeyError: 'lost'", "ResourceWarning"):
        assert error in str(raised.value)


def isolate_an_interrupted(folder: str) -> None:
    scratch.use(Path(folder))
    call_apart(is_interrupted)


def test_an_isolated_test_can_be_interrupted_although_its_parent_ignores_it() -> None:
    folder = Path(tempfile.gettempdir(), f"in-{secrets.token_hex(4)}")  # short: a socket's address is in it
    program = f"from tests.unit import test_harness as here; here.isolate_an_interrupted({str(folder)!r})"
    with Child(["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", program]) as child:
        child.succeed()
    assert not child.errors, "the run's folder was gone before multiprocessing's own in it"
    assert not folder.exists()


async def fork_and_fail() -> None:
    async def job() -> int:
        broken()
        return 7

    async def fine() -> int:
        return 7

    async def dies() -> None:
        os._exit(3)

    assert await in_fork(fine, PATIENCE) == 7
    with pytest.raises(IsolatedFailure, match=r"in the forked child:(.|\n)*in broken(.|\n)*ZeroDivisionError"):
        await in_fork(job, PATIENCE)
    with pytest.raises(IsolatedFailure, match="without an answer"):
        await in_fork(dies, PATIENCE)


def test_a_fork_shows_the_childs_traceback() -> None:
    call_apart(fork_and_fail)


def test_a_terminal_shows_its_screen_after_a_failure() -> None:
    with Terminal(["sh", "-c", "test -t 0 && test -t 1 && echo tty; read x; exit 3"]) as terminal:
        terminal.shows("tty")
        with pytest.raises(AssertionError, match="'never' on the screen") as raised:
            terminal.shows("never", deadline=0.05)
        assert "tty" in "".join(raised.value.__notes__)
        terminal.type("\n")
        with pytest.raises(AssertionError, match="ended with status 3"):
            terminal.shows("never")


@contextlib.contextmanager
def unstartable(error: Exception) -> Iterator[Any]:
    raise error
    yield


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[keeper.Keeper]:
    """A keeper of servers that cannot start, and the session's fixtures asking it."""
    told: dict[str, AbstractContextManager[Any]] = {
        "missing": unstartable(Missing("redis-server is not on this machine: run 'make servers'")),
        "broken": unstartable(RuntimeError("port 1 is taken")),
    }
    monkeypatch.setattr(keeper, "SERVERS", {name: lambda _, name=name: told[name] for name in told})
    monkeypatch.setenv("FENCEPOST_REQUIRE_SERVERS", "1")
    with contextlib.ExitStack() as stack:
        kept = keeper.Keeper(stack)
        monkeypatch.setattr(keeper, "ask", lambda address, name: kept.answer(name))
        yield kept


def test_a_server_that_is_missing_or_does_not_start_names_the_next_step(answers: keeper.Keeper) -> None:
    for _ in range(2):  # each asker learns why, and only the first one tries
        with pytest.raises(pytest.fail.Exception, match="make servers"):
            servers.shared("missing")
        with pytest.raises(pytest.fail.Exception, match=r"'broken' did not start(.|\n)*port 1 is taken"):
            servers.shared("broken")


def test_a_missing_server_skips_where_the_run_need_not_be_complete(
    answers: keeper.Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FENCEPOST_REQUIRE_SERVERS")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="make servers"):
        servers.shared("missing")


def test_a_line_can_be_waited_for_without_a_deadline() -> None:
    with Child.python("-c", "import time; time.sleep(0.3); print('here')") as child:
        assert child.line(float("inf")) == "here"


SUITE = """
import os, signal, pathlib

def test_interrupts_itself():
    os.kill(os.getpid(), signal.SIGINT)

def test_is_fine():
    pass

def test_fails_the_first_time():
    ran = pathlib.Path(__file__).with_name("ran")
    try:
        assert ran.exists()
    finally:
        ran.touch()
"""


@pytest.mark.slow
def test_an_interrupt_takes_no_other_test_along_and_no_test_gets_a_second_chance(tmp_path: Path) -> None:
    suite = tmp_path / "test_suite.py"
    suite.write_text(SUITE)
    options = ["-n", "1", "-p", "tests.harness.running", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
    with Child([ROOT / "scripts" / "test", *options, suite], env={"VENV": sys.prefix}) as child:
        assert child.wait() == 1, child.story
    assert "2 failed, 1 passed" in child.output[-1], child.story
    assert any("Interrupted: KeyboardInterrupt; a test that raises signals" in line for line in child.output)


@pytest.mark.slow
def test_all_workers_draw_the_same_random_order() -> None:
    tests = ["tests/unit/test_backoff.py", "tests/unit/test_log.py", "tests/unit/test_metrics.py"]
    with Child.python("-m", "pytest", "-q", "-n", "2", "--random-order-seed=random", *tests) as child:
        child.succeed(4 * PATIENCE)
        assert re.search(r"\d\d passed", child.story)
