"""The demo: a real paused process corrupts a resource with fencing off, and is refused with it on.

Each part lets two worker processes go step by step: A acquires and is frozen with SIGSTOP past
its ttl, B takes over, A wakes and goes on. Every number of the picture is counted from the resource's
answers and from the value that it holds in the end.
"""

import asyncio
import json
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote

from fencepost_lab.stage.client import Client
from fencepost_lab.stage.job import PauseAt
from fencepost_lab.stage.processes import Processes, StepWorker, Unexpected, open_processes, together
from fencepost_lab.stage.timeline import Section, Timeline
from fencepost_lab.stage.worker import Fact

Picture: TypeAlias = dict[str, dict[str, Any]]

EXPECTED: Picture = {
    "fence_off": {"accepted_writers": 2, "corrupted": True},
    "fence_on": {"accepted_writers": 1, "stale_rejections": 1, "status": 409, "corrupted": False},
    "write_fence_only": {"lost_updates": 1},
    "enter_first": {"lost_updates": 0},
}
LINES = 3


class Tempo(NamedTuple):
    """How long a lease lasts, and how long A is frozen, in seconds."""

    ttl: float
    pause: float


NORMAL = Tempo(2.0, 5.0)
FAST = Tempo(0.6, 1.2)


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the demo: two workers, one key of one resource, one section of the timeline."""

    zombie: StepWorker
    successor: StepWorker
    url: str
    key: str
    section: Section

    @property
    def accepted(self) -> list[Fact]:
        """The writes that the resource accepted."""
        return [
            fact for worker in (self.zombie, self.successor) for fact in worker.facts if fact["event"] == "accepted"
        ]

    @property
    def refused(self) -> list[Fact]:
        """The accesses that the resource refused."""
        return [fact for worker in (self.zombie, self.successor) for fact in worker.facts if fact["event"] == "refused"]

    @property
    def awake(self) -> bool:
        """Whether A has been frozen and is no longer."""
        return any(fact["event"] == "resumed" for fact in self.zombie.facts)

    async def value(self) -> str:
        """What the resource holds."""
        return await asyncio.to_thread(self._value)

    def _value(self) -> str:
        with Client(self.url) as client:
            reply = client.read(self.key)
        return reply.body.decode() if reply.status == 200 else ""

    async def take_over(self) -> None:
        """See A frozen, and B acquire the lock once A's ttl has passed."""
        await self.zombie.frozen()
        self.section.note("The kernel has stopped A and its renewals: think of a long collection, a suspended machine.")
        await self.successor.acquire()
        self.section.note("A's ttl passed without a renewal, so the lock went to B. Nobody can tell A.")

    async def wake(self) -> None:
        """See A wake."""
        await self.zombie.until("resumed")
        self.section.note("For A no time has passed: it still believes that it holds the lock.")


async def torn(part: Part) -> dict[str, Any]:
    """Two holders append their lines to one value; A wakes in the middle of B's."""
    zombie, successor, section = part.zombie, part.successor, part.section
    await zombie.go("acquire")
    await part.take_over()
    for worker in (successor, successor, zombie, successor, zombie, zombie):
        if worker is zombie:
            if part.refused:
                continue
            if not part.awake:
                await part.wake()
        await worker.go("read")
        await worker.write()
    await successor.finish()
    await zombie.finish()
    value = await part.value()
    section.write("  What the resource holds now:")
    for line in value.splitlines():
        section.write(f"    {line}")
    return {
        "accepted_writers": len({fact["token"] for fact in part.accepted}),
        "corrupted": mixed(value) or len(value.splitlines()) != len(part.accepted),
    }


def mixed(value: str) -> bool:
    """Whether the lines of one writer stand between the lines of another."""
    blocks = [writer for writer, _ in groupby(line.partition(":")[0] for line in value.splitlines())]
    return len(blocks) > len(set(blocks))


async def fence_off(part: Part) -> dict[str, Any]:
    """Both writers are accepted."""
    seen = await torn(part)
    part.section.close(
        f"{seen['accepted_writers']} writers were accepted at the same time, and the value is "
        f"{'a mix of both: corrupted' if seen['corrupted'] else 'intact'}.",
        good=False,
    )
    return seen


async def fence_on(part: Part) -> dict[str, Any]:
    """The replaced writer is refused."""
    seen = await torn(part)
    stale = [fact for fact in part.refused if fact["verdict"] == "stale"]
    status = stale[0]["status"] if stale else None
    part.section.close(
        f"The resource refused A with {status}, and the value is {'corrupted' if seen['corrupted'] else 'intact'}.",
        good=not seen["corrupted"],
    )
    return {
        "accepted_writers": seen["accepted_writers"],
        "stale_rejections": len(stale),
        "status": status,
        "corrupted": seen["corrupted"],
    }


