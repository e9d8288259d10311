"""Which rung of the ladder a job needs: as little coordination as is correct, with its guarantee in words.

A pure function of the answers; ``fencepost advise`` asks the questions.
"""

import math
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from fencepost import check
from fencepost.errors import ConfigError
from fencepost_lab.advise import code
from fencepost_lab.advise.measured import Measured

Twice: TypeAlias = Literal["nothing", "waste", "harm"]
Resource: TypeAlias = Literal["sqlite", "postgres", "redis", "etcd", "s3", "file", "http", "other"]
Store: TypeAlias = Literal["sqlite", "postgres", "redis", "redlock", "etcd", "zookeeper", "consul"]
Rung: TypeAlias = Literal["avoid", "once", "transaction", "lease", "quorum", "consensus"]

RUNGS: dict[Rung, str] = {
    "avoid": "no coordination",
    "once": "run once",
    "transaction": "a lock in the transaction of the data",
    "lease": "a lease",
    "quorum": "a lease from a quorum",
    "consensus": "a lease from a consensus store",
}
"""The ladder, the cheapest first."""

_SHORTEST = {"consul": 10.0, "etcd": 1.0, "zookeeper": 1.0, "redlock": 0.05}
_LINGER = {"consul": 2.0, "zookeeper": 1.5}  # so many ttl may a dead holder's lock stay taken; elsewhere one
_LONGEST = 60.0  # seconds that a transaction may reasonably stay open
_RESOURCE_STORE: dict[str, Store] = {"sqlite": "sqlite", "file": "sqlite", "postgres": "postgres", "etcd": "etcd"}


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What is known about a job."""

    twice: Twice
    """What breaks if it runs twice, or in two places at once: nothing, only effort is wasted, or harm is done."""
    resource: Resource = "other"
    """Where its effect is; ``other`` is what belongs to somebody else."""
    checks: bool | None = None
    """Whether the resource can check a token; None: as its kind usually can."""
    together: bool = False
    """Whether lock and data can share one database."""
    run_id: bool = False
    """Whether each run has a name of its own, such as billing/42/2026-11, that tells it from every other."""
    work: float = 10.0
    """Seconds that the work takes, at the longest."""
    free: float | None = None
    """Seconds within which a dead holder's lock must be free; None: 15, or as soon after that as its store can."""
    survive: bool = False
    """Whether locks must go on when a server of their store dies."""
    store: Store | None = None
    """Where locks are to live; None: whatever suits."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """A rung, what it guarantees, and how to stand on it."""

    rung: Rung
    fenced: bool
    """Whether the resource itself refuses a holder that was replaced."""
    guarantee: str
    why: list[str]
    ttl: float | None
    renew: float | None
    """Seconds between two renewals: a third of the ttl, so that two may fail."""
    unrenewed: float | None
    """Seconds for a lease that nobody renews: the longest work, and a margin for pauses; None if that is not known."""
    margin: float | None
    """Seconds of it that are for pauses and for the store."""
    max_hold: float | None
    """Seconds after which renewal may end, for a holder that hangs is not dead: three times the longest work."""
    store: Store | None
    code: str = field(repr=False)
    block: tuple[str, str]


def advise(
    answers: Answers,
    *,
    data: str | None = None,
    locks: str | None = None,
    measured: Measured | None = None,
    now: float = 15.0,
) -> Advice:
    """The lowest rung that is correct for these answers; ``data`` and ``locks`` are URLs or paths for its code.

    ``measured`` is what the locks' own metrics say, under a ttl of ``now`` seconds. Raises ConfigError for answers that
    contradict each other.
    """
    _consistent(answers)
    rung, block, guarantee, why = _climb(answers)
    if rung not in ("lease", "quorum", "consensus"):
        store = ttl = renew = unrenewed = margin = max_hold = None
    else:
        store = _store(answers)
        ttl = _ttl(answers, store, measured, now, why)
        renew = round(ttl / 3, 3)
        margin = _margin(answers.work, measured, now)
        unrenewed = math.ceil((answers.work + margin) * 1000) / 1000 if _bounded(answers.work, measured) else None
        max_hold = max(3 * answers.work, ttl)
    where = data or code.DATA.get(answers.resource, "")
    printed = code.block(*block, ttl=ttl or 0, data=where, locks=locks or code.LOCKS[store or "sqlite"])
    fenced = block[0] == "lease"
    return Advice(
        rung=rung,
        fenced=fenced,
        guarantee=guarantee,
        why=why,
        ttl=ttl,
        renew=renew,
        unrenewed=unrenewed,
        margin=margin,
        max_hold=max_hold,
        store=store,
        code=printed,
        block=block,
    )


def _consistent(answers: Answers) -> None:
    for name, kind in (("twice", Twice), ("resource", Resource), ("store", Store)):
        value = getattr(answers, name)
        if value is not None and value not in get_args(kind):
            raise ConfigError(f"{name} is one of {', '.join(get_args(kind))}, not {value!r}")
    if answers.free is not None:
        check.ttl(answers.free)
    check.seconds(answers.work, "work")
    together, resource, store = answers.together, answers.resource, answers.store
    if together and resource not in ("sqlite", "postgres"):
        raise ConfigError(
            f"lock and data cannot share a database, for {resource} is none; answer no, or say that the data is in "
            f"sqlite or postgres"
        )
    if together and store not in (None, resource):
        raise ConfigError(
            f"lock and data share {resource}, so the lock cannot live in {store}; leave one of the two out"
        )
    if together and answers.checks is False:
        raise ConfigError("a database that has the lock can check a token too: the guard is a row in it; answer yes")
    if answers.checks and resource == "other":
        raise ConfigError("what can be made to check a token is yours: say http for a service, or where its data is")
    if answers.survive and store in ("sqlite", "postgres", "redis"):
        raise ConfigError(
            f"locks in one {store} do not go on when it dies; take redlock, etcd, zookeeper or consul, or answer no"
        )
    if store is not None and answers.free is not None and answers.free < soonest(store):
        raise ConfigError(
            f"{store} may take {soonest(store):g} s to free a dead holder's lock, not {answers.free:g} s; wait "
            f"longer, or take another store"
        )


def soonest(store: str) -> float:
    """Seconds within which the store can promise that a dead holder's lock is free."""
    return round(_SHORTEST.get(store, 0.0) * _LINGER.get(store, 1.0), 2)


