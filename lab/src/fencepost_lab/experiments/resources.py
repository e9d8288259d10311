"""The fenced resource is a row of Postgres or an object, not a service: fence off and on, at three moments."""

import asyncio
from contextlib import ExitStack, closing
from importlib.metadata import version
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from fencepost.driver import boottime
from fencepost_lab.experiments import Settings
from fencepost_lab.experiments.context import Context
from fencepost_lab.faults.proxy import Proxy
from fencepost_lab.report.lanes import lanes
from fencepost_lab.report.outcome import Outcome, Table
from fencepost_lab.servers.objects import ObjectStore, s3_client
from fencepost_lab.servers.processes import wait_until
from fencepost_lab.servers.stores import Store, kind
from fencepost_lab.stage import processes
from fencepost_lab.stage.processes import Processes, Unexpected, open_processes, together
from fencepost_lab.stage.record import Record
from fencepost_lab.stage.target import open_target
from fencepost_lab.stage.worker import Fact

BUCKET = "fencepost-lab"
_KINDS = {
    "row": "a row, its mark in the guard's table",
    "column": "a row that carries its epoch",
    "object": "an object, put with If-Match",
}
_MOMENTS = {
    "after": "A wakes after B's write",
    "between": "A wakes between B's read and B's write",
    "in-flight": "A's put arrives after B's write",
}


class Case(NamedTuple):
    """A kind of resource, and when A's write meets it."""

    kind: str
    moment: str

    @property
    def title(self) -> str:
        return f"{_KINDS[self.kind]}: {_MOMENTS[self.moment]}"


def run(settings: Settings, context: Context) -> Outcome:
    """Run every case off and on, all at the same time."""
    outcome = Outcome()
    rows: list[tuple[Any, ...]] = []
    cases = [Case(*each.split()) for each in settings["cases"]]
    backends = settings["backends"]
    store = context.store(backends[0])
    rows_in = next((each for each in backends if kind(each) == "postgres"), "postgres")
    context.say("starting an object store")
    with ObjectStore() as objects:
        urls = _addresses(context.store(rows_in).url, objects)
        context.say("rows and objects, written by a holder that was replaced")
        runs = iter(processes.run(_all(store, max(settings["ttl"], store.min_ttl), cases, urls)))
    refused = {path.rpartition("/")[2] for method, path, status in objects.answers if (method, status) == ("PUT", 412)}
    for case in cases:
        off, on = next(runs), next(runs)
        if case.moment == "in-flight":
            on["condition_failed"] = on["record"].key in refused
        if case is cases[-1]:
            titles = [("fence off", off["record"]), ("fence on", on["record"])]
            outcome.plots.append(lanes("lanes", f"{_KINDS[case.kind].capitalize()}: {_MOMENTS[case.moment]}.", titles))
        for fence, seen in (("off", off), ("on", on)):
            record = seen.pop("record")
            context.keep(f"resources-{case.kind}-{case.moment}-{fence}", record.history())
            rows.append(_row(case, fence, seen))
        _add_claims(outcome, case, off, on)
    columns = ("resource", "moment", "fence", "A's answer", "counted", "lost updates", "violations")
    note = "Counted: the value at the end, of the increments that were acknowledged."
    outcome.tables.append(Table("Rows and objects", columns, rows, note=note))
    outcome.figures["object store"] = {"moto": version("moto")}
    return outcome


def _addresses(rows: str, objects: ObjectStore) -> dict[str, str]:
    """The address of each kind of resource."""
    with closing(s3_client(objects.url)) as client:
        client.create_bucket(Bucket=BUCKET)
    address = objects.url.removeprefix("http://")
    return {"row": rows, "column": f"column+{rows}", "object": f"s3+http://test:test@{address}/{BUCKET}"}


async def _all(store: Store, ttl: float, cases: list[Case], urls: dict[str, str]) -> list[dict[str, Any]]:
    async with open_processes() as built:
        return await together(
            *(_run_once(built, store, ttl, case, urls[case.kind], fence) for case in cases for fence in ("off", "on"))
        )


