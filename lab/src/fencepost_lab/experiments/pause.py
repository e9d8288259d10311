"""The mandatory one: a holder paused past its ttl, with the fence off and on, on every store."""

import asyncio
from typing import Any

from fencepost_lab.experiments import Settings
from fencepost_lab.experiments.context import Context
from fencepost_lab.report.lanes import lanes
from fencepost_lab.report.outcome import Outcome, Table
from fencepost_lab.servers.stores import Store
from fencepost_lab.stage import processes
from fencepost_lab.stage.client import Client
from fencepost_lab.stage.demo import mixed
from fencepost_lab.stage.processes import Processes, Unexpected, open_processes, together
from fencepost_lab.stage.record import Record

LINES = 3
STALE = "resource_stale_token_rejections_total"
BARE = "critical_write_without_token_total"


def run(settings: Settings, context: Context) -> Outcome:
    """Run it on each store, off and on at the same time."""
    outcome = Outcome()
    rows: list[tuple[Any, ...]] = []
    for backend in settings["backends"]:
        store = context.store(backend)
        ttl = max(settings["ttl"], store.min_ttl)
        context.say(f"{store.name}: a holder is stopped past its ttl of {ttl:g} s")
        off, on = processes.run(_both(store, ttl, settings["pause"]))
        for fence, record in (("off", off["record"]), ("on", on["record"])):
            context.keep(f"pause-{store.name}-{fence}", record.history())
        if not outcome.plots:
            outcome.plots.append(
                lanes(
                    "lanes",
                    f"A is stopped while it holds the lock of {store.name}, and wakes after B has taken over.",
                    [("fence off", off["record"]), ("fence on", on["record"])],
                )
            )
        _add_claims(outcome, store.name, off, on)
        rows += [_row(store.name, "off", off), _row(store.name, "on", on)]
    outcome.tables.append(
        Table(
            "A stopped holder wakes",
            ("store", "fence", "ttl", "stopped for", "accepted writers", "A's answer", "tokens", "value", "violations"),
            rows,
            note="Tokens: A's and B's. Violations: what 'fencepost check' found in the history.",
        )
    )
    runs = outcome.figures.values()
    off, on = (sum(each[fence]["violations"] for each in runs) for fence in ("fence_off", "fence_on"))
    answers = [each["fence_on"]["answer"] for each in runs]
    refused = sum(each["status"] == 409 for each in answers)
    stores = f"{len(answers)} store{'s' if len(answers) > 1 else ''}"
    outcome.slo["violations"] = f"{on} on {stores} with the fence on; {off} with it off"
    outcome.slo["stale-refused"] = f"409 on {refused} of {stores}, never applied"
    return outcome


async def _both(store: Store, ttl: float, pause: float) -> list[dict[str, Any]]:
    async with open_processes() as built:
        return await together(
            _run_once(built, store, ttl, pause, fence=False), _run_once(built, store, ttl, pause, fence=True)
        )


async def _run_once(built: Processes, store: Store, ttl: float, pause: float, *, fence: bool) -> dict[str, Any]:
    """Let A be replaced while it is stopped in front of its write; what everybody saw."""
    switch = "on" if fence else "off"
    url = await built.resource(fence=fence)
    record = Record(f"lab pause {store.name} {switch}")
    options = ["--resource", url, "--key", record.key, "--ttl", f"{ttl}s", "--fence", switch]
    options += ["--edit", "append", "--writes", str(LINES)]
    paused, successor = await built.workers("AB", record.hear, *options, backend=store.url)
    held = await paused.acquire()
    await paused.read()
    await paused.prepared()
    await paused.stop()
    taken = await successor.acquire()
    for _ in range(LINES - 1):
        await successor.go("read")
        await successor.write()
    [stopped] = record.of("fault")
    await asyncio.sleep(stopped["at"] + pause - record.facts[-1]["at"])
    paused.resume()
    answer = await paused.write()
    await successor.go("read")
    await successor.write()
    while answer["event"] == "accepted" and len(record.of("accepted", worker="A")) < LINES:
        await paused.go("read")
        await paused.write()
    await successor.finish()
    await paused.finish()
    length = record.of("fault")[1]["at"] - stopped["at"]
    if length <= held["ttl"] or taken["token"] <= held["token"]:
        raise Unexpected(f"A was stopped for {length:.1f} s of a ttl of {held['ttl']:g} s, token {held['token']}")
    return {
        "record": record,
        "ttl": held["ttl"],
        "stopped": round(length, 1),
        "tokens": [held["token"], taken["token"]],
        "accepted_writers": len({fact["worker"] for fact in record.of("accepted")}),
        "answer": {name: answer[name] for name in ("event", "status", "verdict", "seen", "got") if name in answer},
        **await asyncio.to_thread(_resource, url, record),
        "violations": len(record.check().violations),
    }


def _resource(url: str, record: Record) -> dict[str, Any]:
    """What the resource holds and has counted."""
    with Client(url) as client:
        value = client.read(record.key).body.decode()
        counted = {name: client.metric(name) for name in (STALE, BARE)}
    lines = value.splitlines()
    accepted = len(record.of("accepted"))
    return {"value": lines, "corrupted": mixed(value) or len(lines) != accepted, "accepted": accepted} | counted


def _row(name: str, fence: str, seen: dict[str, Any]) -> tuple[Any, ...]:
    answer = seen["answer"]
    said = f"{answer['status']} {answer.get('verdict', 'accepted')}"
    value = "corrupted" if seen["corrupted"] else "intact"
    ttl, stopped = f"{seen['ttl']:g} s", f"{seen['stopped']:g} s"
    tokens = "{}, {}".format(*seen["tokens"])
    return name, fence, ttl, stopped, seen["accepted_writers"], said, tokens, value, seen["violations"]


def _add_claims(outcome: Outcome, name: str, off: dict[str, Any], on: dict[str, Any]) -> None:
    outcome.figures[name] = {
        "fence_off": {key: value for key, value in off.items() if key != "record"},
        "fence_on": {key: value for key, value in on.items() if key != "record"},
    }
    outcome.claim(
        f"{name}: with the fence off, both writers are accepted and the value is corrupted",
        off["accepted_writers"] == 2 and off["corrupted"] and off["violations"] > 0 and off[BARE] == off["accepted"],
        f"{off['accepted_writers']} accepted writers, {off['accepted']} writes acknowledged, {len(off['value'])} lines "
        f"left, {off[BARE]} writes without a token, {off['violations']} violations",
    )
    answer = on["answer"]
    older, newer = on["tokens"]
    refused = answer.get("status") == 409 and (answer.get("got"), answer.get("seen")) == (older, newer)
    outcome.claim(
        f"{name}: with the fence on, the paused one is refused with 409, it is counted, and the value is intact",
        refused and on[STALE] == on["accepted_writers"] == 1 and not on["corrupted"] and not on["violations"],
        f"{answer.get('status')}, got {answer.get('got')}, seen {answer.get('seen')}; {on['accepted_writers']} writer "
        f"accepted, {len(on['value'])} of {LINES} lines, {STALE} {on[STALE]}, {on['violations']} violations",
    )
