"""Where fencing tokens come from: a counter per lock, per namespace, fencepost's hybrid, and etcd's revisions."""

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import redis

from fencepost.errors import Refused
from fencepost.guards.memory import MemoryGuard
from fencepost.rule import Stamp
from fencepost.sync import connect
from fencepost_lab.experiments import Settings
from fencepost_lab.experiments.context import Context
from fencepost_lab.experiments.minting import KINDS, Mint
from fencepost_lab.faults.clock import ClockedRedis
from fencepost_lab.faults.disk import aof, lose_tail
from fencepost_lab.faults.record import Faults
from fencepost_lab.faults.signals import Victim
from fencepost_lab.report import plots
from fencepost_lab.report.outcome import Outcome, Plot, Table
from fencepost_lab.servers import HOST, QUICK_ETCD, Etcd, Redis, wait_until
from fencepost_lab.servers.stores import Store
from fencepost_lab.stage.processes import Unexpected

ETCD = "etcd revision"
NAME = "account/42"


def run(settings: Settings, context: Context) -> Outcome:
    """Cost, memory, then what is left of each after a loss."""
    outcome = Outcome()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(Redis(args=["--save", ""]))
        etcd = stack.enter_context(Etcd(args=QUICK_ETCD, fsync=True))
        context.stores |= {"redis": Store("redis", server.url, server), "etcd": Store("etcd", etcd.url, etcd)}
        context.say("what a token costs")
        _cost(outcome, server, etcd, settings)
        context.say("what a counter leaves behind")
        _memory(outcome, server, settings)
        _survival(outcome, etcd, context)
    return outcome


def _cost(outcome: Outcome, server: Redis, etcd: Etcd, settings: Settings) -> None:
    """Acquire and release, in interleaved rounds: the mints by their scripts alone, the stores through fencepost."""
    with contextlib.ExitStack() as stack:
        mints = {kind: Mint(server.port, kind, f"cost-{kind}:") for kind in KINDS}
        for mint in mints.values():
            stack.callback(mint.close)
        here, there = (stack.enter_context(connect(each.url, ttl=30)) for each in (server, etcd))

        def cycle(mint: Mint) -> Callable[[], object]:
            return lambda: mint.release(NAME, mint.take(NAME))

        of_mints = _ratios({kind: cycle(mint) for kind, mint in mints.items()}, "per lock", settings)
        of_stores = _ratios(
            {
                "hybrid, through fencepost": lambda: here.acquire(NAME).release(),
                ETCD + ", through fencepost": lambda: there.acquire(NAME).release(),
            },
            "hybrid, through fencepost",
            settings,
        )
    outcome.figures["cost"] = of_mints | of_stores
    rows = [
        (name, f"{ratio:.2f}x", base)
        for found, base in ((of_mints, "per lock"), (of_stores, "hybrid, through fencepost"))
        for name, ratio in found.items()
    ]
    outcome.tables.append(
        Table(
            "Acquire and release, uncontended",
            ("token", "time", "relative to"),
            rows,
            note="The quickest of interleaved turns. The first three are the same scripts but for the mint.",
        )
    )
    outcome.claim(
        "the hybrid costs next to nothing over a plain counter",
        of_mints["hybrid"] < 1.5,
        f"{of_mints['hybrid']:.2f} times an acquire and release with a counter per lock",
    )


def _ratios(sides: dict[str, Callable[[], object]], base: str, settings: Settings) -> dict[str, float]:
    spent: dict[str, list[float]] = {name: [] for name in sides}
    order = random.Random(1)
    for turn in range(settings["turns"] + 1):
        for name in order.sample(list(sides), len(sides)):
            begin = time.perf_counter()
            for _ in range(settings["cycles"]):
                sides[name]()
            if turn:  # the first one warms up
                spent[name].append(time.perf_counter() - begin)
    # The quickest turn is the one that the rest of the machine disturbed least.
    return {name: min(times) / min(spent[base]) for name, times in spent.items()}


