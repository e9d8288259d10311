"""A guard for files: each write replaces the whole file together with its mark; any process of the host may write.

    guard = FileGuard("/var/lib/app/state")
    guard.write("account/42", b"...", lease)

A lock file makes the processes of this host take turns. A write creates a temporary file, calls fsync on it, renames
it, and calls fsync on the folder. Do not use this guard on a network file system whose locks or renames work
differently from those of a local disk. A process that is stopped in the middle of a write makes the others wait; it
cannot corrupt the value.

A file keeps its owner, group and mode when it is replaced; a new one gets the process's umask. Symbolic links in the
place of the lock or of the temporary file are not followed, but a user who may write to the folder can replace a value.
"""

import errno
import hashlib
import os
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

try:
    import fcntl
except ModuleNotFoundError:  # on Windows; FileGuard says so
    fcntl = None  # type: ignore[assignment]

from fencepost.driver.fork import in_child
from fencepost.errors import BackendError, ConfigError
from fencepost.events import Hook
from fencepost.guards import cas
from fencepost.guards.envelope import Content, pack, unpack
from fencepost.guards.policy import Policy

__all__ = ["FileGuard"]

_LONGEST = 180
_PLAIN = " ,;=@+$&'()[]"


class _Mine(threading.local):
    """The locks that a thread holds, by resource."""

    def __init__(self) -> None:
        self.held: dict[str, _Lock] = {}


class _Lock:
    """An exclusive lock on a file of its own.

    flock() locks the open file, which a forked child shares: the lock would stay until both processes have closed it.
    So a child closes its copy at once, and the parent unlocks before it closes.
    """

    _file = -1

    def __init__(self, path: Path) -> None:
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise OSError(
                    error.errno, "a symbolic link is in the place of the lock; remove it", str(path)
                ) from None
            raise
        in_child(self, _Lock.forsake)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
        except BaseException:
            self.close()
            raise

    @property
    def forked(self) -> bool:
        """Whether the file is closed here, as it is in a forked child."""
        return self._file < 0

    def close(self) -> None:
        if not self.forked:
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self.forsake()

    def forsake(self) -> None:
        """Close the file without unlocking: a process that shares the open file keeps its lock."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        self.close()


class FileGuard(cas.Guard):
    """The guarded files of one folder, which is created if it is missing. ``path`` names the file of a resource.

    For example::

        guard = FileGuard("/srv/reports")
        guard.write("daily", b"...", lease)
    """

    source = "file"

    def __init__(
        self, folder: str | os.PathLike[str], *, hooks: Iterable[Hook] = (), policy: Policy | None = None
    ) -> None:
        if fcntl is None:
            raise ConfigError("FileGuard needs the file locks of a Unix system; use another guard here")
        super().__init__(hooks, policy)
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._mine = _Mine()

    def path(self, resource: str) -> Path:
        """The file of a resource, named after it, percent-encoded; its first line holds the mark."""
        # Encode upper-case letters too: to some file systems "Account" and "account" are the same name.
        name = "".join(f"%{ord(each):02X}" if "A" <= each <= "Z" else quote(each, safe=_PLAIN) for each in resource)
        if len(name) > _LONGEST:
            name = f"{name[:100]}%~{hashlib.sha256(resource.encode()).hexdigest()}"
        return self._folder / f"{name}.fenced"

    @contextmanager
    def _hold(self, resource: str) -> Iterator[None]:
        held = self._mine.held
        if resource in held:
            raise ConfigError(
                f"what changes {resource!r} cannot read or write it through the guard, which waits for the change; it "
                f"is given the value, and returns the new one"
            )
        try:
            with _failures(ambiguous=False):
                held[resource] = _Lock(self.path(resource).with_suffix(".lock"))
            yield
        finally:
            if lock := held.pop(resource, None):
                lock.close()

    def _load(self, resource: str) -> cas.Found:
        with _failures(ambiguous=False):
            try:
                return cas.Found(unpack(self.path(resource).read_bytes()), None)
            except FileNotFoundError:
                self._folder.stat()  # raises if the folder is gone: then the value is unknown, not absent
        return cas.Found(Content(), None)

    def _save(self, resource: str, content: Content, version: Any) -> bool:
        if self._mine.held[resource].forked:
            raise ConfigError(f"this process was forked while {resource!r} was being changed; the parent changes it")
        path = self.path(resource)
        fresh = path.with_suffix(".new")
        with _failures(ambiguous=False):
            folder = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with _failures(ambiguous=False):
                try:
                    with _created(fresh, path) as out:
                        out.write(pack(content))
                        out.flush()
                        os.fsync(out.fileno())
                except BaseException:
                    fresh.unlink(missing_ok=True)  # on a full disk it would take room from the next attempt
                    raise
            with _failures(ambiguous=True):  # after a failed fsync, the content of the disk is unknown
                os.replace(fresh, path)
                os.fsync(folder)
        finally:
            os.close(folder)
        return True


def _created(fresh: Path, path: Path) -> BinaryIO:
    """A new file with the owner, group and mode of the one that it will replace, if there is one."""
    fresh.unlink(missing_ok=True)  # left by a killed process, or a link, whose target stays untouched
    try:
        before = path.stat()
    except FileNotFoundError:
        before = None
    # Until the old mode is copied below, other users must not be able to read the new file.
    mode = 0o666 if before is None else 0o600
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        if before is not None:
            made = os.fstat(file)
            if (made.st_uid, made.st_gid) != (before.st_uid, before.st_gid):
                _give(file, before)
            os.fchmod(file, stat.S_IMODE(before.st_mode))
        return open(file, "wb")
    except BaseException:
        os.close(file)
        raise


def _give(file: int, before: os.stat_result) -> None:
    for owner in (before.st_uid, -1):  # only root can change the owner; we may be able to set the group alone
        with suppress(PermissionError):
            os.fchown(file, owner, before.st_gid)
            return


@contextmanager
def _failures(*, ambiguous: bool) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BackendError(f"the guarded file failed: {error}", backend="file", ambiguous=ambiguous) from error
