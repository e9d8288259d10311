"""Hosts of a run's own: network namespaces joined by a bridge, with addresses that exist only between them.

Packets really get lost here, as no proxy can have it: a cut link resets no connection and refuses none. Every
host has a loopback-range address (127.77.0.x) on a virtual cable; nothing of it is reachable from, or reaches, this
machine's own network. The namespaces belong to processes that die with this one.
"""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fencepost.errors import ConfigError
from fencepost_lab.faults.record import Faults
from fencepost_lab.servers import Redis
from fencepost_lab.servers.processes import program, spawn, wait_until

_PREFIX = "127.77.0."
_SWITCH = ""
_UNPRIVILEGED = os.geteuid() != 0


class Network:
    """Named hosts, all connected until they are cut off. Raises ConfigError where the kernel does not permit it."""

    def __init__(self, hosts: Sequence[str], *, faults: Faults | None = None) -> None:
        self._names = list(hosts)
        self._faults = Faults() if faults is None else faults
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        self._lost: set[tuple[str, str]] = set()

    def __enter__(self) -> Self:
        try:
            for name in (_SWITCH, *self._names):
                self._holders[name] = _namespace(self._inside())
            self._ip(_SWITCH, "link", "add", "switch", "type", "bridge")
            self._ip(_SWITCH, "link", "set", "switch", "up")
            for number, name in enumerate(self._names):
                self._plug_in(number, name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the namespaces; whatever still runs in one keeps it until it ends."""
        for holder in self._holders.values():
            holder.kill()
            holder.communicate()
        self._holders = {}

    def address(self, host: str) -> str:
        """The host's address, for those on the other hosts."""
        return f"{_PREFIX}{self._names.index(host) + 1}"

    def on(self, host: str, command: Sequence[str]) -> list[str]:
        """The command line that runs a command on a host."""
        return [*self._inside(host), *command]

    def namespaces(self, host: str) -> list[str]:
        """What a process enters to be on a host, in this order."""
        pid = self._holders[host].pid
        return [f"/proc/{pid}/ns/{kind}" for kind in (("user",) if _UNPRIVILEGED else ()) + ("net",)]

    def _inside(self, host: str | None = None) -> list[str]:
        """What runs a command in a host's network; without a host, where namespaces can be made."""
        if host is not None:
            net = ["--net", "--target", str(self._holders[host].pid)]
        elif _SWITCH in self._holders and _UNPRIVILEGED:
            net = ["--target", str(self._holders[_SWITCH].pid)]
        else:
            return []
        user = ["--user", "--preserve-credentials"] if _UNPRIVILEGED else []
        return [program("NSENTER"), *user, *net, "--"]

    def cut(self, host: str, *, to: str | None = None) -> None:
        """Lose every packet from and to a host; with ``to``, only what the host sends to that one."""
        if to is None:
            self._ip(_SWITCH, "link", "set", f"port{self._names.index(host)}", "down")
        else:
            self._ip(host, "route", "add", "blackhole", self.address(to))
        self._lost.add((host, to or ""))
        self._faults.note("cut", host, **({"to": to} if to else {}))

    def heal(self, *hosts: str) -> None:
        """Connect these hosts again, or everybody."""
        for host, to in sorted(self._lost):
            if hosts and host not in hosts:
                continue
            if to:
                self._ip(host, "route", "del", "blackhole", self.address(to))
            else:
                self._ip(_SWITCH, "link", "set", f"port{self._names.index(host)}", "up")
            self._faults.note("heal", host, **({"to": to} if to else {}))
            self._lost.remove((host, to))

    def _plug_in(self, number: int, host: str) -> None:
        pid = str(self._holders[host].pid)
        self._ip(_SWITCH, "link", "add", f"port{number}", "type", "veth", "peer", "name", "cable", "netns", pid)
        self._ip(_SWITCH, "link", "set", f"port{number}", "master", "switch")
        self._ip(_SWITCH, "link", "set", f"port{number}", "up")
        # The kernel keeps 127.0.0.0/8 inside a host unless it is told twice that here it is a network.
        self._run(host, "sysctl", "-q", "-w", "net.ipv4.conf.all.route_localnet=1")
        self._ip(host, "link", "set", "lo", "up")
        self._ip(host, "route", "del", "local", "127.0.0.0/8", "dev", "lo", "table", "local")
        self._ip(host, "address", "add", f"{self.address(host)}/24", "dev", "cable")
        self._ip(host, "link", "set", "cable", "up")

    def _ip(self, host: str, *words: str) -> None:
        self._run(host, program("IP"), *words)

    def _run(self, host: str, *command: str) -> None:
        said = subprocess.run(self.on(host, command), capture_output=True, text=True)
        if said.returncode:
            raise _refused(command, said.stderr)


@dataclass(kw_only=True, eq=False)
class RedisOnHost(Redis):
    """A Redis on a host of a network, for clients on its hosts."""

    network: Network
    host: str

    @property
    def address(self) -> str:
        return f"{self.network.address(self.host)}:{self.port}"

    def command(self) -> list[str]:
        command = [*super().command(), "--bind", self.network.address(self.host), "--protected-mode", "no"]
        # A host of its own would have a processor of its own: here it goes first, if we are root.
        return self.network.on(self.host, ["nice", "-n", "-10", *command])

    def ping(self) -> bool:
        return self.answers(self.host)

    def answers(self, host: str) -> bool:
        """Whether a client on a host is answered within a second."""
        command = [program("REDIS_CLI"), "-h", self.network.address(self.host), "-p", str(self.port), "PING"]
        try:
            said = subprocess.run(self.network.on(host, command), capture_output=True, text=True, timeout=1)
        except subprocess.TimeoutExpired:
            return False
        return said.stdout.strip() == "PONG"


def _namespace(inside: Sequence[str]) -> subprocess.Popen[bytes]:
    """A process that does nothing but keep a network namespace."""
    # A user who is not root is root in the first holder's user namespace, where all the networks are.
    user = ["--user", "--map-root-user"] if _UNPRIVILEGED and not inside else []
    command = [*inside, program("UNSHARE"), *user, "--net", "sleep", "infinity"]
    holder = spawn(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    ours = Path("/proc/self/ns/net").readlink()

    def apart() -> bool:
        there = Path(f"/proc/{holder.pid}")
        try:
            # unshare maps the users once it is in its namespaces; who enters before is nobody there.
            mapped = not _UNPRIVILEGED or bool((there / "gid_map").read_text().strip())
            return ((there / "ns/net").readlink() != ours and mapped) or holder.poll() is not None
        except OSError:
            return holder.poll() is not None

    if wait_until(apart, timeout=60, poll=0.002) and holder.poll() is None:
        return holder
    holder.kill()
    said = holder.communicate()[1].decode(errors="replace")
    raise _refused(command, said)


def _refused(command: Sequence[str], said: str) -> ConfigError:
    return ConfigError(
        f"no network namespaces here: tried {' '.join(command)!r}, which said {said.strip()!r}; "
        "run on Linux as root, or let users make namespaces (sysctl user.max_user_namespaces above 0 and, where there "
        "is AppArmor, kernel.apparmor_restrict_unprivileged_userns=0)"
    )
