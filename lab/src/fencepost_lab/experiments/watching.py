"""What waiting costs the store: a queue entry and a watch for each waiter, as the servers themselves count it."""

import asyncio
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from fencepost.backend import Backend
from fencepost.driver.tasks import Asyncio
from fencepost.errors import BackendError
from fencepost.holders import random_holder
from fencepost.lease import Grant
from fencepost.registry import connect
from fencepost_lab.experiments import Settings
from fencepost_lab.experiments.context import Context
from fencepost_lab.report import plots
from fencepost_lab.report.outcome import Outcome, Plot, Table
from fencepost_lab.report.units import span
from fencepost_lab.servers import HOST, Etcd, EtcdCluster, ZooKeeper, http_text
from fencepost_lab.servers.processes import program
from fencepost_lab.stage.processes import Unexpected

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "hot"
TTL = 300.0
"""Seconds: longer than a ramp, so that nobody has to renew meanwhile."""
MB = 1e6
Found: TypeAlias = dict[str, Any]
"""What was measured on a store: ``empty``, ``alone`` (nobody waits), ``steps``, and why it ``stopped`` early."""
_AT_ONCE = 64  # waiters that join at the same time
_PATIENCE = 120.0  # seconds until all watches are open, on however slow a machine
_ANY = 1 << 40  # the length of a queue that is never full


class Counts(NamedTuple):
    """What all servers of a store have counted so far, together."""

    watches: float
    """Open now."""
    cpu: float
    """Seconds."""
    sent: float
    """Bytes of answers and events to clients."""
    requests: float
    """Messages that came from clients."""
    fired: float
    """Watches that were told of an event."""

    def since(self, before: "Counts") -> "Counts":
        return Counts(*(now - then for now, then in zip(self, before, strict=True)))


class Memory(NamedTuple):
    """What all servers of a store take, together, after a collection of garbage."""

    resident: int
    """Bytes that their processes have in memory."""
    live: int
    """Bytes of it that are in use; 0 if nobody can say."""


class Meter(Protocol):
    """A store with a way to read what its servers say of themselves."""

    @property
    def url(self) -> str: ...

    def counts(self) -> Counts: ...

    def memory(self) -> Memory: ...


class EtcdMeter:
    """The metrics of all members; asking for them does not count as a request of a client."""

    def __init__(self, cluster: EtcdCluster) -> None:
        self._cluster = cluster
        # Who joins a queue of thousands is answered late on a loaded machine.
        self.url = f"{cluster.url}?timeout=60s"

    def counts(self) -> Counts:
        return Counts(*map(sum, zip(*map(self._counts, self._cluster.members), strict=True)))

    def memory(self) -> Memory:
        for member in self._cluster.members:
            http_text(member.port, "/debug/pprof/heap?gc=1&debug=1", timeout=30)  # what a profiler asks
        said = list(map(_metrics, self._cluster.members))
        return Memory(
            resident=int(sum(each["process_resident_memory_bytes"] for each in said)),
            live=int(sum(each["go_memstats_heap_alloc_bytes"] for each in said)),
        )

    @staticmethod
    def _counts(member: Etcd) -> Counts:
        said = _metrics(member)
        return Counts(
            watches=said["etcd_debugging_mvcc_watcher_total"],
            cpu=said["process_cpu_seconds_total"],
            sent=said["etcd_network_client_grpc_sent_bytes_total"],
            requests=sum(said[name] for name in said if name.startswith("grpc_server_msg_received_total")),
            fired=said["etcd_debugging_mvcc_events_total"],
        )


def _metrics(member: Etcd) -> dict[str, float]:
    lines = http_text(member.port, "/metrics", timeout=30).splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


