"""A lease for each lock in etcd: more and more of them are kept alive, and then all members are killed."""

import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from fencepost.address import parse
from fencepost.errors import BackendError, FencepostError
from fencepost.sync import connect
from fencepost_lab.contend.recorder import Recorder
from fencepost_lab.experiments import Settings
from fencepost_lab.experiments.context import Context
from fencepost_lab.experiments.keyspace_etcd import MB, look, started
from fencepost_lab.faults.record import Faults
from fencepost_lab.faults.signals import Victim
from fencepost_lab.gen.etcd import EtcdGround
from fencepost_lab.gen.ground import Laid
from fencepost_lab.gen.keep import Keeping
from fencepost_lab.gen.run import Order, lay
from fencepost_lab.report import plots
from fencepost_lab.report.outcome import Outcome, Plot, Table
from fencepost_lab.report.units import span
from fencepost_lab.servers import EtcdCluster
from fencepost_lab.servers.stores import Store
from fencepost_lab.stage.processes import Unexpected

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SEED = 7
_TOLD = 2000  # the keeper hears of new leases so many at a time, or sooner, so that none expires unheard of


class Turn(NamedTuple):
    """One acquire and release of the bystander."""

    at: float
    seconds: float
    error: str


class Bystander:
    """Acquires and releases a lock of its own over and over, as another user of the cluster does."""

    def __init__(self, url: str) -> None:
        self.turns: list[Turn] = []
        self._url = url
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bystander", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def between(self, begin: float, end: float) -> dict[str, Any]:
        """How long its turns took that began in this time, and how many failed."""
        found = [each for each in self.turns if begin <= each.at < end]
        took = Recorder()
        for each in found:
            if not each.error:
                took.add(each.seconds)
        return took.summary() | {"failed": sum(bool(each.error) for each in found)}

    def _run(self) -> None:
        with connect(self._url, ttl=30) as locks:
            while not self._over.wait(0.02):
                begin, error = time.monotonic(), ""
                try:
                    locks.acquire("bystander", timeout=5).release()
                except FencepostError as failed:
                    error = str(failed)
                self.turns.append(Turn(begin, time.monotonic() - begin, error))


def leases(outcome: Outcome, settings: Settings, context: Context) -> None:
    """Ramp them up, then stop every member for a while, and every holder for good."""
    with ExitStack() as stack:
        cluster, bystander, keeping = _begin(settings, context, stack)
        begin = time.monotonic()
        time.sleep(settings["etcd_quiet"])
        quiet = bystander.between(begin, time.monotonic())
        steps, broke = _ramp(settings, context, cluster, keeping, bystander)
        if broke:
            # Another cluster, because leases that nobody keeps take etcd minutes to revoke.
            stack.close()
            cluster, bystander, keeping = _begin(settings, context, stack)
            count = max((each["leases"] for each in steps if _kept(each, settings)), default=steps[0]["leases"])
            context.say(f"{count:,} leases in another cluster")
            _lay(settings, cluster, keeping, count)
        most = _burst(settings, context, cluster, keeping)
        storm = _outage(settings, context, cluster, bystander, keeping)
    outcome.figures["etcd_leases"] = {
        "members": settings["etcd_members"],
        "steps": steps,
        "broke": broke,
        "most": most,
        "quiet": quiet,
    }
    outcome.figures["etcd_outage"] = storm
    _add_claims(outcome, steps, broke, most, storm, settings)
    outcome.tables += [_ramp_table(steps, most, settings), _outage_table(steps, quiet, storm, settings)]
    outcome.plots += [_ramp_plot(steps, settings), _outage_plot(storm, settings)]


def _begin(settings: Settings, context: Context, stack: ExitStack) -> tuple[EtcdCluster, Bystander, Keeping]:
    """A cluster, another user of it, and the process that will keep leases alive."""
    cluster = stack.enter_context(started(settings))
    context.stores["etcd"] = Store("etcd", cluster.url, cluster)
    bystander = stack.enter_context(Bystander(cluster.url))
    return cluster, bystander, stack.enter_context(Keeping(cluster.url, seed=SEED, ttl=settings["etcd_ttl"]))