async def _run_once(built: Processes, store: Store, ttl: float, case: Case, url: str, fence: str) -> dict[str, Any]:
    """Let A be replaced, and write; what everybody saw."""
    record = Record(f"lab resources {case.kind} {case.moment} {fence}")
    options = ["--key", record.key, "--ttl", f"{ttl}s", "--fence", fence, "--no-renew"]
    options += ["--no-enter"] if case.kind == "column" else []
    with ExitStack() as stack:
        way, proxy = url, None
        if case.moment == "in-flight":
            port = urlsplit(url.removeprefix("s3+")).port or 80
            proxy = stack.enter_context(Proxy(port, who="A's puts"))
            way = url.replace(f":{port}/", f":{proxy.port}/")
        first, second = await together(
            *(
                built.worker(name, record.hear, *options, backend=store.url, resource=to)
                for name, to in (("A", way), ("B", url))
            )
        )
        await first.acquire()
        await first.read()
        await first.prepared()
        if proxy is None:
            await first.stop()
        else:
            proxy.delay(f"PUT /{BUCKET}/{record.key} ".encode())
            await first.go("write")
            if not await asyncio.to_thread(wait_until, lambda: proxy.in_flight == 1, timeout=60, poll=0.001):
                raise Unexpected("A's put was to be kept by the proxy, and did not come by")
            record.hear(_fault("delay"))
        await second.acquire()
        await second.read()
        if case.moment != "between":
            await second.write()
        else:
            await second.prepared()
        if proxy is None:
            first.resume()
            answer = await first.write()
        else:
            await asyncio.to_thread(proxy.deliver)
            record.hear(_fault("deliver"))
            answer = await first.until("accepted", "refused")
        if case.moment == "between":
            await second.write()
        await second.finish()
        await first.finish()
    tokens = [fact["token"] for fact in record.of("acquired")]
    if len(tokens) != 2 or tokens[0] >= tokens[1]:
        raise Unexpected(f"B was to take the lock over from A, and the tokens were {tokens}")
    report = record.check()
    return {
        "record": record,
        "tokens": tokens,
        "answer": {name: answer[name] for name in ("event", "verdict", "seen", "got") if name in answer},
        "acknowledged": len(record.of("accepted")),
        "value": await asyncio.to_thread(_value, url, record.key),
        "lost_updates": report.counts["lost_updates"],
        "violations": len(report.violations),
    }


def _fault(do: str) -> Fact:
    return {"event": "fault", "do": do, "worker": "A", "at": boottime()}


def _value(url: str, key: str) -> int:
    """What is there, seen from outside."""
    with closing(open_target(url)) as target:
        return int(target.read(key, None).body)


def _row(case: Case, fence: str, seen: dict[str, Any]) -> tuple[Any, ...]:
    answer = seen["answer"]
    said = f"refused as {answer['verdict']}" if answer["event"] == "refused" else "accepted"
    counted = f"{seen['value']} of {seen['acknowledged']}"
    return _KINDS[case.kind], _MOMENTS[case.moment], fence, said, counted, seen["lost_updates"], seen["violations"]


def _add_claims(outcome: Outcome, case: Case, off: dict[str, Any], on: dict[str, Any]) -> None:
    outcome.figures[" ".join(case)] = {"fence_off": off, "fence_on": on}
    outcome.claim(
        f"{case.title}: with the fence off, both are accepted and an update is lost",
        (off["acknowledged"], off["value"], off["lost_updates"]) == (2, 1, 1) and off["violations"] > 0,
        f"{off['acknowledged']} increments acknowledged, the value is {off['value']}, {off['violations']} violations",
    )
    answer = on["answer"]
    outcome.claim(
        f"{case.title}: with the fence on, A is refused and nothing is lost",
        (answer["event"], answer.get("verdict")) == ("refused", "stale")
        and [answer.get("got"), answer.get("seen")] == on["tokens"]
        and on["acknowledged"] == on["value"] == 1
        and on.get("condition_failed", True)
        and not on["violations"],
        f"{answer['event']} {answer.get('verdict', '')}, got {answer.get('got')}, seen {answer.get('seen')}; "
        f"{on['acknowledged']} increment acknowledged, the value is {on['value']}, {on['violations']} violations",
    )
