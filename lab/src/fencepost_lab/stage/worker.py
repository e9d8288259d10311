"""A worker: acquires a lock, works, writes to the resource with its token, releases.

Unless it is given a margin it never looks whether its lease still holds: whatever it found, a pause can come right
after it. What it does then is the resource's to judge.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import Any, TypeAlias

from fencepost.driver import boottime
from fencepost.errors import BackendError, ConfigError, LeaseLost
from fencepost.events import Hook
from fencepost.lease import Access
from fencepost.sync import Lease, Locks, connect
from fencepost_lab.servers.freeze import freeze
from fencepost_lab.stage.client import Reply
from fencepost_lab.stage.job import Edit, Job, PauseAt, PauseMode
from fencepost_lab.stage.target import REFUSED, open_target

Fact: TypeAlias = dict[str, Any]
"""One thing a worker did or met: ``event`` names it, ``at`` is the instant on this host's boot-time clock."""

_REFUSED = (REFUSED, 428)


@dataclass(slots=True)
class Tally:
    """How a worker's rounds went."""

    accepted: int = 0
    refused: int = 0
    lost: int = 0


def _at_once(step: str) -> None:
    pass


class Worker:
    """Does one job, and tells each thing it does as a fact.

    ``step`` is called with the name of each step before it is taken: acquire, read, write, release.
    """

    def __init__(self, job: Job, tell: Callable[[Fact], None], *, step: Callable[[str], None] = _at_once) -> None:
        self._job = job
        self._tell = tell
        self._step = step
        self._target = open_target(job.resource, patience=job.patience)
        self.tally = Tally()
        self._idle: Callable[[], AbstractContextManager[object]] | None = None

    def run(self, hooks: Iterable[Hook] = ()) -> Tally:
        """Do all rounds. Raises NotAcquired, BackendError, ConfigError; a refused round is no error."""
        with connect(self._job.backend, hooks=hooks) as locks, closing(self._target):
            self._idle = getattr(locks._core.backend, "idle", None)  # SQLite's: see freeze
            for _ in range(self._job.iterations):
                self._round(locks)
        return self.tally

    def _say(self, event: str, **facts: Any) -> None:
        self._tell({"event": event, "worker": self._job.name, "at": boottime(), **facts})

    def _round(self, locks: Locks) -> None:
        job = self._job
        self._step("acquire")
        lease = locks.acquire(job.key, ttl=job.ttl, timeout=job.timeout, renew=job.renew)
        self._say("acquired", token=lease.token, holder=lease.holder, ttl=lease.ttl, since=lease.since)
        for number in range(1, job.writes + 1):
            made = self._write(lease, number, again=True)
            if made is None:
                made = self._write(lease, number, again=False)
            if not made:
                break
        self._step("release")
        why = "it was replaced before it was released"
        try:
            lease.check()
        except LeaseLost as lost:
            why = lost.reason
        if lease.release():
            self._say("released", token=lease.token)
        else:
            self.tally.lost += 1
            self._say("lost", token=lease.token, reason=why)

    def _write(self, lease: Lease, number: int, *, again: bool) -> bool | None:
        """Read, change and write back once; False if that was refused or is too late.

        None if there was no answer, and there may be one to another try: BackendError if there is not.
        """
        job, target = self._job, self._target
        pause_at = job.pause_at if job.pause and number == 1 else None
        if pause_at is PauseAt.BEFORE_READ:
            self._pause()
        self._step("read")
        access = lease.access(job.key) if job.fence and job.enter else None
        reply = target.read(job.key, access)
        if reply.status in _REFUSED:
            return self._refused("read", lease, access, reply)
        text = "" if reply.status == 404 else _expect(reply).body.decode("utf-8", "replace")
        self._say("read", **_stamp(lease, access), value=text, number=number, of=job.writes)
        time.sleep(job.work)
        if pause_at is PauseAt.BEFORE_WRITE:
            self._pause()
        self._step("write")
        if not self._holds(lease):
            return False
        access = lease.access(job.key) if job.fence else None
        value = _edited(job, text, number)
        write = {**_stamp(lease, access), "value": value, "number": number, "of": job.writes}
        target.send(job.key, value.encode(), access)
        self._say("sent", **write, lost=lease.lost, left=round(lease.deadline - boottime(), 6))
        if pause_at is PauseAt.AFTER_SEND:
            self._pause()
        try:
            reply = target.answer()
        except BackendError as error:
            if not error.ambiguous or not again:
                raise
            self._say("unanswered", **write, why=str(error))
            return None
        if reply.status in _REFUSED:
            return self._refused("write", lease, access, reply)
        self.tally.accepted += 1
        made = {"replay": bool(_expect(reply).facts.get("replay"))} | self._status(reply)
        self._say("accepted", **write, **made)
        return True

    def _holds(self, lease: Lease) -> bool:
        """Whether it may still write, as far as it looks."""
        if self._job.margin is None:
            return True
        try:
            lease.check(margin=self._job.margin)
        except LeaseLost as lost:
            left = round(lease.deadline - boottime(), 6)
            self._say("heeded", token=lease.token, holder=lease.holder, left=left, reason=lost.reason)
            return False
        return True

    def _status(self, reply: Reply) -> Fact:
        return {"status": reply.status} if self._target.http else {}

    def _refused(self, step: str, lease: Lease, access: Access | None, reply: Reply) -> bool:
        self.tally.refused += 1
        facts: Fact = {name: int(reply.facts[name]) for name in ("seen", "got") if name in reply.facts}
        said = _stamp(lease, access) | self._status(reply) | facts
        self._say("refused", step=step, verdict=reply.verdict, **said)
        return False

    def _pause(self) -> None:
        job = self._job
        self._say("paused", mode=job.pause_mode, seconds=job.pause)
        if job.pause_mode is PauseMode.STOP:
            passed = freeze(job.pause, self._idle() if self._idle else None)
        else:
            start = boottime()
            time.sleep(job.pause)
            passed = boottime() - start
        self._say("resumed", mode=job.pause_mode, seconds=passed)


def _stamp(lease: Lease, access: Access | None) -> Fact:
    """What is said of the stamp that an access carries; ``fenced`` says whether it carries one."""
    return {"token": lease.token, "fenced": access is not None} | ({"seq": access.stamp.seq} if access else {})


def _expect(reply: Reply) -> Reply:
    """The reply, if it is a success; BackendError for anything that is neither that nor a refusal."""
    if reply.status != 200:
        raise BackendError(
            f"the resource answered {reply.status}: {reply.facts.get('error', reply.body[:80])!s}",
            backend="resource",
            ambiguous=reply.status >= 500,
        )
    return reply


def _edited(job: Job, text: str, number: int) -> str:
    if job.edit is Edit.APPEND:
        return f"{text}{job.name}: line {number} of {job.writes}\n"
    try:
        return str(int(text or "0") + 1)
    except ValueError:
        raise ConfigError(f"{job.key!r} holds {text[:40]!r}, which cannot be counted up; use another --key") from None
