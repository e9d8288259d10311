"""How far a guard goes: from doing nothing to refusing everything that carries no token.

A rollout goes up these steps, one guard at a time, and each is safe to stay on:

    off          the guard does nothing at all
    passive      every access is told to the hooks, with its token; no store is asked, nothing is judged
    shadow       judged and counted, never refused: hooks get what it would have refused as ``enforced=False``
    canary:10%   refuses for a tenth of the resources, always the same ones; the others stay in shadow
    enforce      refuses what the rule refuses; an access without a token is counted and let through
    strict       refuses an access without a token too; this is the default
"""

import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Literal, NamedTuple, TypeAlias

from fencepost import check
from fencepost.errors import ConfigError
from fencepost.events import Event, Hook, Hooks
from fencepost.rule import Stamp
from fencepost.signing import Keys

__all__ = ["Policy", "current_policy", "default_policy"]

Ceiling: TypeAlias = Literal["on", "off"]
"""Whether a token that no issuer can have come to is refused; see `Policy`."""

STEPS = ("off", "passive", "shadow", "canary", "enforce", "strict")
_CANARY = re.compile(r"canary:(\d{1,3}(?:\.\d+)?)%")
_log = logging.getLogger("fencepost")


class Stance(NamedTuple):
    """What a guard does about one resource at this moment."""

    mode: str
    tells: bool = True
    judges: bool = True
    refuses: bool = True
    demands: bool = True
    """Whether an access without a token is refused."""


STRICT = Stance("strict")
_FIXED = {
    "off": Stance("off", tells=False, judges=False, refuses=False, demands=False),
    "passive": Stance("passive", judges=False, refuses=False, demands=False),
    "shadow": Stance("shadow", refuses=False, demands=False),
    "enforce": Stance("enforce", demands=False),
    "strict": STRICT,
}


def fraction(mode: str) -> float:
    """The fraction of resources, 0 to 1, for which ``mode`` refuses; ConfigError if there is no such mode."""
    # A feature flag that is not set may return None, or anything else.
    known = isinstance(mode, str)
    if known and mode in _FIXED:
        return float(_FIXED[mode].refuses)
    match = _CANARY.fullmatch(mode) if known else None
    if not match or float(match[1]) > 100:
        raise ConfigError(f"no mode {mode!r}; there are off, passive, shadow, canary:10%, enforce and strict")
    return float(match[1]) / 100


def position(resource: str) -> float:
    """A number from 0 to 1 that is always the same for a resource: a canary takes those below its fraction."""
    return int.from_bytes(hashlib.sha256(resource.encode(errors="surrogatepass")).digest()[:7], "big") / 2**56


def has_ceiling(ceiling: Ceiling) -> bool:
    """Whether the ceiling is on; ConfigError if it is neither ``on`` nor ``off``."""
    if ceiling not in ("on", "off"):
        raise ConfigError(f"a ceiling is 'on' or 'off', not {ceiling!r}")
    return ceiling == "on"


