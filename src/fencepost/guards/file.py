"""A guard for files: each is replaced as a whole, together with its mark, by whichever process comes.

    guard = FileGuard("/var/lib/app/state")
    guard.write("account/42", b"...", lease)

A lock file keeps processes of this host apart while one replaces the value: temporary file, fsync, rename, fsync of
the folder. Not for network file systems whose locks or renames are not what they are on a local disk. A process
stopped in the very middle makes the others wait; it cannot make them wrong.
"""

import fcntl
import hashlib
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fencepost.errors import BackendError, ConfigError
from fencepost.events import Hook
from fencepost.guards import cas
from fencepost.guards.envelope import Content, pack, unpack
from fencepost.guards.policy import Policy

__all__ = ["FileGuard"]

_LONGEST = 180


class FileGuard(cas.Guard):
    """The guarded files of one folder, which is made if it is missing. ``path`` says where a resource's is."""

    source = "file"

    def __init__(
        self, folder: str | os.PathLike[str], *, hooks: Iterable[Hook] = (), policy: Policy | None = None
    ) -> None:
        super().__init__(hooks, policy)
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._mine = threading.local()

    def path(self, resource: str) -> Path:
        """The file of a resource: its name, percent-encoded; the line with the mark comes first in it."""
        name = quote(resource, safe=" ,;=@+$&'()[]")
        if len(name) > _LONGEST:
            name = f"{name[:100]}%~{hashlib.sha256(resource.encode()).hexdigest()}"
        return self._folder / f"{name}.fenced"

    @contextmanager
    def _hold(self, resource: str) -> Iterator[None]:
        held: set[str] = vars(self._mine).setdefault("held", set())
        if resource in held:
            raise ConfigError(
                f"what changes {resource!r} cannot read or write it through the guard, which waits for the change; it "
                f"is given the value, and returns the new one"
            )
        with _failures():
            lock = open(self.path(resource).with_suffix(".lock"), "ab")  # noqa: SIM115 - closed below, with the lock
        with lock:
            with _failures():
                fcntl.flock(lock, fcntl.LOCK_EX)
            held.add(resource)
            try:
                yield
            finally:
                held.discard(resource)

    def _load(self, resource: str) -> cas.Found:
        with _failures():
            try:
                return cas.Found(unpack(self.path(resource).read_bytes()), None)
            except FileNotFoundError:
                self._folder.stat()  # without its folder, nobody knows what was there
        return cas.Found(Content(), None)

    def _save(self, resource: str, content: Content, version: Any) -> bool:
        path = self.path(resource)
        fresh = path.with_suffix(".new")
        with _failures():
            with open(fresh, "wb") as out:
                out.write(pack(content))
                out.flush()
                os.fsync(out.fileno())
            os.replace(fresh, path)
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        return True


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # After a failed fsync nobody knows what is on the disk.
        raise BackendError(f"the guarded file failed: {error}", backend="file", ambiguous=True) from error
