"""What a blocking lock cannot be put around, told when it is put there or, at the latest, by the first call."""

import asyncio
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fencepost
from fencepost import sync
from fencepost.errors import ConfigError


@pytest.fixture
def locks() -> Iterator[sync.Locks]:
    with fencepost.connect(f"memory://{secrets.token_hex(4)}", ttl=60) as connected:
        yield connected


async def work() -> None:
    await asyncio.sleep(0)


class Worker:
    async def __call__(self) -> None:
        await work()


@pytest.mark.parametrize("what", [classmethod(lambda cls: None), property(lambda self: None), 5])
def test_what_cannot_be_called(locks: sync.Locks, what: Any) -> None:
    with pytest.raises(ConfigError, match="go above the lock"):
        locks.lock("a")(what)


def test_an_object_whose_call_is_a_coroutine_function(locks: sync.Locks) -> None:
    with pytest.raises(ConfigError, match="would outlive"):
        locks.lock("a")(Worker())


def test_a_plain_function_that_returns_a_coroutine(locks: sync.Locks) -> None:
    """As a decorator in between makes of a coroutine function: its work would begin when the lock is free again."""
    call: Callable[[], object] = locks.lock("a")(lambda: work())
    with pytest.raises(ConfigError, match="would outlive"):
        call()
    assert locks.status("a") is None
