"""A process that can start no thread just now, as at a limit of its container: nothing is left, nothing sticks."""

import threading

import pytest

from tests.harness.child import Child

# Room for everything but one more stack.
_LIMIT = """
import contextlib, re, resource, threading, time
import fencepost

@contextlib.contextmanager
def no_threads():
    before = threading.stack_size(1 << 30)
    size = int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 29), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        threading.stack_size(before)

def refused(call, *args, **options):
    try:
        call(*args, **options)
    except RuntimeError as error:
        assert "thread" in str(error), error
        return
    raise AssertionError("a thread was started after all")
"""


def runs(source: str, *args: object) -> None:
    """Run a program to its end, after the lines that can keep threads from it."""
    with Child.python("-c", _LIMIT + source, *args) as child:
        child.succeed()
        assert "Traceback" not in child.errors
        assert "never awaited" not in child.errors


def test_an_acquire_that_cannot_be_renewed_leaves_no_lock_and_later_ones_are_renewed() -> None:
    runs(
        """
locks = fencepost.connect("memory:", ttl=6)
with no_threads():
    refused(locks.acquire, "a")
assert locks.status("a") is None, "it was given back"
lease = locks.acquire("b")
first = lease.deadline
while lease.deadline == first:
    lease.check()
    time.sleep(0.01)
"""
    )


def test_a_lease_is_renewed_although_there_is_no_thread_for_it() -> None:
    runs(
        """
locks = fencepost.connect("memory:", ttl=6)
lease = locks.acquire("a")
first = lease.deadline
with no_threads():
    while lease.deadline == first:
        lease.check()
        time.sleep(0.01)
    refused(threading.Thread(target=print).start)
again = lease.deadline
while lease.deadline == again:
    lease.check()
    time.sleep(0.01)
assert lease.release()
"""
    )


def test_who_waits_for_a_file_can_be_woken_once_there_are_threads_again() -> None:
    runs(
        """
import tempfile
folder = tempfile.TemporaryDirectory()
locks = fencepost.connect(f"sqlite://{folder.name}/locks.db", ttl=600)
held = locks.acquire("a")
with no_threads():
    refused(locks.acquire, "a", timeout=60)
assert locks.status("a").waiters == (), "it has left"
threading.Timer(0.2, held.release).start()
assert locks.acquire("a").release(), "long before its timer would have woken it"
locks.close()
"""
    )


class Unstartable:
    """Threads of one name cannot be started, until there have been so many attempts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, attempts: int = 1) -> None:
        self.left = attempts
        start = threading.Thread.start

        def refuse(thread: threading.Thread) -> None:
            if self.left and thread.name.startswith(name):
                self.left -= 1
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse)
