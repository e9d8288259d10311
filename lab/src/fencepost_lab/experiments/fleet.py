"""A fleet on hosts of its own, of which some are cut off from the lock service, some from all, and some die."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from fencepost.driver import boottime
from fencepost_lab.experiments import Settings
from fencepost_lab.experiments.context import Context
from fencepost_lab.faults.network import Network, RedisOnHost
from fencepost_lab.faults.record import Faults
from fencepost_lab.history.checks import check
from fencepost_lab.history.format import FORMAT, Line, decode
from fencepost_lab.report import plots
from fencepost_lab.report.outcome import Outcome, Plot, Table
from fencepost_lab.stage import processes
from fencepost_lab.stage.client import Client
from fencepost_lab.stage.nursery import Forked
from fencepost_lab.stage.processes import Processes, Unexpected, open_processes, together

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STORE, _RESOURCE = "store", "resource"
_PATIENCE = 300.0  # seconds that a step may take, on however slow a machine, before something is wrong
_KEPT = "10m"  # how long the service keeps a silent connection: what is on its way through a partition must arrive


def run(settings: Settings, context: Context) -> Outcome:
    """Run it with the fence off and on, at the same time or one after the other."""
    outcome = Outcome()
    faults = Faults()
    hosts = [f"h{number}" for number in range(1, settings["hosts"] + 1)]
    context.say(f"connecting {len(hosts)} hosts")
    network = context.enter(Network([*hosts, _STORE, _RESOURCE], faults=faults))
    store = context.open("redis", RedisOnHost(network=network, host=_STORE))
    found: dict[str, dict[str, Any]] = {}
    patience = max(3.0, settings["ttl"] / 3)  # all those processes have few cores
    for fences in ((False, True),) if settings["together"] else ((False,), (True,)):
        act = _Act(
            settings,
            network,
            hosts,
            f"{store.url}?timeout={patience}s&connect_timeout={patience}s",
            faults,
            context.say,
        )
        found |= processes.run(act.run(fences))
    histories = {name: seen.pop("history") for name, seen in found.items()}
    for name, history in histories.items():
        context.keep(f"fleet-{name}", history)
    outcome.plots.append(plot(settings, histories))
    outcome.figures |= found
    outcome.tables.append(_table(found))
    _add_claims(outcome, settings, **found)
    on, off = found["on"], found["off"]
    outcome.slo["violations"] = (
        f"{on['violations']} in {settings['partitions']} partitions, {settings['workers']} workers and "
        f"{settings['hosts']} hosts with the fence on; {off['violations']} with it off"
    )
    outcome.slo["stale-refused"] = f"409 for {on['late_refused']} of {on['late']} writes of hosts that were cut off"
    return outcome


class _Fleet:
    """The workers of one run, what they said, and who owns what by that."""

    def __init__(self, fence: bool, settings: Settings) -> None:
        self.name = "on" if fence else "off"
        self.fence = fence
        self.group = f"lab-fleet-{self.name}-{token_hex(4)}"
        self.count: int = settings["partitions"]
        self.lines: list[Line] = []
        self.owners: dict[str, Line] = {}
        """Lock -> the line with which its owner acquired it."""
        self.jobs: dict[str, Line] = {}
        """Holder -> the read whose write has no answer yet."""
        self.accepted: dict[str, Line] = {}
        """Lock -> the last write that was accepted."""
        self.workers: dict[str, tuple[str, Forked]] = {}
        """Worker -> its host and its process."""
        self.noted: set[tuple[str, str]] = set()
        """Workers, and what they said of themselves: ready, joined."""
        self.store = Path()

    def hear(self, line: Line) -> None:
        """Take down what a worker said."""
        self.lines.append(line)
        if line["ev"] == "note":
            self.noted.add((line["who"], line["text"]))
            return
        lock, holder = line["lock"], line["holder"]
        match line["ev"]:
            case "acquired":
                self.owners[lock] = line
            case "lost" | "releasing":
                if self.owners.get(lock, {}).get("holder") == holder:
                    del self.owners[lock]
            case "read" if "outcome" not in line:
                self.jobs[holder] = line
            case "wrote":
                self.jobs.pop(holder, None)
                if line["outcome"] == "done":
                    self.accepted[lock] = line

    def on(self, hosts: Sequence[str]) -> list[str]:
        """The workers on these hosts."""
        return [name for name, (host, _) in self.workers.items() if host in hosts]

    def owned(self, workers: Sequence[str]) -> dict[str, Line]:
        """What these workers own: lock -> the line with which it was acquired."""
        there = set(workers)
        return {lock: line for lock, line in self.owners.items() if line["who"] in there}

    def balanced(self, workers: Sequence[str]) -> bool:
        """Whether these workers own everything, and equally many or one more."""
        sizes = Counter(line["who"] for line in self.owned(workers).values())
        each = [sizes[name] for name in workers]
        return sum(each) == self.count and max(each) - min(each) <= 1

    def settled(self) -> bool:
        """Whether all are there, in balance, and every partition was written to."""
        return self.balanced(list(self.workers)) and len(self.accepted) == self.count

    def history(self, faults: Faults) -> list[Line]:
        """The run as ``fencepost check`` reads it, from its first line on."""
        start = min(line["t"] for line in self.lines)
        head = {"t": 0.0, "ev": "run", "format": FORMAT, "source": f"lab fleet {self.name}", "journal": False}
        head |= {"promises": ["data", "order"], "counter": True, "value": 0, "version": 0}
        met = [
            {"at": fault["at"], "ev": "fault", "do": fault["do"], "who": who} | ({"to": to} if to else {})
            for fault in faults
            for who in self.on([fault["who"]])
            for to in (fault.get("to"),)
        ]
        said = sorted([line | {"at": line["t"]} for line in self.lines] + met, key=lambda line: float(line["at"]))
        whole = [head]
        for line in said:
            at = line.pop("at")
            if at >= start:
                whole.append(line | {name: round(line[name] - start, 6) for name in ("asked",) if name in line})
                whole[-1] |= {"t": round(at - start, 6)}
        return whole


class _Act:
    """What happens to one fleet, or to two at the same time on the same hosts."""

    def __init__(
        self,
        settings: Settings,
        network: Network,
        hosts: list[str],
        url: str,
        faults: Faults,
        say: Callable[[str], None],
    ) -> None:
        self.settings = settings
        self.network = network
        self.hosts = hosts
        self.url = url
        self.faults = faults
        self.say = say
        severed, silent, dead = (int(settings[name]) for name in ("severed", "silent", "dead"))
        self.severed = hosts[:severed]
        self.silent = hosts[severed : severed + silent]
        self.dead = hosts[severed + silent : severed + silent + dead]
        self._news = asyncio.Event()
        self._listeners: set[asyncio.Task[None]] = set()
        self._built: Processes
        self._killed: set[int] = set()
        self._ended = ""

    async def run(self, fences: Sequence[bool]) -> dict[str, dict[str, Any]]:
        fleets = [_Fleet(fence, self.settings) for fence in fences]
        self.network.heal()  # hosts that died in the run before
        begun = len(self.faults)
        async with open_processes() as built:
            self._built = built
            await self._start(fleets)
            seen = await self._trouble(fleets)
            faults = Faults(self.faults[begun:])
            for fleet, values in zip(fleets, await together(*(self._end(fleet) for fleet in fleets)), strict=True):
                seen[fleet.name]["values"] = values
        for fleet in fleets:
            seen[fleet.name] |= _facts(fleet, faults, set(fleet.on(self.silent)), seen[fleet.name])
        return seen

    async def _start(self, fleets: list[_Fleet]) -> None:
        """Start everything, and return once every partition is served, in balance."""
        self.say(f"starting {self.settings['workers']} workers on {len(self.hosts)} hosts")
        options: dict[str, list[str]] = {}
        for fleet in fleets:
            fleet.store = self._built.folder / f"values-{fleet.name}.db"
            there = self.network.address(_RESOURCE)
            url = await self._built.resource(
                *("--timeout", _KEPT),
                fence=fleet.fence,
                store=fleet.store,
                host=there,
                namespaces=self.network.namespaces(_RESOURCE),
            )
            options[fleet.name] = [
                *("--partitions", str(fleet.count), "--resource", url, "--fence", fleet.name),
                *("--ttl", f"{self.settings['ttl']}s", "--work", f"{self.settings['work']}s"),
            ]
        for number in range(self.settings["workers"]):
            host = self.hosts[number % len(self.hosts)]
            name = f"{host}-{number // len(self.hosts) + 1}"
            for fleet in fleets:
                process = await self._built.member(
                    fleet.group,
                    *("--name", name, *options[fleet.name]),
                    backend=self.url,
                    namespaces=self.network.namespaces(host),
                )
                fleet.workers[name] = host, process
                self._listeners.add(asyncio.create_task(self._listen(fleet, name, process)))
            if host == self.hosts[-1]:  # one on each host at a time: all at once, they would wait for the processor
                await self._all(fleets, "ready")
        for fleet in fleets:
            self._order("join", list(fleet.workers), fleet)
        await self._all(fleets, "joined")
        for fleet in fleets:
            await self._until(fleet.settled, "balance with every partition served")

    async def _all(self, fleets: list[_Fleet], what: str) -> None:
        """Return once all workers that were started have said it."""
        for fleet in fleets:
            await self._until(partial(fleet.noted.issuperset, [(name, what) for name in fleet.workers]), what)

    async def _listen(self, fleet: _Fleet, name: str, process: Forked) -> None:
        async for text in process.stdout:
            if text.endswith(b"\n"):  # one that is killed may be cut short
                fleet.hear(decode(text))
                self._news.set()
        status = await process.wait()
        if process.pid not in self._killed:
            self._ended = f"worker {name} has ended by itself, with status {status}"
        self._news.set()

    async def _until(self, done: Callable[[], bool], what: str) -> None:
        """Return once it is so; Unexpected after a long time, or if a worker has ended by itself."""
        end = boottime() + _PATIENCE
        while not done():
            if self._ended or boottime() > end:
                why = self._ended or f"there was no {what} in {_PATIENCE:g} s"
                raise Unexpected(f"{why}\n{self._built.complaints}".strip())
            self._news.clear()
            try:
                async with asyncio.timeout(1.0):
                    await self._news.wait()
            except TimeoutError:
                continue

    async def _trouble(self, fleets: list[_Fleet]) -> dict[str, dict[str, Any]]:
        """Harm the hosts, wait until the others serve everything, let the held jobs write, and connect all again."""
        alive = [host for host in self.hosts if host not in (*self.severed, *self.silent, *self.dead)]
        self.say(f"{len(self.severed)} hosts are cut off from Redis, {len(self.silent)} from all, {len(self.dead)} die")
        cut_off = [*self.severed, *self.silent]
        await self._hold(fleets, cut_off)
        # From here on nothing is heard until the hosts are cut off: a loss that comes in meanwhile counts as theirs.
        lost = {fleet.name: fleet.owned(fleet.on([*cut_off, *self.dead])) for fleet in fleets}
        held = {fleet.name: self._held(fleet) for fleet in fleets}
        for host in self.severed:
            self.network.cut(host, to=_STORE)
        for host in (*self.silent, *self.dead):
            self.network.cut(host)
        at = boottime()
        for fleet in fleets:
            self._order("go", fleet.on(self.silent), fleet)  # their writes get no further than the cable
        await together(*(self._kill(fleets, host) for host in self.dead))
        seen: dict[str, dict[str, Any]] = {}
        for fleet in fleets:
            mine = lost[fleet.name]
            await self._until(partial(self._served, fleet, mine, alive), "service by the hosts that are left")
            spans = [_first(fleet, lock, line, at) - at for lock, line in mine.items()]
            seen[fleet.name] = {"at": at, "lost": len(mine), "held": held[fleet.name], "served_in": max(spans)}
        gone = boottime()
        for fleet in fleets:
            seen[fleet.name]["gone"] = gone
            self._order("go", fleet.on(self.severed), fleet)
        for fleet in fleets:
            jobs = held[fleet.name]
            await self._until(partial(jobs.isdisjoint, fleet.jobs), "answer to each job that was held")
        self.say("all are connected again, but for the dead")
        healed = boottime()
        self.network.heal(*self.severed, *self.silent)
        for fleet in fleets:
            everybody = fleet.on([host for host in self.hosts if host not in self.dead])
            await self._until(partial(fleet.balanced, everybody), "balance among the hosts that are left")
            seen[fleet.name] |= {"healed": healed, "balanced_in": boottime() - healed}
        return seen

    async def _hold(self, fleets: list[_Fleet], hosts: Sequence[str]) -> None:
        """Return once each partition of these hosts has a job whose write is held, while everything is in balance.

        A machine that stands still for the ttl loses partitions: then their jobs are let go, and held again.
        """
        while True:
            for fleet in fleets:
                self._order("hold", fleet.on(hosts), fleet)
            for fleet in fleets:
                await self._until(
                    lambda fleet=fleet: self._at_work(fleet, hosts) or not fleet.balanced(list(fleet.workers)),  # type: ignore[misc]
                    "job under way in each partition of the hosts to cut off",
                )
            if all(fleet.balanced(list(fleet.workers)) and self._at_work(fleet, hosts) for fleet in fleets):
                return
            for fleet in fleets:
                self._order("go", fleet.on(hosts), fleet)
            for fleet in fleets:
                await self._until(fleet.settled, "balance with every partition served")

    def _at_work(self, fleet: _Fleet, hosts: Sequence[str]) -> bool:
        mine = fleet.owned(fleet.on(hosts))
        return bool(mine) and all(line["holder"] in fleet.jobs for line in mine.values())

    def _held(self, fleet: _Fleet) -> set[str]:
        """The holders on the hosts that are cut off whose jobs are held."""
        return {line["holder"] for line in fleet.owned(fleet.on(self.severed)).values()} & set(fleet.jobs)

    def _served(self, fleet: _Fleet, lost: dict[str, Line], alive: list[str]) -> bool:
        """Whether a worker that runs has written to each of the partitions that were lost."""
        there = set(fleet.on(alive))
        return all(
            (last := fleet.accepted.get(lock)) is not None and last["token"] > line["token"] and last["who"] in there
            for lock, line in lost.items()
        )

    async def _end(self, fleet: _Fleet) -> dict[str, int]:
        """Let all jobs end and no other begin; what the resource has at the end."""
        everybody = fleet.on([host for host in self.hosts if host not in self.dead])
        after = boottime()
        await self._until(
            lambda: all(line["t"] > after for line in fleet.accepted.values()), "write to each partition after all that"
        )
        self._order("rest", everybody, fleet)
        living = set(everybody)
        await self._until(
            lambda: not any(line["who"] in living for line in fleet.jobs.values()), "end of the jobs under way"
        )
        # The network is none of this process's: the same file, served once more on this side.
        url = await self._built.resource(fence=fleet.fence, store=fleet.store)
        return await asyncio.to_thread(_values, url, sorted(fleet.accepted))

    def _order(self, word: str, workers: Sequence[str], fleet: _Fleet) -> None:
        for name in workers:
            fleet.workers[name][1].stdin.write(f"{word}\n".encode())

    async def _kill(self, fleets: list[_Fleet], host: str) -> None:
        """SIGKILL all workers on a host."""
        victims = [fleet.workers[name][1] for fleet in fleets for name in fleet.on([host])]
        self._killed |= {each.pid for each in victims}
        for each in victims:
            each.kill()
        for each in victims:
            await each.wait()
        self.faults.note("kill", host)


def _first(fleet: _Fleet, lock: str, lost: Line, at: float) -> float:
    """When the first write of a successor to a partition that was lost was accepted."""
    found = (
        line["t"]
        for line in fleet.lines
        if line["ev"] == "wrote"
        and line["lock"] == lock
        and line["token"] > lost["token"]
        and line["outcome"] == "done"
    )
    return float(next(found, inf))


def _values(url: str, keys: list[str]) -> dict[str, int]:
    with Client(url) as client:
        return {key: int(client.read(key).body) for key in keys}


def _facts(fleet: _Fleet, faults: Faults, silent: set[str], seen: dict[str, Any]) -> dict[str, Any]:
    history = fleet.history(faults)
    report = check(history)
    wrote = [line for line in fleet.lines if line["ev"] == "wrote"]
    done = Counter(line["lock"] for line in wrote if line["outcome"] == "done")
    answered = {(line["holder"], line.get("seq"), line["base"]) for line in wrote if line["outcome"] != "unknown"}
    open_writes = Counter(
        line["lock"]
        for line in fleet.lines
        if line["ev"] == "sent"
        and line["do"] == "write"
        and (line["holder"], line.get("seq"), line["base"]) not in answered
    )
    values = seen.pop("values")
    held, gone, healed = seen.pop("held"), seen.pop("gone"), seen.pop("healed")
    late = [line for line in wrote if line["holder"] in held and line["t"] > gone]
    at = seen.pop("at")
    # What was sent before the cut may have arrived, and only its answer be late.
    delayed = [line for line in wrote if line["who"] in silent and at < line["asked"] < healed < line["t"]]
    writers: dict[tuple[str, int], set[str]] = {}
    for line in wrote:
        if line["outcome"] == "done":
            writers.setdefault((line["lock"], line["token"]), set()).add(line["who"])
    return {
        "workers": len(fleet.workers),
        "held": len(held),
        "late": len(late),
        "late_accepted": sum(line["outcome"] == "done" for line in late),
        "late_refused": sum(line["outcome"] == "refused" for line in late),
        "delayed": len(delayed),
        "delayed_accepted": sum(line["outcome"] == "done" for line in delayed),
        "delayed_refused": sum(line["outcome"] == "refused" for line in delayed),
        "healed_after": round(healed - at, 3),
        "served_in": round(seen["served_in"], 3),
        "balanced_in": round(seen["balanced_in"], 3),
        "acknowledged": done.total(),
        "unanswered": open_writes.total(),
        "counted": sum(values.values()),
        "missing": sum(max(0, number - values[lock]) for lock, number in done.items()),
        "too_many": sum(max(0, values[lock] - done[lock] - open_writes[lock]) for lock in values),
        "tokens": len(writers),
        "writers_per_token": max(map(len, writers.values())),
        "overlapping_beliefs": report.counts["overlapping_beliefs"],
        "lost_updates": report.counts["lost_updates"],
        "violations": len(report.violations),
        "faults": dict(Counter(fault["do"] for fault in faults)),
        "history": history,
    }


def curve(history: list[Line]) -> tuple[list[tuple[float, int]], list[float]]:
    """How many partitions a worker owns that runs and is connected, over time; when writes of others were answered.

    Both count from the first fault.
    """
    start = next(line["t"] for line in history if line["ev"] == "fault")
    away: set[str] = set()
    owners: dict[str, Line] = {}
    steps: list[tuple[float, int]] = []
    late: list[float] = []
    for line in history:
        t = round(line["t"] - start, 3)
        match line["ev"]:
            case "fault":
                (away.discard if line["do"] == "heal" else away.add)(line["who"])
            case "acquired":
                owners[line["lock"]] = line
            case "lost" | "releasing" if owners.get(line["lock"], {}).get("holder") == line["holder"]:
                del owners[line["lock"]]
            case "wrote" if line["who"] in away and line["outcome"] != "unknown":
                late.append(t)
                continue
            case _:
                continue
        steps.append((t, sum(each["who"] not in away for each in owners.values())))
    return steps, late


def plot(settings: Settings, histories: dict[str, list[Line]]) -> Plot:
    """The partitions that are served, before and after the faults."""
    styles = {"off": (plots.ORANGE, "X", "--", "accepted", 0.14), "on": (plots.BLUE, "o", "-", "refused", 0.05)}

    def paint(axes: "Axes") -> None:
        for name, history in histories.items():
            colour, mark, style, answer, height = styles[name]
            steps, late = curve(history)
            times, counts = zip(*steps, strict=True)
            served = f"fence {name}: partitions served"
            axes.step(times, counts, where="post", color=colour, marker="", linestyle=style, label=served)
            y, label = settings["partitions"] * height, f"fence {name}: {len(late)} late writes, {answer}"
            look: dict[str, Any] = {"color": colour, "markersize": 9, "markeredgecolor": "white", "linestyle": ""}
            axes.plot(late, [y] * len(late), mark, label=label, **look)
        axes.axvline(0, color=plots.RED, linestyle=":", linewidth=1.5, label="hosts are cut off and killed")
        axes.set_xlim(left=-settings["ttl"])
        axes.set_ylim(bottom=0)
        axes.set_xlabel("seconds since the faults")
        axes.set_ylabel("partitions with an owner\nthat runs and is connected")
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, fontsize=plots.LEGEND)

    lost = sum(settings[name] for name in ("severed", "silent", "dead"))
    caption = (
        f"{settings['workers']} workers on {settings['hosts']} hosts share {settings['partitions']} partitions; {lost} "
        f"hosts are lost at once. The ttl is {settings['ttl']:g} s."
    )
    return plots.draw("served", caption, paint, height=4.4)


def _table(found: dict[str, dict[str, Any]]) -> Table:
    return Table(
        "A fleet that loses hosts",
        (
            "fence",
            "partitions lost",
            "served again in",
            "balanced after healing in",
            "late writes",
            "accepted",
            "refused",
            "delayed: accepted, refused",
            "acknowledged",
            "no answer",
            "counted",
            "violations",
        ),
        [
            (
                name,
                seen["lost"],
                f"{seen['served_in']:.1f} s",
                f"{seen['balanced_in']:.1f} s",
                seen["late"],
                seen["late_accepted"],
                seen["late_refused"],
                f"{seen['delayed_accepted']}, {seen['delayed_refused']}",
                seen["acknowledged"],
                seen["unanswered"],
                seen["counted"],
                seen["violations"],
            )
            for name, seen in found.items()
        ],
        note="Served again: from the faults until a successor's write to the last of the lost partitions was accepted. "
        "Late: writes of jobs on hosts that were cut off from Redis, sent after that. Delayed: writes that hosts "
        "sent while they were cut off from all; they arrived when these were connected again. Acknowledged: accepted "
        "increments; no answer: to workers that died or were cut off; counted: the sum of all values at the end. "
        "Violations: what 'fencepost check' found in the history.",
    )


def _add_claims(outcome: Outcome, settings: Settings, *, off: dict[str, Any], on: dict[str, Any]) -> None:
    both = {"off": off, "on": on}
    ttl, bound = settings["ttl"], settings["bound"]
    dead = settings["dead"]
    outcome.claim(
        "hosts were cut off from the lock service with jobs under way, and others died with all their workers",
        all(
            seen["held"] >= settings["severed"]
            and seen["faults"].get("cut") == settings["severed"] + settings["silent"] + dead
            and seen["faults"].get("kill", 0) == dead
            for seen in both.values()
        ),
        "; ".join(
            f"fence {name}: {seen['held']} jobs held, {seen['faults'].get('cut', 0)} hosts cut, "
            f"{seen['faults'].get('kill', 0)} killed, {seen['lost']} of {settings['partitions']} partitions lost"
            for name, seen in both.items()
        ),
    )
    outcome.claim(
        f"the others serve every partition again within {bound:g} ttl, whether the fence is on or off",
        all(seen["served_in"] <= bound * ttl for seen in both.values()),
        "; ".join(f"fence {name}: after {seen['served_in'] / ttl:.2f} ttl" for name, seen in both.items()),
    )
    outcome.claim(
        "with the fence off, writes of workers that were replaced are accepted, and updates are lost",
        off["late_accepted"] >= off["held"]
        and off["lost_updates"] > 0
        and off["missing"] > 0
        and off["violations"] > 0,
        f"{off['late_accepted']} of {off['late']} late writes accepted, {off['lost_updates']} updates lost, "
        f"{off['missing']} increments missing from the values, {off['violations']} violations",
    )
    outcome.claim(
        "with the fence on, each of them is refused with 409, and nothing that was acknowledged is lost",
        on["late_refused"] == on["late"] >= on["held"]
        and not on["late_accepted"]
        and on["missing"] == on["too_many"] == on["lost_updates"] == on["violations"] == 0,
        f"{on['late_refused']} of {on['late']} late writes refused; {on['acknowledged']} increments acknowledged, "
        f"{on['unanswered']} without an answer, {on['counted']} counted; {on['violations']} violations",
    )
    if settings["silent"]:
        outcome.claim(
            "writes that hosts sent while all their packets were lost arrive once the network is whole: each is "
            "accepted with the fence off, and refused with it on",
            off["delayed_accepted"] == off["delayed"] >= settings["silent"]
            and on["delayed_refused"] == on["delayed"] >= settings["silent"],
            f"{off['delayed_accepted']} of {off['delayed']} accepted with the fence off; {on['delayed_refused']} of "
            f"{on['delayed']} refused with it on",
        )
    outcome.claim(
        "each token of each partition has one accepted writer",
        on["writers_per_token"] == 1 and on["tokens"] > settings["partitions"],
        f"{on['tokens']} tokens wrote, each of at most {on['writers_per_token']} worker",
    )
