"""The process that workers and services are forked from: all is imported once, so that a new one costs milliseconds.

``Nursery`` is the side of the one that wants processes. The other side runs no thread, so that a fork is safe: it is
given a command line of fencepost's and an environment as JSON, with stdin, stdout and stderr, and answers with the pid,
and with the exit status once that process has ended. When it ends, for whatever reason, the kernel kills them all.
"""

import asyncio
import contextlib
import ctypes
import importlib
import json
import os
import select
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fencepost_lab.servers.processes import dying_with_us

_PDEATHSIG = 1  # of prctl(2)
_LONGEST = 1 << 20


class Forked:
    """A process, with what asyncio's ``Process`` has of one."""

    def __init__(self, pid: int, stdin: int, stdout: asyncio.StreamReader) -> None:
        self.pid = pid
        self.stdin = Pipe(stdin)
        self.stdout = stdout
        self.returncode: int | None = None
        self._ended = asyncio.Event()

    def end(self, status: int) -> None:
        """Take down how it ended."""
        self.returncode = status
        self._ended.set()

    async def wait(self) -> int:
        """Return its exit status once it has ended."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Pipe:
    """The end of a pipe that few bytes are written to, now and then."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, data: bytes) -> None:
        os.write(self._fd, data)

    async def drain(self) -> None:
        """What was written is in the pipe already."""

    def close(self) -> None:
        os.close(self._fd)


class Nursery:
    """Forks processes. ``errors`` is the file where they, and it, complain. BrokenPipeError once it has ended."""

    def __init__(self, errors: Path) -> None:
        self._errors = errors
        self._gate = asyncio.Lock()
        self._process: Process | None = None
        self._channel: socket.socket | None = None
        self._heard = b""
        self._started: asyncio.Future[int] | None = None
        self._forked: dict[int, Forked] = {}
        self._early: dict[int, int] = {}
        self._pipes: list[asyncio.BaseTransport] = []

    async def fork(self, words: list[str], environment: dict[str, str], namespaces: Sequence[str] = ()) -> Forked:
        """Run ``fencepost WORDS`` in a process group of its own, and in these namespaces (``Network.namespaces``)."""
        async with self._gate:
            if self._channel is None:
                await self._open()
            channel, loop = self._channel, asyncio.get_running_loop()
            assert channel is not None
            (theirs_in, ours_in), (ours_out, theirs_out) = os.pipe(), os.pipe()
            said = os.fdopen(ours_out, "rb")
            reader = asyncio.StreamReader()
            self._started = loop.create_future()
            order = json.dumps({"words": words, "environment": environment, "namespaces": namespaces}).encode()
            try:
                with self._errors.open("ab") as errors:
                    socket.send_fds(channel, [order], [theirs_in, theirs_out, errors.fileno()])
                pid = await self._started
                pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), said)
            except BaseException:
                os.close(ours_in)
                said.close()
                raise
            finally:
                os.close(theirs_in)
                os.close(theirs_out)
            self._pipes.append(pipe)
            process = self._forked[pid] = Forked(pid, ours_in, reader)
            if pid in self._early:
                process.end(self._early.pop(pid))
            return process

    async def _open(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        command = [sys.executable, "-P", "-m", __name__, str(theirs.fileno())]
        try:
            with theirs, self._errors.open("ab") as errors:
                self._process = await asyncio.create_subprocess_exec(
                    *dying_with_us(command),
                    stdin=DEVNULL,
                    stdout=DEVNULL,
                    stderr=errors,
                    pass_fds=[theirs.fileno()],
                    process_group=0,
                )
        except BaseException:
            ours.close()
            raise
        self._channel = ours
        asyncio.get_running_loop().add_reader(ours, self._hear)

    def _hear(self) -> None:
        assert self._channel is not None
        try:
            data = self._channel.recv(65536)
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._channel)
            if self._started is not None and not self._started.done():
                self._started.set_exception(BrokenPipeError("the process that others are forked from has ended"))
            for process in self._forked.values():
                if process.returncode is None:
                    process.end(-signal.SIGKILL)
            return
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            fact = json.loads(line)
            if "started" in fact and self._started is not None and not self._started.done():
                self._started.set_result(fact["started"])
            elif fact.get("ended") in self._forked:
                self._forked[fact["ended"]].end(fact["status"])
            elif "ended" in fact:
                self._early[fact["ended"]] = fact["status"]

    async def close(self) -> None:
        """End it, and with it every process that still runs."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        if self._channel is not None:
            asyncio.get_running_loop().remove_reader(self._channel)
            self._channel.close()
        for pipe in self._pipes:
            pipe.close()
        for process in self._forked.values():
            process.stdin.close()


def main() -> None:
    """The other side."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that asks
    libc = ctypes.CDLL(None, use_errno=True)
    _preload({})
    ours = os.getpid()
    while True:
        ready = select.select([channel.fileno(), wake], [], [])[0]
        if wake in ready:
            os.read(wake, 4096)
            _reap(channel)
        if channel.fileno() in ready:
            data, descriptors, _, _ = socket.recv_fds(channel, _LONGEST, 3)
            if not data:
                return
            order = json.loads(data)
            _preload(order["environment"])
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                _enter(libc, order["namespaces"])
                if prctl := getattr(libc, "prctl", None):
                    prctl(_PDEATHSIG, signal.SIGKILL)
                    if os.getppid() != ours:
                        os._exit(1)
                channel.close()
                os.close(wake)
                os.close(woken)
                _work(order, descriptors)
            with contextlib.suppress(OSError):
                os.setpgid(pid, pid)  # before anybody can signal its group
            for each in descriptors:
                os.close(each)
            channel.sendall(json.dumps({"started": pid}).encode() + b"\n")


