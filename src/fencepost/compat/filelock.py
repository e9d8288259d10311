"""filelock, with fencing tokens: ``from fencepost.compat.filelock import FileLock`` instead of ``from filelock``.

The last token is kept in ``PATH.fence``, a file beside the lock's. Each token is larger than every one before it: this
file ensures that, and the host's clock does if the file was removed.
"""

import logging
import os
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fencepost import check
from fencepost.compat.observed import Hold, Lease, asked, gave_up
from fencepost.driver import boottime
from fencepost.errors import ConfigError
from fencepost.holders import random_holder

try:
    import filelock
    from filelock import Timeout
except ModuleNotFoundError as error:
    raise ConfigError(f"fencepost.compat.filelock needs {error.name!r}: pip install 'fencepost[filelock]'") from error

__all__ = ["AsyncFileLock", "AsyncSoftFileLock", "FileLock", "SoftFileLock", "Timeout"]

SOURCE = "compat.filelock"
_log = logging.getLogger("fencepost")
_warned: set[str] = set()


class _Fenced:
    """What these locks add to filelock's: a token for each hold, and a check that the lock's file is still there."""

    if TYPE_CHECKING:
        lock_file: str
        lock_counter: int

    @property
    def lease(self) -> Lease | None:
        """The hold, of this thread if the lock is thread-local, for a guard; None while the lock is not held."""
        hold = getattr(self._own, "hold", None)
        return None if hold is None else hold.lease

    @property
    def _own(self) -> Any:
        kind = threading.local if self.is_thread_local() else SimpleNamespace  # type: ignore[attr-defined]
        return self.__dict__.setdefault("_fencepost", kind())

    @property
    def _path(self) -> str:
        return os.path.abspath(os.fspath(self.lock_file))

    @property
    def _mode(self) -> int | None:
        """The permissions that the caller chose for the lock's file, if any; the file of the token needs the same."""
        return getattr(self, "mode", None) if getattr(self, "has_explicit_mode", False) else None

    def _granted(self, began: float) -> None:
        if self.lock_counter != 1:
            return  # entered again
        path = self._path
        hold = Hold(SOURCE, path, random_holder(), _mint(path, self._mode), None, boottime())
        self._own.hold, self._own.file = hold, _identity(path)
        hold.acquired(began)

    def _leaving(self, force: bool) -> tuple[Hold, bool] | None:
        """The hold that a release is about to end, and whether the lock's file is still the one that was locked."""
        own = self._own
        hold = getattr(own, "hold", None)
        if hold is None or not (force or self.lock_counter == 1):
            return None
        return hold, own.file is not None and _identity(self._path) == own.file

    def _left(self, leaving: tuple[Hold, bool] | None) -> None:
        if leaving is None:
            return
        hold, intact = leaving
        self._own.hold = None
        if intact:
            hold.released()
        else:
            hold.gone(releasing=True)


class _Blocking(_Fenced):
    def acquire(self, *args: Any, **options: Any) -> Any:
        """As filelock's; Timeout if the lock was not free in time."""
        began = boottime() if self.lock_counter else asked(SOURCE, self._path)
        try:
            proxy = super().acquire(*args, **options)  # type: ignore[misc]
        except Timeout:
            gave_up(SOURCE, self._path, began)
            raise
        self._granted(began)
        return proxy

    def release(self, force: bool = False) -> None:
        """As filelock's: the release of the last hold frees the lock; with ``force``, any release does."""
        leaving = self._leaving(force)
        super().release(force)  # type: ignore[misc]
        self._left(leaving)


class _Async(_Fenced):
    async def acquire(self, *args: Any, **options: Any) -> Any:
        """As filelock's; Timeout if the lock was not free in time."""
        began = boottime() if self.lock_counter else asked(SOURCE, self._path)
        try:
            proxy = await super().acquire(*args, **options)  # type: ignore[misc]
        except Timeout:
            gave_up(SOURCE, self._path, began)
            raise
        self._granted(began)
        return proxy

    async def release(self, force: bool = False) -> None:
        """As filelock's: the release of the last hold frees the lock; with ``force``, any release does."""
        leaving = self._leaving(force)
        await super().release(force)  # type: ignore[misc]
        self._left(leaving)


class FileLock(_Blocking, filelock.FileLock):
    """filelock's FileLock: its signature, its file, its errors.

    ``lease`` carries a fencing token to a guard. A lock whose file was removed or replaced while it was held, so that
    others could lock it too, is told to the hooks of `fencepost.compat.observe` as lost.

        with FileLock("report.lock", timeout=5): ...
    """


class SoftFileLock(_Blocking, filelock.SoftFileLock):
    """filelock's SoftFileLock; otherwise as `FileLock`.

    For example::

        with SoftFileLock("report.lock", timeout=5): ...
    """


class AsyncFileLock(_Async, filelock.AsyncFileLock):  # type: ignore[misc]  # as filelock's own differs from its base
    """filelock's AsyncFileLock; otherwise as `FileLock`.

    For example::

        async with AsyncFileLock("report.lock", timeout=5): ...
    """


class AsyncSoftFileLock(_Async, filelock.AsyncSoftFileLock):  # type: ignore[misc]
    """filelock's AsyncSoftFileLock; otherwise as `FileLock`.

    For example::

        async with AsyncSoftFileLock("report.lock", timeout=5): ...
    """


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _mint(path: str, mode: int | None) -> int | None:
    """The next token; only the holder of the lock mints, so nobody else writes the file. None if it cannot be kept."""
    beside = f"{path}.fence"
    try:
        # Never through a link that another user may have put there.
        file = os.open(beside, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except OSError as error:
        _warn(beside, error)
        return None
    try:
        if mode is not None and hasattr(os, "geteuid") and os.fstat(file).st_uid == os.geteuid():
            os.fchmod(file, mode)
        last = os.read(file, 64).strip()
        known = int(last) if last.isdigit() else 0
        # Ignore a number that no issuer can have come to by now: it is not ours, and no guard would admit the next one.
        token = max(known + 1 if known <= check.highest_token() else 1, time.time_ns() // 1000)
        os.lseek(file, 0, os.SEEK_SET)
        os.write(file, b"%019d\n" % token)
        return token
    except OSError as error:
        _warn(beside, error)
        return None
    finally:
        os.close(file)


def _warn(beside: str, error: OSError) -> None:
    if beside not in _warned:
        _warned.add(beside)
        _log.error("%s: locks have no fencing tokens, which are kept in %r", error.strerror, beside)
