"""A guard's decision about one access: find the offer, judge it, tell the hooks, and return or raise the answer."""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple
from weakref import WeakKeyDictionary

from fencepost import ambient, check
from fencepost.driver.fork import at_fork
from fencepost.errors import ConfigError, refusal
from fencepost.events import Action, Event, Hook, Hooks
from fencepost.guards.policy import Policy, current_policy
from fencepost.lease import AMBIENT, Access, BaseLease, Fence, FenceOrAmbient, entering_stamp, stamp
from fencepost.rule import Stamp, Verdict, judge, raised

_log = logging.getLogger("fencepost")
_ALARM = 60.0  # seconds in which a resource's clashes are logged once
_MAX_ALARMS = 100
_alarms: dict[tuple[str, str], float] = {}
_gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside
_NO_TURN = nullcontext()
_turns: WeakKeyDictionary[BaseLease, AbstractContextManager[bool]] = WeakKeyDictionary()


def _forked() -> None:
    global _gate
    _gate = threading.RLock()  # a thread of the parent may have been inside
    _turns.clear()


at_fork(after_in_child=_forked)


class Decision(NamedTuple):
    """What to do: make the access unless it was made before, and keep this mark."""

    fresh: bool
    mark: Stamp | None


class Judgement:
    """One access on its way through a guard.

    Created before the first request to the store. Raises MissingToken, also if ``lease`` is None, or ForgedToken where
    the policy refuses those; ConfigError for an invalid name or lease; LeaseLost for a lease that was granted before
    this process was forked. Where nothing is refused, such a lease counts as none.
    """

    __slots__ = ("_hooks", "_offer", "_policy", "_resource", "_source", "_stance", "action", "judged")

    def __init__(
        self,
        source: str,
        resource: str,
        lease: FenceOrAmbient | None,
        action: Action,
        hooks: Iterable[Hook] = (),
        policy: Policy | None = None,
    ) -> None:
        self._source = source
        self._resource = check.name(resource, "resource")
        self._offer = ambient.find(resource) if lease is AMBIENT else lease
        self.action = action
        self._hooks = hooks
        self._policy = policy or current_policy()
        self._stance = self._policy.stance(resource)
        if isinstance(self._offer, BaseLease) and self._offer._inherited:
            if self._stance.refuses:
                self._offer._require_own()
            self._offer = None
        if self._stance.judges and isinstance(lease, Access) and lease.resource != resource:
            raise ConfigError(
                f"this access is to {lease.resource!r}, not to {resource!r}; take lease.access({resource!r})"
            )
        self.judged = self._stance.judges and self._believed()
        """Whether the mark decides. If not, the access is made, and no mark is read or changed."""
        if self.judged and not self.leased:
            self._stamp()  # raises for an invalid stamp before anything is sent
        if not self._stance.judges and self._stance.tells:
            self._tell(self._stamp(), None, None if self._offer else Verdict.MISSING, None)

    @property
    def leased(self) -> bool:
        """Whether the offer is a lease, which can give another stamp."""
        return isinstance(self._offer, BaseLease)

    def limits(self, offer: Stamp) -> tuple[int | None, int | None]:
        """How far above the mark the token may be, and how high without a mark; None where it needs no limit."""
        return self._policy.limits(offer.token)

    @property
    def refuses(self) -> bool:
        """Whether the policy refuses, for this access, what the rule refuses."""
        return self._stance.refuses

    def take(self, mark: Stamp | None = None) -> Stamp:
        """The stamp of this access; a lease gives a new one each time.

        If a lease enters and its newest stamp is the ``mark`` already, it gives that stamp: there is nothing to raise.
        """
        if mark is not None and self.action == "enter" and isinstance(self._offer, BaseLease):
            return self._offer._entering_stamp(mark)
        taken = self._stamp()
        assert taken is not None, "an access without an offer is not judged"
        return taken

    def turn(self, *, blocking: bool = True) -> AbstractContextManager[object]:
        """A block in which threads that share a lease take their stamps and are judged one after the other."""
        if not (blocking and isinstance(self._offer, BaseLease)):
            return _NO_TURN
        with _gate:
            lock = _turns.get(self._offer)
            if lock is None:
                # Reentrant: the function that changes one value may write another under the same lease.
                lock = _turns[self._offer] = threading.RLock()
        return lock

    def weigh(self, mark: Stamp | None, offer: Stamp) -> Verdict:
        """The verdict on ``offer`` by the rule and the limit on leaps; the hooks are not told."""
        verdict = judge(mark, offer)
        higher = mark is None or offer.token > mark.token
        if higher and self._policy.leaps(mark, offer.token):
            return Verdict.LEAP
        return verdict

    def decide(self, mark: Stamp | None, offer: Stamp, *, same: Callable[[], bool] = lambda: False) -> Decision:
        """Judge ``offer`` against the mark. Raises the Refused of the verdict if it does not pass.

        ``same`` is called only if the offer repeats the mark. It says whether the payload is known to be that of the
        write that set the mark.
        """
        verdict = self.weigh(mark, offer)
        fresh = self.conclude(mark, offer, verdict, done=verdict is Verdict.REPLAY and same())
        return Decision(fresh, raised(mark, offer) if verdict is Verdict.ADMIT else mark)

    def conclude(self, mark: Stamp | None, offer: Stamp | None, verdict: Verdict, *, done: bool = False) -> bool:
        """Tell the hooks the verdict, and return whether to make the access; ``done`` if it was made before.

        Raises the Refused of the verdict where the policy refuses it. An enter may be repeated: it does not change the
        mark, and what it reads then is still fenced.
        """
        refuses = self._stance.demands if verdict is Verdict.MISSING else self._stance.refuses
        passes = verdict is Verdict.ADMIT or (verdict is Verdict.REPLAY and self.action == "enter")
        against = not passes and not (done and refuses)
        if verdict is Verdict.CLASH:
            _alarm(self._source, self._resource, offer, mark)
        self._tell(offer, mark, verdict, refuses if against else None)
        if against and refuses:
            raise refusal(verdict, self._resource, offer, mark)
        return not (done and refuses)

    def _believed(self) -> bool:
        """Whether there is an offer, with a valid signature if it needs one. If not, conclude with that verdict."""
        if self._offer is None:
            self.conclude(None, None, Verdict.MISSING)
            return False
        keys = self._policy.keys
        if keys is None:
            return True
        claim, signature = _claim(self._offer), ""
        if isinstance(self._offer, BaseLease):
            if self._offer._sign is not None:
                signature = self._offer._sign(self._resource, claim)
        elif isinstance(self._offer, Access):
            claim, signature = self._offer.stamp, self._offer.signature  # with its own seq, also if it enters
        if keys.verify(self._resource, claim, signature):
            return True
        self.conclude(None, claim, Verdict.FORGED)
        return False

    def _stamp(self) -> Stamp | None:
        if self._offer is None:
            return None
        return entering_stamp(self._offer) if self.action == "enter" else stamp(self._offer)

    def _tell(self, offer: Stamp | None, mark: Stamp | None, verdict: Verdict | None, enforced: bool | None) -> None:
        if self._hooks:
            Hooks(self._hooks)(
                Event(
                    kind="decision",
                    name=self._resource,
                    source=self._source,
                    token=offer.token if offer else None,
                    holder=offer.holder if offer else None,
                    verdict=verdict,
                    enforced=enforced,
                    action=self.action,
                    seen=mark.token if mark else None,
                    detail=self._stance.mode,
                )
            )


