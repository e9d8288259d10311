"""What happened, as immutable events. Metrics, audit logs and pages are hooks that receive them."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias

from fencepost import check
from fencepost.logs import logger
from fencepost.rule import Verdict

__all__ = ["Event", "Hook"]

Kind: TypeAlias = Literal[
    "attempt",  # an acquire began
    "acquired",  # seconds: how long it took
    "timeout",  # seconds: how long it waited
    "abandoned",  # an acquire was cancelled, or failed although it may have been granted or queued; it was cleaned up
    "renewed",  # ratio: the fraction of the ttl that was left when it was renewed
    "unrenewed",  # the store did not answer a renewal; the old deadline stands
    "at_risk",  # a renewal failed or is overdue, and the lease still holds; once per outage. seconds: how long it holds
    "recovered",  # a lease that was at risk is renewed again
    "lost",  # detail: why; the lease ended while its holder was at work
    "released",  # seconds: how long it was held
    "not_owner",  # a release that found the lock no longer its own, and changed nothing
    "decision",  # a guard judged one access: verdict, enforced, action, seen; detail: its mode
    "override",  # a guard was told to let everything pass for a while; seconds, detail: how long and why
    "raise_mark",  # a mark was raised by hand; seen: the mark's token before
    "lower_mark",  # a mark was lowered by hand; seen: the mark's token before
]

Action: TypeAlias = Literal["write", "enter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened to a lock (``source``: its backend) or at a guard (``source``: its kind)."""

    kind: Kind
    name: str
    source: str
    at: float = field(default_factory=time.time)
    token: int | None = None
    holder: str | None = None
    seconds: float | None = None
    ratio: float | None = None
    verdict: Verdict | None = None
    enforced: bool | None = None
    """At a guard: True if it refused, False if it let pass what it would have refused, else None."""
    action: Action | None = None
    seen: int | None = None
    """At a guard: the mark's token before this access; None if there was no mark."""
    detail: str = ""

    def facts(self) -> dict[str, Any]:
        """The known fields, ready for JSON: tokens above 2^53-1 are text, because many readers round such numbers."""
        known = {each.name: getattr(self, each.name) for each in fields(self)}
        facts = {name: value for name, value in known.items() if value is not None and value != ""}
        if self.verdict is not None:
            facts["verdict"] = self.verdict.value
        for name in ("token", "seen"):
            if name in facts:
                facts[name] = check.json_number(facts[name])
        return facts


Hook: TypeAlias = Callable[[Event], None]


class Hooks:
    """A fixed set of hooks. A hook that raises is logged and never disturbs the lock."""

    __slots__ = ("_hooks",)

    def __init__(self, hooks: Iterable[Hook] = ()) -> None:
        self._hooks = tuple(hooks)

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def __call__(self, event: Event) -> None:
        for hook in self._hooks:
            try:
                hook(event)
            except Exception:
                logger().exception("hook %r failed on %r", hook, event.kind)