async def lost_update(part: Part) -> dict[str, Any]:
    """Two holders count up one value; A writes between B's read and B's write."""
    zombie, successor = part.zombie, part.successor
    await zombie.go("acquire")
    await zombie.go("read")
    await part.take_over()
    await successor.read()
    await part.wake()
    await zombie.write()
    await successor.write()
    await successor.finish()
    await zombie.finish()
    value = int(await part.value() or "0")
    lost = len(part.accepted) - value
    part.section.close(
        f"Increments accepted: {len(part.accepted)}. The counter says {value}. Lost: {lost}.", good=not lost
    )
    return {"lost_updates": lost}


async def run_demo(*, fast: bool = False, quiet: bool = False) -> Picture:
    """Run the demo; the picture it gave. Raises Unexpected, saying what was seen, if it is not as expected."""
    async with open_processes() as built:
        picture = await _run_parts(built, FAST if fast else NORMAL, Timeline(quiet=quiet), fast or quiet)
    if picture != EXPECTED:
        raise Unexpected(f"the demo was to show {json.dumps(EXPECTED)}, and showed {json.dumps(picture)}")
    return picture


async def _run_parts(built: Processes, tempo: Tempo, timeline: Timeline, at_once: bool) -> Picture:
    off, on = await together(built.resource(fence=False), built.resource(fence=True))

    async def prepare(section: Section, url: str, key: str, pause_at: PauseAt, *options: str) -> Part:
        common = ("--resource", url, "--key", key, "--ttl", f"{tempo.ttl}s", *options)
        frozen = ("--pause", f"{tempo.pause}s", "--pause-mode", "stop", "--pause-at", pause_at)
        backend = "sqlite://" + quote(str(built.folder / f"{key}-{url == on}.db"))
        zombie, successor = await together(
            built.worker("A", section.hear, *common, *frozen, backend=backend),
            built.worker("B", section.hear, *common, backend=backend),
        )
        return Part(zombie, successor, url, key, section)

    appending = ("--edit", "append", "--writes", str(LINES), "--no-enter")
    counting = ("--edit", "count")
    first, second, third, fourth = await together(
        prepare(
            timeline.section(
                "Part 1. Fencing off: the resource takes every write",
                f"  Workers A and B share a lock. Each appends {LINES} lines to one document, and nobody else's may",
                "  stand between them. A is frozen while it holds the lock.",
            ),
            *(off, "document", PauseAt.BEFORE_READ, *appending),
        ),
        prepare(
            timeline.section(
                "Part 2. Fencing on: the resource refuses a token older than the newest it has seen",
                "  The same workers do the same. Only the resource is another.",
            ),
            *(on, "document", PauseAt.BEFORE_READ, *appending),
        ),
        prepare(
            timeline.section(
                "Part 3a. The lost update: tokens on the writes alone are not enough",
                "  Fencing is on. A and B each count one value up by one; their reads carry no token.",
            ),
            *(on, "plain-reads", PauseAt.BEFORE_WRITE, *counting, "--no-enter"),
        ),
        prepare(
            timeline.section(
                "Part 3b. Entering first: the reads carry the token too",
                "  The same again, but B's read tells the resource about B before A's write arrives.",
            ),
            *(on, "fenced-reads", PauseAt.BEFORE_WRITE, *counting, "--enter"),
        ),
    )
    if at_once:
        seen = await together(fence_off(first), fence_on(second), lost_update(third), lost_update(fourth))
    else:
        seen = [await fence_off(first), await fence_on(second)]
        seen += await together(lost_update(third), lost_update(fourth))
    timeline.section(
        "What to take home",
        "  A lock with a timeout cannot stop a holder that was paused; nobody can. The resource can: it checks the",
        "  token in the same step as the access. Enter before you read, then write with the same lease.",
    ).done = True
    timeline.print()
    await _agree(on, sum(len(part.refused) for part in (second, third, fourth)))
    return dict(zip(EXPECTED, seen, strict=True))


async def _agree(url: str, refused: int) -> None:
    """Return if the resource's own count of refusals is that of the workers."""

    def ask() -> int:
        with Client(url) as client:
            return client.metric("resource_stale_token_rejections_total")

    if (counted := await asyncio.to_thread(ask)) != refused:
        raise Unexpected(f"the workers were refused {refused} times, but the resource counted {counted}")
