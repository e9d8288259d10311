"""A value and its mark as one byte string, so that every write replaces both.

The first line is ``fencepost 1 {...}`` with the mark as JSON; the value follows, unchanged. Bytes without such a line
are a value that was written before there was a guard; it has no mark.
"""

import json
from typing import NamedTuple

from fencepost import check
from fencepost.errors import BackendError
from fencepost.rule import MAX_TOKEN, Stamp

_MAGIC = b"fencepost 1 "


class Content(NamedTuple):
    """What a guarded file or object holds. The value is None if there is none, or if it was deleted; its mark stays."""

    mark: Stamp | None = None
    digest: str | None = None
    value: bytes | None = None


def pack(content: Content) -> bytes:
    """The bytes that hold a value together with its mark."""
    mark, digest, value = content
    if mark is None and value is not None and not value.startswith(_MAGIC):
        return value
    head: dict[str, str | None] = {}
    if mark is not None:
        # Numbers as text: a reader that parses doubles would lose digits.
        head = {"token": str(mark.token), "seq": str(mark.seq), "holder": mark.holder, "digest": digest}
    if value is None:
        head["gone"] = "yes"
    return _MAGIC + json.dumps(head, separators=(",", ":")).encode() + b"\n" + (value or b"")


def unpack(data: bytes) -> Content:
    """The value and the mark that ``data`` holds; BackendError if its first line is damaged."""
    if not data.startswith(_MAGIC):
        return Content(value=data)
    line, _, value = data[len(_MAGIC) :].partition(b"\n")
    try:
        head = json.loads(line)
        mark = _mark(head) if "token" in head else None
        digest, gone = head.get("digest"), "gone" in head
        if not isinstance(digest, str | None):
            raise TypeError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BackendError(
            f"the mark of a guarded value is damaged ({line[:60]!r}); restore it, then raise it with 'fencepost guard "
            f"raise'",
            backend="envelope",
            ambiguous=False,
        ) from None
    return Content(mark, digest, None if gone else value)


def _mark(head: dict[str, str]) -> Stamp:
    token, seq = check.token(int(head["token"])), int(head["seq"])
    if not 0 <= seq <= MAX_TOKEN:
        raise ValueError
    return Stamp(token, seq, check.holder(head["holder"]))
