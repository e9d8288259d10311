"""Temporary files of a run in memory, where the machine has room for them: servers and stores wait for no disk.

$TMPDIR says otherwise. What a killed run has left there, the next one removes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from multiprocessing.util import Finalize
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
ROOM = 4 << 30
_NAME = "fencepost-tests-"
_LAST = -101  # after multiprocessing has removed its own folder, of priority -100, which is in ours


def _usable() -> bool:
    """Whether it is there, large enough, and programs can be started from it."""
    try:
        space = os.statvfs(MEMORY)
    except OSError:
        return False
    return (
        MEMORY.is_mount()
        and os.access(MEMORY, os.W_OK)
        and not space.f_flag & os.ST_NOEXEC
        and space.f_bavail * space.f_frsize >= ROOM
    )


def _leftovers() -> list[Path]:
    return [each for each in MEMORY.glob(f"{_NAME}*") if not Path("/proc", each.name.removeprefix(_NAME)).exists()]


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or config.option.collectonly or "TMPDIR" in os.environ or not _usable():
        return
    for each in _leftovers():
        shutil.rmtree(each, ignore_errors=True)
    use(MEMORY / f"{_NAME}{os.getpid()}")


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A temporary folder for Unix sockets: their paths have room for 107 bytes, and ``tmp_path`` is long.

    With ten tests at once it is too long by a digit.
    """
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def use(folder: Path) -> None:
    """Make ``folder``, keep temporary files in it, and remove it at the end of this process."""
    folder.mkdir()
    folder.chmod(0o711)  # Postgres runs as another user
    Finalize(None, shutil.rmtree, args=(folder, True), exitpriority=_LAST)
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None