def _climb(answers: Answers) -> tuple[Rung, tuple[str, str], str, list[str]]:
    """The lowest rung that is correct, the code for it, what it guarantees, and why it is this one."""
    where: str = answers.resource
    checks = where != "other" if answers.checks is None else answers.checks
    if answers.twice == "nothing":
        known = where if where in ("sqlite", "postgres") else "other"
        return (
            "avoid",
            ("avoid", known),
            "correct however often it runs, with nothing to wait for and nothing to fail",
            ["nothing breaks if it runs twice, so let it: no lock can be cheaper than none"],
        )
    if answers.run_id and checks and where in ("sqlite", "postgres", "redis", "http"):
        why = ["each run has a name, so what must happen once can be remembered with its effect: no lock is needed"]
        if answers.work > _LONGEST and where in ("sqlite", "postgres"):
            why.append(f"do the slow part before the block: a transaction should not be open for {answers.work:g} s")
        return "once", ("once", where), _ONCE[where], why
    if answers.twice == "waste":
        return (
            "lease",
            ("effort", "waste"),
            "best effort: now and then it may run twice, which wastes effort only",
            ["running twice breaks nothing, so a lease without a guard will do: it is for thrift, not for safety"],
        )
    if answers.together and answers.work <= _LONGEST:
        return (
            "transaction",
            ("transaction", where),
            "no update is lost; the lock ends with the transaction",
            ["lock and data share a database, and the work fits into a transaction: there is no lease to lose"],
        )
    if not checks:
        return (
            "lease",
            ("effort", "other"),
            "best effort: a holder that was paused for too long can still write",
            [
                "running twice does harm, and the resource cannot check a token: no lock can prevent that, only make "
                "it rare; put a service of yours in front that checks, or make what it does idempotent"
            ],
        )
    why = ["running twice does harm, and the resource can check a token: the lease excludes, the token makes it safe"]
    if answers.together:
        why.append(f"lock and data could share a transaction, but not for {answers.work:g} s")
    if not answers.survive:
        return "lease", ("lease", where), _FENCED, why
    if answers.store == "redlock":
        why.append("locks go on while a majority of the Redis servers does")
        return "quorum", ("lease", where), _FENCED, why
    why.append("locks go on while a majority of the store's servers does")
    return "consensus", ("lease", where), _FENCED, why


