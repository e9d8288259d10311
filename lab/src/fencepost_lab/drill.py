"""A drill: freeze a holder of the user's own past its ttl, wake it, and see whether a guard refuses what it does then.

Nothing is killed. The process is woken whatever happens: at the end, on an error, on Ctrl-C, and by a watchdog
process if this one dies.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fencepost.backend import Status
from fencepost.errors import BackendError, ConfigError
from fencepost.rule import Verdict
from fencepost.sync import Locks
from fencepost_lab.servers.freeze import is_stopped, state
from fencepost_lab.servers.processes import wait_until

REFUSED, ADMITTED, NOTHING = "refused", "admitted", "nothing seen"
_LOOK = 0.05

# It outlives us, and Ctrl-C. The pipe tells it when we are gone; a process that has another start than the one that was
# frozen is another one.
_WATCHDOG = """\
import os, select, signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
pid, start, command, patience = int(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])
def begun():
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[19]
    except OSError:
        return "" if os.path.exists("/proc/self/stat") else start
print(flush=True)
if select.select([0], [], [], patience)[0] and os.read(0, 1):
    sys.exit()
if command:
    subprocess.run(command, shell=True)
elif begun() == start:
    os.kill(pid, signal.SIGCONT)
"""


@dataclass(frozen=True)
class Target:
    """Who is frozen: a process of this host, or whatever two commands freeze and thaw."""

    pid: int | None = None
    freeze: str = ""
    thaw: str = ""

    @property
    def text(self) -> str:
        return f"process {self.pid} ({_command_of(self.pid)})" if self.pid is not None else f"{self.freeze!r}"


@dataclass
class Evidence:
    """What a drill saw."""

    lock: str
    outcome: str = NOTHING
    token: int | None = None
    """Of the lease that was frozen."""
    successor: int | None = None
    frozen: float = 0.0
    lines: list[str] = field(default_factory=list)
    facts: list[dict[str, Any]] = field(default_factory=list)

    def note(self, line: str) -> None:
        self.lines.append(line)

    def data(self) -> dict[str, Any]:
        return {
            "lock": self.lock,
            "outcome": self.outcome,
            "token": self.token,
            "successor": self.successor,
            "frozen_seconds": round(self.frozen, 3),
            "evidence": self.lines,
            "events": self.facts,
        }


def checked(target: Target) -> Target:
    """The target, if it may be frozen; ConfigError that says why not."""
    if (target.pid is None) == (not target.freeze):
        raise ConfigError("name what to freeze: --pid, or --freeze-command together with --thaw-command")
    if target.pid is None:
        if not target.thaw:
            raise ConfigError("--freeze-command needs --thaw-command: what is frozen must be woken")
        return target
    pid = target.pid
    if target.thaw:
        raise ConfigError("--thaw-command is for --freeze-command; a --pid is woken by SIGCONT")
    if pid <= 0:
        raise ConfigError(f"{pid} is no process id")
    if pid == 1:
        raise ConfigError("process 1 is this system's, or this container's, first process: it is not frozen")
    if pid in (mine := _ancestors()):
        who = "this command itself" if pid == mine[0] else "a parent of this command, which would stop with it"
        raise ConfigError(f"process {pid} is {who}; name the holder")
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        raise ConfigError(f"there is no process {pid} on this host; 'pgrep -af NAME' finds it") from None
    except PermissionError:
        raise ConfigError(f"process {pid} belongs to another user; run the drill as that user, or as root") from None
    if state(pid) in ("Z", "X", ""):
        raise ConfigError(f"process {pid} has ended")
    if is_stopped(pid):
        raise ConfigError(f"process {pid} is stopped already; wake it first: kill -CONT {pid}")
    return target


def _ancestors() -> list[int]:
    """This process, its parent, and so on."""
    found = [os.getpid()]
    with contextlib.suppress(OSError, ValueError, IndexError):
        while found[-1] > 1:
            stat = Path(f"/proc/{found[-1]}/stat").read_text()
            found.append(int(stat.rpartition(")")[2].split()[1]))
    return found if len(found) > 1 else [os.getpid(), os.getppid()]


def _command_of(pid: int | None) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return shlex.join(word.decode(errors="replace") for word in words if word)[:100]
    return "?"


@contextlib.contextmanager
def frozen(target: Target, longest: float) -> Iterator[None]:
    """Frozen inside the block, and awake afterwards, whatever happens; after ``longest`` seconds at the latest."""
    start = _begun(target.pid) if target.pid is not None else ""
    arguments = [str(target.pid or 0), start, target.thaw, str(longest)]
    watchdog = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WATCHDOG, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert watchdog.stdin is not None
    assert watchdog.stdout is not None
    try:
        if not watchdog.stdout.readline():
            raise ConfigError("the watchdog that wakes the holder did not start, so nothing was frozen")
        try:
            _freeze(target)
            yield
        finally:
            _thaw(target)
            with contextlib.suppress(BrokenPipeError):
                watchdog.stdin.write(b"x")  # it is not needed any more
                watchdog.stdin.flush()
    finally:
        with contextlib.suppress(BrokenPipeError):
            watchdog.stdin.close()
        watchdog.stdout.close()
        watchdog.wait()


def _begun(pid: int) -> str:
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def _freeze(target: Target) -> None:
    if target.pid is None:
        done = subprocess.run(target.freeze, shell=True, capture_output=True, text=True)
        if done.returncode:
            raise ConfigError(f"--freeze-command failed with {done.returncode}: {done.stderr.strip()[-300:]}")
        return
    try:
        os.kill(target.pid, signal.SIGSTOP)
    except ProcessLookupError:
        raise ConfigError(f"process {target.pid} ended before it was frozen") from None
    pid = target.pid
    if not wait_until(lambda: is_stopped(pid), timeout=10, poll=0.002):
        raise ConfigError(f"process {pid} was sent SIGSTOP, and did not stop")


def _thaw(target: Target) -> None:
    if target.pid is None:
        done = subprocess.run(target.thaw, shell=True, capture_output=True, text=True)
        if done.returncode:
            raise BackendError(
                f"--thaw-command failed with {done.returncode}: {done.stderr.strip()[-300:]}; WAKE IT BY HAND",
                backend="drill",
                ambiguous=True,
            )
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(target.pid, signal.SIGCONT)


class Tail:
    """What is appended to an audit log from now on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._size = path.stat().st_size
        except OSError as error:
            raise ConfigError(f"the audit log {str(path)!r} cannot be read: {error.strerror}") from error
        self._inode = path.stat().st_ino

    def read(self) -> list[dict[str, Any]]:
        """The new lines that are whole."""
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:
            stat = os.fstat(file.fileno())
            if stat.st_ino != self._inode or stat.st_size < self._size:  # rotated, or truncated
                self._inode, self._size = stat.st_ino, 0
            file.seek(self._size)
            whole, _, _ = file.read().rpartition(b"\n")
            self._size += len(whole) + 1 if whole else 0
            found = []
            for line in whole.splitlines():
                with contextlib.suppress(ValueError):
                    found.append(json.loads(line))
            return found
        return []