def _ramp(
    settings: Settings, context: Context, cluster: EtcdCluster, keeping: Keeping, bystander: Bystander
) -> tuple[list[dict[str, Any]], str]:
    """Until something breaks, and what that is, or until the last number is reached."""
    ttl, steps = settings["etcd_ttl"], list[dict[str, Any]]()
    empty = max(look(member)["memory"] for member in cluster.members)
    for count in settings["etcd_leases"]:
        context.say(f"{count:,} leases in etcd, kept alive")
        begin = time.monotonic()
        try:
            rate = _lay(settings, cluster, keeping, count)
        except BackendError as error:
            if not steps:
                raise
            return steps, f"{count:,} leases could not be granted: {error}"
        granted = time.monotonic()
        time.sleep(ttl / 6)  # the last ones are due in the middle of what is measured
        # Each lease is due once in this time, whenever it was granted.
        first, before = keeping.keep(count), [look(member) for member in cluster.members]
        time.sleep(ttl / 3)
        last, after = keeping.keep(count), [look(member) for member in cluster.members]
        seconds = last.at - first.at
        cpu = [(now["cpu"] - then["cpu"]) / seconds for then, now in zip(before, after, strict=True)]
        steps.append(
            {
                "leases": count,
                "locks": _locks(cluster),
                "live": [each["granted"] - each["revoked"] for each in after],
                "granted_per_second": rate,
                "needed_per_second": count / (ttl / 3),
                "reached_per_second": (last.answered - first.answered) / seconds,
                "late": last.late,
                "lost": last.lost,
                "streams": last.streams,
                "memory": max(each["memory"] for each in after),
                "memory_per_lease": (max(each["memory"] for each in after) - empty) / count,
                "db_size": max(each["db_size"] for each in after),
                "cpu_of_leader": max(share for share, each in zip(cpu, after, strict=True) if each["leads"]),
                "cpu_of_members": sum(cpu),
                "cpu_of_client": (last.cpu - first.cpu) / seconds,
                "while_granting": bystander.between(begin, granted),
                "while_kept": bystander.between(granted, time.monotonic()),
            }
        )
        if not _kept(steps[-1], settings):
            late, lost = steps[-1]["late"], steps[-1]["lost"]
            return (
                steps,
                f"{count:,} leases were not kept alive: {lost:,} were lost, keep-alives were {late:.1f} s late",
            )
    return steps, ""


def _lay(settings: Settings, cluster: EtcdCluster, keeping: Keeping, count: int) -> float:
    """Lay the first locks of the seed, and have them kept from the moment they are there; how many a second."""
    there = told = 0
    when = time.monotonic()

    def laid(start: int, more: Laid) -> None:
        nonlocal there, told, when
        there = (there or start) + more.locks
        if there - told >= _TOLD or time.monotonic() - when > settings["etcd_ttl"] / 10:
            keeping.keep(there)
            told, when = there, time.monotonic()

    done = lay(_patient(cluster), Order(keys=count, seed=SEED, ttl=settings["etcd_ttl"]), told=laid)
    keeping.keep(count)
    return done.rate


def _gone_within(settings: Settings, leases: int) -> float:
    """Seconds after which leases that nobody keeps must be gone, on however slow a machine."""
    return float(2 * settings["etcd_ttl"] + leases / 100 + 60)


def _burst(settings: Settings, context: Context, cluster: EtcdCluster, keeping: Keeping) -> dict[str, float]:
    """How many keep-alives are answered in a second, if the client sends them as fast as it can."""
    context.say("as many keep-alives as etcd answers")
    count = keeping.keep(0).leases
    keeping.keep(count, every=0.0)
    time.sleep(settings["etcd_burst"] / 4)  # until it is in full swing
    first, before = keeping.keep(count, every=0.0), sum(look(member)["cpu"] for member in cluster.members)
    time.sleep(settings["etcd_burst"])
    last, after = keeping.keep(count, every=0.0), sum(look(member)["cpu"] for member in cluster.members)
    seconds = last.at - first.at
    keeping.keep(count)
    return {
        "per_second": (last.answered - first.answered) / seconds,
        "cpu_of_members": (after - before) / seconds,
        "cpu_of_client": (last.cpu - first.cpu) / seconds,
    }


def _kept(step: dict[str, Any], settings: Settings) -> bool:
    """Whether the leases were kept alive: none was lost, and each had half of its time left when it was kept."""
    return bool(not step["lost"] and step["late"] < settings["etcd_ttl"] / 6)


