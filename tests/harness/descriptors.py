"""A process that can open few things or none: no file, socket or epoll. For ``@isolated`` tests and children only."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


def open_descriptors() -> set[int]:
    """The numbers of this process's open descriptors."""
    folder = "/proc/self/fd"
    # The list includes the descriptor that it was read from, which is closed by now.
    return {int(number) for number in os.listdir(folder) if os.path.lexists(f"{folder}/{number}")}


@contextmanager
def no_descriptors() -> Iterator[None]:
    """In here every call that needs a new descriptor fails with EMFILE; what is open stays open.

    Closing one in here does not help: opening fails again, as if another thread were always faster.
    """
    with _limited(5):  # not less: the kernel refuses to poll() more than the limit, and Redlock polls five
        yield


@contextmanager
def few_descriptors(spare: int) -> Iterator[None]:
    """In here so many more can be open at once, and the next fails with EMFILE; what is open stays open."""
    taken = open_descriptors()
    limit = 0
    while spare or limit in taken:
        spare -= limit not in taken
        limit += 1
    with _limited(limit):
        yield


@contextmanager
def all_descriptors() -> Iterator[None]:
    """In here the table of descriptors is full, without gaps: code that closes one can open one, with its number."""
    taken = open_descriptors()
    limit = max(taken) + 1
    with _limited(limit):
        fillers = [os.dup(min(taken)) for _ in range(limit - len(taken))]
        try:
            yield
        finally:
            for each in fillers:
                os.close(each)


@contextmanager
def _limited(limit: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
