"""The Lua scripts, one file each in ``lua/``, and the names of the keys they work on."""

import functools
import hashlib
import pkgutil
import re
from binascii import crc_hqx
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from fencepost.backend import Hold
from fencepost.backends import margin
from fencepost.backends.redis.answers import SCRIPTS, Fits, number
from fencepost.backends.redis.connection import pack
from fencepost.errors import ConfigError
from fencepost.rule import MAX_TOKEN

# No lock's name contains it, so no lock's key is ever another key of ours.
MARK = "\x1f"
SLOTS = 16384

_NEEDS = re.compile(r"^ *-- needs: (.*)$", re.MULTILINE)
_TAG = re.compile(r"\{([^}]+)\}")


class Script(NamedTuple):
    """A script as the server knows it: by its hash once it has seen the text."""

    name: str
    text: str
    sha: str
    fits: Fits
    """What its answer looks like."""

    def head(self, keys: int, args: int) -> str:
        """How a request for it begins, up to its keys."""
        return f"*{3 + keys + args}\r\n$7\r\nEVALSHA\r\n$40\r\n{self.sha}\r\n$1\r\n{keys}\r\n"


class Scripts(NamedTuple):
    """Every script of one way to mint tokens."""

    take: Script
    share: Script
    claim: Script
    release: Script
    renew: Script
    renew_all: Script
    leave: Script
    break_lock: Script
    status: Script
    bump: Script
    prune: Script


def build(
    name: str, variants: Mapping[str, str], source: str | None = None, numbers: Mapping[str, int] | None = None
) -> Script:
    """The script in a file of that name, or ``source``, with the parts it needs put in where it says so.

    Parts are inlined late so that the fast path parses as little Lua as possible; ``variants`` says which files have a
    part, ``numbers`` what stands for ``$name`` in them. A ``source`` is a script that answers a number.
    """

    def parts(needs: re.Match[str]) -> str:
        names = [name for need in needs[1].split(", ") for name in variants.get(need, need).split(", ")]
        return "".join(map(_part, names))

    text = _NEEDS.sub(parts, source or _part(name))
    for placeholder, value in (numbers or {}).items():
        text = text.replace(f"${placeholder}", str(value))
    fits = SCRIPTS[name] if source is None else number
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), fits)


@functools.cache
def _part(name: str) -> str:
    # Not by importlib.resources, which loads tempfile, shutil and zipfile for it.
    found = pkgutil.get_data("fencepost.backends.redis", f"lua/{name}.lua")
    assert found is not None, "a package is loaded by something that can read it"
    return found.decode()


_TURN = 2  # of three parts of the time that a lock is busy, two are its waiters' and one is a gap


@functools.cache
def scripts(fence: str, pollers: float = 0.0) -> Scripts:
    """The scripts that mint by ``fence``, ``clock`` or ``counter``.

    They leave gaps for clients that try every ``pollers`` seconds to take a lock by SET NX, unless that is 0.
    """
    variants, numbers = {"mint": f"mint_{fence}"}, {}
    if pollers:
        variants |= {"hand_over": "hand_over, gaps", "settle": "settle, gaps_kept"}
        gap = ceil(pollers * 1100) + 2  # ms: such a client sleeps, and then its request takes a while
        numbers = {"gap": gap, "turn": gap * _TURN}
    return Scripts(*(build(name, variants, numbers=numbers) for name in Scripts._fields))


class Keys(NamedTuple):
    """The keys of one lock; all of them live in one slot of a cluster."""

    lock: str
    """Holds ``holder:token`` and expires with the lease; a plain ``SET NX PX`` client holds it too. Shared, it holds
    ``:0``, and who shares it stands in a key beside it: see ``lua/cover.lua``."""
    queue: str
    """Sorted set of the waiters, only while there are any."""
    gone: str
    """Set of holders whose late requests are refused; only after a connection broke, and not for long."""
    counter: str
    """The last token."""
    to_take: str
    """The first four as a request has them."""
    to_release: str
    """Lock, queue and counter as a request has them."""


@dataclass(frozen=True)
class Layout:
    """Which keys a lock has, within one namespace."""

    prefix: str
    fence: str
    cluster: bool

    def __post_init__(self) -> None:
        if MARK in self.prefix:
            raise ConfigError("a prefix cannot contain the control character \\x1f")
        if self.cluster and "{" in self.prefix and not _TAG.search(self.prefix):
            raise ConfigError(f"prefix {self.prefix!r} opens a hash tag that it does not close; write it like {{app}}:")

        object.__setattr__(self, "keys", functools.lru_cache(1024)(self._keys))

    keys: Callable[[str], Keys] = field(init=False, repr=False, compare=False)
    """The keys of a lock, by its name."""

    def _keys(self, name: str) -> Keys:
        lock = self.prefix + name
        if not self.cluster:
            side = self.prefix + MARK
            fence = f"{side}token" if self.fence == "clock" else self._own(lock, f"fence:{{{lock}}}")
            return _packed(lock, f"{lock}{MARK}queue", f"{lock}{MARK}gone", fence)
        home = slot(lock)
        tag = tags()[home]
        side = f"{self.prefix}{MARK}{{{tag}}}"
        if self.fence == "clock":
            fence = f"{side}token"
        else:
            fence = self._own(lock, f"fence:{{{lock}}}")
            if slot(fence) != home:
                fence = f"fence:{{{tag}}}{MARK}{lock}"
        return _packed(lock, f"{side}{lock}{MARK}queue", f"{side}{lock}{MARK}gone", fence)

    def name(self, raw: bytes) -> str | None:
        """The lock that a key belongs to; None for every other key."""
        try:
            key = raw.decode()
        except UnicodeDecodeError:
            return None
        ours = key.startswith(self.prefix) and len(key) > len(self.prefix) and MARK not in key
        return key[len(self.prefix) :] if ours else None

    def _own(self, lock: str, fence: str) -> str:
        if lock.startswith("fence:{"):
            raise ConfigError(f"a lock cannot be kept in the key {lock!r}, which is a counter's; give it a ?prefix=")
        return fence


