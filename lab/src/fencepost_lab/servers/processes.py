"""Processes, ports and programs of a run: found, started so that they never outlive it, frozen and killed."""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fencepost.errors import ConfigError
from fencepost_lab.servers.programs import PROGRAMS

HOST = "127.0.0.1"
ENDED = frozenset({"Z", "X", "gone"})
STILL = ENDED | {"T", "t"}


class Missing(ConfigError):
    """A server's program is not on this machine; the message says how to get it."""


class Forbidden(RuntimeError):
    """A program is asked for in a run that promised to start none."""


@functools.cache
def programs() -> dict[str, str]:
    """Where each program is, of all that are on this machine."""
    return {key: path for each in PROGRAMS.values() for key, path in (each.find() or {}).items()}


def program(key: str) -> str:
    """The path of one program; raises Missing, and Forbidden under FENCEPOST_NO_SERVERS=1."""
    if os.environ.get("FENCEPOST_NO_SERVERS") == "1":
        raise Forbidden(
            f"FENCEPOST_NO_SERVERS=1 forbids {key}. If this is a test, it starts a server: mark it with "
            "@pytest.mark.<store>, or with @pytest.mark.server for what belongs to no store"
        )
    with contextlib.suppress(KeyError):
        return programs()[key]
    raise Missing(f"{key} is not on this machine: run 'make servers' in a clone, or give the URL of a running one")


class Port:
    """A loopback port that nothing listens on and that no other starter picks while this one is open.

    Ports come from below the range the kernel gives to outgoing connections, so that a server that is down
    for a while finds its port still free when it comes back.
    """

    def __init__(self) -> None:
        lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        while True:
            self.number = random.SystemRandom().randrange(10_000, max(lowest, 12_000))
            self._claim = socket.socket(socket.AF_UNIX)
            try:
                # An abstract name is claimed machine-wide and given back by the kernel when we die.
                self._claim.bind(f"\0fencepost-port-{self.number}")
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind((HOST, self.number))
                return
            except OSError:
                self._claim.close()

    def close(self) -> None:
        self._claim.close()


@functools.cache
def _spawner(pid: int) -> ThreadPoolExecutor:
    """The one thread that starts servers: a parent-death signal comes when the starting *thread* ends."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="servers")


_DYING = ("setpriv", "--pdeathsig", "KILL", "--") if shutil.which("setpriv") else ()


def dying_with_us(command: Sequence[str]) -> list[str]:
    """The command, killed by the kernel when the thread of ours that starts it ends; as it is where that is not known.

    Not by a preexec_fn: with one, Python forks and runs on in the child, where a gRPC that is in full swing in this
    process, such as that of a test or of another client of etcd, starts its threads again and aborts now and then.
    """
    return [*_DYING, *command]


def as_user(command: Sequence[str], user: str | None) -> list[str]:
    """The command, run as another user; None for ourselves.

    Not by Popen's ``user``: with it, Python forks where it would otherwise vfork, and gRPC aborts as above.
    """
    if user is None:
        return list(command)
    group = str(pwd.getpwnam(user).pw_gid)
    return ["setpriv", "--reuid", user, "--regid", group, "--clear-groups", "--", *command]


def spawn(command: Sequence[str], *, user: str | None = None, **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that ends when this one does, whichever thread asked for it; ``options`` are Popen's."""
    # The user first: who changes it is no longer told of the parent's death.
    whole = as_user(dying_with_us(command), user)

    def start() -> Any:
        return subprocess.Popen(whole, **{"stdin": subprocess.DEVNULL} | options, start_new_session=True)

    started: subprocess.Popen[bytes] = _spawner(os.getpid()).submit(start).result()
    return started


def family_of(pid: int) -> list[int]:
    """The process and all its descendants, parents first (Postgres gives each child a session of its own)."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            children.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    family = [pid]
    for member in family:
        family += children.get(member, [])
    return family


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def state_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "gone"


def _ended(pid: int) -> bool:
    """Whether nothing of a process is left but its exit status; its first thread may end before the others."""
    try:
        return state_of(pid) in ENDED and len(os.listdir(f"/proc/{pid}/task")) <= 1
    except OSError:
        return True


def _all_in(pids: Sequence[int], states: frozenset[str]) -> bool:
    return all(state_of(pid) in states for pid in pids)


def freeze_all(pid: int, *, timeout: float = 60) -> list[int]:
    """SIGSTOP a process and its children; returns them when none of them runs any more."""
    # Parents first, and again until nothing new turns up: a frozen parent starts no more children.
    frozen: list[int] = []
    while new := [each for each in family_of(pid) if each not in frozen]:
        _signal(new, signal.SIGSTOP)
        if not wait_until(functools.partial(_all_in, new, STILL), timeout=timeout, poll=0.002):
            raise TimeoutError(f"process {pid} was sent SIGSTOP and still runs after {timeout:g} s")
        frozen += new
    return frozen


class Pausable:
    """What can be stopped and goes on later."""

    def pause(self) -> None:
        raise NotImplementedError

    def resume(self) -> None:
        raise NotImplementedError

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stopped inside the block."""
        self.pause()
        try:
            yield
        finally:
            self.resume()


def thaw_all(pid: int) -> None:
    """SIGCONT a process and its children, children first."""
    _signal(family_of(pid)[::-1], signal.SIGCONT)


def kill_all(pid: int, *, timeout: float = 60) -> None:
    """SIGKILL a process and its children, as a crash would; returns when they have ended."""
    family = freeze_all(pid, timeout=timeout)
    _signal(family, signal.SIGKILL)
    if not wait_until(lambda: all(map(_ended, family)), timeout=timeout, poll=0.002):
        raise TimeoutError(f"process {pid} was sent SIGKILL and still runs after {timeout:g} s")


def wait_until(done: Callable[[], bool], *, timeout: float, poll: float = 0.02) -> bool:
    """Whether `done` became true within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll)
    return True
