"""Hostile names: each is a lock of its own, or refused with nothing changed."""

import asyncio
import unicodedata
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from fencepost.errors import ConfigError
from tests.conformance.faces import Hold
from tests.conformance.store import Store

S = TypeVar("S")
T = TypeVar("T")

REFUSED: dict[str, object] = {
    "empty": "",
    "NUL": "a\0b",
    "newline": "a\nb",
    "carriage return": "a\rb",
    "tab": "a\tb",
    "escape": "a\x1bb",
    "delete": "a\x7fb",
    "C1 control": "a\x85b",
    "lone surrogate": "a\ud800b",
    "513 bytes": "x" * 513,
    "513 bytes in 257 characters": "é" * 256 + "x",
    "10 kB": "x" * 10_240,
    "None": None,
    "a number": 7,
    "bytes": b"bytes",
    "a list": ["list"],
}

# Pairs and families that some encoding, separator, glob, hash tag or normalisation could take for one another.
DISTINCT = [
    *("a", "A", "a ", " a", "a  b", "a b", "a\u00a0b", "a+b", "a%20b"),
    *("a/b", "a//b", "a/b/", "/a/b", "a%2Fb", "a%2fb", "a\\b", "a/./b", "a/../b", "../a", "..", ".", "a/..", "a/."),
    *("{a}", "{a}b", "{b}a", "{}", "{", "}", "a{b}c", "{{a}}"),
    *(
        unicodedata.normalize("NFC", "é"),
        unicodedata.normalize("NFD", "é"),
        "e",
        "ﬁ",
        "fi",
        "ß",
        "ss",
        "İ",
        "i̇",
        "\u212a",
        "K",
    ),
    *("🔒", "🔒\ufe0f", "\u200b", "\u200ba", "\ufeffa", "\u202ea"),
    *(
        "*",
        "?",
        "[a]",
        "a*",
        "%",
        "_",
        "%s",
        "'",
        '"',
        "''",
        "--",
        ";",
        "$1",
        ":a",
        "a:b",
        "a::b",
        "a.b",
        "a,b",
        "#",
        "@",
        "~",
    ),
    *("0", "00", "0x0", "-1", "None", "null", "true", "lock", ".lock", "fence", "issuer", "waiter", "queue"),
    *("a/lock", "a:queue", "a:waiters", "__lock__0000000001", "lock-0000000001", "_c_0-lock-0000000001"),
]


async def test_what_cannot_be_a_name_is_refused_everywhere(store: Store) -> None:
    client = store.connect()
    calls: dict[str, Callable[[Any], Awaitable[object]]] = {
        "acquire": client.acquire,
        "try_acquire": client.try_acquire,
        "status": client.status,
        "break_lock": client.break_lock,
        "bump": lambda name: client.bump(name, above=5),
    }
    for what, name in REFUSED.items():
        for call, ask in calls.items():
            try:
                await ask(name)
            except ConfigError:
                continue
            raise AssertionError(f"{call} took a name that is {what}")
    assert await client.list(store.prefix) == []


@pytest.mark.only("asyncio")  # names are the backend's matter, and there are many
async def test_no_two_names_mean_one_lock(store: Store) -> None:
    client, other = store.connect(), store.connect()
    names = list(dict.fromkeys(f"{store.prefix}{slash}{name}" for slash in ("", "/") for name in DISTINCT))

    async def take(name: str) -> Hold:
        lease = await client.try_acquire(name)
        assert lease is not None, f"{name!r} is taken by another name"
        return lease

    async def look(lease: Hold) -> None:
        status = await other.status(lease.name)
        assert status is not None
        assert (status.name, status.token, status.holder) == (lease.name, lease.token, lease.holder)
        assert await other.try_acquire(lease.name) is None

    async def release(lease: Hold) -> None:
        assert await lease.release() is True

    leases = await each(take, names)
    await each(look, leases)
    listed = await other.list(store.prefix)
    assert sorted(status.name for status in listed) == sorted(names)
    await each(release, leases)
    assert await other.list(store.prefix) == []


async def each(step: Callable[[S], Awaitable[T]], of: list[S]) -> list[T]:
    """Take the step for each, several at a time: a thousand round trips one by one are slow on a busy machine."""
    some = asyncio.Semaphore(8)

    async def one(item: S) -> T:
        async with some:
            return await step(item)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(item)) for item in of]
    return [task.result() for task in tasks]


async def test_a_bare_name_works_by_itself(store: Store) -> None:
    """Without the prefix, for what matters at the beginning, at the end, or for the whole."""
    client = store.connect()
    for name in (".", "..", "/", "//", "/a", "a/", " ", "~", "-", "é" * 256, "🔒" * 128):
        lease = await client.acquire(name, timeout=store.patience)
        assert await client.try_acquire(name) is None, f"{name!r} is held"
        status = await client.status(name)
        assert status is not None, f"{name!r} is shown"
        assert status.name == name
        assert await lease.release() is True, f"{name!r} was held"


async def test_waiters_of_similar_names_do_not_meet(store: Store) -> None:
    client = store.connect()
    first = await client.acquire(f"{store.prefix}/a")
    second = await client.acquire(f"{store.prefix}/a/b")
    assert await first.release() is True
    assert await client.try_acquire(f"{store.prefix}/a/b") is None
    assert await client.try_acquire(f"{store.prefix}/a")
    assert await second.release() is True


async def test_the_longest_name_that_is_allowed_is_not_cut_off(store: Store) -> None:
    client = store.connect()
    stem = store.prefix + "x" * (511 - len(store.prefix))
    for end in "abc":
        assert await client.try_acquire(stem + end) is not None


async def test_a_strange_prefix_lists_nothing_or_is_refused(store: Store) -> None:
    client = store.connect()
    assert await client.try_acquire(store.name)
    for prefix in ("\ud800", "\0", "%", "_", "*", "a\nb", "x" * 10_240):
        try:
            listed = await client.list(prefix)
        except ConfigError:
            continue
        assert all(status.name.startswith(prefix) for status in listed), f"for the prefix {prefix[:9]!a}"
