"""The catalogue of faults: what each does, to which stores, and why not to the others.

Each is a function that begins the fault, lets it last, ends it, and returns the proof that it happened: what the
kernel, the server or the proxy counted. ``NotNow`` says that it could not be done at this moment, and changed nothing.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import random
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import fencepost
from fencepost.errors import FencepostError, Refused
from fencepost.lease import Access
from fencepost.rule import MAX_TOKEN, Stamp
from fencepost_lab.faults.disk import aof, lose_tail
from fencepost_lab.faults.proxy import Proxy
from fencepost_lab.faults.record import Faults
from fencepost_lab.faults.signals import Victim
from fencepost_lab.servers import HOST, Postgres, Redis, Server, ask, http_json, wait_until
from fencepost_lab.servers.processes import spawn
from fencepost_lab.servers.redis_groups import Watched
from fencepost_lab.torture.crew import Broken, Crew
from fencepost_lab.torture.plan import Plan
from fencepost_lab.torture.registers import Entry, register
from fencepost_lab.torture.site import Site

Proof = dict[str, Any]

_HOUR = 3600.0
_STUCK = 300.0  # seconds that no lease of a slice lasts, nor anything that is kept of one


class NotNow(Exception):
    """The fault could not be done at this moment."""


class Admitted(Exception):
    """The product let pass what it must refuse: a violation, found by the fault itself."""


@dataclass
class Stage:
    """What a fault acts on."""

    plan: Plan
    site: Site
    crew: Crew
    folder: Path
    record: Faults
    dice: random.Random
    over: threading.Event
    numbers: Iterator[int]

    def last(self, least: float, most: float) -> float:
        """Wait between so many ttls, or until the slice ends; how long it was."""
        seconds = self.plan.ttl * self.dice.uniform(least, most)
        begun = time.monotonic()
        self.over.wait(seconds)
        return round(time.monotonic() - begun, 3)

    def server(self) -> tuple[str, Server]:
        name = self.dice.choice(sorted(self.site.servers))
        return name, self.site.servers[name]

    def proxies(self) -> dict[str, Proxy]:
        """One of the proxies, or all."""
        found = self.site.proxies
        if len(found) > 1 and self.dice.random() < 0.7:
            name = self.dice.choice(sorted(found))
            return {name: found[name]}
        return found


@dataclass(frozen=True)
class Fault:
    """One kind of fault. ``loses`` state, or ``tells`` the store another time: then less can be promised."""

    name: str
    about: str
    do: Callable[[Stage], Proof] | None
    group: str
    stores: frozenset[str] | None = None
    """None: every store."""
    instead: str = ""
    """Why not on the others."""
    needs: str = ""
    """What the site must have: servers, proxies, guard_proxies, clocks, client_clock, disk."""
    loses: bool = False
    shifts: bool = False

    def unfit(self, site: Site) -> str:
        """Why it cannot be done there; empty if it can."""
        if self.group == "client":
            return ""
        if not site.ours:
            return "the store is not ours to harm"
        if self.name in site.without:
            return site.without[self.name]
        if self.needs in _WORDS and not getattr(site, self.needs) and _WORDS[self.needs] in site.without:
            return site.without[_WORDS[self.needs]]
        if self.stores is not None and site.store not in self.stores:
            return self.instead
        if self.needs and not getattr(site, self.needs):
            reasons = {
                "servers": "it has no server: it is a file",
                "proxies": "it has no network: it is a file",
                "guard_proxies": "its values are written inside a transaction of this host's own file",
                "clocks": "only Redis, Redlock and Postgres are started under a wall clock of their own",
                "disk": "only the embedded store is put on a disk that can be filled",
            }
            return reasons.get(self.needs, f"no {self.needs}")
        return ""


_WORDS = {"client_clock": "client clock"}
_REDIS = frozenset({"redis", "redlock", "redis+cluster", "redis+sentinel"})


@contextlib.contextmanager
def _client(server: Server) -> Iterator[Any]:
    import redis

    try:
        with contextlib.closing(redis.Redis(HOST, server.port, decode_responses=True, socket_timeout=10)) as client:
            yield client
    except redis.RedisError as error:
        raise NotNow(f"Redis answered: {error}") from error


# Servers.


def server_pause(stage: Stage) -> Proof:
    name, server = stage.server()
    victim = Victim(server.pid, name, stage.record)
    victim.pause()
    try:
        seconds = stage.last(0.3, 2.0)
    finally:
        victim.resume()
    return {"who": name, "seconds": seconds}


def server_kill(stage: Stage) -> Proof:
    if isinstance(stage.site.group, Watched):
        return _failover(stage, lagging=False)
    name, server = stage.server()
    pid = server.pid
    server.kill()
    stage.record.note("kill", name, signal="SIGKILL", pid=pid)
    seconds = stage.last(0.0, 0.6)
    server.start()
    stage.record.note("restart", name)
    return {"who": name, "pid": pid, "seconds": seconds}


def lost_tail(stage: Stage) -> Proof:
    """A power loss: what was written last never reached the disk."""
    name, server = stage.server()
    assert isinstance(server, Redis)
    keep = aof(server).stat().st_size
    stage.last(0.5, 1.5)
    if aof(server).stat().st_size <= keep:
        raise NotNow("nothing was written meanwhile")
    server.kill()
    stage.record.note("kill", name, signal="SIGKILL")
    try:
        lost = lose_tail(server, keep=keep, who=name, faults=stage.record)
    finally:
        server.start()
    stage.record.note("restart", name)
    return {"who": name, "bytes lost": lost}


def failover_lagging(stage: Stage) -> Proof:
    return _failover(stage, lagging=True)


def _failover(stage: Stage, *, lagging: bool) -> Proof:
    """Kill the master. A lagging replica has not got the last writes: its link was cut before, and cannot come back."""
    group: Watched = stage.site.group
    master = group.master
    replica = next(each for each in group.servers if each is not master)
    names = {each.port: name for name, each in stage.site.servers.items()}
    who = names[master.port]
    lag = 0
    if lagging:
        with _client(replica) as there, _client(master) as here:
            # Its master has no password, and refuses one: the link cannot come back. SIGSTOP would lose nothing.
            there.config_set("masterauth", "none")
            here.execute_command("CLIENT", "KILL", "TYPE", "replica")
            stage.last(0.5, 1.0)
            status = there.info("replication")
            if status["master_link_status"] != "down":
                raise NotNow("the replica's link is up")
            lag = here.info("replication")["master_repl_offset"] - status["slave_repl_offset"]
    master.kill()
    stage.record.note("kill", who, signal="SIGKILL")
    changed = wait_until(lambda: _leads(group, replica), timeout=60, poll=0.05)
    with _client(replica) as there:
        if not changed:  # so that the run goes on; it is no failover by the sentinels then
            there.execute_command("REPLICAOF", "NO", "ONE")
        there.config_set("masterauth", "")
    stage.record.note("failover", names[replica.port], lag=lag)
    master.args = group.options(replica)
    master.start()
    stage.record.note("restart", who)
    wait_until(group.agreed, timeout=30, poll=0.05)
    if not changed:
        raise NotNow("the sentinels did not fail over")
    if lagging and lag <= 0:
        raise NotNow("the replica had everything")
    return {"who": who, "to": names[replica.port], "bytes lost": lag}


def _leads(group: Watched, server: Redis) -> bool:
    with contextlib.suppress(Exception), _client(server) as client:
        return bool(client.info("replication")["role"] == "master" and group.master is server)
    return False


def _masters(stage: Stage) -> list[tuple[str, Server]]:
    site = stage.site
    if isinstance(site.group, Watched):
        master = site.group.master
        return [(name, each) for name, each in site.servers.items() if each is master]
    return sorted(site.servers.items())


def _some_masters(stage: Stage) -> list[tuple[str, Server]]:
    found = _masters(stage)
    # Of a Redlock, a minority or a majority; of others, all.
    return stage.dice.sample(found, stage.dice.randrange(1, len(found) + 1)) if stage.site.store == "redlock" else found


def flushall(stage: Stage) -> Proof:
    keys = 0
    names = []
    for name, server in _some_masters(stage):
        with _client(server) as client:
            keys += client.dbsize()
            client.flushall()
        names.append(name)
        stage.record.note("lose", name, how="FLUSHALL")
    if not keys:
        raise NotNow("there was no key")
    return {"who": ",".join(names), "keys lost": keys}


def evict(stage: Stage) -> Proof:
    evicted = 0
    names = []
    for name, server in _some_masters(stage):
        with _client(server) as client:
            before = client.info("stats")["evicted_keys"]
            client.config_set("maxmemory-policy", "allkeys-random")
            client.config_set("maxmemory", "1")
            try:
                wait_until(partial(_evicts, client, before), timeout=2, poll=0.005)
                evicted += _evicted(client, before)
            finally:
                client.config_set("maxmemory", "0")
                client.config_set("maxmemory-policy", "noeviction")
        names.append(name)
    if not evicted:
        raise NotNow("nothing was evicted")
    stage.record.note("evict", ",".join(names), keys=evicted)
    return {"who": ",".join(names), "keys evicted": evicted}


def _evicted(client: Any, before: int) -> int:
    import redis

    with contextlib.suppress(redis.RedisError):
        client.set("torture:ballast", "x")  # a write is what makes it look for room
    return int(client.info("stats")["evicted_keys"] - before)


def _evicts(client: Any, before: int) -> bool:
    return _evicted(client, before) > 0


def restore(stage: Stage) -> Proof:
    """An older snapshot is put back."""
    store = stage.site.store
    if store == "sqlite":
        return _restore_sqlite(stage)
    if store == "postgres":
        return _restore_postgres(stage)
    if store == "consul":
        return _restore_consul(stage)
    if store in ("etcd", "zookeeper"):
        return _restore_all(stage)
    name, server = stage.server()
    here, kept = server.folder / "appendonlydir", server.folder / "kept"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(here, kept)
    stage.last(0.5, 1.5)
    server.kill()
    stage.record.note("kill", name, signal="SIGKILL")
    shutil.rmtree(here)
    kept.rename(here)
    server.start()
    stage.record.note("lose", name, how="snapshot")
    return {"who": name}


def _restore_sqlite(stage: Stage) -> Proof:
    path = unquote(urlsplit(stage.site.direct).path)
    if not Path(path).exists():
        raise NotNow("no lock was taken yet")
    snapshot = stage.folder / f"snapshot-{next(stage.numbers)}.db"
    with contextlib.closing(sqlite3.connect(path, timeout=30)) as live:
        if not live.execute("SELECT 1 FROM sqlite_master WHERE name = 'lock'").fetchone():
            raise NotNow("no lock was taken yet")
        with contextlib.closing(sqlite3.connect(snapshot)) as kept:
            live.backup(kept)
        stage.last(0.5, 1.5)
        with contextlib.closing(sqlite3.connect(snapshot)) as kept:
            # Tokens are reserved in blocks: an older file has the same block, but fewer of its tokens used.
            before = live.execute("SELECT max(token) FROM lock").fetchone()[0]
            kept.backup(live)
            after = live.execute("SELECT max(token) FROM lock").fetchone()[0]
    snapshot.unlink()
    stage.record.note("lose", "locks.db", how="snapshot")
    return {"who": "locks.db", "tokens back": before - after}


def _restore_postgres(stage: Stage) -> Proof:
    name, server = stage.server()
    assert isinstance(server, Postgres)
    tables = ("lock", "waiter", "share")
    kept = "; ".join(
        f"DROP TABLE IF EXISTS kept_{each}; CREATE TABLE kept_{each} AS TABLE fencepost.{each}" for each in tables
    )
    # One snapshot of all three: a lock's row counts its waiters.
    server.psql(f"BEGIN ISOLATION LEVEL REPEATABLE READ; {kept}; COMMIT")
    stage.last(0.5, 1.5)
    back = "; ".join(
        f"DELETE FROM fencepost.{each}; INSERT INTO fencepost.{each} OVERRIDING SYSTEM VALUE TABLE kept_{each}; "
        f"DROP TABLE kept_{each}"
        for each in tables
    )
    server.psql(f"BEGIN; LOCK TABLE fencepost.lock IN ACCESS EXCLUSIVE MODE; {back}; COMMIT")
    stage.record.note("lose", name, how="snapshot")
    return {"who": name}


def _restore_consul(stage: Stage) -> Proof:
    import http.client

    name, server = stage.server()
    with contextlib.closing(http.client.HTTPConnection(HOST, server.port, timeout=20)) as http_:
        http_.request("GET", "/v1/snapshot")
        snapshot = http_.getresponse().read()
        stage.last(0.5, 1.5)
        http_.request("PUT", "/v1/snapshot", snapshot)
        answer = http_.getresponse()
        answer.read()
        if answer.status != 200:
            raise NotNow(f"Consul answered {answer.status}")
    stage.record.note("lose", name, how="snapshot")
    return {"who": name, "bytes": len(snapshot)}


def _restore_all(stage: Stage) -> Proof:
    """All servers are put back to a copy of their disks, which was made while they were off."""
    site = stage.site
    before = _position(site)
    _off(stage)
    for server in site.servers.values():
        shutil.rmtree(server.folder / "kept", ignore_errors=True)
        shutil.copytree(server.folder / "data", server.folder / "kept")
    _on(stage)
    stage.last(1.0, 3.0)
    newest = _position(site)
    _off(stage)
    for server in site.servers.values():
        shutil.rmtree(server.folder / "data")
        (server.folder / "kept").rename(server.folder / "data")
    stage.record.note("lose", site.store, how="snapshot")
    _on(stage)
    now = _position(site)
    if not before <= now < newest:
        raise NotNow(f"it is at {now}, and was at {before} before the copy, at {newest} before the restore")
    return {"who": site.store, "at": newest, "back to": now}


def _off(stage: Stage) -> None:
    for name, server in stage.site.servers.items():
        server.kill()
        stage.record.note("kill", name, signal="SIGKILL")


def _on(stage: Stage) -> None:
    for server in stage.site.servers.values():
        server.launch()
    for name, server in stage.site.servers.items():
        server.wait_ready()
        stage.record.note("restart", name)


def _position(site: Site) -> int:
    """How many changes the store has seen: etcd's revision, ZooKeeper's zxid."""
    server = next(iter(site.servers.values()))
    if site.store == "etcd":
        return int(http_json(server.port, "POST", "/v3/maintenance/status", "{}")["header"]["revision"])
    found = re.search(rb"Zxid: 0x([0-9a-f]+)", ask(server.port, b"srvr"))
    if found is None:
        raise NotNow("ZooKeeper does not tell its zxid")
    return int(found[1], 16)


# The network.


def _cut(stage: Stage, *, up: bool = True, down: bool = True) -> Proof:
    found = stage.proxies()
    before = sum(each.held for each in found.values())
    for each in found.values():
        each.cut(up=up, down=down)
    try:
        seconds = stage.last(0.3, 1.8)
    finally:
        for each in found.values():
            each.heal()
    held = sum(each.held for each in found.values()) - before
    if not held:
        raise NotNow("nobody sent anything")
    return {"who": ",".join(found), "of": len(stage.site.proxies), "bytes held": held, "seconds": seconds}


def partition(stage: Stage) -> Proof:
    return _cut(stage)


def partition_requests(stage: Stage) -> Proof:
    return _cut(stage, down=False)


def partition_answers(stage: Stage) -> Proof:
    return _cut(stage, up=False)


def delay(stage: Stage) -> Proof:
    found = stage.proxies()
    before = sum(each.slowed for each in found.values())
    seconds = stage.plan.ttl * stage.dice.uniform(0.05, 2.0)
    for each in found.values():
        each.slow(seconds)
    try:
        stage.last(1.0, 2.0)
    finally:
        for each in found.values():
            each.slow(0)
    return _moved(sum(each.slowed for each in found.values()) - before, "bytes delayed", found, by=round(seconds, 3))


def _moved(count: int, what: str, found: dict[str, Proxy], **facts: Any) -> Proof:
    if not count:
        raise NotNow("nothing passed")
    return {"who": ",".join(found), what: count, **facts}


def reorder(stage: Stage) -> Proof:
    """What was sent on the connections there are arrives after what is sent later, on new ones."""
    found = {**stage.proxies(), **stage.site.guard_proxies}
    before = sum(each.held for each in found.values())
    for each in found.values():
        each.cut(newcomers=False)
    try:
        stage.last(0.5, 2.0)
    finally:
        for each in found.values():
            each.heal()
    return _moved(sum(each.held for each in found.values()) - before, "bytes held", found)


def _trap(stage: Stage, how: str, do: str, proxies: dict[str, Proxy], times: int) -> Proof:
    before = len(stage.record.of(do))
    for _ in range(times):
        for each in proxies.values():
            getattr(each, how)(b"")
        if stage.over.wait(stage.plan.ttl * 0.1):
            break
    happened = len(stage.record.of(do)) - before
    if not happened:
        raise NotNow("no request came by")
    return {"who": ",".join(proxies), "times": happened}


def duplicate(stage: Stage) -> Proof:
    """Requests are carried out twice, the second time on a connection whose answer nobody hears."""
    return _trap(stage, "repeat", "repeat", {**stage.proxies(), **stage.site.guard_proxies}, 8)


def answer_lost(stage: Stage) -> Proof:
    """Requests are carried out, and their connection breaks instead of an answer."""
    return _trap(stage, "drop_after", "lose", {**stage.proxies(), **stage.site.guard_proxies}, 5)


def values_cut(stage: Stage) -> Proof:
    """Writes to the values are held back, and arrive once their writer has gone on."""
    proxies = stage.site.guard_proxies
    before = sum(each.held for each in proxies.values())
    for _ in range(3):
        for each in proxies.values():
            each.cut(newcomers=False)
        stage.over.wait(0.1 + stage.plan.ttl * stage.dice.uniform(0.2, 1.0))
        for each in proxies.values():
            # What was held back arrives now; those who sent it have another connection since, or get the answer late.
            each.heal()
    return _moved(sum(each.held for each in proxies.values()) - before, "bytes held", proxies)


def drop(stage: Stage) -> Proof:
    found = {**stage.site.proxies, **stage.site.guard_proxies}
    before = len(stage.record.of("drop"))
    for each in found.values():
        each.drop()
    return _moved(len(stage.record.of("drop")) - before, "proxies dropped", found)


# Clocks.


def clock_jump(stage: Stage) -> Proof:
    name = stage.dice.choice(sorted(stage.site.clocks))
    proof = _jump(stage, name, stage.site.clocks[name])
    _break_stuck(stage)
    return proof


def _break_stuck(stage: Stage) -> None:
    """As an operator does whose server's clock was set back: free what is held until the clock comes there again.

    A store that notes the instant at which a lease ends keeps it so long if its holder died before it renewed it.
    """
    stage.over.wait(2 * stage.plan.ttl)
    names = [name for key in stage.plan.keys for name in (key, f"{key}/leader", f"{key}/shared")]
    with fencepost.connect(stage.site.direct, ttl=max(5.0, stage.plan.ttl)) as locks:
        for name in names:
            status = locks.status(name)
            if status is not None and status.remaining > _STUCK:
                locks.break_lock(name)
                stage.record.note("break", name, remaining=status.remaining)
    if stage.site.store == "redlock":  # a minority holds nothing, but its keys stay
        for _, server in _masters(stage):
            with _client(server) as client:
                for key in client.scan_iter(match="*torture/*", count=1000):
                    if client.pttl(key) > 1000 * _STUCK:
                        client.delete(key)


def client_clock(stage: Stage) -> Proof:
    assert stage.site.client_clock is not None
    return _jump(stage, "clients", stage.site.client_clock)


def _jump(stage: Stage, name: str, clock: Any) -> Proof:
    seconds = stage.dice.choice((_HOUR, -_HOUR, stage.dice.uniform(-3, 3) * stage.plan.ttl))
    clock.jump(seconds)
    shown = clock.offset
    try:
        stage.last(0.3, 1.5)
    finally:
        clock.jump(-seconds)
    return {"who": name, "by": round(seconds, 3), "offset": round(shown, 3), "jumps": 2}


def clock_rate(stage: Stage) -> Proof:
    name = stage.dice.choice(sorted(stage.site.clocks))
    clock = stage.site.clocks[name]
    rate = stage.dice.choice((0.5, 0.9, 1.1, 2.0, 5.0))
    clock.skew(rate)
    try:
        stage.last(0.5, 2.0)
    finally:
        clock.skew(1.0)
        off = clock.offset
        clock.jump(-off)
    return {"who": name, "rate": rate, "offset": round(off, 3), "jumps": 1}


# Disks and processors.


def disk_full(stage: Stage) -> Proof:
    assert stage.site.disk is not None
    taken = stage.site.disk.fill()
    try:
        seconds = stage.last(0.5, 1.5)
    finally:
        stage.site.disk.free()
    return {"who": "disk", "bytes": taken, "seconds": seconds}


def starve(stage: Stage) -> Proof:
    """More busy processes than there are processors."""
    busy = [
        spawn([sys.executable, "-I", "-S", "-c", "while True: pass"], stdout=subprocess.DEVNULL)
        for _ in range(2 * (os.cpu_count() or 1))
    ]
    try:
        stage.last(0.5, 1.5)
        ticks = [_ticks(each.pid) for each in busy]
    finally:
        for each in busy:
            each.kill()
            each.wait()
    if not any(ticks):
        raise NotNow("none of them ran")
    return {"who": "host", "processes": len(busy), "seconds of cpu": sum(ticks) / os.sysconf("SC_CLK_TCK")}


def _ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


# What administrators do.


def client_kill(stage: Stage) -> Proof:
    killed = 0
    for _, server in _masters(stage):
        with _client(server) as client:
            for kind in ("normal", "pubsub"):
                killed += int(client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"))
    if not killed:
        raise NotNow("nobody was connected")
    return {"who": stage.site.store, "connections": killed}


def client_pause(stage: Stage) -> Proof:
    milliseconds = int(1000 * stage.plan.ttl * stage.dice.uniform(0.3, 1.5))
    names = []
    for name, server in _masters(stage):
        with _client(server) as client:
            client.execute_command("CLIENT", "PAUSE", milliseconds, "ALL")
        names.append(name)
    stage.over.wait(milliseconds / 1000)
    return {"who": ",".join(names), "milliseconds": milliseconds}


def script_flush(stage: Stage) -> Proof:
    cached = 0
    for _, server in _masters(stage):
        with _client(server) as client:
            cached += int(client.info("memory")["number_of_cached_scripts"])
            client.script_flush()
    if not cached:
        raise NotNow("no script was there")
    return {"who": stage.site.store, "scripts": cached}


def compaction(stage: Stage) -> Proof:
    _, server = stage.server()
    revision = http_json(server.port, "POST", "/v3/maintenance/status", "{}")["header"]["revision"]
    http_json(server.port, "POST", "/v3/kv/compaction", json.dumps({"revision": revision, "physical": True}))
    return {"who": "etcd", "revision": revision}


def nospace(stage: Stage) -> Proof:
    """etcd's alarm: it takes no more writes until the alarm is cleared."""
    _, server = stage.server()
    member = http_json(server.port, "POST", "/v3/maintenance/status", "{}")["header"]["member_id"]
    alarm = {"memberID": member, "alarm": "NOSPACE"}
    http_json(server.port, "POST", "/v3/maintenance/alarm", json.dumps({"action": "ACTIVATE", **alarm}))
    try:
        body = {"key": base64.b64encode(b"ballast").decode(), "value": ""}
        refused = False
        try:
            http_json(server.port, "POST", "/v3/kv/put", json.dumps(body))
        except OSError as error:
            refused = "space exceeded" in str(error)
        stage.last(0.3, 1.5)
    finally:
        http_json(server.port, "POST", "/v3/maintenance/alarm", json.dumps({"action": "DEACTIVATE", **alarm}))
    if not refused:
        raise NotNow("etcd took the write all the same")
    return {"who": "etcd", "refused": refused}