def _outage(
    settings: Settings, context: Context, cluster: EtcdCluster, bystander: Bystander, keeping: Keeping
) -> dict[str, Any]:
    """Kill every member and all holders, start the members again, and watch the locks whose holders are gone."""
    if not (before := _locks(cluster)):
        raise Unexpected("no lease was left that could go through an outage")
    context.say(f"etcd is killed with {before:,} leases")
    faults = Faults()
    keeping.stop()
    for number, member in enumerate(cluster.members, 1):
        Victim(member.pid, f"member-{number}", faults).kill()
    killed = time.monotonic()
    time.sleep(settings["etcd_outage"])
    started = time.monotonic()
    cluster.start()
    back = time.monotonic()
    context.say("etcd is back; its leases expire")
    samples: list[tuple[float, int]] = []
    deadline = back + _gone_within(settings, before)
    while not samples or samples[-1][1]:
        samples.append((time.monotonic() - started, _locks(cluster)))
        if time.monotonic() > deadline:
            raise Unexpected(f"{samples[-1][1]:,} leases did not expire")
        time.sleep(settings["etcd_sample"])
    began = max(at for at, left in samples if left == samples[0][1])
    ended = samples[-1][0]
    return {
        "killed": len(faults.of("kill")),
        "outage": back - killed,
        "restart": back - started,
        "leases": before,
        "left_after": samples[0][1],
        "first_gone": began,
        "last_gone": ended,
        "revoked_per_second": before / max(ended - began, settings["etcd_sample"]),
        "blocked": started - killed + ended,
        "storm": bystander.between(started + began, started + ended),
        "before_storm": bystander.between(back, started + began),
        "longest_turn": bystander.between(killed - 10, back)["max"],
        "samples": samples,
    }


def _patient(cluster: EtcdCluster) -> str:
    """Its address, for what has to be answered: a cluster that is loaded to its limit takes its time."""
    return f"{cluster.url}?timeout=60s"


def _locks(cluster: EtcdCluster) -> int:
    """How many of the seed's locks are there."""
    ground = EtcdGround(parse(_patient(cluster)))
    try:
        return ground.facts()["expiring"]
    finally:
        ground.close()


def _add_claims(
    outcome: Outcome,
    steps: list[dict[str, Any]],
    broke: str,
    most: dict[str, float],
    storm: dict[str, Any],
    settings: Settings,
) -> None:
    kept, ttl = [step for step in steps if _kept(step, settings)], settings["etcd_ttl"]
    limit = broke or (
        f"the ramp ends there, and this is no limit: it answers {most['per_second']:,.0f} keep-alives a second, enough "
        f"for {most['per_second'] * ttl / 3:,.0f} leases"
    )
    outcome.claim(
        "etcd: a lock with a lease of its own stays as long as the lease is kept alive in time",
        # The bystander has a lease, too.
        bool(kept)
        and all(
            step["locks"] == step["leases"] and set(step["live"]) <= {step["leases"], step["leases"] + 1}
            for step in kept
        ),
        f"{kept[-1]['leases'] if kept else 0:,} leases with a ttl of {ttl:g} s were kept alive; {limit}",
    )
    outcome.claim(
        "etcd: an outage of all members loses no lock, and starts every ttl again",
        storm["killed"] == settings["etcd_members"]
        and storm["left_after"] == storm["leases"]
        and storm["first_gone"] >= 0.95 * ttl,
        f"{storm['left_after']:,} of {storm['leases']:,} locks were there again; the first went "
        f"{storm['first_gone']:.1f} s after the restart",
    )
    outcome.claim(
        "etcd: it revokes at most about a thousand leases a second; locks of dead holders stay taken longer than a ttl",
        storm["revoked_per_second"] <= 1300 and storm["blocked"] > ttl,  # etcd's own limit is 1000, in steps of 0.5 s
        f"{storm['revoked_per_second']:,.0f} a second; the last lock was free {storm['blocked']:.1f} s after the "
        f"outage began, with a ttl of {ttl:g} s",
    )
    outcome.claim(
        "etcd: others get their locks while leases are revoked",
        storm["storm"]["count"] > 0 and not storm["storm"]["failed"],
        f"{storm['storm']['count']} acquires, {storm['storm']['failed']} failed",
    )


