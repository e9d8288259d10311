"""A run in figures, for machines and for people."""

from typing import Any

from fencepost.address import masked
from fencepost_lab.contend.order import order
from fencepost_lab.contend.run import Result
from fencepost_lab.report.units import span


def summary(result: Result) -> dict[str, Any]:
    """Everything as JSON has it. Times are in seconds; ``wait`` counts from when an arrival was due."""
    plan = result.plan
    works = result.works.percentile(50) or plan.work
    cost = works + result.alone["acquire"] + result.alone["release"]
    sections = result.counts["sections"]
    served = sorted(result.served.values())
    squares = sum(count * count for count in served)
    return {
        "client": plan.client,
        "backend": masked(plan.backend) if plan.backend else None,
        "contenders": plan.contenders,
        "processes": plan.processes,
        "model": "closed" if plan.rate is None else "open",
        "rate": plan.rate,
        "random": plan.random,
        "keys": plan.keys,
        "ttl": plan.ttl,
        "work": plan.work,
        "elapsed": result.elapsed,
        "interrupted": result.interrupted,
        "acquired": result.counts["acquired"],
        "sections": sections,
        "throughput": sections / result.elapsed if result.elapsed else 0.0,
        "ceiling": 1 / cost if cost and plan.keys == 1 else None,
        "alone": result.alone | {"work": works},
        "wait": result.waits.summary(),
        "acquire": result.acquires.summary(),
        "release": result.releases.summary(),
        "order": order(result.turns)._asdict(),
        "share": {
            "least": served[0],
            "median": served[len(served) // 2],
            "most": served[-1],
            "jain": sum(served) ** 2 / (len(served) * squares) if squares else None,
        },
        "never_served": result.unserved,
        "waiting_at_end": {"count": result.waiting, "longest": result.longest},
        "backlog": [[t, count] for t, count in result.backlog],
        "renewed": result.counts["renewed"],
        "lost": result.counts["lost"],
        "not_owner": result.counts["not_owner"],
        "failures": dict(result.failures.most_common(10)),
        "writes": dict(result.writes),
        "pauses": result.pauses,
        "server": result.server,
    }


def rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    """A summary as lines of a table."""
    wait, turn, served, end = found["wait"], found["order"], found["share"], found["waiting_at_end"]
    model = (
        "closed"
        if found["rate"] is None
        else f"open, {found['rate']:g} {'random ' if found['random'] else ''}arrivals/s"
    )
    yet = ", interrupted" if found["interrupted"] else ""
    lines = [
        (
            "load",
            f"{found['contenders']} contenders in {found['processes']} processes, {model}, {_keys(found['keys'])}",
        ),
        ("measured", f"{found['elapsed']:.1f} s, {found['sections']} sections{yet}"),
        ("wait p50 / p90 / p99", " / ".join(span(wait[name]) for name in ("p50", "p90", "p99"))),
        ("wait p999 / max", f"{span(wait['p999'])} / {span(wait['max'])}"),
        ("throughput", f"{found['throughput']:.1f} sections/s"),
    ]
    alone = found["alone"]
    if found["ceiling"]:
        parts = " + ".join(f"{span(alone[name])} {name}" for name in ("work", "acquire", "release"))
        lines.append(("ceiling", f"{found['ceiling']:.1f} sections/s = 1 / ({parts})"))
    tau = "-" if turn["tau"] is None else f"{turn['tau']:.4f}"
    lines += [
        ("order", f"Kendall tau {tau}, {turn['inversions']} inversions, {turn['overtakes']} by more than 10 ms"),
        ("share", f"least {served['least']}, median {served['median']}, most {served['most']} sections each"),
        ("never served", f"{found['never_served']} of {found['contenders']} contenders"),
        ("still waiting", f"{end['count']}, the longest for {span(end['longest'])}" if end["count"] else "nobody"),
    ]
    if found["rate"] is not None and found["backlog"]:
        points = found["backlog"][:: max(1, len(found["backlog"]) // 8)]
        lines.append(("backlog", "  ".join(f"{t:g}s:{count}" for t, count in points)))
    if found["writes"]:
        lines.append(("writes", ", ".join(f"{count} {outcome}" for outcome, count in sorted(found["writes"].items()))))
    if found["pauses"]:
        lines.append(("paused", f"one process, for {', '.join(span(each) for each in found['pauses'])}"))
    if found["lost"] or found["not_owner"]:
        lines.append(("lost", f"{found['lost']} leases; {found['not_owner']} releases found the lock no longer theirs"))
    if per := found["server"].get("per_section"):
        lines.append(("server, per section", ", ".join(f"{value:.3g} {name}" for name, value in per.items())))
    for failure, count in found["failures"].items():
        lines.append(("failed", f"{count} x {failure}"))
    return lines


def _keys(count: int) -> str:
    return "one hot lock" if count == 1 else f"{count} locks"