def session_expiry(stage: Stage) -> Proof:
    """Sessions are ended by the store, while their holders work."""
    site = stage.site
    _, server = stage.server()
    if site.store == "etcd":
        leases = [each["ID"] for each in http_json(server.port, "POST", "/v3/lease/leases", "{}").get("leases", [])]
        chosen = stage.dice.sample(leases, min(len(leases), 2))
        for each in chosen:
            with contextlib.suppress(OSError):
                http_json(server.port, "POST", "/v3/lease/revoke", json.dumps({"ID": each}))
    elif site.store == "consul":
        sessions = [each["ID"] for each in http_json(server.port, "GET", "/v1/session/list")]
        chosen = stage.dice.sample(sessions, min(len(sessions), 2))
        for each in chosen:
            http_json(server.port, "PUT", f"/v1/session/destroy/{each}")
    else:
        # ZooKeeper ends a session only when it is silent for long enough.
        before = _sessions(server)
        for each in site.proxies.values():
            each.cut()
        try:
            stage.last(2.0, 2.5)
        finally:
            for each in site.proxies.values():
                each.heal()
        chosen = sorted(before - _sessions(server))
    if not chosen:
        raise NotNow("there was no session")
    return {"who": site.store, "sessions": len(chosen)}


def _sessions(server: Server) -> set[str]:
    found = ask(server.port, b"dump").decode(errors="replace")
    return {line.strip() for line in found.splitlines() if line.strip().startswith("0x")}


