"""Connections that die with their process, by SIGKILL, just before or just after their n-th commit."""

from __future__ import annotations

import os
import signal
import sqlite3
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg

Connect = Callable[["Fate"], Any]


class Fate:
    """Counts the commits of every connection of this process, and kills the process at ``moment``, if one is given."""

    def __init__(self, moment: tuple[str, int] | None = None) -> None:
        self._moment = moment
        self.commits = 0

    def passes(self, when: str) -> None:
        if when == "before":
            self.commits += 1
        if (when, self.commits) == self._moment:
            os.kill(os.getpid(), signal.SIGKILL)

    @contextmanager
    def around(self) -> Iterator[None]:
        self.passes("before")
        try:
            yield
        finally:
            self.passes("after")


class Lite(sqlite3.Connection):
    """sqlite3's, whose transactions end by COMMIT or commit()."""

    fate: Fate

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql != "COMMIT":
            return super().execute(sql, parameters)
        with self.fate.around():
            return super().execute(sql, parameters)


class Post(psycopg.Connection[Any]):
    """psycopg's, whose transactions end with a block of transaction()."""

    fate: Fate

    @contextmanager
    def transaction(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        with super().transaction(*args, **kwargs) as begun:
            yield begun
            self.fate.passes("before")
        self.fate.passes("after")


def _sqlite(path: str, fate: Fate) -> Lite:
    conn = sqlite3.connect(path, timeout=30, factory=Lite)
    conn.fate = fate
    return conn


def _postgres(url: str, fate: Fate) -> Post:
    conn = Post.connect(url, autocommit=True)
    conn.fate = fate
    return conn


def sqlite_file(path: str) -> Connect:
    """Connections to one file."""
    return partial(_sqlite, path)


def postgres_schema(url: str) -> Connect:
    """Connections to one schema."""
    return partial(_postgres, url)


def lives(job: Callable[[Fate], None], moment: tuple[str, int] | None) -> bool:
    """Run ``job`` in a fork that dies at ``moment``; return whether it finished instead. For isolated tests only."""
    child = os.fork()
    if child == 0:
        try:
            job(Fate(moment))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return False
    assert status == 0, "it failed by itself"
    return True