def _memory(outcome: Outcome, server: Redis, settings: Settings) -> None:
    """Many locks of each kind, held and then expired."""
    keys, ttl = settings["keys"], settings["ttl"]
    rows = []
    figures = outcome.figures["memory"] = {}
    with redis.Redis(HOST, server.port) as client:

        def used() -> int:
            return int(client.info("memory")["used_memory"])

        for kind in KINDS:
            client.flushall()
            with contextlib.closing(Mint(server.port, kind, f"memory-{kind}:")) as mint:
                before = used()
                if mint.fill((f"account/{number}" for number in range(keys)), ttl) != keys:
                    raise Unexpected("some locks were not free")
                held = used() - before

                def expired() -> bool:
                    return int(client.info("keyspace").get("db0", {"expires": 0})["expires"]) == 0

                if not wait_until(expired, timeout=ttl + 120, poll=0.1):
                    raise Unexpected("the locks did not expire")
                left, counters = used() - before, client.dbsize()
            figures[kind] = {"held": held / keys, "left": left / keys, "counters": counters, "keys": keys}
            rows.append((kind, f"{held / keys:.0f}", f"{left / keys:.0f}", f"{counters:,}"))
    rows.append((ETCD, "", "0", "0"))
    columns = ("token", "bytes per lock, held", "bytes per lock, after expiry", "counters left")
    note = "etcd's revision is not kept per lock at all; what locks cost there is experiment 7."
    outcome.tables.append(Table(f"Memory of {keys:,} locks", columns, rows, note=note))
    outcome.claim(
        "a counter per lock stays for ever; one per namespace leaves nothing per lock",
        figures["per lock"]["counters"] == keys
        and figures["per namespace"]["counters"] == figures["hybrid"]["counters"] == 1
        and figures["per lock"]["left"] > 10 * max(figures["hybrid"]["left"], 1.0),
        f"{figures['per lock']['left']:.0f} bytes per lock left, against {figures['hybrid']['left']:.1f} (hybrid)",
    )


@contextlib.contextmanager
def _redis(faults: Faults, *args: str) -> Iterator[ClockedRedis]:
    with ClockedRedis(who="redis", faults=faults, args=args) as server:
        yield server


Take = Callable[[], int]


def _survival(outcome: Outcome, etcd: Etcd, context: Context) -> None:
    """Use three tokens at a guarded resource, lose something, and see what the next one is worth."""
    rows: list[tuple[Any, ...]] = []
    figures = outcome.figures["survival"] = {}
    faults = Faults()
    for loss, (args, lose) in _LOSSES.items():
        for kind in KINDS:
            context.say(f"{kind}: {loss}")
            with _redis(faults, *args) as server:
                seen = _lose(lambda: _one(server, kind), lambda: lose(server, faults))  # noqa: B023
            figures[f"{kind}, {loss}"] = seen
            rows.append(_row(loss, kind, seen))
    for loss, lose_etcd in (("kill -9 and restart", _crash), ("every key deleted", _delete)):
        context.say(f"{ETCD}: {loss}")
        with connect(etcd.url, ttl=5) as locks:

            def take() -> int:
                lease = locks.acquire(NAME, timeout=30)
                lease.release()
                return lease.token

            seen = _lose(take, lambda: lose_etcd(etcd, faults))  # noqa: B023
        figures[f"{ETCD}, {loss}"] = seen
        rows.append(_row(loss, ETCD, seen))
    _add_claims(outcome, figures, faults)
    outcome.plots.append(drawn(figures))
    columns = ("loss", "token", "last before", "first after", "regressed", "the guard")
    note = "One that grew is rightly admitted. One that regressed is refused, until 'fencepost bump' raises the issuer."
    outcome.tables.append(Table("The next token after a loss", columns, rows, note=note))


def drawn(figures: Mapping[str, Mapping[str, Any]]) -> Plot:
    """After how many kinds of loss each token went on growing."""
    kinds = [*KINDS, ETCD]
    seen = [[each["regressed"] for key, each in figures.items() if key.startswith(f"{kind}, ")] for kind in kinds]
    bars = {
        "larger than before": [len(each) - sum(each) for each in seen],
        "started again; the guard refused it": [sum(each) for each in seen],
    }
    caption = "The next token after each kind of loss."
    return plots.counts("survival", caption, kinds, bars, across="where the token comes from", up="kinds of loss")


