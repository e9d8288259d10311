"""Many slices, kept in a folder: the result of each, its history, and a summary of all; resumed after a stop."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fencepost.errors import ConfigError
from fencepost_lab.faults.disk import own_mounts
from fencepost_lab.torture import slices
from fencepost_lab.torture.faults import CATALOGUE
from fencepost_lab.torture.plan import CONTROLS, DEFAULT_TTL, STORES, TTLS, Plan
from fencepost_lab.torture.registers import KINDS, WEAKENED
from fencepost_lab.torture.slices import Progress, Result

_SLICE = 4000
_CONTROL = 1500
_TRIES = 4  # slices that a control gets to show violations

_REDIS_KIN = ("redlock", "redis+cluster", "redis+sentinel")


def _why_not(control: str, store: str) -> str:
    """Why a control is not run on a store."""
    if control in ("redis-py", "set-nx"):
        return "it is a lock of one Redis"
    if store in _REDIS_KIN:
        shown = "its values have the guard of redis, where this is shown"
        return shown if control == "noseq" else f"{shown}; its tokens follow the clock, so that none repeats"
    if control == "noseq":
        return "its values are written in a transaction of this host's own file: nothing under way arrives later"
    if store == "postgres":
        return "its tokens follow the clock, so that none repeats when its tables are put back"
    return "not built"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Campaign:
    """What was asked for. ``operations`` and ``seconds`` are for each store; the first that is reached ends it."""

    stores: tuple[str, ...]
    out: Path
    seed: int = 0
    guard: str = ""
    operations: int | None = None
    seconds: float | None = None
    faults: tuple[str, ...] | None = None
    staging: str = ""
    workers: int = 12
    ttl: float | None = None
    slice: int = _SLICE
    controls: bool = True
    resume: bool = False

    def plan(self, store: str, number: int) -> Plan:
        """The slice of that number: its seed is kept with its result, so it can be run again alone."""
        ttl = self.ttl or TTLS.get(store.partition("://")[0] if "://" in store else store, DEFAULT_TTL)
        return Plan(
            store=store,
            guard=self.guard,
            seed=self.seed + number,
            operations=min(self.slice, self.operations or self.slice),
            seconds=self.seconds,
            faults=self.faults,
            staging=self.staging,
            workers=self.workers,
            # More locks than workers: with fewer, most workers wait for one whose holder is paused.
            locks=max(2, self.workers * 3 // 2),
            ttl=ttl,
        )


def controls(plan: Plan) -> tuple[list[str], dict[str, str]]:
    """Which controls a store can show, and why not the others."""
    redis = plan.store == "redis"
    if "://" in plan.store:
        return [], dict.fromkeys(CONTROLS, "the store is not ours: nothing is corrupted there on purpose")
    can = ["off", "writes"]
    if redis or plan.store == "sqlite":
        can.append("noholder")
    if redis:
        can += ["noseq", "redis-py", "set-nx"]
    if plan.guard:
        kind = plan.guard.partition(":")[0]
        weakest = KINDS[kind].weakest
        # A lock of another library has no token, so that its writes need a guard that is off.
        can = [each for each in can if each in weakest or (each not in WEAKENED and "off" in weakest)]
        return [each for each in CONTROLS if each in can], {
            each: f"a guard of kind {kind} cannot be weakened so" for each in CONTROLS if each not in can
        }
    return [each for each in CONTROLS if each in can], {
        each: _why_not(each, plan.store) for each in CONTROLS if each not in can
    }


def kept(out: Path) -> list[Result]:
    """The results in a folder, in the order in which they were made."""
    path = out / "slices.jsonl"
    if not path.exists():
        return []
    found = []
    with path.open("rb") as file:
        for line in file:
            try:
                found.append(json.loads(line))
            except ValueError:
                break  # the run was killed while it wrote
    return found


def run(
    campaign: Campaign,
    *,
    show: Callable[[Progress], None] = lambda _: None,
    tell: Callable[[Result], None] = lambda _: None,
) -> dict[str, Any]:
    """Run what is missing, store after store, and return the summary, which is in the folder too.

    Ctrl-C ends it after the slice that is under way, with the verdict on what was done.
    """
    out = campaign.out
    out.mkdir(parents=True, exist_ok=True)
    before = kept(out)
    if before and not campaign.resume:
        raise ConfigError(f"{str(out)!r} has {len(before)} slices already; go on with --resume, or name another --out")
    _rewrite(out, before)
    with contextlib.suppress(ConfigError):  # then no disk can be filled, and each slice says so
        own_mounts()
    stop: list[bool] = []
    for store in campaign.stores:
        for plan in _plans(campaign, store, before):
            if stop:
                break
            name = f"{plan.store.partition('://')[0]}-{plan.seed}{'-' + plan.control if plan.control else ''}"
            result = slices.run(plan, keep=out / "histories" / f"{name}.jsonl.gz", show=show, stop=stop)
            result["interrupted"] = bool(stop)
            before.append(result)
            _append(out, result)
            tell(result)
            _save(out, before)
    return _save(out, before)


def _plans(campaign: Campaign, store: str, results: list[Result]) -> Iterator[Plan]:
    """What is still to be run on one store; it looks at the results after each slice."""
    name = store.partition("://")[0]
    first = campaign.plan(store, 0)

    def mine(control: str) -> list[Result]:
        same = {"store": name, "control": control, "guard": first.guard}
        return [each for each in results if {key: each["plan"].get(key, "") for key in same} == same]

    for control in controls(first)[0] if campaign.controls else []:
        for number in range(_TRIES):
            if any(each["violations"] for each in mine(control)) or len(mine(control)) >= _TRIES:
                break
            yield dataclasses.replace(
                first,
                control=control,
                locks=max(2, campaign.workers * 3 // 5),  # few, so that somebody is always replaced
                seed=campaign.seed + number,
                operations=_CONTROL,
                seconds=60.0,
                faults=None,
                server_every=0.5,
            )
    while True:
        done = mine("")
        operations, seconds = (sum(each[what] for each in done) for what in ("operations", "seconds"))
        if campaign.operations is not None and operations >= campaign.operations:
            return
        if campaign.seconds is not None and seconds >= campaign.seconds:
            return
        plan = campaign.plan(store, len(done))
        if campaign.seconds is not None:
            plan = dataclasses.replace(plan, seconds=max(1.0, campaign.seconds - seconds))
        if campaign.operations is not None:
            plan = dataclasses.replace(plan, operations=min(campaign.slice, campaign.operations - operations))
        yield plan


def _rewrite(out: Path, results: list[Result]) -> None:
    """Leave out a line that was not written to its end."""
    path = out / "slices.jsonl"
    fresh = path.with_suffix(".new")
    fresh.write_text("".join(json.dumps(each) + "\n" for each in results))
    fresh.replace(path)


def _append(out: Path, result: Result) -> None:
    with (out / "slices.jsonl").open("a") as file:
        file.write(json.dumps(result) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _save(out: Path, results: list[Result]) -> dict[str, Any]:
    summary = summarise(results)
    fresh = out / "summary.json.new"
    fresh.write_text(json.dumps(summary, indent=1) + "\n")
    fresh.replace(out / "summary.json")
    return summary


def summarise(results: list[Result]) -> dict[str, Any]:
    """All slices as one: for each store, and in all."""
    stores: dict[str, Any] = {}
    for name in dict.fromkeys(each["plan"]["store"] for each in results):
        mine = [each for each in results if each["plan"]["store"] == name]
        stores[name] = _of(mine)
    return {
        "ok": bool(stores) and all(each["ok"] for each in stores.values()),
        "when": time.strftime("%Y-%m-%d", time.gmtime()),
        "total": _total(stores),
        "stores": stores,
    }


def _of(results: list[Result]) -> dict[str, Any]:
    product = [each for each in results if not each["plan"]["control"]]
    counts: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    promises: Counter[str] = Counter()
    for each in product:
        counts.update(each["counts"])
        faults.update(each["faults"])
        promises.update(each["promises"])
    controls_: dict[str, Any] = {}
    for each in results:
        if control := each["plan"]["control"]:
            found = controls_.setdefault(control, {"operations": 0, "violations": 0, "lost updates": 0, "seeds": []})
            found["operations"] += each["operations"]
            found["violations"] += each["violations"]
            found["lost updates"] += each["lost_updates"]
            found["seeds"].append(each["plan"]["seed"])
    ok = all(each["ok"] for each in product) and all(each["violations"] for each in controls_.values())
    last = product[-1] if product else results[-1]
    # What a run that was given its faults left out says nothing of what the store can meet.
    free = [each for each in product if not each["plan"]["faults"]] or product or results
    return {
        "ok": ok,
        "slices": len(product),
        "seeds": [each["plan"]["seed"] for each in product],
        "seconds": round(sum(each["seconds"] for each in product), 1),
        "operations": sum(each["operations"] for each in product),
        "violations": sum(each["violations"] for each in product),
        "wrong": [text for each in product for text in (*each["examples"], *each["wrong"])][:20],
        "promised in slices": dict(sorted(promises.items())),
        "pauses": counts["pauses"],
        "pauses that outlived the lease": counts["pauses that outlived the lease"],
        "client kills": counts["kills"],
        "killed holders": counts["killed holders"],
        "forks": counts["forks"],
        "writes sent again": counts["retry"],
        "went on after an unanswered write": counts["went on"],
        "overlapping beliefs": sum(each["overlapping_beliefs"] for each in product),
        "stale refused": sum(each["stale_refused"] for each in product),
        "faults": dict(sorted(faults.items())),
        "without": {
            name: why for name, why in free[-1]["without"].items() if all(name in each["without"] for each in free)
        },
        "longest until served": max((each["served"] for each in product), default=0.0),
        "left": {what: sum(each["left"].get(what, 0) for each in product) for what in last["left"]},
        "growth": max((each["memory"]["growth"] for each in product), default=0),
        "controls": controls_,
        "without controls": controls(Plan(store=last["plan"]["store"]))[1] if last["plan"]["store"] in STORES else {},
    }


_GROUPS = {
    "server kills": ("server-kill", "lost-tail", "failover-lagging"),
    "partitions": ("partition", "partition-requests", "partition-answers"),
    "clock jumps": ("clock-jump", "client-clock", "clock-rate"),
    "losses of state": tuple(name for name, each in CATALOGUE.items() if each.loses),
    "migrations": ("migration",),
}


def _total(stores: dict[str, Any]) -> dict[str, Any]:
    plain = (
        "slices",
        "seconds",
        "operations",
        "violations",
        "pauses",
        "pauses that outlived the lease",
        "client kills",
        "overlapping beliefs",
        "stale refused",
    )
    found: dict[str, Any] = {name: sum(each[name] for each in stores.values()) for name in plain}
    found["seconds"] = round(found["seconds"], 1)
    for group, names in _GROUPS.items():
        found[group] = sum(each["faults"].get(name, 0) for each in stores.values() for name in names)
    return found


assert set(WEAKENED) < set(CONTROLS)
