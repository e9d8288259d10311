"""Histories: what happened in a run, one JSON object per line, written by the simulator and by the lab alike.

Every line has ``t``, seconds since the run began on one clock that all of the history shares, and
``ev``, its kind. Lines are in the order of ``t``: one that goes back is refused, and so is a kind that is not in
this table. Fields that a writer cannot know are left out or null.
``lock`` and ``key`` name the lock and the resource where they are not those of the ``run`` line.
Tokens are written as ``check.json_number`` has them: above 2^53 - 1 as strings. docs/check.md has the same table
for people who write a recorder.

===========  =====================================================================================
ev           meaning, and its other fields
===========  =====================================================================================
run          the first line, and only that. format (1), promises (what must hold: the names of ``checks.PROMISES``;
             at least one), source (sim, contend...), lock, key, clients, service (its machines), scenario (of a
             simulation), client, fence (of contend);
             journal (false: the resource itself tells nothing, there are no access lines),
             version, value (of the resource at first; version is 0 with a journal, else the first that was read),
             counter (true: the value is 0 at first, and each write makes it one more than its writer read),
             race (two who asked for the lock less than this many seconds apart may be served in either order),
             drift (by this fraction may clocks run faster or slower than the history's),
             grace (so many seconds may a client take to notice, and to clean up; 1),
             ttl (the longest; for the bound of ``live``)
asked        who: a client began to acquire
acquired     who token holder ttl asked until limit: a client has a lease; it asked at ``asked``, and its own clock will
             pass the deadline at ``until``. From here on it believes that it holds. limit: of a share, how many may
             hold at once. Write it before the first access under the lease
renewed      who token holder until: the deadline moved
unrenewed    who token holder until: the store did not answer a renewal
at_risk      who token holder until: a renewal failed or is overdue, and the lease still holds; once per outage
recovered    who token holder until: a lease that was at risk is renewed again
lost         who token holder why: the client noticed that its lease is over. Its belief ends
releasing    who token holder: the client gives the lease back. Its belief ends
released     who token holder asked ok: the answer; false: it was no longer its own; null: no answer
timeout      who asked holder: an acquire gave up
failed       who asked holder why: an acquire failed
cancelled    who asked holder: an acquire was cancelled, and has cleaned up
heeded       who token holder why: a client looked at its lease before an access, and stopped
bumped       who above: a client that was refused although its lease holds raised the issuer past the mark
leader       who token leader: an observer was told that ``leader`` leads the election ``lock`` in the epoch ``token``
granted      token holder until: from here on the service believes that ``holder`` holds
extended     token holder until: the service's own deadline moved
freed        token holder how: the service no longer believes it. how: released, expired, the fault that
             took it, or taken (somebody else ended it, which must never happen)
queued       holder until: ``holder`` waits in the service's queue; if it does not ask again by then, it is passed over
unqueued     holder how: it waits no longer, and was not granted the lock. how: left, silent, or the fault
told         holder: a store told ``holder`` that its renewal came too late
left         holder: the service has confirmed that ``holder`` neither holds nor waits
sent         who do token seq holder value base: a client is about to send an access; do: read, write. If neither read
             nor wrote follows for its holder and seq, nobody knows whether it was made: a client that may be killed
             writes one before each access. Needed only without a journal
read         who token seq holder asked value version: a client's answer to a read;
             with outcome (refused, unknown), verdict, seen if it got none
wrote        who token seq holder asked value base outcome attempts: a client's answer to a write of ``value``, which
             it computed from version ``base``. outcome: done, refused (then verdict, seen), unknown
access       who do token seq holder verdict mark message: the resource judged one access, and ``mark`` is the token
             of its mark afterwards. do: read (not judged), enter, write. A write also has value and base, and
             if it was applied: version, corrupt (an older token than one seen, or applied twice),
             overwrote (how many versions its writer had not read), zombie (its writer no longer
             held the lock, as the service saw it). ``copy``: the network repeated the message
marked       mark: an operator set the resource's mark to this token by hand
message      id src dst what token answers sent fate: a message that left at ``sent`` and ended at ``t``.
             fate: arrived, lost, cut, down (the receiver was dead), flying (the run ended first). answers: the
             request's id. copy: 1 if the network made it
fault        do who ...: pause, resume, kill, restart, cut, heal, skew, jump, slow, failover, lose, evict, calm; as
             the action that caused it. The lab adds drop (connections), repeat (a request), truncate (a file).
             The end of a fault is a line too: resume ends pause, heal cut, restart kill, calm all of them; others
             are over at once. A fault that met several clients has a line for each
note         text: what a guided scenario says at this moment
end          the last line, or the last lines, one for each key: value version mark (of the resource when all was over),
             lines (how many lines come before this one). A simulation adds holder token accepted refused corrupted
             lost_updates waiting unfinished
===========  =====================================================================================
"""