class Policy:
    """How far its guards go, which tokens they accept, and how far a token may leap.

    ``mode`` may be changed at any time, and applies from the next access on. If it is a callable, it is called at
    each access, so that a feature flag can control it; if it raises, or returns no valid mode, the last mode stays.
    With ``keys``, only signed tokens pass.

    A token that no issuer can have come to is refused (TokenLeap): one that is more than a day of microseconds above
    both the mark and the present time. Otherwise one client that sends 2^63-1 would lock everybody out.
    ``ceiling="off"`` removes this limit. ``max_jump`` is a stricter one for issuers that count: a token may exceed the
    mark's by at most this much, and a resource without a mark accepts tokens up to ``max_first``; by default that is
    ``max_jump`` above the present time in microseconds.

        policy = Policy("shadow")
        guard = MemoryGuard(policy=policy)
        policy.mode = "canary:10%"
    """

    def __init__(
        self,
        mode: str | Callable[[], str] = "strict",
        *,
        keys: Keys | None = None,
        max_jump: int | None = None,
        max_first: int | None = None,
        ceiling: Ceiling = "on",
    ) -> None:
        self._source = mode if callable(mode) else None
        self._mode = "strict"
        self.mode = mode() if callable(mode) else mode
        self.keys = keys
        self.max_jump = None if max_jump is None else check.token(max_jump)
        self._max_first = None if max_first is None else check.token(max_first)
        self._ceiling = has_ceiling(ceiling)
        self._override = (0.0, "")

    @property
    def mode(self) -> str:
        """The step this policy is on."""
        if self._source is not None:
            try:
                said = self._source()
                if said != self._mode:
                    self.mode = said
            except Exception as error:  # whatever their lookup raises
                _log.error("a guard stays in mode %s: %s: %s", self._mode, type(error).__name__, error)
        return self._mode

    @mode.setter
    def mode(self, mode: str) -> None:
        self._fraction = fraction(mode)
        self._mode = mode

    def limits(self, token: int) -> tuple[int | None, int | None]:
        """How far above the mark ``token`` may be, and how high without a mark; None where it needs no limit."""
        jump, first = self.max_jump, self._max_first
        if first is None and jump is not None:
            first = time.time_ns() // 1000 + jump
        if self._ceiling and token > (highest := check.highest_token()):
            jump = check.AHEAD if jump is None else jump
            first = highest if first is None else first
        return jump, first

    def leaps(self, mark: Stamp | None, token: int) -> bool:
        """Whether ``token`` lies too far above the mark to be an honest issuer's."""
        jump, first = self.limits(token)
        if mark is None:
            return first is not None and token > first
        return jump is not None and token - mark.token > jump

    def stance(self, resource: str) -> Stance:
        """What to do about ``resource`` at this moment."""
        until, why = self._override
        if until and time.monotonic() < until:
            return _FIXED["shadow"]._replace(mode=f"override: {why}")
        mode = self.mode
        if mode in _FIXED:
            return _FIXED[mode]
        return Stance(mode, refuses=position(resource) < self._fraction, demands=False)

    def override(self, why: str, *, seconds: float = 600.0, hooks: Iterable[Hook] = ()) -> None:
        """Emergency: let everything pass, judged and counted as in shadow, for at most ``seconds``.

        The override is logged and told to these hooks. Every access that it lets pass is told to the guard's hooks.
        """
        if not why.strip():
            raise ConfigError("an override needs a reason, for the readers of the log")
        seconds = check.seconds(seconds, "override")
        self._override = (time.monotonic() + seconds, why)
        _log.warning("guards are overridden for %g s: %s", seconds, why)
        Hooks(hooks)(Event(kind="override", name="*", source="policy", seconds=seconds, detail=why))

    def resume(self, *, hooks: Iterable[Hook] = ()) -> None:
        """End the override."""
        self._override = (0.0, "")
        _log.warning("guards are no longer overridden: mode %s", self.mode)
        Hooks(hooks)(Event(kind="override", name="*", source="policy", seconds=0.0, detail="resumed"))

    def __repr__(self) -> str:
        return f"<Policy {self._mode}>"


_default: Policy | None = None


class _Restore:
    """Restores the previous default policy at the end of a ``with`` block."""

    def __init__(self, before: Policy | None) -> None:
        self._before = before

    def __enter__(self) -> Policy:
        return current_policy()

    def __exit__(self, *_: object) -> None:
        global _default
        _default = self._before


def default_policy(policy: Policy | str | Callable[[], str]) -> AbstractContextManager[Policy]:
    """Set the policy for every guard of this process that has none of its own, including those made before.

    It applies at once, in all threads and tasks, until it is set again: call it when the program starts. In a test,
    ``with default_policy("off"):`` restores the previous policy at its end. A guard's own ``policy=`` takes precedence.
    Without a call, $FENCEPOST_POLICY names the mode, such as ``shadow``; the default is strict. A lower mode is logged.

        guards.default_policy("shadow")
    """
    global _default
    before, found = _default, policy if isinstance(policy, Policy) else Policy(policy)
    _default = found
    _tell(found, "default_policy()")
    return _Restore(before)


def current_policy() -> Policy:
    """The policy of guards that have none of their own; ConfigError if $FENCEPOST_POLICY names no mode.

    For example::

        print(guards.current_policy().mode)
    """
    global _default
    if _default is None:
        mode = os.environ.get("FENCEPOST_POLICY")
        try:
            _default = Policy() if mode is None else Policy(mode)
        except ConfigError as error:
            raise ConfigError(f"$FENCEPOST_POLICY: {error}") from None
        _tell(_default, "$FENCEPOST_POLICY")
    return _default


def _tell(policy: Policy, where: str) -> None:
    if policy.mode != "strict":
        _log.warning("guards without a policy of their own are in mode %s, by %s", policy.mode, where)