def _enter(libc: ctypes.CDLL, namespaces: list[str]) -> None:
    """Move this process, which has no thread yet, into namespaces; it ends if it may not."""
    for path in namespaces:
        descriptor = os.open(path, os.O_RDONLY)
        if libc.setns(descriptor, 0):
            print(f"cannot enter {path}: {os.strerror(ctypes.get_errno())}", file=sys.stderr, flush=True)
            os._exit(1)
        os.close(descriptor)


def _reap(channel: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            fact = {"ended": found[0], "status": os.waitstatus_to_exitcode(found[1])}
            channel.sendall(json.dumps(fact).encode() + b"\n")


_NEEDED = {
    "": (
        "fencepost.cli.app",
        "fencepost.cli.resource",
        "fencepost.resource.serve",
        "fencepost_lab.cli.fleet",
        "fencepost_lab.cli.worker",
        "fencepost_lab.stage.member",
        "fencepost_lab.stage.narrate",
        "fencepost_lab.stage.worker",
        "typer._adapters",  # what typer imports when a command line is parsed: a quarter of a second
    ),
    "postgresql": ("psycopg", "fencepost.guards.postgres", "fencepost.guards.column"),
    "s3": ("boto3", "fencepost.guards.s3"),
}
"""What processes import, by the kind of their resource. As names: the commands import this module themselves."""


def _preload(environment: dict[str, str]) -> None:
    """Import what a process will need; what cannot be imported it will complain of itself."""
    from fencepost.address import parse
    from fencepost.errors import ConfigError
    from fencepost.registry import find

    resource = environment.get("FENCEPOST_RESOURCE", "")
    for kind, modules in _NEEDED.items():
        if kind in resource:
            with contextlib.suppress(ImportError):
                for module in modules:
                    importlib.import_module(module)
    with contextlib.suppress(ConfigError, ImportError):
        if url := environment.get("FENCEPOST_URL"):
            find(parse(url).scheme)


def _work(order: dict[str, Any], descriptors: list[int]) -> None:
    """Become that process; never returns."""
    code: Any = 1
    try:
        os.setpgid(0, 0)
        for number, each in enumerate(descriptors):
            os.dup2(each, number)
            os.close(each)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.update(order["environment"])
        sys.argv = ["fencepost", *order["words"]]
        from fencepost.cli import main as run

        run()
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    main()