def _packed(lock: str, queue: str, gone: str, counter: str) -> Keys:
    first, second, third, fourth = (f"${len(key.encode())}\r\n{key}\r\n" for key in (lock, queue, gone, counter))
    return Keys(lock, queue, gone, counter, first + second + third + fourth, first + second + fourth)


def slot(key: str) -> int:
    """The slot of a cluster that a key lives in: by its first non-empty hash tag, else by all of it."""
    begin = key.find("{")
    if begin >= 0:
        end = key.find("}", begin + 1)
        if end > begin + 1:
            key = key[begin + 1 : end]
    return crc_hqx(key.encode(), 0) % SLOTS


@functools.cache
def tags() -> list[str]:
    """For each slot a hash tag that lives in it: a lock's own name may not do as one, with braces in it."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < SLOTS:
        found.setdefault(slot(str(number)), str(number))
        number += 1
    return [found[each] for each in range(SLOTS)]


_DIGITS = len(str(MAX_TOKEN))
KEEP = 60_000  # ms that a queue outlives its last live waiter
_TO_KEEP = f"\r\n$5\r\n{KEEP}\r\n"  # as a request ends with it, after the argument before


class Requests:
    """Packs for one way to mint tokens."""

    def __init__(self, scripts: Scripts) -> None:
        self._take = scripts.take.head(4, 5)
        self._release = scripts.release.head(3, 1)
        self._release_here = scripts.release.head(3, 2)
        self._renew = scripts.renew.sha
        self._renew_all = scripts.renew_all.sha

    def take(self, keys: Keys, holder: str, ttl: float, most: int, entry: str) -> bytes:
        amounts = _amounts(ttl, most)
        if holder.isascii():
            size, length = len(holder), len(entry)
        else:
            size, length = len(holder.encode()), len(entry.encode())
        return f"{self._take}{keys.to_take}${size}\r\n{holder}\r\n{amounts}${length}\r\n{entry}{_TO_KEEP}".encode()

    def release(self, keys: Keys, own: str, channel: str | None = None) -> bytes:
        """``channel`` is that of this process, if it has waiters for the lock: the answer tells them of a grant."""
        size = len(own) if own.isascii() else len(own.encode())
        if channel is None:
            return f"{self._release}{keys.to_release}${size}\r\n{own}\r\n".encode()
        here = f"${len(channel)}\r\n{channel}\r\n"
        return f"{self._release_here}{keys.to_release}${size}\r\n{own}\r\n{here}".encode()

    def renew(self, lock: str, hold: Hold) -> bytes:
        return pack(("EVALSHA", self._renew, 1, lock, *self.own(hold)))

    def renew_all(self, locks: Sequence[str], holds: Sequence[Hold]) -> bytes:
        words: list[str | int] = ["EVALSHA", self._renew_all, len(locks), *locks]
        for _, holder, token, ttl in holds:
            words += (f"{holder}:{token}", kept(ttl))
        return pack(tuple(words))

    def own(self, hold: Hold) -> tuple[str, int]:
        """What a lock holds while it is this hold's, and its ttl in ms."""
        return f"{hold.holder}:{hold.token}", kept(hold.ttl)


@lru_cache(64)
def kept(ttl: float) -> int:
    """For how many ms a server keeps a lease of ``ttl``: longer than its holder counts on it."""
    return ceil(margin.kept(ttl) * 1000)


def remains(ms: float) -> float:
    """For how many seconds the holder may count on a lease that its server keeps for so long."""
    return margin.remains(ms / 1000)


def owner(value: str) -> tuple[str, int]:
    """The holder and the token in a lock's value; token 0 if another client made it, which may end in anything."""
    holder, _, text = value.rpartition(":")
    if (
        holder
        and text.isascii()
        and text.isdecimal()
        and len(text) <= _DIGITS
        and 0 < (token := int(text)) <= MAX_TOKEN
    ):
        return holder, token
    return value, 0


@lru_cache(64)
def _amounts(ttl: float, most: int) -> str:
    """The ttl in ms and the most that may wait: the same for nearly all who ask."""
    ms = kept(ttl)
    return f"${len(str(ms))}\r\n{ms}\r\n${len(str(most))}\r\n{most}\r\n"
