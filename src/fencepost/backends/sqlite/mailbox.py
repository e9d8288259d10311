"""Wake-ups between processes of one host: a mailbox is a Unix datagram socket next to the database.

The kernel tells a sender at once that the receiving process has ended, so no heartbeat is needed to
notice a dead process.
"""

import atexit
import contextlib
import functools
import logging
import os
import re
import shutil
import socket
import sqlite3
import stat
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias

from fencepost.driver import Signal, abandoned
from fencepost.driver.service import Run, Service
from fencepost.driver.threads import Blocking
from fencepost.errors import FencepostError

_log = logging.getLogger("fencepost")
# Addresses come from a file that other users may write: anything else could lead out of the folder.
_ADDRESS = re.compile("[0-9a-f]{16}")
# Seconds to wait for room in a full mailbox: its process empties it soon, unless it is frozen. The sender must not wait
# longer, because it has other work, such as renewing.
_PATIENCE = 0.02
_NEW = ".new"  # the suffix of a mailbox that is being created
_OLD = 60.0
LOOK = 5.0  # seconds between two searches for waiters whose event loop was closed
_PROC = Path("/proc/self/fd")
_MAX_PATH = 100  # sun_path holds 108 bytes on Linux, 104 elsewhere

Wakes: TypeAlias = list[tuple[str, str]]
"""Mailbox and holder of each waiter to wake."""


class Mailbox:
    """Receives the wake-ups of all waiters of one backend, on one socket and one thread.

    That thread also cleans up after waiters whose event loop was closed: it calls ``leave(name, holder)``, a method
    whose object it does not keep alive.
    """

    def __init__(self, file: Path, folder: Path, leave: Callable[[str, str], None]) -> None:
        self._file = file
        self._folder = folder
        self._leave = weakref.WeakMethod(leave)
        self._reset()

    def _reset(self) -> None:
        self._signals: dict[str, tuple[str, Signal]] = {}
        self._forsaken: dict[str, str] = {}
        self._gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside
        self._socket: socket.socket | None = None
        self._service: Service | None = None
        self.address = ""

    def open(self) -> str:
        """The address of this mailbox; binds its socket on first use, and again if its file was removed."""
        if not self._bound():
            with self._gate:
                if not self._bound():
                    self.close()
                    self._bind()
        elif self._service is not None:
            self._service.start()  # again, if it has failed
        return self.address

    def _bound(self) -> bool:
        return self._socket is not None and os.path.lexists(self._folder / self.address)

    def _bind(self) -> None:
        try:
            self._folder.mkdir(mode=0o777)
            permit(self._folder, self._file)
        except FileExistsError:
            pass
        _sweep(self._folder)
        name = os.urandom(8).hex()
        # Bind under another name and rename: other processes remove a mailbox that they cannot reach under its
        # final name, since they take its process for dead.
        new, path = self._folder / (name + _NEW), self._folder / name
        end: weakref.finalize[..., Mailbox] | None = None
        box = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            with _Path(self._folder, new.name) as short:
                box.bind(short)
            permit(new, self._file)
            box.settimeout(LOOK)
            # Before the rename: a mailbox that no thread empties would count as that of a live process.
            service = Service(Blocking(), partial(_listen, weakref.ref(self), box), "fencepost-wake")
            service.start()
            end = weakref.finalize(self, _end, box, path, os.getpid())
            new.rename(path)
            overtaken = self._bound()  # by code that interrupted this one
        except BaseException:  # such as OSError or RuntimeError: no descriptor, or no thread can be started just now
            if end is not None:
                end.detach()
            for each in (new, path):
                _end(box, each, os.getpid())
            raise
        if overtaken:
            service.close()
            end()
            return
        self._end, self._service, self._socket, self.address = end, service, box, name

    def expect(self, name: str, holder: str, signal: Signal) -> None:
        """Set ``signal`` whenever a message wakes ``holder``, a waiter for the lock ``name``."""
        self._signals[holder] = name, signal

    def forget(self, holder: str) -> None:
        self._signals.pop(holder, None)

    def forsake(self, name: str, holder: str) -> None:
        """Clean up later for a holder whose coroutine was closed, and which cannot do so itself."""
        self._forsaken[holder] = name

    def _receive(self, holder: str) -> None:
        """Wake a holder; if it cannot be woken any more, clean up."""
        _, signal = self._signals.get(holder, ("", None))
        if signal is not None and not abandoned(signal):
            signal.set()
        elif signal is not None or holder in self._forsaken:
            self._clean_up()

    def _clean_up(self) -> None:
        gone = self._forsaken.copy()
        for holder, (name, signal) in self._signals.copy().items():
            if abandoned(signal):
                gone[holder] = name
        leave = self._leave()
        if not gone or leave is None:
            return
        for holder, name in gone.items():
            try:
                leave(name, holder)
            except (FencepostError, OSError, sqlite3.Error) as error:  # the next look tries again
                _log.info("a waiter for %r whose event loop was closed is still queued: %s", name, error)
                return
            self._signals.pop(holder, None)
            self._forsaken.pop(holder, None)

    def close(self) -> None:
        box, self._socket = self._socket, None
        if box is not None:
            if self._service is not None:
                self._service.close()
            self._end()

    def forked(self) -> None:
        """In a forked child: drop the parent's socket, or the parent would seem alive after its end."""
        if self._socket is not None:
            self._socket.close()
        self._reset()


