"""A guard's decision about one access: the rule applied, told to the hooks, and turned into an answer."""

import logging
from collections.abc import Callable, Iterable

from fencepost.errors import refusal
from fencepost.events import Action, Event, Hook, Hooks
from fencepost.rule import Stamp, Verdict, judge

_log = logging.getLogger("fencepost")


def decide(
    resource: str,
    mark: Stamp | None,
    offer: Stamp | None,
    *,
    source: str,
    action: Action,
    same: Callable[[], bool] = lambda: False,
    hooks: Iterable[Hook] = (),
) -> bool:
    """True: make the access and raise the mark. False: this very write was made before, change nothing.

    ``same`` is asked only when the offer repeats the mark: is its payload known to be that of the
    write that set the mark? Raises the Refused that fits any other verdict.
    """
    verdict = Verdict.MISSING if offer is None else judge(mark, offer)
    done = verdict is Verdict.REPLAY and same()
    refused = not done and verdict is not Verdict.ADMIT
    if verdict is Verdict.CLASH:
        _log.error("token clash at %s guard on %r: offered %r, mark %r", source, resource, offer, mark)
    if hooks:
        Hooks(hooks)(
            Event(
                kind="decision",
                name=resource,
                source=source,
                token=offer.token if offer else None,
                holder=offer.holder if offer else None,
                verdict=verdict,
                enforced=True if refused else None,
                action=action,
                seen=mark.token if mark else None,
            )
        )
    if refused:
        raise refusal(verdict, resource, offer, mark)
    return not done
