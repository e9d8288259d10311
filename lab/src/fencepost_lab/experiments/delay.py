"""A write that is delayed in flight arrives after a take-over, or after a later access of its own lease."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from fencepost.driver import boottime
from fencepost_lab.experiments import Settings
from fencepost_lab.experiments.context import Context
from fencepost_lab.faults.proxy import Proxy
from fencepost_lab.report.lanes import lanes
from fencepost_lab.report.outcome import Outcome, Table
from fencepost_lab.servers.processes import wait_until
from fencepost_lab.servers.stores import Store
from fencepost_lab.stage import processes
from fencepost_lab.stage.client import Client
from fencepost_lab.stage.processes import Processes, StepWorker, Unexpected, open_processes, together
from fencepost_lab.stage.record import PROMISES, Record


@dataclass(frozen=True, slots=True)
class Pair:
    """A and B, the proxy on A's way to the resource, and what was said."""

    first: StepWorker
    second: StepWorker
    proxy: Proxy
    record: Record

    async def deliver(self) -> dict[str, Any]:
        """Let A's first write arrive; what the resource answered."""
        [answer] = await asyncio.to_thread(self.proxy.deliver)
        self._fault("deliver")
        head = answer.decode("latin-1").partition("\r\n\r\n")[0].split("\r\n")
        names = dict(line.lower().split(": ", 1) for line in head[1:])
        status = int(head[0].split()[1]) if head[0] else 0
        if status not in (200, 409):
            raise Unexpected(f"the delayed write was to be accepted or refused, and got {answer[:200]!r}")
        verdict = "admit" if status == 200 else names["x-fence-verdict"]
        seen = int(names["x-fence-mark"]) if status == 409 else None
        return {"status": status, "verdict": verdict, "seen": seen}

    async def delivered(self) -> dict[str, Any]:
        """The same where A hears nothing of it."""
        answer = await self.deliver()
        self.record.hear({"event": "arrived", "worker": "A", "at": boottime(), **answer})
        return answer

    async def send(self) -> None:
        """Let A send its write, which does not arrive."""
        self.proxy.delay(f"PUT /r/{self.record.key} ".encode())
        await self.first.go("write")
        await self.first.until("sent")
        if not await asyncio.to_thread(wait_until, lambda: self.proxy.in_flight == 1, timeout=60, poll=0.001):
            raise Unexpected("A's write was to be kept by the proxy, and did not come by")
        self._fault("delay")

    def _fault(self, do: str) -> None:
        self.record.hear({"event": "fault", "do": do, "worker": "A", "at": boottime()})


async def _dead(pair: Pair) -> dict[str, Any]:
    await pair.send()
    await pair.first.kill()
    await pair.second.acquire()
    await pair.second.read()
    await pair.second.write()
    answer = await pair.delivered()
    await pair.second.finish()
    return answer


async def _waiting(pair: Pair) -> dict[str, Any]:
    await pair.send()
    await pair.second.acquire()
    await pair.second.read()
    await pair.second.prepared()
    answer = await pair.deliver()
    await pair.first.until("accepted", "refused")
    await pair.second.write()
    await pair.second.finish()
    await pair.first.finish()
    return answer


async def _again(pair: Pair) -> dict[str, Any]:
    await pair.send()
    await pair.first.until("unanswered")
    await pair.first.read()
    await pair.first.prepared()
    answer = await pair.delivered()
    await pair.first.write()
    await pair.first.finish()
    return answer


@dataclass(frozen=True, slots=True)
class Case:
    """One way to be overtaken: what happens from A's read on, A's own options, and what the guard calls it."""

    name: str
    title: str
    plays: Callable[[Pair], Awaitable[dict[str, Any]]]
    verdict: str
    options: tuple[str, ...] = ()
    alone: bool = False


def _cases(settings: Settings) -> list[Case]:
    patience = ("--patience", f"{settings['patience']}s")
    return [
        Case("dead", "A is dead when its write arrives, after B's write", _dead, "stale"),
        Case("waiting", "A's write arrives after B has read, before B writes", _waiting, "stale", ("--no-renew",)),
        Case("again", "A's write arrives after A has read again", _again, "late", patience, alone=True),
    ]


def run(settings: Settings, context: Context) -> Outcome:
    """Run every case on each store, off and on, all at the same time."""
    outcome = Outcome()
    rows: list[tuple[Any, ...]] = []
    cases = _cases(settings)
    for backend in settings["backends"]:
        store = context.store(backend)
        ttl = max(settings["ttl"], store.min_ttl)
        context.say(f"{store.name}: a write is delayed in flight")
        runs = iter(processes.run(_all(store, ttl, cases)))
        outcome.figures[store.name] = {}
        for case in cases:
            off, on = next(runs), next(runs)
            for fence, seen in (("off", off), ("on", on)):
                context.keep(f"delay-{store.name}-{case.name}-{fence}", seen["record"].history())
                rows.append(_row(store.name, case, fence, seen))
            if not outcome.plots:
                caption = "A's write leaves while A holds the lock, and arrives after A is dead and B has written."
                titles = [("fence off", off["record"]), ("fence on", on["record"])]
                outcome.plots.append(lanes("lanes", caption, titles))
            _add_claims(outcome, store.name, case, off, on)
    outcome.tables.append(
        Table(
            "A write that arrives late",
            ("store", "case", "fence", "in flight", "left of A's lease", "answer", "counted", "made", "violations"),
            rows,
            note="Left of A's lease: by A's own clock, when it sent the write. Counted: the value at the end, of the "
            "increments that were acknowledged. Made: writes that the resource made, also if their writer never heard.",
        )
    )
    return outcome