import json
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

from fencepost import check
from fencepost.errors import ConfigError

FORMAT = 1

EVENTS = frozenset(
    (
        "run", "asked", "acquired", "renewed", "unrenewed", "at_risk", "recovered", "lost", "releasing", "released",
        "timeout", "failed", "cancelled", "heeded", "bumped", "leader", "granted", "extended", "freed", "queued",
        "unqueued", "told", "left", "sent", "read", "wrote", "access", "marked", "message", "fault", "note", "end",
    )
)  # fmt: skip
"""Every kind of line."""

Line: TypeAlias = dict[str, Any]

_TOKENS = ("token", "seen", "got", "mark", "above")


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_read = json.JSONDecoder(parse_constant=_no_number).decode


def encode(line: Line) -> str:
    """A line, or a worker's fact, as JSON."""
    tokens = {name: check.json_number(line[name]) for name in _TOKENS if type(line.get(name)) is int}
    return json.dumps(line | tokens, separators=(",", ":"), ensure_ascii=False)


def decode(text: str | bytes) -> Line:
    """What ``encode`` wrote, its tokens as numbers."""
    line: Line = json.loads(text)
    return line | {name: int(line[name]) for name in _TOKENS if isinstance(line.get(name), str)}


def lines(history: Iterable[Line]) -> str:
    """A history as text."""
    return "".join(encode(line) + "\n" for line in history)


def digest(history: Iterable[Line]) -> str:
    """A hash of a history's bytes."""
    return sha256(lines(history).encode()).hexdigest()


ENDINGS = (".jsonl", ".jsonl.gz")
"""How the files of histories are called, as they are and compressed."""
_COMPRESSED = b"\x1f\x8b"  # what a gzip file begins with


def load(path: Path) -> Iterator[Line]:
    """The lines of a history file, also of one that gzip has compressed; ConfigError naming the first that is none."""
    import gzip  # only here: the simulator's page reads none
    import zlib

    try:
        with path.open("rb") as file:
            if file.peek(2)[:2] == _COMPRESSED:
                with gzip.GzipFile(fileobj=file) as inner:
                    yield from _parsed(inner, str(path))
            else:
                yield from _parsed(file, str(path))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ConfigError(f"cannot read {str(path)!r}: {error}; copy it again, or record it again") from error
    except OSError as error:
        raise ConfigError(f"cannot read {str(path)!r}: {error.strerror}") from error


def save(path: Path, history: Iterable[Line]) -> None:
    """Write a history compressed; the same history gives the same bytes."""
    import gzip

    path.write_bytes(gzip.compress(lines(history).encode(), 9, mtime=0))


def parse_lines(text: str | bytes, name: str) -> Iterator[Line]:
    """The lines of a history that is in memory; ConfigError naming the first one that is none."""
    return _parsed(text.encode().splitlines() if isinstance(text, str) else text.splitlines(), name)


def _parsed(given: Iterable[bytes], name: str) -> Iterator[Line]:
    for number, text in enumerate(given, 1):
        try:
            line = _read(text.decode())
        except (ValueError, RecursionError):
            line = None
        if not isinstance(line, dict) or not isinstance(line.get("ev"), str) or type(line.get("t")) not in (int, float):
            raise ConfigError(f"{name}:{number} is not a line of a history: a JSON object with t and ev")
        yield line
