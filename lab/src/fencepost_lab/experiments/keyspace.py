"""Millions of short-lived locks: memory, lazy and active expiry in Redis; leases, revisions and compaction in etcd."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis

from fencepost.errors import ConfigError
from fencepost.sync import connect
from fencepost_lab.experiments import Settings
from fencepost_lab.experiments.context import Context
from fencepost_lab.experiments.keyspace_etcd import started
from fencepost_lab.experiments.keyspace_leases import leases
from fencepost_lab.experiments.keyspace_revisions import revisions
from fencepost_lab.gen.keys import batches
from fencepost_lab.gen.run import Order, lay
from fencepost_lab.gen.watch import Watch
from fencepost_lab.report import plots
from fencepost_lab.report.outcome import Outcome, Table
from fencepost_lab.servers import HOST, Redis, wait_until
from fencepost_lab.servers.stores import Store
from fencepost_lab.stage.processes import Unexpected

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SEED = 7
MB = 1e6
_WHEN = ("before", "held", "after expiry")


def run(settings: Settings, context: Context) -> Outcome:
    """Redis with its active expiry, Redis without it, then a cluster of etcd for leases, and one for revisions."""
    _room_for(settings["keys"] * 400)
    outcome = Outcome()
    with Redis(args=["--save", "", "--enable-debug-command", "yes"]) as server:
        context.stores["redis"] = Store("redis", server.url, server)
        _active(outcome, server, settings, context)
        _lazy(outcome, server, settings, context)
    leases(outcome, settings, context)
    with started(settings, "--quota-backend-bytes", str(settings["etcd_quota"])) as cluster:
        revisions(outcome, settings, context, cluster)
    return outcome


def _room_for(size: int) -> None:
    """Return if the machine has this much memory to spare; ConfigError, before it runs out of it, if not."""
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        spare = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return
    if spare < size:
        raise ConfigError(
            f"these locks take about {size / 1e9:.1f} GB, and {spare / 1e9:.1f} GB are free; run it with --quick"
        )


def _active(outcome: Outcome, server: Redis, settings: Settings, context: Context) -> None:
    """Lay all locks down and leave them alone: nobody ever touches them again."""
    keys, ttl = settings["keys"], settings["ttl"]
    context.say(f"{keys:,} locks in Redis, left to expire")
    with Watch(server.url, every=settings["sample"]) as watch:
        done = _generate(server.url, keys, ttl)
        last = time.monotonic() - watch.start
    before, after, gone = done["before"], done["after"], done["expired"]
    held, left = (each["used_memory"] - before["used_memory"] for each in (after, gone))
    per_lock = held / max(after["expiring"], 1)
    laid = next((each.at for each in watch.samples if watch.laid(each.at) >= done["laid"]), last)
    overdue = max((watch.overdue(each, ttl) for each in watch.samples if each.at > laid), default=0)
    late = max((each.at for each in watch.samples if each.facts["expiring"] > 0), default=0.0) - laid - ttl
    slowest = max(each.answer for each in watch.samples)
    outcome.figures["redis"] = {
        "keys": keys,
        "laid": done["laid"],
        "ttl": ttl,
        "seconds": done["seconds"],
        "keys_per_second": done["rate"],
        "generator_peak_memory": done["peak_memory"],
        "bytes_per_lock": per_lock,
        "used_memory": {when: each["used_memory"] for when, each in zip(_WHEN, (before, after, gone), strict=True)},
        "left_per_lock": left / keys,
        "keys_left": gone["keys"],
        "overdue_at_most": overdue,
        "overdue_share": overdue / keys,
        "reclaimed_after_last_ttl": late,
        "slowest_answer": slowest,
    }
    outcome.claim(
        "every lock was laid, and the generator needed less than 200 MB",
        done["laid"] == keys and done["peak_memory"] < 200e6,
        f"{done['laid']:,} locks at {done['rate']:,.0f}/s; the generator had at most {done['peak_memory'] / MB:.0f} MB",
    )
    outcome.claim(
        "locks that expired give their memory back, although nobody touched them again",
        left < 0.05 * held and gone["expiring"] == 0,
        f"{held / MB:.1f} MB held ({per_lock:.0f} bytes per lock), {left / MB:.2f} MB after",
    )
    outcome.claim(
        "nothing is left per lock: one counter serves all of them",
        gone["keys"] <= before["keys"] + 1,
        f"{gone['keys']} key left of {keys:,} locks",
    )
    memory = " / ".join(f"{each / MB:.1f} MB" for each in outcome.figures["redis"]["used_memory"].values())
    rows = [
        ("locks per second, laid", f"{done['rate']:,.0f}"),
        ("peak memory of the generator", f"{done['peak_memory'] / MB:.0f} MB"),
        ("bytes per lock, held", f"{per_lock:.0f}"),
        (f"used_memory {', '.join(_WHEN)}", memory),
        ("expired and not reclaimed, at most", f"{overdue:,} ({100 * overdue / keys:.2f} %)"),
        ("last of them gone, after the last ttl", f"{max(late, 0):.1f} s"),
        ("slowest answer to another client", f"{1000 * slowest:.0f} ms"),
    ]
    outcome.tables.append(Table(f"Redis, {keys:,} locks, ttl {ttl:g} s, active expiry", ("figure", "value"), rows))

    def paint(axes: "Axes") -> None:
        at = [each.at for each in watch.samples]
        axes.plot(at, [each.facts["used_memory"] / MB for each in watch.samples], marker="", label="used_memory")
        axes.set_xlabel("seconds")
        axes.set_ylabel("used_memory, MB")
        axes.axvspan(0, laid, color=plots.SKY, alpha=0.2, label="being laid")
        right = axes.twinx()
        stale = [watch.overdue(each, ttl) / 1000 for each in watch.samples]
        right.plot(at, stale, color=plots.RED, marker="", label="expired, not reclaimed")
        right.set_ylabel("thousands of locks")
        right.grid(visible=False)
        right.set_ylim(bottom=0)
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, fontsize=9)
        right.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), fontsize=9)

    outcome.plots.append(plots.draw("memory", f"{keys:,} locks with a ttl of {ttl:g} s, laid and left alone.", paint))


def _generate(url: str, keys: int, ttl: float) -> dict[str, Any]:
    """What the generator reports, as a process of its own: its memory is nobody else's."""
    options = (
        "--keys",
        str(keys),
        "--seed",
        str(SEED),
        "--ttl",
        f"{ttl}s",
        "--until-expired",
        "--json",
        "--metrics",
        "off",
    )
    said = subprocess.run(
        [sys.executable, "-P", "-m", "fencepost", "gen", "--backend", url, *options], capture_output=True, text=True
    )
    if said.returncode:
        raise Unexpected(f"the generator failed: {said.stderr.strip()}")
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def _lazy(outcome: Outcome, server: Redis, settings: Settings, context: Context) -> None:
    """Switch active expiry off: what has expired stays until somebody touches it."""
    keys, ttl = settings["lazy_keys"], settings["lazy_ttl"]
    context.say(f"{keys:,} locks without active expiry")
    with redis.Redis(HOST, server.port, decode_responses=True) as client, Watch(server.url, every=0.1) as watch:
        client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", "0")

        def used() -> int:
            return int(client.info("memory")["used_memory"])

        before = used()
        done = lay(server.url, Order(keys=keys, seed=SEED + 1, ttl=ttl))
        held = used() - before
        time.sleep(ttl + 0.5)  # from here on every one of them has expired
        expired = used() - before
        counted = client.dbsize()
        names = [name for batch in batches(SEED + 1, 0, keys, 1000) for name in batch.names]
        with connect(server.url) as locks:
            if (lease := locks.try_acquire(names[-1])) is None or not lease.release():
                raise Unexpected("an expired lock was not free")
        for first in range(0, keys // 2, 1000):
            client.exists(*(f"fencepost:lock:{name}" for name in names[first : min(first + 1000, keys // 2)]))
        touched = used() - before
        at = time.monotonic()
        client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", "1")
        # The counter of tokens stays.
        if not wait_until(lambda: client.dbsize() <= 1, timeout=120, poll=0.05):
            raise Unexpected(f"{client.dbsize()} keys were not reclaimed within two minutes")
        seconds = time.monotonic() - at
        active = used() - before
    outcome.figures["redis_lazy"] = {
        "keys": keys,
        "laid": done.laid,
        "held": held,
        "after_ttl": expired,
        "keys_after_ttl": counted,
        "after_touching_half": touched,
        "after_active": active,
        "active_seconds": seconds,
    }
    outcome.claim(
        "with lazy expiry alone, expired locks are free for the next holder and still take their memory",
        expired > 0.9 * held and counted >= keys,
        f"{held / MB:.1f} MB held, {expired / MB:.1f} MB after every ttl had passed, DBSIZE still {counted:,}; "
        "one was acquired",
    )
    outcome.claim(
        "touching half of them frees half; active expiry frees the rest",
        0.35 * held < touched < 0.75 * held and active < 0.1 * held,
        f"{touched / MB:.1f} MB after touching half, {active / MB:.1f} MB after active expiry was on again",
    )
    rows = [
        ("held", f"{held / MB:.1f} MB"),
        ("every ttl has passed, nobody has touched them", f"{expired / MB:.1f} MB"),
        ("half of them touched", f"{touched / MB:.1f} MB"),
        (f"active expiry on again, {seconds:.1f} s later", f"{active / MB:.1f} MB"),
    ]
    outcome.tables.append(Table(f"Redis, {keys:,} locks, active expiry off", ("when", "memory of the locks"), rows))

    def paint(axes: "Axes") -> None:
        samples: list[Any] = watch.samples
        axes.plot([each.at for each in samples], [each.facts["used_memory"] / MB for each in samples], marker="")
        axes.set_xlabel("seconds")
        axes.set_ylabel("used_memory, MB")

    caption = "Laid; all expired and none reclaimed; half of them touched; active expiry on again."
    outcome.plots.append(plots.draw("lazy", caption, paint))