class ZooKeeperMeter:
    """ZooKeeper's ``mntr``, and what the kernel says of its process; what is in use, from ``jcmd``, if it is there."""

    def __init__(self, server: ZooKeeper) -> None:
        self._server = server
        self._asked = 0
        self._jcmd = shutil.which("jcmd", path=Path(program("JAVA")).resolve().parent) or shutil.which("jcmd")
        self.url = server.url

    def counts(self) -> Counts:
        self._asked += 1  # it counts itself
        said = dict(line.split("\t", 1) for line in _command(self._server.port, b"mntr").splitlines() if "\t" in line)
        fields = Path(f"/proc/{self._server.pid}/stat").read_text().rpartition(")")[2].split()
        return Counts(
            watches=int(said["zk_watch_count"]),
            cpu=(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
            sent=int(said["zk_response_bytes"]),
            requests=int(said["zk_packets_received"]) - self._asked,
            # In a long queue, a holder changes its node when it deletes it.
            fired=sum(int(said[f"zk_sum_node_{how}_watch_count"]) for how in ("deleted", "changed")),
        )

    def memory(self) -> Memory:
        live = 0
        if self._jcmd is not None:
            self._ask_java(self._jcmd, "GC.run")
            heap = self._ask_java(self._jcmd, "GC.heap_info")
            live = 1024 * sum(map(int, re.findall(r"generation .*used (\d+)K", heap)))
        status = Path(f"/proc/{self._server.pid}/status").read_text().splitlines()
        resident = next(line.split()[1] for line in status if line.startswith("VmRSS:"))
        return Memory(int(resident) * 1024, live)

    def _ask_java(self, jcmd: str, word: str) -> str:
        command = [jcmd, str(self._server.pid), word]
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout


def _command(port: int, word: bytes) -> str:
    """What ZooKeeper answers to one of its commands, which is more than fits into a packet."""
    with socket.create_connection((HOST, port), 10) as connection:
        connection.sendall(word)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts).decode()


class Waiter(NamedTuple):
    """A contender that stands in the queue."""

    backend: Backend
    holder: str


