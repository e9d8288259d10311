"""Tells hooks what happens to the locks of other libraries, and makes leases of their holds, for guards."""

import logging
import os
import threading
from math import inf
from typing import Any, Final, NoReturn

from fencepost import ambient, check, holders
from fencepost.driver import boottime
from fencepost.driver.fork import at_fork
from fencepost.driver.threads import Blocking
from fencepost.errors import ConfigError
from fencepost.events import Event, Hook, Hooks, Kind
from fencepost.hooks.audit import Audit
from fencepost.hooks.log import Log
from fencepost.lease import BaseLease, Grant, Reason

_log = logging.getLogger("fencepost")
_hooks: Hooks | None = None
_gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside


def observe(*hooks: Hook) -> None:
    """Tell these hooks, from now on, what happens to the compat locks of this process.

    Without a call, losses are logged as warnings, and everything is written to the audit log that $FENCEPOST_AUDIT
    names, if it is set; ``fencepost guard report`` reads that.
    """
    global _hooks
    _hooks = Hooks(hooks)


def _observers() -> Hooks:
    global _hooks
    if _hooks is None:
        with _gate:
            if _hooks is None:
                found = _by_default()
                if _hooks is None:
                    _hooks = Hooks(found)
                else:  # meanwhile observe() was called, or this function, by code that interrupted it
                    for hook in found:
                        if isinstance(hook, Audit):
                            hook.close()
    return _hooks


def _by_default() -> list[Hook]:
    found: list[Hook] = [Log()]
    if path := os.environ.get("FENCEPOST_AUDIT"):
        try:
            found.append(Audit(path))
        except ConfigError as error:  # a lock that worked before must go on working
            _log.error("$FENCEPOST_AUDIT: %s", error)
    return found


def _forked() -> None:
    global _gate
    _gate = threading.RLock()  # a thread of the parent may have been inside


at_fork(after_in_child=_forked)


class _Original:
    """Takes the place of a lease's core: the other library grants, extends and releases the lock, not the lease."""

    driver = Blocking()


class Lease(BaseLease):
    """The hold of a lock of another library. Pass it to a guard; extend and release it through that lock."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        """A copy would number its accesses as this lease does, and a guard would take them for the same ones."""
        raise TypeError(f"cannot copy or pickle the lease of {self.name!r}; pass on lease.access(...) or its headers")


class Hold:
    """One hold of a lock, from its grant to its end.

    ``ttl`` is None if the lock never expires, ``token`` is None if none could be minted: then there is no lease.
    """

    def __init__(self, source: str, name: str, value: str | bytes, token: int | None, ttl: float | None, since: float):
        self.source: Final = source
        self.name: Final = name
        self.since: Final = since
        self.holder: Final = _holder(value)
        self.token: Final = token
        self.deadline = inf if ttl is None else since + ttl
        self.lease: Lease | None = None
        self._over = False
        if token is not None:
            grant = Grant(token, inf if ttl is None else ttl, since)
            self.lease = Lease(_Original(), name, self.holder, grant, False, None)  # type: ignore[arg-type]

    def tell(self, kind: Kind, **facts: Any) -> None:
        tell(self.source, kind, self.name, token=self.token, holder=self.holder, **facts)

    def acquired(self, asked: float) -> None:
        self.tell("acquired", seconds=boottime() - asked)

    def extended(self, deadline: float) -> None:
        """The store keeps it until ``deadline`` at least."""
        self.deadline = deadline
        if self.lease is not None:
            self.lease.deadline = deadline
        self.tell("renewed")

    def released(self) -> None:
        """It was released while it was held."""
        self._end(Reason.RELEASED)
        self.tell("released", seconds=boottime() - self.since)

    def unconfirmed(self) -> None:
        """Its release failed, and may have happened."""
        self._end(Reason.UNCONFIRMED)

    def gone(self, *, releasing: bool = False) -> None:
        """Its release, or an attempt to extend it, found that the lock is held no longer."""
        if releasing:
            self.tell("not_owner")
        # Allow for a server's clock that runs one percent fast: there the lock expires that much earlier.
        expired = self.deadline < inf and boottime() >= self.deadline - (self.deadline - self.since) / 100
        if self._end(Reason.EXPIRED if expired else Reason.GONE):
            detail = "its deadline has passed" if expired else "it was released or taken by another"
            self.tell("lost", detail=detail, seconds=boottime() - self.since)

    def _end(self, reason: Reason) -> bool:
        """End it, once; say whether this call did."""
        with _gate:
            first, self._over = not self._over, True
        if first and self.lease is not None:
            self.lease._end(reason)
        return first


class Blocks:
    """The ``with`` blocks of one lock: guards inside find the lease by the lock's name."""

    def __init__(self) -> None:
        self._entered: list[Lease] = []

    def enter(self, lease: Lease | None) -> None:
        if lease is not None:
            self._entered.append(lease)
            ambient.push(lease)

    def leave(self) -> None:
        """Leave the innermost block of this thread or task; others may be inside, if the lock has expired."""
        around = ambient.held()
        for lease in reversed(self._entered):
            if any(each is lease for each in around):
                self._entered.remove(lease)
                ambient.pop(lease)
                return


def asked(source: str, name: str) -> float:
    """Tell the hooks that an acquire begins; return the instant."""
    tell(source, "attempt", name)
    return boottime()


def gave_up(source: str, name: str, asked: float) -> None:
    """Tell the hooks that an acquire ended without the lock."""
    tell(source, "timeout", name, seconds=boottime() - asked)


def tell(source: str, kind: Kind, name: str, **facts: Any) -> None:
    _observers()(Event(kind=kind, name=name, source=source, **facts))


def text(name: Any) -> str:
    """A lock's name, or the value of its key, as text for events and stamps."""
    if isinstance(name, bytes | bytearray | memoryview):
        return bytes(name).decode("utf-8", "backslashreplace")
    return str(name)  # redis-py takes numbers too


def _holder(value: str | bytes) -> str:
    """The value of the lock's key, which says who holds it; a random id if a stamp cannot carry that value."""
    try:
        return check.name(text(value), "holder")
    except ConfigError:
        return holders.random_holder()