def terminate_backend(stage: Stage) -> Proof:
    _, server = stage.server()
    assert isinstance(server, Postgres)
    ended = server.psql(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )
    if int(ended) == 0:
        raise NotNow("nobody was connected")
    return {"who": "postgres", "connections": int(ended)}


# Tokens and clients.


def high_tokens(stage: Stage) -> Proof:
    """Tokens just below 2^53, where doubles stop being exact: they cross it while the slice runs."""
    above = 2**53 - 100
    values = register(stage.site.direct_guard)
    try:
        with fencepost.connect(stage.site.direct, ttl=max(5.0, stage.plan.ttl)) as locks:
            for key in stage.plan.keys:
                for name in (key, f"{key}/leader"):
                    values.raise_mark(name, to=above - 100)
                    stage.record.note("mark", name, mark=above - 100)
                    locks.bump(name, above=above, force=True)
    finally:
        values.close()
    return {"who": stage.site.store, "above": str(above)}


def migration(stage: Stage) -> Proof:
    """``fencepost migrate`` moves all locks to another store while the workers go on, and then back again."""
    site = stage.site
    moves = _migrate(stage, site.direct, site.direct_other, 1)
    stage.last(0.5, 1.0)
    moves += _migrate(stage, site.direct_other, site.direct, 0)
    return {"who": site.store, "locks": moves, "moves": 2}


