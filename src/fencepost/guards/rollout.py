"""What an audit log says about a rollout: how each guard fared in its mode, and whether to go a step further."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from fencepost.errors import ConfigError
from fencepost.guards.policy import STEPS, fraction

MISTAKES = {
    "clash": "the issuer gave one token to two holders: raise it with 'fencepost bump', and find out why",
    "late": "accesses of one lease overtake each other: send them in order, or share the lease less",
    "replay": "stamps are used twice: take a new one for each access, and pass the payload of retries",
    "forged": "tokens come without a valid signature: give their issuers the key",
    "leap": "tokens leap above the limit: an issuer went wild, or max_jump is too small",
}

TOLD_APART = 1000
OTHERS = "others"


@dataclass
class Fared:
    """How one guard fared since it entered its current mode."""

    guard: str
    mode: str
    first: float
    last: float
    decisions: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    would: Counter[str] = field(default_factory=Counter)
    without: Counter[str] = field(default_factory=Counter)
    """Writes without a token, by resource; beyond the first thousand resources, all count as "others"."""
    overrides: int = 0

    @property
    def missing(self) -> int:
        """How many writes came without a token, in whatever mode."""
        return self.without.total()

    @property
    def against(self) -> Counter[str]:
        """Verdicts against an access, refused or not; those without a token are counted apart."""
        return Counter({k: n for k, n in (self.refused + self.would).items() if k != "missing"})

    @property
    def step(self) -> str:
        """The mode without its percentage."""
        return self.mode.partition(":")[0]

    def next(self) -> str | None:
        """The mode one step further; None at the top."""
        if self.step == "canary":
            return next((f"canary:{p}%" for p in (10, 50) if fraction(self.mode) * 100 < p), "enforce")
        if self.step == "shadow":
            return "canary:1%"
        return None if self.step == "strict" else STEPS[STEPS.index(self.step) + 1]

    def obstacles(self, *, decisions: int, stale: float) -> list[str]:
        """Why not to go a step further; empty if nothing speaks against it."""
        found = []
        if self.decisions < decisions:
            found.append(f"only {self.decisions} decisions so far; wait for {decisions}")
        if self.overrides:
            found.append(f"it was overridden {self.overrides} times; find out what for")
        for verdict, what in MISTAKES.items():
            if count := self.against[verdict]:
                found.append(f"{count} {verdict}: {what}")
        if self.decisions and self.against["stale"] / self.decisions > stale:
            found.append(
                f"{self.against['stale']} of {self.decisions} are stale, more than {stale:.2%}: either leases are lost "
                f"often (ttl too short, long pauses), or a writer takes its tokens elsewhere"
            )
        if self.step == "enforce" and self.missing:
            found.append(
                f"{self.missing} writes came without a token, and strict would refuse them; find their callers"
            )
        return found


def _is_ours(fact: Mapping[str, Any]) -> bool:
    """Whether a line is a guard's decision or an override: locks and other programs may write to the same file."""
    kind, at = fact.get("kind"), fact.get("at")
    timed = isinstance(at, int | float) and isfinite(at)
    mode = fact.get("detail", "strict")
    named = isinstance(fact.get("source"), str) and isinstance(mode, str)
    return timed and (kind == "override" or (kind == "decision" and named and _is_mode(mode)))


def _is_mode(text: str) -> bool:
    try:
        fraction("strict" if text.startswith("override") else text)
    except ConfigError:
        return False
    return True


def fared(facts: Iterable[Mapping[str, Any]], *, since: float = 0.0) -> list[Fared]:
    """How each guard of an audit log fared, counted from its last change of mode."""
    guards: dict[str, Fared] = {}
    overrides = 0
    for fact in facts:
        if not _is_ours(fact) or fact["at"] < since:
            continue
        if fact["kind"] == "override" and fact.get("seconds"):
            overrides += 1
            for each in guards.values():
                each.overrides += 1
        if fact["kind"] != "decision":
            continue
        guard, mode = fact["source"], fact.get("detail", "strict")
        known = guards.get(guard)
        if mode.startswith("override"):
            mode = known.mode if known else "strict"
        if known is None or known.mode != mode:
            known = guards[guard] = Fared(guard, mode, fact["at"], fact["at"], overrides=0 if known else overrides)
        known.last = fact["at"]
        known.decisions += 1
        verdict, enforced = str(fact.get("verdict", "")), fact.get("enforced")
        if verdict == "missing" and fact.get("action") == "write":
            name = str(fact.get("name", ""))
            known.without[name if name in known.without or len(known.without) < TOLD_APART else OTHERS] += 1
        if enforced is not None:
            (known.refused if enforced else known.would)[verdict] += 1
    return sorted(guards.values(), key=lambda each: each.guard)