def lowering(resource: str, to: int, seen: int) -> Stamp:
    """The mark that ``lower_mark`` sets; ConfigError if that is invalid, or not lower."""
    check.name(resource, "resource")
    if check.token(to) >= check.token(seen):
        raise ConfigError(f"{to} does not lower a mark of {seen}; raise_mark raises one")
    return Stamp(to)


def moved(resource: str, seen: int, mark: Stamp | None) -> ConfigError:
    """Why a mark is not lowered: it is no longer what the caller saw."""
    now = f"at {mark.token}" if mark else "not there"
    return ConfigError(
        f"the mark of {resource!r} is {now}, and not at {seen}: it is in use, or was lowered already; look at it again"
    )


def _claim(offer: Fence) -> Stamp:
    """The token and holder that an offer names, without taking a stamp from it."""
    if isinstance(offer, BaseLease):
        return Stamp(offer.token, 0, offer.holder)
    return entering_stamp(offer)


def _alarm(source: str, resource: str, offer: Stamp | None, mark: Stamp | None) -> None:
    """Log a clash, at most once a minute for a resource: a client that can make one can make thousands."""
    now = time.monotonic()
    for each in [each for each, until in list(_alarms.items()) if until <= now]:
        _alarms.pop(each, None)
    if (source, resource) not in _alarms and len(_alarms) < _MAX_ALARMS:
        _alarms[source, resource] = now + _ALARM
        _log.error("token clash at %s guard on %r: offered %r, mark %r", source, resource, offer, mark)
