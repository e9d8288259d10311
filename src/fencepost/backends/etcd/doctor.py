"""What an etcd cluster means for locks, in plain words."""

import re

from fencepost.backend import Finding
from fencepost.backends.etcd import messages as pb
from fencepost.backends.etcd.methods import GRANT, MEMBERS, REVOKE, STATUS, Fault
from fencepost.backends.etcd.rpc import Rpc
from fencepost.backends.etcd.status import Failure
from fencepost.errors import BackendError

WAKES = (3, 4)
"""From this version of etcd on, clients choose the ids of their watches; see ``watch``."""


async def examine(rpc: Rpc) -> list[Finding]:
    """Ask every member named in the URL, and the cluster as a whole."""
    findings = []
    leaders = set()
    for member, host in enumerate(rpc.channels.hosts):
        try:
            status = await rpc.once(STATUS, pb.StatusRequest(), member, rpc.timeout)
        except Failure as error:
            findings.append(
                Finding("warn", f"{host} does not answer: {Fault.of(error).words}", "one member less to ask")
            )
            continue
        leaders.add(status.leader)
        role = "leader" if status.leader == status.header.member_id else "follower"
        what = f"{host} runs etcd {status.version}, {role}"
        if _numbers(status.version) < WAKES:
            findings.append(Finding("warn", what, "too old to wake waiters: each reads at least once a second instead"))
        else:
            findings.append(Finding("ok", what, "it grants leases and tokens"))
        for alarm in status.errors:
            findings.append(
                Finding("risk", f"{host} raises an alarm: {alarm}", "new locks may be refused; see etcdctl alarm")
            )
    if not leaders:
        raise BackendError(f"none of {', '.join(rpc.channels.hosts)} answers", backend="etcd", ambiguous=False)
    findings.append(_members(len((await rpc.call(MEMBERS, pb.MemberListRequest())).members)))
    lease = await rpc.call(GRANT, pb.LeaseGrantRequest(TTL=1))
    await rpc.call(REVOKE, pb.LeaseRevokeRequest(ID=lease.ID))
    shortest = f"the shortest ttl is {lease.TTL} s, in whole seconds"
    findings.append(Finding("ok", shortest, "a shorter ttl is granted as that; the lease says what it got"))
    if not rpc.channels.secure:
        findings.append(
            Finding("warn", "the connection is not encrypted", "use tls=1 or ca= outside a trusted network")
        )
    findings.append(
        Finding(
            "warn",
            "tokens are the store's revisions",
            "they survive restarts and failover; a restored snapshot repeats them unless it is restored with "
            "--bump-revision and --mark-compacted",
        )
    )
    return findings


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def _members(count: int) -> Finding:
    if count == 1:
        return Finding("risk", "the cluster has one member", "while it is down nobody gets a lock; holders lose theirs")
    may_fail = (count - 1) // 2
    return Finding(
        "ok" if count % 2 else "warn",
        f"the cluster has {count} members",
        f"grants are agreed on by a majority; {may_fail} may fail",
    )
