"""Locks on a system that lacks what only Unix has: ``python -m tests.programs.elsewhere SYSTEM URL NAME``.

``windows`` takes away what Python does not have there, ``macos`` what it does not have there. Python's own modules and
the client libraries are imported before, since they are those of this system; ours come after. It ends with status 0
if locks are taken, waited for, renewed, lost and handed over all the same.
"""

import asyncio
import importlib
import os
import secrets
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

CLIENTS = {
    "modules": """boto3 botocore.config filelock hiredis hpack kazoo.client opentelemetry.sdk pottery rich.live typer
        prometheus_client psycopg pytest redis.asyncio redis.cluster redis_lock redlock sqlalchemy.ext.asyncio
        starlette.applications uvicorn.protocols.http.httptools_impl""",
    "redis": "hiredis",
    "postgresql": "psycopg",
    "etcd": "hpack",
    "zookeeper": "kazoo.client",
}
TAKEN: dict[str, dict[ModuleType, str]] = {
    "windows": {
        os: """register_at_fork fork forkpty geteuid getuid getgid getegid getpgid setsid killpg chown fchown fchmod
            pread pwrite sched_getaffinity tcsetpgrp tcgetpgrp O_CLOEXEC O_NOFOLLOW O_DIRECTORY O_PATH O_NONBLOCK mkfifo
            WNOHANG WUNTRACED wait wait4 uname sysconf statvfs getloadavg nice""",
        time: "clock_gettime clock_gettime_ns clock_settime CLOCK_BOOTTIME CLOCK_MONOTONIC CLOCK_REALTIME",
        select: "poll epoll POLLIN POLLOUT POLLERR POLLHUP POLLNVAL",
        socket: "AF_UNIX MSG_DONTWAIT MSG_NOSIGNAL SO_REUSEPORT SO_RCVTIMEO SO_SNDTIMEO TCP_USER_TIMEOUT",
        signal: """pthread_sigmask sigwait SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGALRM SIGVTALRM SIGXCPU SIGCHLD SIGTSTP
            SIGCONT SIGSTOP SIGKILL SIGWINCH SIGTTOU SIGPIPE SIGXFSZ alarm setitimer pause""",
    },
    "macos": {
        os: "sched_getaffinity O_PATH pidfd_open",
        time: "CLOCK_BOOTTIME",
        select: "epoll",
        socket: "MSG_NOSIGNAL TCP_USER_TIMEOUT",
        signal: "pidfd_send_signal",
    },
}
UNIX = ("child.py", "holding.py", "launch.py")
"""Parts of ``fencepost run``, which says that it needs Unix."""
MODULES = {"windows": "fcntl resource pwd grp termios tty pty syslog posix uvloop", "macos": ""}


def take_away(system: str, url: str) -> None:
    clients = CLIENTS.get(url.partition(":")[0], "")
    for name in f"multiprocessing.util subprocess tempfile ctypes {clients}".split():
        importlib.import_module(name)
    for module, names in TAKEN[system].items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    for name in MODULES[system].split():
        sys.modules[name] = None  # type: ignore[assignment]
    if system == "windows":
        socket.socketpair = _socketpair  # type: ignore[assignment]


def _socketpair() -> tuple[socket.socket, socket.socket]:
    """As Python makes one on Windows: without Unix sockets."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        there, _ = server.accept()
    return here, there


class Loop(asyncio.SelectorEventLoop):
    """As the event loop of Windows: without what the applications there cannot call."""

    def _none(self, *_: object, **__: object) -> None:
        raise NotImplementedError

    add_reader = remove_reader = add_writer = remove_writer = _none  # type: ignore[assignment]
    add_signal_handler = remove_signal_handler = _none  # type: ignore[assignment]
    create_unix_connection = create_unix_server = _none  # type: ignore[assignment]


def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"still not so after 60 s: {what}"
        time.sleep(0.01)


def blocking(url: str, name: str, ttl: float) -> None:
    import fencepost

    with fencepost.connect(url, ttl=ttl) as locks, fencepost.connect(url, ttl=ttl) as others:
        if url == "memory://":
            others = locks
        first = others.acquire(name)
        assert locks.try_acquire(name) is None
        served: list[int] = []

        def work() -> None:
            with locks.lock(name, timeout=60) as lease:
                served.append(lease.token)

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: len(getattr(others.status(name), "waiters", ())) == 2, "two wait")
        seen = first.deadline
        until(lambda: first.deadline > seen, "it is renewed")
        assert first.release()
        for thread in threads:
            thread.join(60)
        assert len(served) == 2
        assert first.token < served[0] < served[1]
        short = locks.acquire(name, renew=False)
        assert short.ended.wait(20 * ttl), "its loss is told"
        assert short.lost
        assert others.acquire(name, timeout=60).release()


async def tasks(url: str, name: str, ttl: float) -> None:
    from fencepost import aio

    async with asyncio.timeout(60), aio.connect(url, ttl=ttl) as locks:
        first = await locks.acquire(name)
        waiter = asyncio.create_task(locks.acquire(name, timeout=60))
        while not (status := await locks.status(name)) or not status.waiters:  # noqa: ASYNC110
            await asyncio.sleep(0)  # memory:// answers at once
        seen = first.deadline
        while first.deadline == seen:
            first.check()
            await asyncio.sleep(0.01)
        assert await first.release()
        second = await waiter
        assert second.token > first.token
        assert await second.release()


def modules(system: str) -> None:
    """Everything of the library can be imported, apart from what is for a framework or for a command's processes."""
    import fencepost

    root = Path(fencepost.__file__).parent
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if parts[1] in ("contrib", "__main__") or path.name in UNIX:
            continue
        importlib.import_module(name)
    if system == "windows":
        import pytest

        from fencepost import ConfigError
        from fencepost.cli.run import run
        from fencepost.guards import FileGuard

        for call in (
            lambda: fencepost.connect("sqlite:locks.db"),
            lambda: FileGuard("guarded"),
            lambda: run("a", ["b"]),
        ):
            with pytest.raises(ConfigError, match=r"this system|Unix system"):
                call()


def main(system: str, url: str, name: str) -> None:
    take_away(system, url)
    if url == "modules":
        modules(system)
        return
    ttl = 3.0
    blocking(url, name, ttl)
    # psycopg needs add_reader, and so another event loop than the usual one of Windows: see docs/platforms.md.
    loop = asyncio.SelectorEventLoop if url.startswith("postgres") else Loop
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(tasks(url, f"{name}-{secrets.token_hex(2)}", ttl))


if __name__ == "__main__":
    main(*sys.argv[1:])
