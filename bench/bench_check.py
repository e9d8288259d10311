"""Checking a long history, as ``fencepost check`` does."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.harness import fact
from fencepost_lab.history.checks import check
from fencepost_lab.history.format import Line, lines, load

EVENTS = 1_000_000
PER_LEASE = 5


def history() -> Iterator[Line]:
    """Leases one after the other, each with one guarded increment."""
    yield {"t": 0.0, "ev": "run", "format": 1, "source": "bench", "lock": "l", "key": "k", "promises": ["data"]}
    for number in range(1, EVENTS // PER_LEASE + 1):
        t = round(number / 10_000, 6)
        lease = {"t": t, "who": f"client-{number % 50}", "token": number, "holder": f"{number:032x}"}
        write = lease | {"seq": 1, "value": str(number), "base": number - 1}
        yield lease | {"ev": "acquired", "ttl": 2.0, "asked": t - 0.00005, "until": t + 2.0}
        yield lease | {"ev": "access", "do": "enter", "seq": 0, "verdict": "admit", "mark": number}
        yield write | {"ev": "access", "do": "write", "verdict": "admit", "mark": number, "version": number}
        yield write | {"ev": "wrote", "asked": t, "outcome": "done", "attempts": 1}
        yield lease | {"ev": "releasing"}


@fact("check: seconds of one core for a history of 1,000,000 events", aim=15.0)
def seconds() -> float:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "history.jsonl"
        file.write_text(lines(history()), "utf-8")
        start = time.process_time()
        report = check(load(file), ["data", "order", "exclusion"])
        spent = time.process_time() - start
    assert report.ok, report.violations[0]
    assert report.counts["events"] == EVENTS + 1
    return spent
