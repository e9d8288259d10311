"""Who holds: a random id of 32 hex digits, and after an ``@`` what a candidate tells of itself.

The metadata travels inside the holder, percent-encoded, so that every store keeps it in the same step as
the grant or the place in the queue, and a lock that carries none costs nothing. Stores whose customary election
has a place of its own for it (etcd's value, the data of a ZooKeeper node) take it apart and put it there.
"""

import os
import re
from urllib.parse import quote, unquote

from fencepost.errors import ConfigError

MAX_METADATA = 400
"""Bytes of metadata, percent-encoded: a holder has at most 512, and travels with every stamp."""

_PLAIN = "/:,;=+*()[]@!$&'"  # legible as they are; no store splits a holder at them
_OURS = re.compile(r"[0-9a-f]{32}")


def random_holder() -> str:
    return os.urandom(16).hex()


def compose(identity: str, metadata: str) -> str:
    """A holder that carries metadata; ConfigError if that is too long."""
    if not isinstance(metadata, str):
        raise ConfigError(f"metadata is a str, not {metadata!r}; carry an address, or JSON as text")
    if not metadata:
        return identity
    try:
        told = quote(metadata, safe=_PLAIN)
    except UnicodeEncodeError:
        raise ConfigError(f"metadata must be valid Unicode: {metadata[:40]!r}") from None
    if len(told) > MAX_METADATA:
        raise ConfigError(
            f"metadata has at most {MAX_METADATA} bytes, percent-encoded; {metadata[:40]!r}... has {len(told)}: "
            f"carry an address, and serve the rest from there"
        )
    return f"{identity}@{told}"


def split(holder: str) -> tuple[str, str]:
    """A holder's id, and its metadata; empty if it carries none."""
    identity, _, told = holder.partition("@")
    return identity, unquote(told)


def ours(identity: str) -> bool:
    """Whether an id is one that fencepost made."""
    return _OURS.fullmatch(identity) is not None