async def _all(store: Store, ttl: float, cases: list[Case]) -> list[dict[str, Any]]:
    async with open_processes() as built:
        urls = await together(built.resource(fence=False), built.resource(fence=True))
        return await together(
            *(
                _run_once(built, store, ttl, case, url, fence)
                for case in cases
                for fence, url in zip(("off", "on"), urls, strict=True)
            )
        )


async def _run_once(built: Processes, store: Store, ttl: float, case: Case, url: str, fence: str) -> dict[str, Any]:
    """One case, once; what everybody saw."""
    # Of one lease nothing can be said of the order of tokens.
    promises = ("data",) if case.alone else PROMISES
    record = Record(f"lab delay {store.name} {case.name} {fence}", promises)
    port = urlsplit(url).port
    assert port is not None
    with Proxy(port, who="A's writes") as proxy:
        options = ("--key", record.key, "--ttl", f"{ttl}s", "--fence", fence)
        way = ("--resource", f"http://{proxy.address}", "--margin", "0s")
        first = built.worker("A", record.hear, *options, *way, *case.options, backend=store.url)
        others = [] if case.alone else [built.worker("B", record.hear, *options, "--resource", url, backend=store.url)]
        workers = await together(first, *others)
        await workers[0].acquire()
        await workers[0].read()
        await workers[0].prepared()
        answer = await case.plays(Pair(workers[0], workers[-1], proxy, record))
    tokens = [fact["token"] for fact in record.of("acquired")]
    sent, delivered = record.of("sent", worker="A")[0], record.of("fault")[-1]
    if tokens != sorted(set(tokens)) or len(tokens) != (1 if case.alone else 2):
        raise Unexpected(f"each was to hold the lock once, in turn, and the tokens were {tokens}")
    report = record.check()
    return {
        "record": record,
        "tokens": tokens,
        "in_flight": round(delivered["at"] - sent["at"], 3),
        "left": round(sent["left"], 3),
        "answer": answer,
        "acknowledged": len(record.of("accepted")),
        "value": await asyncio.to_thread(_value, url, record.key),
        "made": report.counts["write:admit"],
        "lost_updates": report.counts["lost_updates"],
        "violations": len(report.violations),
    }


def _value(url: str, key: str) -> int:
    with Client(url) as client:
        return int(client.read(key).body)


def _row(name: str, case: Case, fence: str, seen: dict[str, Any]) -> tuple[Any, ...]:
    answer = seen["answer"]
    said = f"{answer['status']} {'accepted' if answer['verdict'] == 'admit' else answer['verdict']}"
    times = (f"{seen['in_flight']:.2f} s", f"{seen['left']:.2f} s")
    return name, case.title, fence, *times, said, _counted(seen), seen["made"], seen["violations"]


def _counted(seen: dict[str, Any]) -> str:
    return f"{seen['value']} of {seen['acknowledged']}"


def _add_claims(outcome: Outcome, name: str, case: Case, off: dict[str, Any], on: dict[str, Any]) -> None:
    outcome.figures[name][case.name] = {
        f"fence_{fence}": {key: value for key, value in seen.items() if key != "record"}
        for fence, seen in (("off", off), ("on", on))
    }
    outcome.claim(
        f"{name}: {case.title}: without a guard it is made, and an update is lost",
        off["left"] > 0
        and off["answer"]["verdict"] == "admit"
        and (off["made"], off["value"], off["lost_updates"]) == (2, 1, 1)
        and off["violations"] > 0,
        f"sent with {off['left']:.2f} s of the lease left, {off['in_flight']:.2f} s in flight; {off['made']} writes "
        f"made, the value is {off['value']}, {off['violations']} violations",
    )
    answer = on["answer"]
    outcome.claim(
        f"{name}: {case.title}: the guard refuses it as {case.verdict}, and nothing is lost",
        on["left"] > 0
        and (answer["status"], answer["verdict"], answer["seen"]) == (409, case.verdict, on["tokens"][-1])
        and on["acknowledged"] == on["value"] == on["made"] == 1
        and not on["violations"],
        f"{answer['status']} {answer['verdict']}, seen {answer['seen']}; {on['acknowledged']} acknowledged, the "
        f"value is {on['value']}, {on['violations']} violations",
    )