def _row(loss: str, kind: str, seen: dict[str, Any]) -> tuple[Any, ...]:
    return loss, kind, seen["last"], seen["after"], "yes" if seen["regressed"] else "no", seen["guard"]


def _add_claims(outcome: Outcome, figures: dict[str, Any], faults: Faults) -> None:
    def regressed(kind: str) -> set[str]:
        return {key.partition(", ")[2] for key, seen in figures.items() if key.startswith(kind) and seen["regressed"]}

    both = "data and clock lost together"
    outcome.claim(
        "plain counters start again when Redis forgets",
        regressed("per lock") == regressed("per namespace") == set(_LOSSES),
        f"both regressed after: {', '.join(sorted(regressed('per lock')))}",
    )
    outcome.claim(
        "the hybrid grows through every loss of data, and regresses only if the clock is lost with it",
        regressed("hybrid") == {both},
        f"regressed after: {', '.join(regressed('hybrid')) or 'nothing'}",
    )
    outcome.claim("etcd's revision grows through a crash and a deletion", not regressed(ETCD), "it grew each time")
    outcome.claim(
        "the guard refuses every token that regressed, and admits every one that grew",
        all((seen["guard"] != "admitted") == seen["regressed"] for seen in figures.values()),
        f"{sum(seen['regressed'] for seen in figures.values())} regressed and refused, "
        f"{sum(not seen['regressed'] for seen in figures.values())} grew and admitted",
    )
    done = {do: len(faults.of(do)) for do in ("kill", "lose", "truncate", "jump")}
    each = len(KINDS)
    expected = {"kill": 3 * each + 1, "lose": each + 1, "truncate": each, "jump": each}  # and one of each kind in etcd
    outcome.claim("every loss took place", done == expected, ", ".join(f"{do} {count}" for do, count in done.items()))


def _lose(take: Take, lose: Callable[[], None]) -> dict[str, Any]:
    """Three guarded writes, a loss, and one more."""
    guard = MemoryGuard[str]()
    last = 0
    for number in range(3):
        last = take()
        guard.write(NAME, f"write {number}", Stamp(last, 1, f"before-{number}"))
    lose()
    after = take()
    try:
        guard.write(NAME, "after the loss", Stamp(after, 1, "after"))
        verdict = "admitted"
    except Refused as refused:
        verdict = f"refused as {refused.verdict}"
    return {"last": last, "after": after, "regressed": after <= last, "guard": verdict}


def _one(server: ClockedRedis, kind: str) -> int:
    with contextlib.closing(Mint(server.port, kind, "fencepost:lock:")) as mint:
        token = mint.take(NAME)
        mint.release(NAME, token)
        return token


def _kill(server: ClockedRedis, faults: Faults) -> None:
    Victim(server.pid, "redis", faults).kill()
    server.restart()


def _flush(server: ClockedRedis, faults: Faults) -> None:
    with redis.Redis(HOST, server.port) as client:
        client.flushall()
    faults.note("lose", "redis", how="FLUSHALL")


def _cut_power(server: ClockedRedis, faults: Faults) -> None:
    file = aof(server)
    Victim(server.pid, "redis", faults).kill()
    lose_tail(server, keep=min(_HEAD, file.stat().st_size - 1), who="redis", faults=faults)
    server.restart()


def _both(server: ClockedRedis, faults: Faults) -> None:
    server.clock.jump(-3600)
    _kill(server, faults)


def _crash(server: Etcd, faults: Faults) -> None:
    Victim(server.pid, "etcd", faults).kill()
    server.restart()


def _delete(server: Etcd, faults: Faults) -> None:
    from fencepost_lab.experiments.keyspace_etcd import etcdctl

    etcdctl(server, "del", "", "--prefix")
    faults.note("lose", "etcd", how="every key deleted")


_HEAD = 23  # bytes: SELECT 0 is all that is left of the file
_NOTHING = ("--save", "")
_LOSSES: dict[str, tuple[tuple[str, ...], Callable[[ClockedRedis, Faults], None]]] = {
    "kill -9, no persistence": (_NOTHING, _kill),
    "FLUSHALL": (_NOTHING, _flush),
    "power loss, end of the AOF gone": ((*_NOTHING, "--appendonly", "yes"), _cut_power),
    "data and clock lost together": (_NOTHING, _both),
}