_FENCED = "no update is lost: the resource refuses a holder that was replaced, whatever happens to the lock"
_ONCE = {
    "sqlite": "exactly once: the run and its effect are one transaction",
    "postgres": "exactly once: the run and its effect are one transaction",
    "redis": "exactly once, as far as your Redis keeps what it acknowledged: the run and its effect are one script",
    "http": "exactly once, if the receiver remembers: its answer and its effect are one transaction there",
}


def _store(answers: Answers) -> Store:
    if answers.store is not None:
        return answers.store
    if answers.survive:
        return "etcd"
    return _RESOURCE_STORE.get(answers.resource, "redis")


def _ttl(answers: Answers, store: Store, measured: Measured | None, now: float, why: list[str]) -> float:
    """As long as a dead holder may keep the lock: the longest ttl forgives its living holders the most."""
    free = max(15.0, soonest(store)) if answers.free is None else answers.free
    if free < soonest(store):
        raise ConfigError(
            f"locks that survive a server live in {store}, which may take {soonest(store):g} s to free a dead "
            f"holder's, not {free:g} s; wait longer"
        )
    linger = _LINGER.get(store, 1.0)
    ttl = min(math.floor(free / linger * 1000) / 1000, 86400.0)
    late = "the ttl" if linger == 1 else f"up to {linger:.3g} times the ttl, as {store} has it"
    why.append(f"a dead holder's lock is free after {late}: {ttl * linger:g} s at the latest")
    if ttl < 1:
        why.append(f"a holder that pauses for {ttl:g} s loses its lease: expect that now and then")
    for floor, reason in _floors(measured, now):
        if ttl < floor:
            raise ConfigError(
                f"{reason}, so with a ttl of {ttl:g} s living holders would lose their locks; let a dead one keep its "
                f"for {math.ceil(floor * linger * 10) / 10:g} s"
            )
        why.append(reason)
    return ttl


def _bounded(work: float, measured: Measured | None) -> bool:
    """Whether the work is known to take no longer than that: a histogram says nothing above its last bound."""
    found = None if measured is None else measured.work
    return found is None or math.isfinite(found.high) or work > found.low


def _margin(work: float, measured: Measured | None, now: float) -> float:
    """A tenth of the work; more if holders were seen to pause, or the store to take, for longer."""
    seen = 0.0 if measured is None else (_late(measured, now) or 0.0) + (_trip(measured) or 0.0)
    return round(max(work / 10, seen), 3)


def _late(measured: Measured, now: float) -> float | None:
    """So many seconds late came the latest renewals, under a ttl of ``now`` seconds."""
    return None if measured.slack is None else max(0.0, 2 / 3 - max(0.0, measured.slack.low)) * now


def _trip(measured: Measured) -> float | None:
    """So many seconds does the store take to answer who waits for nobody."""
    return measured.trip.high if measured.trip is not None and math.isfinite(measured.trip.high) else None


def _floors(measured: Measured | None, now: float) -> list[tuple[float, str]]:
    """The shortest ttl that the measurements allow, each with its reason."""
    floors: list[tuple[float, str]] = []
    if measured is None:
        return floors
    if measured.trip is not None and (trip := _trip(measured)) is not None:
        floors.append((10 * trip, f"the store takes up to {trip:g} s to answer ({measured.trip.seen} acquires seen)"))
    if measured.slack is not None and (late := _late(measured, now)) is not None:
        told = f"the latest renewals come {late:.3g} s late or less ({measured.slack.seen} seen)"
        floors.append((3 * late, told))
    return floors
