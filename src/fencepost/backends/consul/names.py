"""How locks are called in Consul."""

from urllib.parse import quote, unquote

_NOTHING = "%00"  # an empty part of a name; no name contains the character that this would be


def encode(name: str) -> str:
    """The prefix that ``consul lock`` would be given for a lock's name, never the same for two names.

    Names of ASCII letters, digits, ``-``, ``_``, ``.``, ``~`` and ``/`` stay as they are; every other byte
    of its UTF-8 is written ``%XX``. A part between slashes that is ``.``, ``..`` or empty, which no URL
    can carry, becomes ``%2E``, ``%2E%2E`` or ``%00``.
    """
    parts = (quote(part, safe="") or _NOTHING for part in name.split("/"))
    return "/".join(part.replace(".", "%2E") if part in (".", "..") else part for part in parts)


def decode(prefix: str) -> str | None:
    """The lock's name behind a prefix; None if no name is written so."""
    name = "/".join("" if part == _NOTHING else unquote(part, errors="replace") for part in prefix.split("/"))
    return name if name and encode(name) == prefix else None
