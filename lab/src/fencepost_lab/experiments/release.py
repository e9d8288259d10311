"""Release by GET and DEL against compare-and-delete, with the race forced in every round."""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from secrets import token_hex

import redis

from fencepost.errors import ConfigError
from fencepost.sync import Lease, Locks, connect
from fencepost_lab.experiments import Settings
from fencepost_lab.experiments.buggy_release import buggy_release
from fencepost_lab.experiments.context import Context
from fencepost_lab.report import plots
from fencepost_lab.report.outcome import Outcome, Plot, Table
from fencepost_lab.stage.processes import Unexpected

FORCED = "the race took place in every round: B held the lock before A's release arrived"


def run(settings: Settings, context: Context) -> Outcome:
    """Run both releases, as often as asked."""
    [backend] = settings["backends"]
    url = context.store(backend).url
    if "?" in url:
        raise ConfigError("this experiment looks at the lock's own key: give --backend a URL without options")
    # The Redis may be one that somebody uses: nobody else's lock has this name.
    lock = f"lab-release-{token_hex(4)}"
    key = f"fencepost:lock:{lock}"
    outcome = Outcome()
    rows: list[tuple[object, ...]] = []
    with redis.from_url(url) as client:

        def get_del(lease: Lease, race: Callable[[], None]) -> bool:
            return buggy_release(client, key, f"{lease.holder}:{lease.token}".encode(), race)

        def script(lease: Lease, race: Callable[[], None]) -> bool:
            if client.get(key) != f"{lease.holder}:{lease.token}".encode():
                return False
            race()
            return lease.release()

        for name, release in (("GET, compare, DEL", get_del), ("compare-and-delete script", script)):
            context.say(name)
            seen = _run_rounds(url, lock, release, settings["rounds"], settings["ttl"])
            outcome.figures[name] = seen
            rows.append((name, *(seen[key] for key in _COLUMNS)))
    unsafe, safe = outcome.figures.values()
    rounds = settings["rounds"]
    outcome.tables.append(Table("What became of B's lock", ("A's release", *_COLUMNS.values()), rows))
    outcome.plots.append(drawn(outcome.figures))
    outcome.claim(FORCED, unsafe["raced"] == safe["raced"] == rounds, f"{unsafe['raced']} and {safe['raced']}")
    outcome.claim(
        "GET and DEL delete the lock of the next holder, and a third acquires it beside that one",
        unsafe["deleted"] == unsafe["intruders"] == rounds,
        f"{unsafe['deleted']} of {rounds} locks deleted, {unsafe['intruders']} intruders",
    )
    outcome.claim(
        "compare-and-delete leaves it alone and says so",
        (safe["deleted"], safe["intruders"], safe["said_no"], safe["counted"]) == (0, 0, rounds, rounds),
        f"{safe['deleted']} deleted, {safe['said_no']} releases answered False, "
        f"release_by_non_owner_total {safe['counted']}",
    )
    outcome.slo["safe-release"] = (
        f"{safe['deleted']} of {rounds} locks of others deleted by the script (GET and DEL: {unsafe['deleted']})"
    )
    return outcome


_COLUMNS = {
    "rounds": "rounds",
    "raced": "race forced",
    "deleted": "B's lock deleted",
    "intruders": "C acquired beside B",
    "said_no": "A was told no",
    "counted": "release_by_non_owner_total",
}


def drawn(figures: Mapping[str, Mapping[str, int]]) -> Plot:
    """What became of B's lock, for each way to release."""
    shown = {_COLUMNS[key]: [seen[key] for seen in figures.values()] for key in ("deleted", "intruders", "said_no")}
    caption = "What A's release did after B had acquired the lock: in how many rounds."
    return plots.counts("deleted", caption, list(figures), shown, across="how A releases", up="rounds")


def _run_rounds(
    url: str, lock: str, release: Callable[[Lease, Callable[[], None]], bool], rounds: int, ttl: float
) -> dict[str, int]:
    counts: Counter[str] = Counter(dict.fromkeys(_COLUMNS, 0))
    with ExitStack() as stack:

        def client() -> Locks:
            return stack.enter_context(connect(url, hooks=[lambda event: counts.update([event.kind])], label=""))

        first, second, third = client(), client(), client()
        while counts["rounds"] < rounds:
            successors: list[Lease] = []
            lease = first.acquire(lock, ttl=ttl, timeout=30, renew=False)

            def race(held: list[Lease] = successors) -> None:
                held.append(second.acquire(lock, ttl=60, timeout=30, renew=False))

            released = release(lease, race)
            if not successors:
                # A slow machine: the lease ran out before A had seen that the lock was its own. That is another story.
                counts["late"] += 1
                if counts["late"] > 10 * rounds:
                    raise Unexpected(
                        f"the lease of {ttl:g} s ran out before A could look at it, {counts['late']} times"
                    )
                continue
            counts["rounds"] += 1
            counts["said_no"] += not released
            successor = successors[0]
            holds = second.status(lock)
            counts["raced"] += successor.token > lease.token
            counts["deleted"] += holds is None or holds.holder != successor.holder
            if (intruder := third.try_acquire(lock, ttl=60, renew=False)) is not None:
                counts["intruders"] += not successor.ended
                intruder.release()
            else:
                successor.release()
        counts["counted"] = counts["not_owner"]  # here, before closing releases what B believes to hold
    return {key: counts[key] for key in _COLUMNS}