def _ramp_table(steps: list[dict[str, Any]], most: dict[str, float], settings: Settings) -> Table:
    columns = (
        *("leases", "granted", "memory of a member", "each lease", "keep-alives needed", "answered", "late"),
        *("lost", "CPU of the leader", "of all members", "of the client"),
    )
    rows = [
        (
            f"{step['leases']:,}",
            f"{step['granted_per_second']:,.0f}/s",
            f"{step['memory'] / MB:.0f} MB",
            f"{step['memory_per_lease'] / 1000:.1f} kB",
            f"{step['needed_per_second']:,.0f}/s",
            f"{step['reached_per_second']:,.0f}/s",
            span(step["late"]) if step["late"] else "no",
            f"{step['lost']:,}",
            *(f"{100 * step[each]:.0f} %" for each in ("cpu_of_leader", "cpu_of_members", "cpu_of_client")),
        )
        for step in steps
    ]
    note = (
        f"{settings['etcd_members']} members and their clients on one machine. Each lease has a ttl of "
        f"{settings['etcd_ttl']:g} s, and is to be kept alive every third of it, by one client on one stream to the "
        "leader. Memory is that of the largest member. CPU: of one core. When the client sends keep-alives as fast as "
        f"it can, {most['per_second']:,.0f} a second are answered, with {100 * most['cpu_of_members']:.0f} % CPU of "
        f"the members and {100 * most['cpu_of_client']:.0f} % of the client."
    )
    return Table("etcd: leases kept alive", columns, rows, note=note)


def _outage_table(
    steps: list[dict[str, Any]], quiet: dict[str, Any], storm: dict[str, Any], settings: Settings
) -> Table:
    def took(seen: dict[str, Any]) -> str:
        return f"{span(seen['p50'])} / {span(seen['p99'])} / {span(seen['max'])}"

    rows = [
        ("locks before the outage, and right after it", f"{storm['leases']:,}, {storm['left_after']:,}"),
        ("all members down, from the kill until they answer", span(storm["outage"])),
        ("first lock gone, after the restart", span(storm["first_gone"])),
        ("last lock gone, after the restart", span(storm["last_gone"])),
        ("leases revoked", f"{storm['revoked_per_second']:,.0f}/s"),
        ("last lock free, after the outage began", span(storm["blocked"])),
        ("a bystander's longest turn, over the outage", span(storm["longest_turn"])),
        ("a bystander's turn: p50 / p99 / longest, in an empty store", took(quiet)),
        ("the same, while leases are granted", took(steps[-1]["while_granting"])),
        ("the same, while they are kept alive", took(steps[-1]["while_kept"])),
        ("the same, while they are revoked", took(storm["storm"])),
    ]
    note = "A bystander acquires and releases a lock of its own, over and over."
    title = f"etcd: an outage of all members, ttl {settings['etcd_ttl']:g} s, and no holder comes back"
    return Table(title, ("figure", "value"), rows, note=note)


def _ramp_plot(steps: list[dict[str, Any]], settings: Settings) -> Plot:
    def paint(axes: "Axes") -> None:
        at = [step["leases"] / 1000 for step in steps]
        axes.plot(at, [step["needed_per_second"] / 1000 for step in steps], linestyle="--", label="needed")
        axes.plot(at, [step["reached_per_second"] / 1000 for step in steps], label="answered")
        axes.set_xlabel("thousands of leases")
        axes.set_ylabel("thousands of keep-alives a second")
        right = axes.twinx()
        memory = [step["memory"] / MB for step in steps]
        right.plot(at, memory, color=plots.GREEN, marker="D", label="memory of a member")
        right.set_ylabel("memory of the largest member, MB")
        right.grid(visible=False)
        for each in (axes, right):
            each.set_ylim(bottom=0)
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, fontsize=plots.LEGEND)
        right.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), fontsize=plots.LEGEND)

    ttl = settings["etcd_ttl"]
    return plots.draw(
        "etcd-leases", f"Leases with a ttl of {ttl:g} s in etcd, each kept alive every {ttl / 3:g} s.", paint
    )


def _outage_plot(storm: dict[str, Any], settings: Settings) -> Plot:
    def paint(axes: "Axes") -> None:
        samples = storm["samples"]
        axes.plot([at for at, _ in samples], [left / 1000 for _, left in samples], marker="", label="locks still taken")
        axes.axvline(settings["etcd_ttl"], color=plots.RED, linestyle="--", label="the ttl has passed again")
        axes.set_xlabel("seconds after the members were started again")
        axes.set_ylabel("thousands of locks that are taken")
        axes.set_ylim(bottom=0)
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, fontsize=plots.LEGEND)

    caption = f"After an outage of all members of etcd: the locks of {storm['leases']:,} holders that are gone."
    return plots.draw("etcd-outage", caption, paint)
