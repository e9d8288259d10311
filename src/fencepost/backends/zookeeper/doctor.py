"""What a ZooKeeper ensemble means for locks, in plain words."""

import re

from fencepost.backend import Finding
from fencepost.backends.zookeeper.session import Session
from fencepost.errors import BackendError

_EDGE = 2**31 * 3 // 4


def examine(session: Session, hosts: int, asked: float, counts: dict[str, int]) -> list[Finding]:
    """What the server says about itself, and what it granted. It blocks: it asks on another connection."""
    findings = [_server(session, hosts)]
    granted = session.lasts(asked)
    if granted == asked:
        findings.append(Finding("ok", f"a ttl of {asked:g} s is granted as asked", "sessions are half as long again"))
    else:
        findings.append(
            Finding(
                "warn",
                f"a ttl of {asked:g} s is granted as {granted:g} s",
                "the servers' minSessionTimeout and maxSessionTimeout decide; each lease says what it got",
            )
        )
    worn = sorted(name for name, count in counts.items() if count > _EDGE)
    if worn:
        findings.append(
            Finding(
                "risk",
                f"the sequence numbers below {', '.join(worn[:3])} come close to 2^31",
                "past it fencepost still knows who came first, kazoo and the Java recipe do not: delete that node "
                "while nobody uses it",
            )
        )
    findings.append(
        Finding(
            "warn",
            "tokens are ZooKeeper's transaction ids",
            "they survive restarts and failover; a restored backup repeats them: raise them with 'fencepost bump'",
        )
    )
    return findings


def _server(session: Session, hosts: int) -> Finding:
    try:
        said = session.command(b"srvr")
    except OSError as error:
        raise BackendError(f"ZooKeeper at {session.hosts}: {error}", backend="zookeeper", ambiguous=False) from error
    version = re.search(r"version: ([\w.]+)", said)
    mode = re.search(r"Mode: (\w+)", said)
    if not version or not mode:
        return Finding("warn", "the server does not answer 'srvr'", "allow it with 4lw.commands.whitelist=srvr")
    what = f"ZooKeeper {version[1]}, {mode[1]}"
    if mode[1] == "standalone":
        return Finding("risk", what, "one server: while it is down nobody gets a lock, and holders lose theirs")
    if hosts == 1:
        return Finding("warn", f"{what}, the only one in the URL", "name them all, so that another can take over")
    return Finding("ok", what, "grants are agreed on by a majority")
