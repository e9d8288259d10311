"""What a Consul cluster means for locks, in plain words."""

from fencepost.backend import Finding
from fencepost.backends.consul.http import Http


async def examine(http: Http, min_ttl: float, lock_delay: float) -> list[Finding]:
    """Ask the agent what it is, and who its servers are."""
    agent = (await http.one("GET", "agent/self")).part(dict)
    config = agent.get("Config", {})
    role = "server" if config.get("Server") else "client"
    findings = [
        Finding(
            "ok",
            f"Consul {config.get('Version')}, {role} agent {config.get('NodeName')} in {config.get('Datacenter')}",
            "sessions belong to this node: if it is deregistered, its holders lose their locks at once",
        ),
        _servers(len((await http.one("GET", "status/peers")).part(list))),
    ]
    if agent.get("DebugConfig", {}).get("LeaveOnTerm"):
        findings.append(
            Finding(
                "warn",
                "this agent leaves the cluster when it is stopped",
                "with each restart its holders lose their locks at once; set leave_on_terminate = false",
            )
        )
    shortest = _seconds(agent.get("DebugConfig", {}).get("SessionTTLMin"))
    if shortest and shortest != min_ttl:
        findings.append(
            Finding(
                "warn",
                f"the servers take a ttl from {shortest:g} s, the URL says {min_ttl:g} s",
                f"write session_ttl_min={shortest:g}s into the URL",
            )
        )
    findings += [
        Finding(
            "ok" if not lock_delay else "warn",
            f"the lock-delay is {lock_delay:g} s",
            "a lost holder's lock goes on at once; its late writes are the guard's business"
            if not lock_delay
            else "for so long a lost holder's lock is closed to everybody; a guard makes that unnecessary",
        ),
        Finding("warn", "sessions are expired lazily", "a dead holder's lock goes on after one to two times its ttl"),
        Finding(
            "warn",
            "tokens are the cluster's Raft indexes",
            "they survive restarts and failover; a restored snapshot repeats them: raise them with 'fencepost bump'",
        ),
    ]
    return findings


def _servers(count: int) -> Finding:
    if count == 1:
        return Finding("risk", "the cluster has one server", "while it is down nobody gets a lock; holders lose theirs")
    may_fail = (count - 1) // 2
    what = "grants are agreed on by a majority"
    return Finding("ok" if count % 2 else "warn", f"the cluster has {count} servers", f"{what}; {may_fail} may fail")


def _seconds(value: object) -> float | None:
    """A Go duration as the agent prints it: nanoseconds, or text like 10s and 500ms."""
    if isinstance(value, (int, float)):
        return value / 1e9
    text = str(value)
    try:
        return float(text[:-2]) / 1000 if text.endswith("ms") else float(text.removesuffix("s"))
    except ValueError:
        return None
