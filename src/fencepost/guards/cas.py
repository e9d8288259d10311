"""The loop of every guard whose store can only compare and swap: read, judge, write unless the value has changed."""

import hashlib
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, NamedTuple

from fencepost import check
from fencepost.driver.backoff import Backoff
from fencepost.errors import BackendError
from fencepost.events import Action, Event, Hook, Hooks
from fencepost.guards.envelope import Content
from fencepost.guards.judgement import Judgement, lowering, moved
from fencepost.guards.policy import Policy
from fencepost.lease import AMBIENT, FenceOrAmbient
from fencepost.rule import Stamp, Verdict, raised

_TRIES = 200
_NAP = 0.05


class Found(NamedTuple):
    """The stored content, and a version that shows later whether it has changed."""

    content: Content
    version: Any


class Guard(ABC):
    """Bytes by resource, each with its mark; any thread may call, and any process.

    Every method raises the Refused of the verdict, and then nothing was changed; BackendError if the store fails. If
    that is ambiguous, the write may have been made: retry it with the same stamp. ConfigError for an invalid name or
    lease. Inside ``with lock:`` the lease need not be passed. The methods block: in asyncio code, call them with
    asyncio.to_thread, which passes the lease of the block on to the thread.
    """

    source: ClassVar[str]

    def __init__(self, hooks: Iterable[Hook] = (), policy: Policy | None = None) -> None:
        self._hooks = tuple(hooks)
        self._policy = policy

    @abstractmethod
    def _load(self, resource: str) -> Found:
        """The content and version that are stored now."""

    @abstractmethod
    def _save(self, resource: str, content: Content, version: Any) -> bool | None:
        """Store ``content`` unless the stored one has changed since ``version``; return whether it was stored.

        None if it has changed, and this same call may have changed it: the client resends a request that got no answer.
        """

    def _prepare(self, *, required: bool) -> None:  # noqa: B027 - most stores need nothing
        """Before the first change: if the store cannot guard, raise ConfigError, or only log it unless ``required``."""

    def _hold(self, resource: str) -> AbstractContextManager[Any]:
        """Exclude other writers during the block, where the store can."""
        return nullcontext()

    def write(self, resource: str, data: bytes, lease: FenceOrAmbient = AMBIENT) -> bool:
        """Keep ``data``. True if this call did it, False if it is a replay of the write that did."""
        return self._change(resource, lambda _: data, lease, hashlib.sha256(data).hexdigest())

    def delete(self, resource: str, lease: FenceOrAmbient = AMBIENT) -> bool:
        """Remove the value; its mark stays, so that older holders remain refused. As ``write`` otherwise."""
        return self._change(resource, lambda _: None, lease, "gone")

    def update(
        self, resource: str, change: Callable[[bytes | None], bytes | None], lease: FenceOrAmbient = AMBIENT
    ) -> None:
        """Read, change and write as one access: what ``change`` returns replaces the value that it was given.

        ``change`` may be called several times, if others write meanwhile.
        """
        # A digest for this call alone: if the store's answer is lost, the mark still shows that the call was made.
        self._change(resource, change, lease, f"update {secrets.token_hex(8)}")

    def read(self, resource: str, lease: FenceOrAmbient = AMBIENT) -> bytes | None:
        """Enter, and return the value as of the same moment; None if there is none."""
        access = self._access(resource, lease, "enter")
        if access.judged:
            self._prepare(required=access.refuses)
        with access.turn(), self._hold(resource):
            for _ in self._tries(resource):
                content, version = self._load(resource)
                if not access.judged:
                    return content.value
                taken = access.take(content.mark)
                verdict = access.weigh(content.mark, taken)
                after = raised(content.mark, taken) if verdict is Verdict.ADMIT else content.mark
                if after == content.mark or self._save(resource, Content(after, None, content.value), version):
                    access.conclude(content.mark, taken, verdict)
                    return content.value
        raise AssertionError("unreachable")

    def enter(self, resource: str, lease: FenceOrAmbient = AMBIENT) -> None:
        """Raise the mark without writing: from here on every older holder is refused."""
        self.read(resource, lease)

    def peek(self, resource: str) -> bytes | None:
        """The value as it is, without entering: for callers that will not write it back."""
        return self._load(check.name(resource, "resource")).content.value

    def mark(self, resource: str) -> Stamp | None:
        """The largest stamp admitted so far."""
        return self._load(check.name(resource, "resource")).content.mark

    def raise_mark(self, resource: str, *, to: int) -> Stamp:
        """Refuse every token up to ``to``, and return the mark. A higher mark stays."""
        check.token(to)
        check.name(resource, "resource")
        self._prepare(required=True)
        with self._hold(resource):
            for _ in self._tries(resource):
                (mark, _, value), version = self._load(resource)
                after = mark if mark and mark.token > to else Stamp(to)
                if after == mark or self._save(resource, Content(after, None, value), version):
                    seen = mark.token if mark else None
                    Hooks(self._hooks)(Event(kind="raise_mark", name=resource, source=self.source, token=to, seen=seen))
                    return after
        raise AssertionError("unreachable")

    def lower_mark(self, resource: str, *, to: int, seen: int) -> Stamp:
        """Lower the mark to ``to`` if its token is still ``seen``, and return it. ConfigError if the mark has changed.

        Use it when a token that no issuer gave out has raised the mark. Every token above ``to`` may write again: make
        sure that no replaced holder is still running.
        """
        after = lowering(resource, to, seen)
        self._prepare(required=True)
        with self._hold(resource):
            for _ in self._tries(resource):
                (mark, _, value), version = self._load(resource)
                if mark is None or mark.token != seen:
                    raise moved(resource, seen, mark)
                if self._save(resource, Content(after, None, value), version):
                    Hooks(self._hooks)(Event(kind="lower_mark", name=resource, source=self.source, token=to, seen=seen))
                    return after
        raise AssertionError("unreachable")

    def _access(self, resource: str, lease: FenceOrAmbient, action: Action) -> Judgement:
        return Judgement(self.source, resource, lease, action, self._hooks, self._policy)

    def _change(
        self,
        resource: str,
        change: Callable[[bytes | None], bytes | None],
        lease: FenceOrAmbient,
        digest: str,
    ) -> bool:
        access = self._access(resource, lease, "write")
        if access.judged:
            self._prepare(required=access.refuses)
        stamp: Stamp | None = None
        saved: bool | None = False
        with access.turn(), self._hold(resource):
            for attempt in self._tries(resource):
                content, version = self._load(resource)
                mark = content.mark
                if not access.judged:
                    if saved is None:
                        raise self._unsure(resource)  # without a mark, nothing shows whether the write was made
                    saved = self._save(resource, content._replace(value=change(content.value)), version)
                    if saved:
                        return True
                    continue
                # All attempts use one stamp, so an attempt that succeeded but lost its answer is seen as a replay.
                stamp = stamp or access.take()
                verdict = access.weigh(mark, stamp)
                done = verdict is Verdict.REPLAY and digest == content.digest
                if saved is None and verdict is not Verdict.ADMIT and not done:
                    raise self._unsure(resource)  # another access came in between: ours was made before it, or never
                if verdict is Verdict.ADMIT:
                    after = Content(raised(mark, stamp), digest, change(content.value))
                elif access.refuses or (done and attempt):  # done, in any mode: an earlier attempt did succeed
                    return access.conclude(mark, stamp, verdict, done=done)
                else:
                    after = content._replace(value=change(content.value))
                saved = self._save(resource, after, version)
                if saved:
                    return access.conclude(mark, stamp, verdict, done=done)
        raise AssertionError("unreachable")

    def _unsure(self, resource: str) -> BackendError:
        return BackendError(
            f"the write to {resource!r} was sent again by the client after it got no answer, and others have written "
            f"since: it may have been made, or not; read again",
            backend=self.source,
            ambiguous=True,
        )

    def _tries(self, resource: str) -> Iterable[int]:
        pauses = Backoff(0.001, _NAP, jitter=True)
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(pauses.next())
            yield attempt
        raise BackendError(
            f"{resource!r} was changed by others {_TRIES} times in a row; its lock is not held by one, or try again",
            backend=self.source,
            ambiguous=False,
        )
