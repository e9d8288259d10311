"""What a name, a duration and a token may be: each rule in one place."""

import re
import time
from datetime import timedelta
from math import inf

from fencepost.errors import ConfigError
from fencepost.rule import MAX_TOKEN, Stamp

MAX_NAME = 512
AHEAD = 86_400 * 10**6
"""How far an honest issuer's token may be above the time in microseconds, or above the last token: a day."""
_EXACT_IN_JSON = 2**53 - 1
_CONTROL = r"[\x00-\x1f\x7f-\x9f]"  # compiled, like _DURATION, when it is first used
_DURATION = r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(ms|s|m|h|d)?\s*"
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def name(value: str, what: str = "lock name") -> str:
    """Return ``value`` if it can name a lock or a resource on every backend, byte for byte as it is.

    Names are never folded, trimmed or normalised, so two names never mean one lock. Raises
    ConfigError for an empty name, control characters, lone surrogates, and more than 512 bytes.
    """
    if not isinstance(value, str):
        raise ConfigError(f"a {what} is a str, not {type(value).__name__}")
    if not value:
        raise ConfigError(f"a {what} cannot be empty")
    if not value.isprintable() and (match := re.search(_CONTROL, value)):
        raise ConfigError(f"a {what} cannot contain the control character {match[0]!r}: {value[:40]!r}")
    if value.isascii():
        size = len(value)
    else:
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise ConfigError(f"a {what} must be valid Unicode: {value[:40]!r}") from None
    if size > MAX_NAME:
        raise ConfigError(f"a {what} has at most {MAX_NAME} bytes in UTF-8; {value[:40]!r}... has {size}")
    return value


def seconds(value: float | timedelta, what: str) -> float:
    """Return a duration in seconds; raises ConfigError unless it is finite and not negative."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{what} is a number of seconds or a timedelta, not {value!r}")
    if not 0 <= value < 1e9:
        raise ConfigError(f"{what} must lie between 0 and 10^9 seconds, not {value!r}")
    return float(value)


def wait(value: float | timedelta | None, what: str) -> float:
    """Return how long to wait, in seconds: None, infinity and 10^9 seconds or more all mean without end."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if value is None or (isinstance(value, (int, float)) and value >= 1e9):
        return inf
    return seconds(value, what)


def ttl(value: float | timedelta) -> float:
    """Return a ttl in seconds; raises ConfigError unless it is positive: every lease ends."""
    value = seconds(value, "ttl")
    if value <= 0:
        raise ConfigError("ttl must be greater than 0 seconds: every lease ends")
    return value


def duration(text: str) -> float:
    """Parse a duration as the command line and URLs write it: ``2``, ``500ms``, ``2s``, ``5m``, ``1h``."""
    match = re.fullmatch(_DURATION, text)
    if not match:
        raise ConfigError(f"{text!r} is not a duration; write it like 500ms, 2s, 5m or 1h")
    return float(match[1]) * _UNITS[match[2] or "s"]


def token(value: int) -> int:
    """Return ``value`` if it can be a fencing token: an int, 1 <= token < 2^63; else ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"a fencing token is an int, not {value!r}")
    if not 1 <= value <= MAX_TOKEN:
        raise ConfigError(f"a fencing token lies between 1 and 2^63-1, not {value}")
    return value


def highest_token() -> int:
    """The largest token that an issuer can have reached by now, if it started at the time in microseconds or below."""
    return time.time_ns() // 1000 + AHEAD


def json_number(value: int) -> int | str:
    """A token or a seq for JSON that others read: text above 2^53-1, where readers that parse doubles lose digits.

    What only fencepost itself reads, a mark kept with its value or the base of a store's tokens, has a form of its own.
    """
    return value if value <= _EXACT_IN_JSON else str(value)


def holder(value: str) -> str:
    """Return ``value`` if it can be a holder's id, or is empty as for a bare token; else ConfigError."""
    return value if value == "" else name(value, "holder")


def stamp(value: Stamp) -> Stamp:
    """Return ``value`` if it can stamp a write; else ConfigError.

    A write's seq starts at 1: 0 is for entering, and is admitted again and again. A seq above 1 needs a holder:
    without one, a guard could not tell apart two clients that share a token.
    """
    token(value.token)
    holder(value.holder)
    seq = value.seq
    if isinstance(seq, bool) or not isinstance(seq, int) or not 1 <= seq <= MAX_TOKEN:
        raise ConfigError(f"the seq of a write lies between 1 and 2^63-1, not {seq!r}")
    if seq > 1 and not value.holder:
        raise ConfigError(f"a stamp with seq {seq} needs a holder; a bare token stands for one write")
    return value
