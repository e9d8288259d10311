"""What many locks leave in etcd: a lease each, revisions, and a file that shrinks by compaction and defragmentation."""

import subprocess
import time
from typing import TYPE_CHECKING, Any

from fencepost.sync import connect
from fencepost_lab.experiments import Settings
from fencepost_lab.experiments.context import Context
from fencepost_lab.gen.run import Order, lay
from fencepost_lab.gen.watch import Watch
from fencepost_lab.report import plots
from fencepost_lab.report.outcome import Outcome, Table
from fencepost_lab.servers import QUICK_ETCD, Etcd, http_text, wait_until
from fencepost_lab.servers.processes import program
from fencepost_lab.servers.stores import Store
from fencepost_lab.stage.processes import Unexpected

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MB = 1e6
_METRICS = {
    "granted": "etcd_debugging_lease_granted_total",
    "revoked": "etcd_debugging_lease_revoked_total",
    "db_size": "etcd_mvcc_db_total_size_in_bytes",
    "in_use": "etcd_mvcc_db_total_size_in_use_in_bytes",
    "keys": "etcd_debugging_mvcc_keys_total",
    "memory": "process_resident_memory_bytes",
}
_STAGES = {
    "empty": "empty",
    "held": "all locks held",
    "expired": "all leases expired",
    "compacted": "compacted",
    "defragmented": "defragmented",
    "cycled": "locks acquired and released",
    "again": "compacted and defragmented again",
}


def etcd(outcome: Outcome, settings: Settings, context: Context) -> None:
    """Lay locks with a lease each, let them expire, clean up, then acquire and release."""
    keys, ttl, cycles = settings["etcd_keys"], settings["etcd_ttl"], settings["etcd_cycles"]
    context.say(f"{keys:,} leases in etcd")
    stages: dict[str, dict[str, int]] = {}
    with Etcd(args=[*QUICK_ETCD, "--auto-compaction-retention", "0"], fsync=True) as server:
        context.stores["etcd"] = Store("etcd", server.url, server)
        stages["empty"] = _look(server)
        with Watch(server.url, every=0.5) as watch:
            done = lay(server.url, Order(keys=keys, seed=7, ttl=ttl))
            stages["held"] = _look(server)
            end = time.monotonic() + ttl
            if not wait_until(lambda: _leases(_look(server)) == 0, timeout=ttl + keys / 100 + 60, poll=0.2):
                raise Unexpected(f"{_leases(_look(server))} leases did not expire")
            late = time.monotonic() - end
        stages["expired"] = _look(server)
        stages["compacted"] = _compact(server)
        stages["defragmented"] = _defragment(server)
        context.say(f"{cycles:,} times acquire and release in etcd")
        with connect(server.url, ttl=30) as locks:
            for number in range(cycles):
                locks.acquire(f"cycle/{number % 100}").release()
        stages["cycled"] = _look(server)
        _compact(server)
        stages["again"] = _defragment(server)
    _add_claims(outcome, keys, cycles, done.rate, late, stages)
    samples: list[Any] = watch.samples

    def paint(axes: "Axes") -> None:
        axes.plot([each.at for each in samples], [each.facts["expiring"] for each in samples], marker="", label="locks")
        axes.axvline(done.seconds, color=plots.GREEN, linestyle="--", label="all laid")
        axes.axvline(done.seconds + ttl, color=plots.RED, linestyle="--", label="the last ttl has passed")
        axes.set_xlabel("seconds")
        axes.set_ylabel("locks there")
        axes.legend(fontsize=9)

    outcome.plots.append(
        plots.draw(
            "leases", f"{keys:,} locks with a lease each in etcd, which revokes at most 1000 leases a second.", paint
        )
    )


def _add_claims(
    outcome: Outcome, keys: int, cycles: int, rate: float, late: float, stages: dict[str, dict[str, int]]
) -> None:
    held, expired, defragmented, cycled = (stages[each] for each in ("held", "expired", "defragmented", "cycled"))
    growth = cycled["revision"] - defragmented["revision"]
    outcome.figures["etcd"] = {
        "keys": keys,
        "locks_per_second": rate,
        "memory_per_lease": (held["memory"] - stages["empty"]["memory"]) / keys,
        "bytes_per_lock": (held["db_size"] - stages["empty"]["db_size"]) / keys,
        "expired_after_last_ttl": late,
        "cycles": cycles,
        "revisions_per_cycle": growth / cycles,
        "bytes_per_cycle": (cycled["db_size"] - defragmented["db_size"]) / cycles,
        "stages": stages,
    }
    outcome.claim(
        "etcd: one lease per lock while they are held, none after they expired",
        (_leases(held), _leases(expired)) == (keys, 0),
        f"{_leases(held):,} leases for {keys:,} locks, then {_leases(expired)}; "
        f"the last one went {late:.1f} s after its ttl",
    )
    outcome.claim(
        "etcd: expiry frees no space; compaction and defragmentation do",
        expired["db_size"] >= held["db_size"] and defragmented["db_size"] < expired["db_size"] / 2,
        " -> ".join(
            f"{stages[each]['db_size'] / MB:.2f} MB" for each in ("held", "expired", "compacted", "defragmented")
        ),
    )
    outcome.claim(
        "etcd: an acquire and a release are two revisions, and the store grows with them until it is compacted",
        growth == 2 * cycles and cycled["db_size"] > defragmented["db_size"],
        f"{growth:,} revisions for {cycles:,} cycles; {defragmented['db_size'] / MB:.2f} MB -> "
        f"{cycled['db_size'] / MB:.2f} MB -> {stages['again']['db_size'] / MB:.2f} MB",
    )
    rows = [
        (
            _STAGES[name],
            f"{_leases(each):,}",
            f"{each['revision']:,}",
            f"{each['db_size'] / MB:.2f} MB",
            f"{each['in_use'] / MB:.2f} MB",
            f"{each['memory'] / MB:.0f} MB",
        )
        for name, each in stages.items()
    ]
    columns = ("stage", "leases", "revision", "file", "in use", "process memory")
    outcome.tables.append(Table(f"etcd, {keys:,} locks, then {cycles:,} acquires and releases", columns, rows))


def _look(server: Etcd) -> dict[str, int]:
    """What etcd says of itself."""
    lines = (line.split(" ") for line in http_text(server.port, "/metrics").splitlines() if line[:1] != "#")
    said = {words[0]: float(words[-1]) for words in lines}
    found = {name: int(said[metric]) for name, metric in _METRICS.items()}
    status = etcdctl(server, "get", "nothing", "--write-out", "fields")
    revision = next(line for line in status.splitlines() if line.startswith('"Revision"'))
    return found | {"revision": int(revision.rpartition(" ")[2])}


def _leases(seen: dict[str, int]) -> int:
    return seen["granted"] - seen["revoked"]


def _compact(server: Etcd) -> dict[str, int]:
    etcdctl(server, "compact", "--physical", str(_look(server)["revision"]))
    return _look(server)


def _defragment(server: Etcd) -> dict[str, int]:
    etcdctl(server, "defrag")
    return _look(server)


def etcdctl(server: Etcd, *words: str) -> str:
    """What etcdctl answers; Unexpected if it fails."""
    said = subprocess.run(
        [program("ETCDCTL"), "--endpoints", server.address, *words], capture_output=True, text=True, timeout=120
    )
    if said.returncode:
        raise Unexpected(f"etcdctl {' '.join(words)}: {said.stderr.strip()}")
    return said.stdout
