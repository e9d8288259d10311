"""Locks that are acquired and released in etcd: revisions and the size of the file, with and without compaction."""

import asyncio
import time
from typing import TYPE_CHECKING, Any, Self

from fencepost import aio
from fencepost.errors import BackendError
from fencepost.sync import connect
from fencepost_lab.experiments import Settings
from fencepost_lab.experiments.context import Context
from fencepost_lab.experiments.keyspace_etcd import MB, compact, defragment, etcdctl, look
from fencepost_lab.report import plots
from fencepost_lab.report.outcome import Outcome, Plot, Table
from fencepost_lab.servers import EtcdCluster
from fencepost_lab.stage.processes import Unexpected

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LESS = 0.75
"""What counts as smaller: a file has pages that are never given back."""
_COMMIT = 0.3  # seconds; etcd commits what was written every 0.1 s
_AT_ONCE = 16  # locks that are acquired and released at the same time
_STAGES = {
    "empty": "empty",
    "full": "acquires and releases, never compacted",
    "compacted": "compacted",
    "defragmented": "defragmented",
    "cycled": "as many again, compacted now and then",
    "again": "compacted and defragmented",
}


class Sections:
    """Acquires and releases locks of a cluster, and notes how large the largest file of its members is."""

    def __init__(self, cluster: EtcdCluster) -> None:
        self.count = 0
        self.sizes: list[tuple[int, int]] = []
        """How many sections there had been, and the size."""
        self._cluster = cluster
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        self._runner.__enter__()
        self._locks = self._runner.run(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._locks.close())
        self._runner.__exit__(None, None, None)

    async def _open(self) -> aio.Locks:
        return aio.connect(self._cluster.url, ttl=30)

    def run(self, count: int) -> str:
        """So many sections; if etcd refuses one, what it says."""
        return self._runner.run(self._all(count))

    async def _all(self, count: int) -> str:
        found = await asyncio.gather(*(self._some(number, count // _AT_ONCE) for number in range(_AT_ONCE)))
        return next(filter(None, found), "")

    async def _some(self, number: int, count: int) -> str:
        try:
            for _ in range(count):
                async with self._locks.lock(f"section/{number}"):
                    pass
                self.count += 1
        except BackendError as error:
            return str(error)
        return ""

    def look(self) -> dict[str, int]:
        seen = [look(member) for member in self._cluster.members]
        found = {name: max(each[name] for each in seen) for name in ("revision", "db_size", "in_use", "memory")}
        self.sizes.append((self.count, found["db_size"]))
        return found


def revisions(outcome: Outcome, settings: Settings, context: Context, cluster: EtcdCluster) -> None:
    """Acquire and release until the file is full; clean up; then the same with compaction now and then."""
    members, chunk = cluster.members, settings["etcd_chunk"]
    stages: dict[str, dict[str, int]] = {}
    shared = _share(cluster, settings["etcd_shared"])
    refused = ""
    context.say("acquire and release in etcd, until its file is full")
    with connect(cluster.url, ttl=30) as locks, Sections(cluster) as grown:
        leases = [locks.acquire(f"held/{number}") for number in range(4)]
        stages["empty"] = grown.look()
        while not refused and grown.count < settings["etcd_sections"]:
            refused = grown.run(chunk)
            stages["full"] = grown.look()
        released = leases.pop().release()
        compact(members)
        for lease in leases:  # etcd counts the pages that it has freed as free after some more commits
            lease.release()
            time.sleep(_COMMIT)
        stages["compacted"] = grown.look()
        defragment(members)
        stages["defragmented"] = grown.look()
        etcdctl(members[0], "alarm", "disarm")
    context.say("the same in etcd, compacted now and then")
    with Sections(cluster) as held:
        first = held.look()["revision"]
        while held.count < grown.count:
            if why := held.run(chunk):
                raise Unexpected(f"etcd refuses although its file was compacted: {why}")
            stages["cycled"] = held.look()
            compact(members)
        defragment(members)
        stages["again"] = held.look()
    found = outcome.figures["etcd_revisions"] = {
        "quota": settings["etcd_quota"],
        "sections": grown.count,
        "refused": refused,
        "released_when_full": released,
        "bytes_per_section": (stages["full"]["db_size"] - stages["empty"]["db_size"]) / max(grown.count, 1),
        "compacted_every": chunk,
        "sections_compacted": held.count,
        "revisions_per_section": (stages["cycled"]["revision"] - first) / held.count,
        "largest_compacted": max(size for _, size in held.sizes),
        "shared": shared,
        "sizes": {"never": grown.sizes, "compacted": held.sizes},
        "stages": stages,
    }
    _add_claims(outcome, found, settings)
    outcome.tables.append(_table(found))
    outcome.plots.append(_plot(found))


def _share(cluster: EtcdCluster, count: int) -> dict[str, int]:
    """How many leases the locks of one process take."""
    before = look(cluster.members[0])["granted"]
    with connect(cluster.url, ttl=30) as locks:
        for lease in [locks.acquire(f"shared/{number}") for number in range(count)]:
            lease.release()
    return {"locks": count, "leases": look(cluster.members[0])["granted"] - before}


def _add_claims(outcome: Outcome, found: dict[str, Any], settings: Settings) -> None:
    stages, shared = found["stages"], found["shared"]
    full, defragmented = stages["full"], stages["defragmented"]
    outcome.claim(
        "etcd: the locks of one process share one lease",
        shared["leases"] == 1,
        f"{shared['leases']} lease for {shared['locks']:,} locks",
    )
    outcome.claim(
        "etcd: a file that is never compacted grows to its quota; then no lock can be acquired, and fencepost says why",
        "space exceeded" in found["refused"] and full["db_size"] > 0.9 * settings["etcd_quota"],
        f"after {found['sections']:,} acquires and releases, with {full['db_size'] / MB:.2f} MB of "
        f"{settings['etcd_quota'] / MB:.2f} MB: {found['refused'] or 'nothing was refused'}",
    )
    outcome.claim(
        "etcd: a lock that is held while the file is full can be released",
        found["released_when_full"],
        "it was released" if found["released_when_full"] else "it was not released",
    )
    outcome.claim(
        "etcd: compaction alone gives no space back to the disk, and defragmentation does",
        stages["compacted"]["db_size"] >= full["db_size"]
        and stages["compacted"]["in_use"] < LESS * full["in_use"]
        and defragmented["db_size"] < LESS * full["db_size"],
        " -> ".join(
            f"{each['db_size'] / MB:.2f} MB, {each['in_use'] / MB:.2f} MB in use"
            for each in (full, stages["compacted"], defragmented)
        ),
    )
    outcome.claim(
        "etcd: an acquire and a release are two revisions; compacted now and then, the file stays small",
        found["revisions_per_section"] == 2 and found["largest_compacted"] < LESS * full["db_size"],
        f"{found['revisions_per_section']:g} revisions for each of {found['sections_compacted']:,}; at most "
        f"{found['largest_compacted'] / MB:.2f} MB, compacted after every {found['compacted_every']:,}",
    )


def _table(found: dict[str, Any]) -> Table:
    rows = [
        (
            _STAGES[name],
            f"{each['revision']:,}",
            f"{each['db_size'] / MB:.2f} MB",
            f"{each['in_use'] / MB:.2f} MB",
            f"{each['memory'] / MB:.0f} MB",
        )
        for name, each in found["stages"].items()
    ]
    title = f"etcd: {found['sections']:,} acquires and releases, with a quota of {found['quota'] / MB:.2f} MB"
    note = "Of the largest member each."
    return Table(title, ("stage", "revision", "file", "in use", "process memory"), rows, note=note)


def _plot(found: dict[str, Any]) -> Plot:
    def paint(axes: "Axes") -> None:
        labels = {"never": "never compacted", "compacted": f"compacted every {found['compacted_every']:,}"}
        for name, label in labels.items():
            sizes = found["sizes"][name]
            axes.plot([count / 1000 for count, _ in sizes], [size / MB for _, size in sizes], label=label)
        axes.axhline(found["quota"] / MB, color=plots.RED, linestyle="--", label="quota")
        axes.set_xlabel("thousands of acquires and releases")
        axes.set_ylabel("size of the file, MB")
        axes.set_ylim(bottom=0)
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, fontsize=plots.LEGEND)

    caption = "etcd's file. The drop at the end of each line is the defragmentation."
    return plots.draw("etcd-revisions", caption, paint)
