"""Everything fencepost raises. Each error carries its facts as fields and names the next step."""

from typing import Any

from fencepost.rule import Stamp, Verdict

__all__ = [
    "BackendError",
    "ConfigError",
    "FencepostError",
    "ForgedToken",
    "LateWrite",
    "LeaseLost",
    "MissingToken",
    "NotAcquired",
    "QueueFull",
    "Refused",
    "ReplayMismatch",
    "StaleToken",
    "TokenClash",
    "TokenLeap",
]


class FencepostError(Exception):
    """The root of every error fencepost raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(kind: type[FencepostError], args: tuple[Any, ...], fields: dict[str, Any]) -> FencepostError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


class ConfigError(FencepostError, ValueError):
    """The request is invalid: a bad name, ttl, URL or option. Nothing was changed."""


class NotAcquired(FencepostError, TimeoutError):
    """The lock could not be acquired within the timeout; neither a lock nor a queue entry was left behind."""

    def __init__(
        self,
        name: str,
        timeout: float,
        message: str | None = None,
        *,
        holder: str = "",
        label: str = "",
        why: str = "",
    ) -> None:
        who = label or holder or "somebody else"
        who = who if who.isprintable() else repr(who)  # it comes from the store
        why = why or f"{who} holds it; wait longer (timeout=), or look at it with 'fencepost show'"
        super().__init__(message or f"lock {name!r} was not acquired within {timeout:g} s: {why}")
        self.name = name
        self.timeout = timeout
        self.holder = holder
        """The holder of the lock when the time was up; empty if the store did not tell."""
        self.label = label
        """The label of that holder's process, such as ``report.py[4711] deploy@web-1``."""

    def __str__(self) -> str:
        return str(self.args[0])


class QueueFull(NotAcquired):
    """The lock's queue is full, so this client was not queued."""

    def __init__(self, name: str, limit: int) -> None:
        super().__init__(
            name,
            0.0,
            f"lock {name!r} has {limit} waiters already, the most its queue takes; come back later, or raise "
            f"queue_limit=",
        )
        self.limit = limit


class LeaseLost(FencepostError):
    """The holder can no longer be sure that it holds: stop writing, then acquire again."""

    def __init__(self, name: str, token: int, reason: str) -> None:
        super().__init__(f"lease on {name!r} (token {token}) is lost: {reason}; stop, and acquire it again")
        self.name = name
        self.token = token
        self.reason = reason


class BackendError(FencepostError):
    """The store could not be reached, or failed. ``ambiguous``: the request may have taken effect all the same."""

    def __init__(self, message: str, *, backend: str, ambiguous: bool) -> None:
        super().__init__(message)
        self.backend = backend
        self.ambiguous = ambiguous


class Refused(FencepostError):
    """A guard refused an access, and this attempt changed nothing. ``verdict`` says why.

    It does not say whether an earlier attempt with the same stamp, whose answer was lost, changed anything: read again.
    """

    verdict: Verdict

    def __init__(self, message: str, resource: str, offer: Stamp | None, mark: Stamp | None) -> None:
        super().__init__(message)
        self.resource = resource
        self.offer = offer
        self.mark = mark

    @property
    def token(self) -> int | None:
        """The token that was offered."""
        return self.offer.token if self.offer else None

    @property
    def seen(self) -> int | None:
        """The largest token the resource has admitted."""
        return self.mark.token if self.mark else None


class StaleToken(Refused):
    """A newer holder has already accessed the resource: this one was replaced."""

    verdict = Verdict.STALE


class LateWrite(Refused):
    """A newer access of the same lease overtook this one. Nobody was replaced."""

    verdict = Verdict.LATE


class TokenClash(Refused):
    """Two holders have the same token: the issuer repeated itself. This is an alarm."""

    verdict = Verdict.CLASH


class ReplayMismatch(Refused):
    """A write with the very same stamp was admitted before: another one, or one that the guard cannot compare."""

    verdict = Verdict.REPLAY


class MissingToken(Refused):
    """A guarded access came without a token."""

    verdict = Verdict.MISSING


class ForgedToken(Refused):
    """A token without a signature that the guard's keys can verify."""

    verdict = Verdict.FORGED


class TokenLeap(Refused):
    """A token so far above the mark that no issuer can have reached it."""

    verdict = Verdict.LEAP


def refusal(verdict: Verdict, resource: str, offer: Stamp | None, mark: Stamp | None) -> Refused:
    """The error for a verdict that does not admit."""
    if offer is None:
        return MissingToken(
            f"access to {resource!r} carries no token; acquire its lock and pass the lease",
            resource,
            offer,
            mark,
        )
    token, seq, _ = offer
    if verdict is Verdict.FORGED:
        return ForgedToken(
            f"token {token} for {resource!r} carries no signature that this guard can verify; give the issuer "
            f"and the guard a key in common, and the same namespace",
            resource,
            offer,
            mark,
        )
    if verdict is Verdict.LEAP:
        return TokenLeap(
            f"token {token} for {resource!r} leaps too far above {mark.token if mark else 'any first token'}; if its "
            f"issuer really came that far, raise the mark with 'fencepost guard raise', or see Policy(ceiling=)",
            resource,
            offer,
            mark,
        )
    if verdict is Verdict.STALE:
        seen = mark.token if mark else None
        return StaleToken(
            f"stale fencing token for {resource!r}: got {token}, seen {seen}; this holder was replaced: "
            f"stop, and acquire the lock again; if each new holder meets this, its store counts lower: raise that past "
            f"{seen} with 'fencepost bump'",
            resource,
            offer,
            mark,
        )
    if verdict is Verdict.LATE:
        newest = mark.seq if mark else None
        return LateWrite(
            f"late access to {resource!r}: access {seq} under token {token} comes after access {newest} of the "
            f"same lease; send the accesses of one lease in order, and read again if this one is a retry",
            resource,
            offer,
            mark,
        )
    if verdict is Verdict.CLASH:
        why = f"token {token} was issued to two holders; the issuer lost its history: raise it past {token} with "
        why += "'fencepost bump'"
        if mark is not None and not mark.holder:  # then the issuer need not be at fault
            why = f"the mark has token {token} without a holder: somebody raised it by hand, or a client sent the "
            why += "token alone; stop, and acquire the lock again for a larger token"
        return TokenClash(f"token clash on {resource!r}: {why}", resource, offer, mark)
    return ReplayMismatch(
        f"access {seq} under token {token} was made to {resource!r} before, and not known to be this very "
        f"one; each access of a lease takes its own stamp",
        resource,
        offer,
        mark,
    )
