"""One worker of a fleet, as a process: it counts up what it owns, and says what it does, one JSON object per line.

    python -m tests.fleet.worker '{"url": ..., "group": ..., "count": ..., "ttl": ..., "name": ..., "face": ...,
                                   "resource": ..., "work": ...}'

It never looks whether a lease still holds between its read and its write, and rightly so: whatever it found, a
pause can come right after it. SIGTERM asks it to leave.
"""

import asyncio
import json
import random
import signal
import sys
import threading
import time
from collections.abc import Generator
from typing import Any

import fencepost
from fencepost import fleet
from fencepost.driver import boottime
from fencepost.fleet.group import Owned
from fencepost.lease import entering_stamp
from fencepost.lease import stamp as stamp_of
from tests.fleet.resource import AsyncClient, Client

_gate = threading.Lock()


class Refused(Exception):
    """The resource has met a newer owner."""


def main(options: dict[str, Any]) -> None:
    def say(ev: str, partition: Owned[Any] | None = None, **facts: Any) -> None:
        if partition is not None:
            lease = partition.lease
            facts = {"lock": lease.name, "token": lease.token, "holder": lease.holder, **facts}
        line = json.dumps({"t": boottime(), "ev": ev, "who": options["name"], **facts})
        with _gate:
            print(line, flush=True)

    def assigned(partition: Owned[Any]) -> None:
        say("acquired", partition, asked=partition.lease.since, ttl=partition.lease.ttl)

    def revoked(partition: Owned[Any]) -> None:
        say("lost" if partition.lease.reason else "releasing", partition, why=partition.lease.reason)

    def count_up(partition: Owned[Any]) -> Generator[dict[str, Any] | float, Any, None]:
        """One increment: yields an access for its answer, or seconds to work."""
        key, lease = partition.name, partition.lease

        def access(do: str, stamp: fencepost.rule.Stamp, **facts: Any) -> dict[str, Any]:
            who = {"who": options["name"], "do": do, "key": key}
            return {**who, "token": stamp.token, "seq": stamp.seq, "holder": stamp.holder, **facts}

        entered = entering_stamp(lease)
        found = yield access("enter", entered)
        if found["verdict"] != "admit":
            say(
                "read",
                partition,
                key=key,
                seq=entered.seq,
                outcome="refused",
                verdict=found["verdict"],
                seen=found["seen"],
            )
            raise Refused
        yield options["work"] * random.uniform(0.2, 1.8)
        stamp = stamp_of(lease)
        facts = {"value": found["value"] + 1, "base": found["version"]}
        answer = yield access("write", stamp, **facts)
        done = answer["verdict"] == "admit"
        outcome = {"outcome": "done"} if done else {"outcome": "refused", **_pick(answer)}
        say("wrote", partition, key=key, seq=stamp.seq, **facts, **outcome)
        if not done:
            raise Refused

    shared = {"member": options["name"], "assign": assigned, "revoke": revoked}
    if options["face"] == "sync":
        with fencepost.connect(options["url"], ttl=options["ttl"]) as held:
            mine = fleet.Partitions(held, options["group"], options["count"], **shared)
            signal.signal(signal.SIGTERM, lambda *_: mine.stop())
            mine.run(lambda partition: _blocking(partition, options["resource"], count_up))
    else:
        asyncio.run(_async(options, shared, count_up))


def _pick(answer: dict[str, Any]) -> dict[str, Any]:
    return {"verdict": answer["verdict"], "seen": answer["seen"]}


def _blocking(partition: fleet.Partition, address: str, count_up: Any) -> None:
    client = Client(address)
    try:
        while not partition.stop:
            step, answer = count_up(partition), None
            try:
                while True:
                    wanted = step.send(answer)
                    answer = None if isinstance(wanted, float) else client.ask(wanted)
                    time.sleep(wanted if isinstance(wanted, float) else 0)
            except StopIteration:
                pass
    except Refused:
        partition.ended.wait()  # the resource knew first
    finally:
        client.close()


async def _async(options: dict[str, Any], shared: dict[str, Any], count_up: Any) -> None:
    async def work(partition: fleet.aio.Partition) -> None:
        client = await AsyncClient.open(options["resource"])
        try:
            while not partition.stop:
                step, answer = count_up(partition), None
                try:
                    while True:
                        wanted = step.send(answer)
                        answer = None if isinstance(wanted, float) else await client.ask(wanted)
                        await asyncio.sleep(wanted if isinstance(wanted, float) else 0)
                except StopIteration:
                    pass
        except Refused:
            await partition.ended.wait()
        finally:
            client.close()

    async with fencepost.aio.connect(options["url"], ttl=options["ttl"]) as held:
        mine = fleet.aio.Partitions(held, options["group"], options["count"], **shared)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, mine.stop)
        await mine.run(work)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