def permit(path: Path, file: Path) -> None:
    """Let users that may write to ``file`` use a mailbox, or the folder of mailboxes, that this process just created.

    These users may write to the folder, too, and could replace the path by a link in the meantime. So check that it is
    still what was created. A message in a mailbox is only a hint to look at the file.
    """
    if not hasattr(os, "O_PATH"):
        return  # outside Linux the waiters of other users look when the holder's deadline passes
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW)
        try:
            made, wanted = os.fstat(descriptor), os.stat(file)
            kind = stat.S_IFMT(made.st_mode)
            own = made.st_uid == os.geteuid() and (
                kind == stat.S_IFDIR or (kind == stat.S_IFSOCK and made.st_nlink == 1)
            )
            rights = wanted.st_mode & 0o022
            if not own or not rights:
                return
            itself = f"/proc/self/fd/{descriptor}"
            if not rights & 0o002 and made.st_gid != wanted.st_gid:
                os.chown(itself, -1, wanted.st_gid)
            if kind == stat.S_IFDIR:
                rights = rights // 2 * 7  # also to read and search the folder
            os.chmod(itself, stat.S_IMODE(made.st_mode) | rights)
        finally:
            os.close(descriptor)


async def _listen(mailbox: "weakref.ref[Mailbox]", box: socket.socket, run: Run) -> None:
    # The thread does not keep its mailbox alive: it also ends if the mailbox is dropped without being closed.
    while run.current:
        holder = None
        try:
            holder = box.recv(1024).decode(errors="replace")
        except TimeoutError:
            pass
        except OSError:
            return
        here = mailbox()
        if here is None or box.fileno() < 0:  # it was dropped, or closed
            return
        if holder is None:
            here._clean_up()
        else:
            here._receive(holder)
        del here


def _end(box: socket.socket, path: Path, process: int) -> None:
    if process == os.getpid():  # else the parent still reads this mailbox
        path.unlink(missing_ok=True)
        try:
            box.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
    box.close()


def alive(folder: Path, address: str) -> bool:
    """Whether a process still receives at ``address``; a mailbox left by a dead process is removed."""
    if not _ADDRESS.fullmatch(address):
        _log.warning("%r in the queue of %r is no mailbox: its waiter is taken for dead", address, str(folder))
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe, _Path(folder, address) as path:
            probe.connect(path)
    except FileNotFoundError:
        return False
    except ConnectionRefusedError:
        _remove(folder / address)
        return False
    except OSError:
        return True  # for example another user's mailbox: its process may be alive, and its own timer wakes its waiters
    return True


def _sweep(folder: Path) -> None:
    """Remove the mailboxes that dead processes left."""
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        for each in found:
            name = each.name.removesuffix(_NEW)
            if name == each.name and _ADDRESS.fullmatch(name):
                alive(folder, name)
            elif _ADDRESS.fullmatch(name) and time.time() - each.stat(follow_symlinks=False).st_mtime > _OLD:
                _remove(folder / each.name)


def _remove(path: Path) -> None:
    """Remove a mailbox, but no other type of file: connecting to one is refused, too."""
    try:
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()
    except OSError:
        pass  # it is gone already, or another user's


class Sender:
    """Wakes waiters, over a socket that stays open: so a process without free descriptors can still wake them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside
        self._socket: socket.socket | None = None

    def open(self) -> socket.socket:
        """The socket; OSError if none can be opened."""
        if (known := self._socket) is not None:
            return known
        with self._gate:
            if self._socket is None:
                made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                made.setblocking(False)
                self._socket = made
            return self._socket

    def wake(self, wakes: Wakes) -> None:
        """Wake waiters. If a message is lost, a timer wakes the waiter later: its own, or its process's first one's."""
        full: set[str] = set()
        patience = _PATIENCE
        for address, holder in wakes:
            if address in full or not _ADDRESS.fullmatch(address):
                continue
            try:
                with _Path(self._folder, address) as path:
                    try:
                        self.open().sendto(holder.encode(), path)
                    except BlockingIOError:
                        if patience <= 0:
                            raise
                        began = time.monotonic()
                        try:
                            _send(holder, path, patience)
                        finally:
                            patience -= time.monotonic() - began
            except OSError:
                full.add(address)

    def close(self) -> None:
        with self._gate:
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def forked(self) -> None:
        """In a forked child: forget a gate that one of the parent's threads may have held."""
        self._gate = threading.RLock()

    def __del__(self) -> None:
        if self._socket is not None:  # locks may be dropped unclosed
            self._socket.close()


def _send(holder: str, path: str, patience: float) -> None:
    """Wait for room in a full mailbox, on a socket that no other thread uses."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(patience)
        sender.sendto(holder.encode(), path)


@functools.cache
def _link(folder: Path, process: int) -> Path:
    """A short link to a folder, until this process ends; in a folder where no other user can replace it."""
    place = tempfile.mkdtemp(prefix="fp-")
    atexit.register(_unlink, place, process)
    link = Path(place, "w")
    link.symlink_to(folder)
    return link


def _unlink(place: str, process: int) -> None:
    if process == os.getpid():  # else it belongs to the parent
        shutil.rmtree(place, ignore_errors=True)


class _Path:
    """A socket's path that fits into sun_path: if it is too long, through the folder's descriptor or a link."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = str(folder / name)
        self._folder = folder
        self._name = name
        self._descriptor = -1

    def __enter__(self) -> str:
        if len(os.fsencode(self._path)) <= _MAX_PATH:
            return self._path
        if not _PROC.is_dir():  # as on macOS, whose temporary folders already have long names
            return str(_link(self._folder, os.getpid()) / self._name)
        self._descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        return str(_PROC / str(self._descriptor) / self._name)

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
