"""The names of locks and their contenders in ZooKeeper: paths, layouts, and the order of a queue."""

import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from operator import itemgetter
from urllib.parse import quote, unquote
from uuid import UUID

from fencepost.errors import ConfigError

BASE = "~base"
"""The child of a lock that has the base of its tokens; by name it sorts after all contenders."""
EVERYBODY = 2**31 - 1
"""The limit of a shared lock."""
_WRAP = 2**31
# This close to the wrap, or after it, the numbers do not show which node came first.
_EDGE = _WRAP - 2**20
_FAR = f"{_EDGE:010d}"
_TAIL = itemgetter(slice(-10, None))
_BEFORE = itemgetter(slice(-12, -10))
_SIGNS = frozenset(("-", "--", "_-"))  # before the digits, the last character of these is a sign

LAYOUTS: dict[str, Callable[[str, int], str]] = {
    "kazoo": lambda holder, session: f"{holder}__lock__",
    "curator": lambda holder, session: f"_c_{UUID(hex=holder)}-lock-",
    "zookeeper": lambda holder, session: f"x-{session}-{holder}-",
}
"""The names of our nodes before their number, from holder and session id; other clients recognize them."""


_SHARE = re.compile(r"(?:__(\d+))?__rlock__-?\d{9,10}$", re.ASCII)
_IDENTITY = re.compile(
    r"([0-9a-f]{32})(?:__lock__|(?:__\d+)?__rlock__|-)-?\d{9,10}$|_c_([0-9a-f-]{36})-lock-", re.ASCII
)


def identity(node: str) -> str:
    """The creator of a node, by the node's name: an id of 32 hex digits, or else the name itself."""
    match = _IDENTITY.search(node)
    return (match[1] or match[2].replace("-", "")) if match else node


def share(identity: str, limit: int) -> str:
    """The name of a sharer's node before its number, in every layout: as in kazoo's ReadLock, with the limit if any."""
    return f"{identity}__rlock__" if limit == EVERYBODY else f"{identity}__{limit}__rlock__"


def limit(node: str) -> int | None:
    """How many sharers the sharer with this node allows, itself included; None for an exclusive contender."""
    match = _SHARE.search(node)
    return int(match[1] or EVERYBODY) if match else None


def layout(value: str) -> str:
    """The name of a layout; ConfigError if it is unknown."""
    if value not in LAYOUTS:
        raise ConfigError(f"layout is one of {', '.join(sorted(LAYOUTS))}, not {value!r}")
    return value


def encode(name: str) -> str:
    """One path component for a lock's name, never the same for two names.

    Names of ASCII letters, digits, ``-``, ``_``, ``.`` and ``~`` stay as they are; every other byte of
    its UTF-8 is written ``%XX``, as in a URL. So are the dots of ``.`` and ``..``, and the first letter
    of ``zookeeper``: ZooKeeper reserves these names.
    """
    if name in (".", "..", "zookeeper"):
        return f"%{ord(name[0]):02X}{name[1:].replace('.', '%2E')}"
    return quote(name, safe="")


def decode(component: str) -> str | None:
    """The lock's name for a path component; None if ``encode`` gives this component for no name."""
    name = unquote(component, errors="replace")
    return name if name and encode(name) == component else None


def sequence(node: str) -> int | None:
    """The number that ZooKeeper gave a sequential node; None for any other node.

    It is written ``%010d`` and is a signed 32-bit number, so it can be negative. A ``-`` right after
    a letter or digit ends the node's own name, as in Curator's and the Java recipe's; after another ``-``,
    or after kazoo's ``__lock__``, it is a sign.
    """
    tail = node[-10:]  # no regular expression, which takes five times as long: long queues are read often
    if len(tail) < 10 or not tail.isascii():
        return None
    if tail.isdigit():
        signed = node[-11:-10] == "-" and node[-12:-11] in ("", "-", "_")
        number = -int(tail) if signed else int(tail)
    elif tail[0] == "-" and tail[1:].isdigit():
        number = int(tail)
    else:
        return None
    return number if -_WRAP <= number < _WRAP else None


def _plain(children: list[str]) -> bool:
    """Whether each child has a number without a sign, far from the wrap, that no other child has.

    That is nearly always so, and this check takes a fifth of the time of looking at each child.
    """
    tails = list(map(_TAIL, children))
    digits = "".join(tails)
    return (
        len(digits) == 10 * len(children)
        and digits.isascii()
        and digits.isdigit()
        and max(tails, default="") < _FAR
        and len(set(tails)) == len(tails)
        and _SIGNS.isdisjoint(map(_BEFORE, children))
    )


def contenders(children: Iterable[str]) -> tuple[list[str], bool]:
    """The contenders among a lock's children, by number; and whether that is certainly the order they came in.

    At 2^31 the number stays the same or becomes negative, depending on the server's load: two nodes can
    even have the same number. Then only the zxid of each node's creation shows which came first.
    """
    children = list(children)
    if _plain(children):
        return sorted(children, key=_TAIL), True
    numbered = [(number, child) for child in children if (number := sequence(child)) is not None]
    numbered.sort()
    sure = not numbered or (
        numbered[0][0] >= 0
        and numbered[-1][0] < _EDGE
        and all(earlier[0] < later[0] for earlier, later in pairwise(numbered))
    )
    return [child for _, child in numbered], sure
