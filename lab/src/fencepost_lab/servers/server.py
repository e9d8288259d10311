"""A server that a run starts, pauses, kills and restarts, alone or as one of several; it never outlives the run."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Generic, Self, TypeVar

from fencepost.errors import FencepostError
from fencepost_lab.servers.processes import HOST, Pausable, Port, freeze_all, kill_all, spawn, thaw_all, wait_until


class StartFailed(FencepostError):
    """A server did not answer in time, or ended at once; the message carries the end of its log."""


class PortTaken(StartFailed):
    """Somebody else bound the port between our choosing it and the server's binding it."""


@dataclass(kw_only=True, eq=False)
class Server(Pausable):
    """One server process; its ports and data outlive `stop`, `kill` and `restart`, until `close`."""

    args: Sequence[str] = ()
    timeout: float = 60
    process: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)
    ports: list[int] = field(default_factory=list, init=False)
    folder: Path = field(default=Path(), init=False)

    port_count: ClassVar[int] = 1
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    user: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        self._claims = contextlib.ExitStack()
        self._log_start = 0
        self._fresh = True

    @property
    def port(self) -> int:
        return self.ports[0]

    @property
    def address(self) -> str:
        """host:port of the clients' port."""
        return f"{HOST}:{self.port}"

    @property
    def url(self) -> str:
        raise NotImplementedError

    @property
    def durability(self) -> str:
        """Whether an acknowledged write is on disk, which figures depend on; "" if nobody says."""
        return ""

    @property
    def log(self) -> Path:
        """Everything the server has printed, over all its starts."""
        return self.folder / "server.log"

    @property
    def pid(self) -> int:
        assert self.process is not None, "not started"
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def prepare(self) -> None:
        """Write what the first start needs into the empty folder."""

    def command(self) -> list[str]:
        raise NotImplementedError

    def ping(self) -> bool:
        """Whether the server answers a real request of its protocol; may raise OSError."""
        raise NotImplementedError

    def start(self) -> Self:
        """Start and wait until it answers, on other ports if some are taken. Raises StartFailed, Missing."""
        attempts = 5
        while True:
            try:
                self.launch()
                return self.wait_ready()
            except PortTaken:
                attempts -= 1
                if not attempts:
                    raise
                if self._fresh:
                    self.close()
                else:
                    time.sleep(0.2)

    def launch(self) -> None:
        """Start without waiting; the first time also choose the ports and prepare the folder."""
        assert not self.running, "already running"
        if not self.ports:
            self.claim()
            try:
                self.prepare()
            except BaseException:
                self.close()
                raise
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as out:
            self.process = spawn(
                self.command(),
                cwd=self.folder,
                stdout=out,
                stderr=out,
                user=self.user if os.geteuid() == 0 else None,
            )

    def claim(self) -> None:
        """Take free ports and make the folder."""
        for _ in range(self.port_count):
            self.ports.append(self._claims.enter_context(contextlib.closing(Port())).number)
        base = open_base() if self.user and os.geteuid() == 0 else None
        folder = tempfile.TemporaryDirectory(prefix=f"fencepost-{type(self).__name__.lower()}-", dir=base)
        self.folder = Path(self._claims.enter_context(folder))
        if self.user and os.geteuid() == 0:
            shutil.chown(self.folder, self.user)

    def wait_ready(self) -> Self:
        """Return once it answers. Raises StartFailed with the end of the log, after killing it."""

        def settled() -> bool:
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                # Still running after it answered: otherwise the answer came from another program that took our port.
                return (self.ping() and self.running) or not self.running
            return not self.running

        in_time = wait_until(settled, timeout=self.timeout)
        if in_time and self.running:
            self._fresh = False
            return self
        why = (
            f"ended with status {self.process and self.process.returncode}"
            if in_time
            else f"no answer in {self.timeout} s"
        )
        self.kill()
        said = self.log.read_bytes()[self._log_start :].decode(errors="replace")
        taken = re.search(r"address (is )?(already )?in use|could not bind", said, re.IGNORECASE)
        tail = "\n".join(said.splitlines()[-20:])
        raise (PortTaken if taken else StartFailed)(
            f"{type(self).__name__} on {self.address}: {why}; its log ends:\n{tail}"
        )

    def stop(self, *, timeout: float = 20) -> None:
        """End it in its orderly way, or with SIGKILL after `timeout` seconds; its data stays."""
        if not self.running or self.process is None:
            return
        thaw_all(self.pid)
        self.process.send_signal(self.stop_signal)
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL it and its children, as a crash would; its data stays as the disk has it."""
        if not self.running or self.process is None:
            return
        kill_all(self.pid, timeout=self.timeout)
        self.process.wait()

    def restart(self) -> Self:
        """Stop it if it runs, then start it on the same ports and data."""
        self.stop()
        return self.start()

    def pause(self) -> None:
        """SIGSTOP it and its children; returns when none of them runs any more."""
        freeze_all(self.pid, timeout=self.timeout)

    def resume(self) -> None:
        """SIGCONT after pause."""
        thaw_all(self.pid)

    def close(self) -> None:
        """Stop it, give its ports back and remove its folder."""
        self.stop()
        self._claims.close()
        self.ports, self.process, self._fresh = [], None, True

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and self.log.exists():
            said = self.log.read_bytes()[self._log_start :].decode(errors="replace")
            error.add_note("\n".join([f"the log of {type(self).__name__} ends:", *said.splitlines()[-15:]]))
        self.close()


def open_base() -> str:
    """A temporary folder that users other than root can enter."""
    for base in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        path = Path(base).resolve()
        if all(folder.stat().st_mode & 0o001 for folder in (path, *path.parents)):
            return str(path)
    raise StartFailed("no temporary folder is open to other users; set TMPDIR to one that is")


Member = TypeVar("Member", bound=Server)


class Cluster(Generic[Member]):
    """Several servers that form one; `members` can be stopped, killed and paused one by one."""

    def __init__(self, make: Callable[[int, list[Member]], Member], *, size: int = 3) -> None:
        self.members: list[Member] = []
        self._make = make
        self._size = size

    @property
    def url(self) -> str:
        """One address list: scheme://host:port,host:port,host:port"""
        scheme = self.members[0].url.partition("://")[0]
        return f"{scheme}://{','.join(member.address for member in self.members)}"

    @property
    def durability(self) -> str:
        """That of each member, and how many there are."""
        return f"{self._size} members, {self._make(1, []).durability}"

    def start(self) -> Self:
        """Start what is not running and wait until every member answers. Raises StartFailed, Missing."""
        for attempts in range(4, -1, -1):
            fresh = not self.members
            if fresh:
                peers: list[Member] = []
                peers += [self._make(number, peers) for number in range(1, self._size + 1)]
                self.members = peers
            try:
                # Every member's settings name every member's ports, so all ports come before any settings.
                if fresh:
                    for member in self.members:
                        member.claim()
                    for member in self.members:
                        member.prepare()
                for member in self.members:
                    if not member.running:
                        member.launch()
                for member in self.members:
                    member.wait_ready()
                return self
            except BaseException as error:
                if fresh:
                    self.close()
                if not (isinstance(error, PortTaken) and attempts):
                    raise
                time.sleep(0.2)
        raise AssertionError("unreachable")

    def stop(self) -> None:
        """Stop one member after the other, each in its orderly way; the data stays."""
        for member in self.members:
            member.stop()

    def kill(self) -> None:
        """SIGKILL every member."""
        for member in self.members:
            member.kill()

    def restart(self) -> Self:
        """Stop all, then start all on the same ports and data."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """Stop all and remove their folders."""
        # A member that leads would wait, on an orderly stop, for another to take over.
        self.kill()
        for member in self.members:
            member.close()
        self.members = []

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()