def _migrate(stage: Stage, old: str, new: str, number: int) -> int:
    names = [name for key in stage.plan.keys for name in (key, f"{key}/leader", f"{key}/shared")]
    command = [sys.executable, "-m", "fencepost", "migrate", "-", "-", *names, "--json", "--ttl", "5s"]
    environment = os.environ | {"FENCEPOST_URL": old, "FENCEPOST_NEW_URL": new}
    mover = spawn(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    moved: list[bytes] = []

    def listen() -> None:
        assert mover.stdout is not None
        moved.extend(itertools.islice(mover.stdout, len(names)))

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        # Workers wait for it now: the old store is closed, and the new one not yet in use.
        listener.join(120)
        if len(moved) == len(names):
            switched = stage.crew.switch(number)
    finally:
        mover.terminate()
        _, said = mover.communicate(timeout=60)
    if len(moved) < len(names):
        if number == 0:  # the workers are there, and cannot come back
            raise Broken(f"fencepost migrate did not get through: {said.decode(errors='replace')[-500:]}")
        raise NotNow(f"fencepost migrate did not get through: {said.decode(errors='replace')[-200:]}")
    stage.record.note("migrate", stage.site.store, locks=len(moved), switched=switched)
    return len(moved)


def hostile(stage: Stage) -> Proof:
    """Somebody forges tokens, floods a queue, and keeps connections open without reading."""
    site, dice = stage.site, stage.dice
    refused = tried = 0
    values = register(site.direct_guard)
    try:
        for key in stage.plan.keys:
            mark = values.mark(key)
            if mark is None:
                continue
            forged = [
                Stamp(MAX_TOKEN, 1, "evil"),  # huge: no issuer can have come to it
                Stamp(mark.token, mark.seq + 1, "evil"),  # of another holder
                Stamp(max(1, mark.token - 1), 1, "evil"),
                Stamp(1, 1, ""),
                Stamp(-5, 1, "evil"),
                Stamp(0, 1, "evil"),
                Stamp(mark.token, 1, "x'; DROP TABLE torture_journal; --"),
            ]
            for stamp in forged:
                tried += 1
                try:
                    values.write(key, Access(key, stamp), Entry("evil", stamp, -1, -1))
                except Refused:
                    refused += 1
                except FencepostError as error:
                    refused += not getattr(error, "ambiguous", False)
                else:
                    newest = values.mark(key)
                    raise Admitted(f"a forged stamp {stamp} was admitted at {key}, whose mark was {mark}, now {newest}")
        flooded = _flood(site.direct, dice.choice(stage.plan.keys), stage.plan.ttl)
    finally:
        values.close()
    silent = _silent(stage)
    if not tried:
        raise NotNow("there is no mark yet")
    return {"who": "evil", "forged": tried, "refused": refused, "waiters": flooded, "silent connections": silent}


def _flood(url: str, key: str, ttl: float) -> int:
    """Many waiters of one client, each of which gives up; how many came into the queue."""
    waited: list[int] = []

    def wait() -> None:
        try:
            lease = locks.acquire(key, timeout=0.3 * ttl)
        except FencepostError:
            waited.append(1)
        else:
            with contextlib.suppress(FencepostError):
                lease.release()

    with fencepost.connect(url, ttl=ttl, queue_limit=24) as locks:
        threads = [threading.Thread(target=wait) for _ in range(32)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    return len(waited)


def _silent(stage: Stage) -> int:
    opened = []
    for server in stage.site.servers.values():
        with contextlib.suppress(OSError):
            each = socket.create_connection((HOST, server.port), 2)
            opened.append(each)
            each.sendall(b"*1000000000\r\n$5\r\nx")
    stage.over.wait(0.05)
    for each in opened:
        each.close()
    return len(opened)


_CATALOGUE = (
    Fault("pause", "a worker is stopped (SIGSTOP) until its lease is over", None, "client"),
    Fault("kill", "a worker is killed (SIGKILL)", None, "client"),
    Fault("fork", "a worker forks, and the child tries to use its lease", None, "client"),
    Fault(
        "server-pause", server_pause.__doc__ or "a server is stopped (SIGSTOP)", server_pause, "server", needs="servers"
    ),
    Fault("server-kill", "a server is killed (SIGKILL) and started again", server_kill, "server", needs="servers"),
    Fault(
        "lost-tail",
        "a server is killed, and the end of its file is lost",
        lost_tail,
        "state",
        frozenset({"redis", "redlock", "redis+cluster"}),
        "it syncs its log before it answers: what is acknowledged is not in a tail that can be lost",
        loses=True,
    ),
    Fault(
        "failover-lagging",
        "the master dies, and a replica without its last writes takes over",
        failover_lagging,
        "state",
        frozenset({"redis+sentinel"}),
        "there is no replica that may lag: it is one server, or a quorum decides",
        loses=True,
    ),
    Fault("flushall", "FLUSHALL", flushall, "state", _REDIS, "it has no such command", loses=True),
    Fault(
        "evict", "all memory is used up under allkeys-random", evict, "state", _REDIS, "it evicts nothing", loses=True
    ),
    Fault(
        "restore",
        "an older snapshot is put back",
        restore,
        "state",
        frozenset({"sqlite", "redis", "redlock", "redis+cluster", "postgres", "consul", "etcd", "zookeeper"}),
        "it keeps nothing on disk here",
        loses=True,
    ),
    Fault("partition", "nothing passes, either way", partition, "network", needs="proxies"),
    Fault("partition-requests", "requests are held back", partition_requests, "network", needs="proxies"),
    Fault("partition-answers", "answers are held back", partition_answers, "network", needs="proxies"),
    Fault("delay", "everything comes later, by up to 2 ttl", delay, "network", needs="proxies"),
    Fault("reorder", "older connections are held back, newer ones pass", reorder, "network", needs="proxies"),
    Fault(
        "duplicate",
        "requests are carried out twice",
        duplicate,
        "network",
        frozenset({"redis", "redlock", "redis+cluster", "consul"}),
        "its connections have a state: a request that is repeated on another one means nothing there",
        needs="proxies",
    ),
    Fault("answer-lost", "a request is carried out, its answer is lost", answer_lost, "network", needs="proxies"),
    Fault("values-cut", "writes are held back, and arrive late", values_cut, "network", needs="guard_proxies"),
    Fault("drop", "every connection breaks", drop, "network", needs="proxies"),
    Fault(
        "clock-jump", "a server's wall clock jumps by up to an hour", clock_jump, "clock", needs="clocks", shifts=True
    ),
    Fault(
        "clock-rate",
        "a server's wall clock runs too fast or too slow",
        clock_rate,
        "clock",
        needs="clocks",
        shifts=True,
    ),
    Fault(
        "client-clock", "the clients' wall clocks jump by up to an hour", client_clock, "clock", needs="client_clock"
    ),
    Fault("disk-full", "the disk has no room left", disk_full, "disk", needs="disk"),
    Fault("starve", "more busy processes than processors", starve, "host"),
    Fault("client-kill", "CLIENT KILL of every connection", client_kill, "admin", _REDIS, "it has no such command"),
    Fault("client-pause", "CLIENT PAUSE", client_pause, "admin", _REDIS, "it has no such command"),
    Fault("script-flush", "SCRIPT FLUSH", script_flush, "admin", _REDIS, "it has no such command"),
    Fault("compaction", "the history is compacted", compaction, "admin", frozenset({"etcd"}), "it keeps no history"),
    Fault("nospace", "the NOSPACE alarm", nospace, "admin", frozenset({"etcd"}), "it has no such alarm"),
    Fault(
        "session-expiry",
        "sessions are ended while their holders work",
        session_expiry,
        "admin",
        frozenset({"etcd", "zookeeper", "consul"}),
        "it has no sessions",
        shifts=True,
    ),
    Fault(
        "terminate-backend",
        "pg_terminate_backend of every connection",
        terminate_backend,
        "admin",
        frozenset({"postgres"}),
        "it has no such function",
    ),
    Fault("high-tokens", "tokens cross 2^53", high_tokens, "tokens"),
    Fault("migration", "fencepost migrate, to another store or back", migration, "migration"),
    Fault("hostile", "forged tokens, a flooded queue, silent connections", hostile, "hostile"),
)
CATALOGUE: dict[str, Fault] = {each.name: each for each in _CATALOGUE}