_SAMPLE = re.compile(r"^(?P<name>\w+)(?:\{(?P<labels>.*)\})?\s+(?P<value>[-+.\deEinfNa]+)")
_WATCHED = ("fencing_reject_total", "fencing_would_reject_total", "lease_expired_while_executing_total")


def scrape(url: str, *, timeout: float = 5.0) -> dict[str, float]:
    """The counters of a metrics endpoint that tell of guards; ConfigError if there is none."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"a metrics endpoint is an http:// URL, not {url!r}")
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            text = answer.read().decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        raise ConfigError(f"no metrics at {url}: {error}") from error
    found: dict[str, float] = {}
    for line in text.splitlines():
        sample = _SAMPLE.match(line)
        if sample and sample["name"].endswith(_WATCHED):
            with contextlib.suppress(ValueError):
                found[f"{sample['name']}{{{sample['labels'] or ''}}}"] = float(sample["value"])
    return found


@dataclass
class Drill:
    """One drill on one lock."""

    locks: Locks
    name: str
    target: Target
    audits: list[Tail]
    metrics: list[str]
    wait: float = 60.0
    """Seconds until the lock must be held, and until it must have passed on."""
    watch: float = 10.0
    """Seconds to watch what the holder does once it is awake."""
    say: Callable[[str], None] = lambda _: None

    def run(self) -> Evidence:
        """Freeze, wait, thaw, watch. Raises ConfigError, and BackendError if the store does not answer."""
        evidence = Evidence(self.name)
        held = self._until(lambda status: status is not None, self.wait)
        if held is None:
            evidence.note(f"nobody held {self.name!r} within {self.wait:g} s, so there was nothing to freeze")
            return evidence
        before = {url: scrape(url) for url in self.metrics}
        begun = time.monotonic()
        with frozen(self.target, 2 * self.wait + 30):
            begun = time.monotonic()
            self.say(f"frozen: {self.target.text}")
            held = self.locks.status(self.name)
            if held is not None:
                evidence.token = held.token
                evidence.note(f"{self.target.text} was frozen while {self.name!r} was held under token {held.token}")
                self._outlast(held, evidence)
        evidence.frozen = time.monotonic() - begun
        self.say(f"awake again after {evidence.frozen:.1f} s")
        if held is None:
            evidence.note(f"{self.name!r} was released just before the holder was frozen; run the drill again")
            return evidence
        if evidence.successor is not None or self.audits:
            self._watch(evidence, before)
        return evidence

    def _until(self, true: Callable[[Status | None], bool], seconds: float) -> Status | None:
        end = time.monotonic() + seconds
        while True:
            status = self.locks.status(self.name)
            if true(status) or time.monotonic() >= end:
                return status if true(status) else None
            time.sleep(_LOOK)

    def _outlast(self, held: Status, evidence: Evidence) -> None:
        """Wait until the lock has passed on to somebody else."""
        end = time.monotonic() + self.wait
        least = held.remaining
        free = False
        while time.monotonic() < end:
            status = self.locks.status(self.name)
            if status is not None and status.token > held.token:
                evidence.successor = status.token
                evidence.note(f"the lock passed on under token {status.token}, while the holder was frozen")
                # The newer holder must have been at the resource, or no guard knows of it.
                self._entered(evidence, end)
                return
            if status is not None and status.token == held.token and status.remaining > least + 0.25 * held.remaining:
                evidence.note(
                    "the lease was renewed while it was frozen: another process holds the lock; name that one"
                )
                return
            if status is None and not free:
                free = True
                evidence.note("the lease expired at the store")
            least = min(least, status.remaining) if status is not None else least
            time.sleep(_LOOK)
        why = "nobody else wanted the lock" if free else "the lock did not pass on"
        evidence.note(f"{why} within {self.wait:g} s: start a second worker that wants it, or give --wait more time")

    def _entered(self, evidence: Evidence, end: float) -> None:
        if not self.audits:
            time.sleep(min(1.0, max(0.0, end - time.monotonic())))
            return
        while time.monotonic() < end:
            for fact in self._news(evidence):
                if _decided(fact) and _token(fact) is not None and _token(fact) == evidence.successor:
                    evidence.note(f"the newer holder was at {fact['name']!r} ({fact['source']} guard)")
                    return
            time.sleep(_LOOK)
        evidence.note("the newer holder was not seen at any guard")

    def _news(self, evidence: Evidence) -> list[dict[str, Any]]:
        found = [fact for tail in self.audits for fact in tail.read()]
        evidence.facts += [fact for fact in found if _token(fact) in (evidence.token, evidence.successor)]
        return found

    def _watch(self, evidence: Evidence, before: dict[str, dict[str, float]]) -> None:
        """Look at what the holder does now that it is awake."""
        end = time.monotonic() + self.watch
        lost = False
        while time.monotonic() < end:
            for fact in self._news(evidence):
                if _token(fact) != evidence.token:
                    continue
                if _decided(fact):
                    self._judge(fact, evidence)
                lost = lost or fact.get("kind") == "lost"
            for url, known in before.items():
                self._compare(url, known, evidence)
            if evidence.outcome != NOTHING:
                return
            time.sleep(_LOOK if self.audits else 0.25)
        if lost:
            evidence.note("the holder noticed that its lease was lost, and made no access: it gave up by itself")
        else:
            evidence.note(f"no access of the frozen holder was seen within {self.watch:g} s; see --audit and --metrics")

    def _judge(self, fact: dict[str, Any], evidence: Evidence) -> None:
        what = f"its {fact.get('action', 'access')} to {fact['name']!r} under token {evidence.token}"
        guard = f"the {fact['source']} guard"
        seen = fact.get("seen")
        verdict = fact.get("verdict")
        if fact.get("enforced") is True:
            evidence.outcome = REFUSED
            evidence.note(f"REFUSED: {guard} refused {what} as {verdict}: it had seen token {seen}")
        elif fact.get("enforced") is False:
            evidence.outcome = ADMITTED
            evidence.note(
                f"NOT REFUSED: {guard} judged {what} as {verdict}, and let it pass: its policy does not enforce"
            )
        elif verdict == Verdict.ADMIT and evidence.successor is not None:
            evidence.outcome = ADMITTED
            why = (
                f"had not met token {evidence.successor}"
                if seen is None or int(seen) <= (evidence.token or 0)
                else "erred"
            )
            evidence.note(f"NOT REFUSED: {guard} admitted {what} after it had been replaced; the guard {why}")

    def _compare(self, url: str, known: dict[str, float], evidence: Evidence) -> None:
        try:
            now = scrape(url)
        except ConfigError:
            return  # it may still be waking up
        grown = {name: value - known.get(name, 0.0) for name, value in now.items() if value > known.get(name, 0.0)}
        for name, by in grown.items():
            if "fencing_would_reject_total" in name:
                evidence.outcome = ADMITTED
                evidence.note(f"NOT REFUSED: {url} has {name} +{by:g}: a guard that does not enforce let it pass")
            elif "fencing_reject_total" in name and 'verdict="stale"' in name:
                evidence.outcome = REFUSED
                evidence.note(f"REFUSED: {url} has {name} +{by:g} since the freeze")


def _decided(fact: dict[str, Any]) -> bool:
    return fact.get("kind") == "decision"


def _token(fact: dict[str, Any]) -> int | None:
    token = fact.get("token")
    return None if token is None else int(token)
