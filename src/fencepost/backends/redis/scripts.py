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

# No lock's name contains this character, so the key of a lock is never equal to another key of ours.
MARK = "\x1f"
SLOTS = 16384

_NEEDS = re.compile(r"^ *-- needs: (.*)$", re.MULTILINE)
_TAG = re.compile(r"\{([^}]+)\}")


class Script(NamedTuple):
    """A script. Once the server has its text, requests name the script by its hash."""

    name: str
    text: str
    sha: str
    fits: Fits
    """Whether a reply can be the script's answer."""

    def head(self, keys: int, args: int) -> str:
        """The beginning of a request for it, up to the keys."""
        return f"*{3 + keys + args}\r\n$7\r\nEVALSHA\r\n$40\r\n{self.sha}\r\n$1\r\n{keys}\r\n"


class Scripts(NamedTuple):
    """All scripts, for one way to mint tokens."""

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
    """The script in a file of that name, or ``source``, with its parts inserted at its ``needs`` comments.

    Parts are inserted late in a script, so that its fast path parses as little Lua as possible. ``variants`` maps parts
    to files, ``numbers`` gives the values of ``$name``. A ``source`` must be a script that answers a number.
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
    # Without importlib.resources, which would load tempfile, shutil and zipfile.
    found = pkgutil.get_data("fencepost.backends.redis", f"lua/{name}.lua")
    assert found is not None, "a package is loaded by something that can read it"
    return found.decode()


_TURN = 2  # the waiters' turn is twice as long as the gap: a contended lock is free for at most a third of the time


@functools.cache
def scripts(fence: str, pollers: float = 0.0) -> Scripts:
    """The scripts that mint by ``fence``, ``clock`` or ``counter``.

    If ``pollers`` is not 0, they leave gaps for clients that try every ``pollers`` seconds to take a lock by SET NX.
    """
    variants, numbers = {"mint": f"mint_{fence}"}, {}
    if pollers:
        variants |= {"hand_over": "hand_over, gaps", "settle": "settle, gaps_kept"}
        gap = ceil(pollers * 1100) + 2  # ms: the client's sleep, and some time for its request
        numbers = {"gap": gap, "turn": gap * _TURN}
    return Scripts(*(build(name, variants, numbers=numbers) for name in Scripts._fields))


class Keys(NamedTuple):
    """The keys of one lock; all of them live in one slot of a cluster."""

    lock: str
    """Its value is ``holder:token``, and it expires with the lease; a plain ``SET NX PX`` client uses the same key. The
    value of a shared lock is ``:0``, and its sharers are in another key: see ``lua/cover.lua``."""
    queue: str
    """Sorted set of the waiters; it exists only while there are any."""
    gone: str
    """Set of holders whose late requests are refused; it exists only for a while after a connection broke."""
    counter: str
    """The last token."""
    to_take: str
    """The first four, packed for a request."""
    to_release: str
    """Lock, queue and counter, packed for a request."""


@dataclass(frozen=True)
class Layout:
    """The keys of locks, within one namespace."""

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
    """The cluster slot of a key: of its hash tag, between the first ``{`` and the next ``}``, or of all of it if that
    is missing or empty."""
    begin = key.find("{")
    if begin >= 0:
        end = key.find("}", begin + 1)
        if end > begin + 1:
            key = key[begin + 1 : end]
    return crc_hqx(key.encode(), 0) % SLOTS


@functools.cache
def tags() -> list[str]:
    """For each slot a hash tag that belongs to it: a lock's name cannot always be the tag, as it may contain braces."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < SLOTS:
        found.setdefault(slot(str(number)), str(number))
        number += 1
    return [found[each] for each in range(SLOTS)]


_DIGITS = len(str(MAX_TOKEN))
KEEP = 60_000  # ms for which a queue stays after its last waiter has died
_TO_KEEP = f"\r\n$5\r\n{KEEP}\r\n"  # the end of a request: it closes the argument before KEEP, and adds KEEP


class Requests:
    """Packs requests, for one way to mint tokens."""

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
        """``channel`` is that of this process, if it has waiters for the lock: the answer then names their grants."""
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
        """The value of the lock's key while this hold has it, and its ttl in ms."""
        return f"{hold.holder}:{hold.token}", kept(hold.ttl)


@lru_cache(64)
def kept(ttl: float) -> int:
    """For how many ms a server keeps a lease of ``ttl``: longer than its holder counts on it."""
    return ceil(margin.kept(ttl) * 1000)


def remains(ms: float) -> float:
    """For how many seconds the holder may count on a lease that its server keeps for ``ms`` milliseconds."""
    return margin.remains(ms / 1000)


def owner(value: str) -> tuple[str, int]:
    """The holder and the token in a lock's value; token 0 for another library's value, which may have any form."""
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
    """The ttl in ms and the most waiters, packed. Cached: nearly all callers use the same values."""
    ms = kept(ttl)
    return f"${len(str(ms))}\r\n{ms}\r\n${len(str(most))}\r\n{most}\r\n"
