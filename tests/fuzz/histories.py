"""History files that were spoilt, by bytes and by fields: they are refused with a reason, or checked."""

from __future__ import annotations

import functools
import json
import random
import re
from typing import Any

from fencepost.errors import ConfigError
from fencepost_lab.history.checks import PROMISES, check
from fencepost_lab.history.format import parse_lines
from tests import ROOT
from tests.fuzz.spoil import spoil

_ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 0.5, -0.0, 1e300, -1e300, 2**53 + 1, 2**63 - 1, -(2**63), 10**30, 10**400,
    "", "x", "7", "-7", "1e3", "\u0661", "9" * 5000, "\ud800", "data", "admit", "stale", "unknown", "write", "kill",
    "calm",     [], [1], ["data", "data"], {}, {"a": 1}, [[[]]], list(PROMISES), "live",
]  # fmt: skip
_WORDS = [
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b"null",
    b"1e999",
    b"NaN",
    b"\n",
    b"\\u",
    b"[" * 3000,
    b'"t":-1',
    b'{"t":0}',
]


@functools.cache
def corpus() -> tuple[tuple[bytes, ...], ...]:
    """Short histories, as lines: of two stores, with and without a journal, and a simulated one."""
    found = []
    for path in sorted((ROOT / "tests" / "lab" / "histories").glob("*.jsonl")):
        lines = [re.sub(rb',"lines":\d+', b"", line) for line in path.read_bytes().splitlines()]
        found.append(tuple(lines[:60]))
        run = json.loads(lines[0]) | {"promises": [*PROMISES], "journal": False, "race": 0.1, "ttl": 1, "drift": 0.1}
        found.append((json.dumps(run).encode(), *(line for line in lines[1:70] if b'"access"' not in line)))
    from tests.lab.test_checks import GOOD

    found.append(tuple(json.dumps(line).encode() for line in GOOD))
    return tuple(found)


def history(data: bytes) -> str:
    """It is no history, or all that it promises is kept, broken, or not checked; the report can be written as JSON."""
    try:
        report = check(parse_lines(data, "fuzz"))
    except ConfigError:
        return "refused"
    json.dumps(report.data())
    assert set(report.states().values()) <= {"kept", "broken", "not checked"}
    assert report.ok == (report.verdict != "broken")
    return report.verdict


def _field(rng: random.Random, line: bytes) -> bytes:
    """Another value, another name, or nothing, where a field was."""
    fields: dict[str, Any] = json.loads(line)
    name = (
        rng.choice([*fields])
        if rng.random() < 0.1
        else rng.choice([each for each in fields if each not in ("t", "ev")])
    )
    way = rng.randrange(4)
    if way == 0:
        del fields[name]
    elif way == 1:
        fields[rng.choice(["version", "base", "seq", "mark", "until", "asked", "limit", "lines", "who"])] = rng.choice(
            _ODD
        )
    elif way == 2 and isinstance(fields[name], int | float):
        fields[name] = rng.choice([fields[name] + 1, -fields[name], fields[name] * 1000, str(fields[name])])
    else:
        fields[name] = rng.choice(_ODD)
    return json.dumps(fields).encode("utf-8", "replace")


def case(seed: int) -> str:
    rng = random.Random(seed)
    lines = list(rng.choice(corpus()))
    if rng.random() < 0.1:
        return history(spoil(rng, b"\n".join(lines), _WORDS))
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(lines))
        way = rng.randrange(6)
        if way < 4:
            lines[at] = _field(rng, lines[at])
        elif way == 4:
            lines.insert(at + rng.randrange(2), _field(rng, lines[at]))
        elif len(lines) > 1:
            del lines[at]
    return history(b"\n".join(lines))