class Crowd:
    """Contenders for one lock, as tasks of this process: one holds it, the others wait."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._granted: asyncio.Queue[tuple[Waiter, Grant]] = asyncio.Queue()
        self._holds: tuple[Waiter, Grant] | None = None

    async def begin(self, backend: Backend) -> None:
        """Have the lock held, so that all others wait."""
        waiter = Waiter(backend, random_holder())
        grant = await backend.take(NAME, waiter.holder, TTL, None)
        if grant is None:
            raise Unexpected("a lock in an empty store was not free")
        self._holds = waiter, grant

    async def join(self, backends: list[Backend]) -> list[Waiter]:
        """Put a contender of each backend into the queue; nobody watches anything yet."""
        at_once = asyncio.Semaphore(_AT_ONCE)

        async def join(backend: Backend) -> Waiter:
            waiter = Waiter(backend, random_holder())
            async with at_once:
                if await backend.take(NAME, waiter.holder, TTL, _ANY) is not None:
                    raise Unexpected("a lock that is held was granted")
            return waiter

        return list(await asyncio.gather(*map(join, backends)))

    def wait(self, waiters: list[Waiter]) -> None:
        """Let them wait for their turn."""
        for waiter in waiters:
            task = asyncio.create_task(self._wait(waiter))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _wait(self, waiter: Waiter) -> None:
        grant = await waiter.backend.wait(NAME, waiter.holder, TTL, None)
        assert grant is not None, "there is no timeout"
        await self._granted.put((waiter, grant))

    async def hand_over(self) -> None:
        """Release the lock, and return once the next one has it; who had it waits again."""
        assert self._holds is not None, "nobody holds it"
        waiter, grant = self._holds
        if not await waiter.backend.release(NAME, waiter.holder, grant.token):
            raise Unexpected("a holder lost the lock")
        try:
            async with asyncio.timeout(_PATIENCE):
                self._holds = await self._granted.get()
        except TimeoutError:
            raise Unexpected(f"the lock was released, and nobody got it within {_PATIENCE:g} s") from None
        self.wait(await self.join([waiter.backend]))

    async def end(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _watched(meter: Meter, watches: int) -> Counts:
    """What the servers have counted once so many watches are open."""
    until = time.monotonic() + _PATIENCE
    while (seen := await asyncio.to_thread(meter.counts)).watches < watches:
        if time.monotonic() > until:
            raise Unexpected(f"{watches} waiters opened {seen.watches:.0f} watches within {_PATIENCE:g} s")
        await asyncio.sleep(0.05)
    return seen


async def _step(meter: Meter, crowd: Crowd, more: list[Backend], waiting: int, settings: Settings) -> dict[str, Any]:
    """A waiter of each of these backends joins those who wait already, and waits; then the lock goes round."""
    count = waiting + len(more)
    memory = [await asyncio.to_thread(meter.memory)]
    start = await asyncio.to_thread(meter.counts)
    joined = await crowd.join(more)
    queued = watched = await asyncio.to_thread(meter.counts)
    memory.append(await asyncio.to_thread(meter.memory))
    # Not all at once: to find the one before it, each has the server look through the whole queue.
    for first in range(0, len(joined), _AT_ONCE):
        some = joined[first : first + _AT_ONCE]
        crowd.wait(some)
        watched = await _watched(meter, waiting + first + len(some))
    memory.append(await asyncio.to_thread(meter.memory))
    waits = await asyncio.to_thread(meter.counts)
    await asyncio.sleep(settings["watch_idle"])
    idle = await asyncio.to_thread(meter.counts)
    for _ in range(settings["watch_turns"]):
        await crowd.hand_over()
    handed = await _watched(meter, count)
    return {
        "waiters": count,
        "more": len(more),
        "watches": waits.watches,
        "memory": memory[2]._asdict(),
        "live_per_entry": (memory[1].live - memory[0].live) / len(more),
        "live_per_watch": (memory[2].live - memory[1].live) / len(more),
        "joining": queued.since(start)._asdict(),
        "watching": watched.since(queued)._asdict(),
        "idle": idle.since(waits)._asdict(),
        "turns": handed.since(idle)._asdict(),
    }


async def _ramp(meter: Meter, settings: Settings, say: Callable[[str], None]) -> Found:
    """More and more waiters, all on one connection; in the end, others with a connection each.

    It ends early, with the reason, where the next step takes too long.
    """
    shared = connect(meter.url, Asyncio())
    crowd, opened, waiting = Crowd(), [shared], 0
    empty = await asyncio.to_thread(meter.memory)
    found: Found = {"empty": empty._asdict(), "steps": [], "stopped": ""}
    try:
        await crowd.begin(shared)
        before = await asyncio.to_thread(meter.counts)
        await asyncio.sleep(settings["watch_idle"])
        found["alone"] = (await asyncio.to_thread(meter.counts)).since(before)._asdict()
        plan = [(count, False) for count in settings["watch_waiters"]]
        plan += [(plan[-1][0] + count, True) for count in settings["watch_apart"]]
        for count, apart in plan:
            what = f"{count:,} waiters{', the last of them with a connection each' if apart else ''}"
            say(what)
            more = [connect(meter.url, Asyncio()) if apart else shared for _ in range(count - waiting)]
            opened += more if apart else []
            try:
                async with asyncio.timeout(settings["watch_limit"]):
                    step = await _step(meter, crowd, more, waiting, settings)
            except (TimeoutError, BackendError) as error:
                why = str(error) or f"not done within {settings['watch_limit']:g} s on this machine"
                found["stopped"] = f"{what}: {why}"
                break
            resident = step["memory"]["resident"] - empty.resident
            found["steps"].append(step | {"connections": len(opened), "resident": resident})
            waiting = count
    finally:
        await crowd.end()
        for backend in opened:
            await backend.close()
    return found


def _etcd(settings: Settings, say: Callable[[str], None]) -> Found:
    # A leader that is loaded stays the leader: with another one, all waiters would look again.
    election = settings["watch_election"]
    timing = ("--heartbeat-interval", str(election // 10), "--election-timeout", str(election))
    with EtcdCluster(size=settings["watch_members"], args=["--enable-pprof", *timing], fsync=True) as cluster:
        return asyncio.run(_ramp(EtcdMeter(cluster), settings, say))


def _zookeeper(settings: Settings, say: Callable[[str], None]) -> Found:
    with ZooKeeper(fsync=True) as server:
        return asyncio.run(_ramp(ZooKeeperMeter(server), settings, say))


MEASURED = {"etcd": _etcd, "zookeeper": _zookeeper}


def watching(outcome: Outcome, settings: Settings, context: Context) -> None:
    """Measure it on servers of its own, which have served nobody before: etcd and ZooKeeper, where they are wanted."""
    found = {}
    for store in settings["backends"]:
        if store in MEASURED:
            context.say(f"{store}: what waiting costs")
            found[store] = MEASURED[store](settings, lambda text: context.say(f"{store}: {text}"))  # noqa: B023
    if not found:
        return
    outcome.figures["watching"] = found
    for store, seen in found.items():
        if not seen["steps"]:
            raise Unexpected(f"{store}: {seen['stopped']}")
        _add_claims(outcome, store, seen["steps"], settings)
    outcome.tables.append(_table(found, settings))
    outcome.plots.append(_plot(found, settings))


def _add_claims(outcome: Outcome, store: str, steps: list[dict[str, Any]], settings: Settings) -> None:
    turns = settings["watch_turns"]
    # ZooKeeper's holder watches its own node; who waits for it on the same connection shares that watch.
    each = len(steps) > 1 and all(
        step["waiters"] <= step["watches"] <= step["waiters"] + 1 for step in steps if not _apart(step)
    )
    unwatched = all(step["joining"]["watches"] == 0 for step in steps)
    outcome.claim(
        f"{store}: who waits has one watch open, however many wait; who only stands in the queue has none",
        each and unwatched,
        "; ".join(f"{step['watches']:,.0f} watches of {step['waiters']:,} waiters" for step in steps),
    )
    outcome.claim(
        f"{store}: a hand-over fires one watch, however many wait",
        all(step["turns"]["fired"] == turns for step in steps if not _apart(step)),
        "; ".join(f"{step['turns']['fired']:.0f} in {turns} hand-overs of {step['waiters']:,}" for step in steps),
    )
    shared = [step for step in steps if not _apart(step)]
    outcome.claim(
        f"{store}: nobody asks while everybody waits",
        all(step["idle"]["requests"] <= 10 for step in shared),
        "; ".join(
            f"{step['idle']['requests']:.0f} requests of {step['waiters']:,} waiters in {settings['watch_idle']:g} s"
            for step in shared
        ),
    )
    first, last = (step["turns"]["sent"] / turns for step in (shared[0], shared[-1]))
    more = shared[-1]["waiters"] / shared[0]["waiters"]
    seen = f"{first:,.0f} bytes with {shared[0]['waiters']:,} waiters, {last:,.0f} with {shared[-1]['waiters']:,}"
    if store == "etcd":
        outcome.claim("etcd: what a hand-over sends does not grow with those who wait", last < 2 * first, seen)
    else:
        outcome.claim(
            "zookeeper: who joins again after its turn is sent the list of all who wait", last > first * more / 4, seen
        )


def _apart(step: dict[str, Any]) -> bool:
    return bool(step["connections"] > 1)


_COLUMNS = (
    "store",
    "waiters",
    "connections",
    "open watches",
    "resident memory",
    "an entry",
    "a watch",
    "a waiter comes",
    "CPU, all wait",
    "sent, all wait",
    "a hand-over sends",
    "and costs CPU",
)


def _table(found: dict[str, Found], settings: Settings) -> Table:
    turns, idle = settings["watch_turns"], settings["watch_idle"]
    rows = [
        (
            store,
            f"{step['waiters']:,}",
            str(step["connections"]),
            f"{step['watches']:,.0f}",
            f"{step['resident'] / MB:+.1f} MB",
            *(
                f"{step[each]:,.0f} B" if step["memory"]["live"] else "-"
                for each in ("live_per_entry", "live_per_watch")
            ),
            span((step["joining"]["cpu"] + step["watching"]["cpu"]) / step["more"]),
            f"{100 * step['idle']['cpu'] / idle:.1f} %",
            f"{step['idle']['sent'] / idle:,.0f} B/s",
            f"{step['turns']['sent'] / turns:,.0f} B",
            span(step["turns"]["cpu"] / turns),
        )
        for store, seen in found.items()
        for step in seen["steps"]
    ]
    note = (
        "All servers of the store together. Resident memory: above that of the empty servers. An entry and a watch: by "
        "how much the memory in use, after a collection of garbage, grew for each waiter that this row added, first in "
        "the queue without a watch, then with one. A waiter comes: CPU of the servers for its entry and its watch. "
        "Where there is more than one connection, the last waiters have a connection and a session each, as waiters in "
        "processes of their own have. ZooKeeper keeps the lists that it sent last, which blurs its memory where few "
        "were added. CPU while nobody waits, of one core: "
        + ", ".join(f"{store} {100 * seen['alone']['cpu'] / idle:.1f} %" for store, seen in found.items())
        + "."
        + "".join(f" Not measured: {store}, {seen['stopped']}." for store, seen in found.items() if seen["stopped"])
    )
    return Table("What waiting costs the store", _COLUMNS, rows, note=note)


def _plot(found: dict[str, Found], settings: Settings) -> Plot:
    shared = {store: [step for step in seen["steps"] if not _apart(step)] for store, seen in found.items()}

    def draw(axes: "Axes", figure: Callable[[dict[str, Any]], float], label: str) -> None:
        for store, steps in shared.items():
            axes.plot([step["waiters"] for step in steps], [figure(step) for step in steps], label=store)
        counts = sorted({step["waiters"] for steps in shared.values() for step in steps})
        axes.set_xscale("log")
        axes.set_xticks(counts, [f"{count:,}" for count in counts])
        axes.set_xticks([], minor=True)
        plots.logarithmic(axes, lambda value: f"{value:,g}")
        axes.set_xlabel("waiters for one lock")
        axes.set_ylabel(label)

    return plots.beside(
        "watching",
        "What waiting costs the servers, by their own count: resident memory above that of the empty servers, and the "
        "bytes that they send for one hand-over.",
        {
            "memory": lambda axes: draw(axes, lambda step: max(step["resident"], 1e4) / MB, "resident memory, MB"),
            "a hand-over": lambda axes: draw(
                axes, lambda step: step["turns"]["sent"] / settings["watch_turns"] / 1000, "kB sent for each"
            ),
        },
        shared=False,
    )
