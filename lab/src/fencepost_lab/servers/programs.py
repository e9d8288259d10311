"""Where the servers' programs are on this machine, and of which version; scripts/servers, too, asks here."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Found = dict[str, str]
"""Program -> its path."""


def cache() -> Path:
    """The folder that holds what is unpacked rather than installed."""
    if chosen := os.environ.get("FENCEPOST_SERVERS"):
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fencepost" / "servers"


def chosen(key: str) -> str:
    """The path that FENCEPOST_PROGRAM_<key> names, whatever its version; '' if it names none."""
    return os.environ.get(f"FENCEPOST_PROGRAM_{key}", "")


def programs(folder: str, **wanted: str) -> Found | None:
    """Where each wanted program is: as chosen, else all from PATH, or all from the cache; None unless all are there."""
    system = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin"])
    first = next(iter(wanted))
    for path in (system, str(cache() / folder / "usr/bin")):
        found = {key: at for key, name in wanted.items() if (at := chosen(key) or shutil.which(name, path=path))}
        if len(found) == len(wanted) and (chosen(first) or recent(folder, found[first])):
            return found
    return None


def recent(name: str, program: str) -> bool:
    """Whether the program is as new as the tests need."""
    server = PROGRAMS[name]
    return not server.minimum or numbers(version(server, program)) >= server.minimum


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def version(server: Program, program: str) -> str:
    """What the program says its version is, or '' if it says nothing."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run([program, *server.ask], capture_output=True, text=True, timeout=20)
        match = re.search(r"(?:\d+\.)+\d+", said.stdout + said.stderr)
        if match and said.returncode == 0:
            return match[0]
    return ""


def find_java() -> Found | None:
    home = os.environ.get("JAVA_HOME")
    java = chosen("JAVA") or (shutil.which("java", path=f"{home}/bin") if home else None)
    java = java or shutil.which("java")
    return {"JAVA": java} if java else None


def find_zookeeper() -> Found | None:
    """The jar of Debian's package names the jars it needs; a release folder holds them all."""
    if classpath := chosen("ZOOKEEPER_CLASSPATH"):
        return {"ZOOKEEPER_CLASSPATH": classpath}
    debian = Path("/usr/share/java")
    if (debian / "zookeeper.jar").exists():
        jars = [debian / "zookeeper.jar", debian / "slf4j-simple.jar"]
    else:
        jars = sorted((Path(os.environ.get("ZOOKEEPER_HOME") or "/nowhere") / "lib").glob("*.jar"))
    return {"ZOOKEEPER_CLASSPATH": os.pathsep.join(map(str, jars))} if jars else None


def find_postgres() -> Found | None:
    """Debian keeps the server's programs out of PATH, in one folder per major version."""
    if folder := chosen("POSTGRES_BIN"):
        return {"POSTGRES_BIN": folder}
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda bin: numbers(bin.parent.name))
    if on_path := shutil.which("postgres"):
        folders.append(Path(on_path).resolve().parent)
    exact = [bin for bin in folders if bin.parent.name == "15"]
    for bin in exact + folders[::-1]:
        complete = all((bin / name).exists() for name in ("postgres", "initdb", "psql"))
        if complete and recent("postgres", str(bin / "postgres")):
            return {"POSTGRES_BIN": str(bin)}
    return None


def find_axe() -> Found | None:
    """The accessibility checker is a script that a page loads; only the version named here will do."""
    script = cache() / PROGRAMS["axe"].npm / "package" / "axe.min.js"
    return {"AXE": str(script)} if script.exists() else None


def find_pyodide() -> Found | None:
    """Python for the browser, which the simulator's export carries; only the version named here will do."""
    folder = cache() / PROGRAMS["pyodide"].npm / "package"
    return {"PYODIDE": str(folder)} if folder.is_dir() else None


def found_version(name: str, found: Found) -> str:
    """The version of a server that was found, or '' if it does not say."""
    path = next(iter(found.values()))
    if name == "zookeeper":
        return zookeeper_version(found)
    if npm := PROGRAMS[name].npm:
        return npm.partition("@")[2]
    return version(PROGRAMS[name], f"{path}/postgres" if name == "postgres" else path)


def zookeeper_version(found: Found) -> str:
    jar = Path(found["ZOOKEEPER_CLASSPATH"].split(os.pathsep)[0])
    match = re.search(r"zookeeper-([\d.]+\d)\.jar", " ".join(map(str, jar.parent.glob("zookeeper-[0-9]*.jar"))))
    return match[1] if match else ""


@dataclass(frozen=True)
class Program:
    """One server: how to find it, its Debian packages and the release they are unpacked from, or its npm package."""

    find: Callable[[], Found | None]
    packages: tuple[str, ...] = ()
    release: str = ""
    npm: str = ""
    sha256: str = ""
    """Of the archive of that package."""
    minimum: tuple[int, ...] = ()
    ask: tuple[str, ...] = ("--version",)


PROGRAMS = {
    "redis": Program(
        lambda: programs("redis", REDIS_SERVER="redis-server", REDIS_CLI="redis-cli"),
        ("redis-server", "redis-tools"),
        minimum=(7, 0),
    ),
    "etcd": Program(
        lambda: programs("etcd", ETCD="etcd", ETCDCTL="etcdctl"),
        ("etcd-server", "etcd-client"),
        release="trixie",
        minimum=(3, 5),
    ),
    "java": Program(find_java, ("default-jre-headless",), ask=("-version",)),
    "zookeeper": Program(find_zookeeper, ("libzookeeper-java", "libslf4j-java")),
    "consul": Program(lambda: programs("consul", CONSUL="consul"), ("consul",), release="bullseye", ask=("version",)),
    "postgres": Program(find_postgres, ("postgresql",), minimum=(15,)),
    "pgbouncer": Program(lambda: programs("pgbouncer", PGBOUNCER="pgbouncer"), ("pgbouncer",)),
    "prometheus": Program(
        lambda: programs("prometheus", PROMETHEUS="prometheus", PROMTOOL="promtool"), ("prometheus",)
    ),
    "chromium": Program(
        lambda: programs("chromium", CHROMIUM="chromium", CHROMEDRIVER="chromedriver"), ("chromium", "chromium-driver")
    ),
    "axe": Program(
        find_axe,
        npm="axe-core@4.14.0",
        sha256="2277b0a3ef47af9b52497faa3e71598e86e0a0e5e6eb295207a5657ede4709af",
    ),
    "pyodide": Program(
        find_pyodide,
        npm="pyodide@314.0.7",
        sha256="66b7949e5a0cba2250b586d7e368bf12fb482800748d182c4618254b685ffaa0",
    ),
    # What the lab's faults need: a compiler for clocks that jump, network namespaces.
    "cc": Program(lambda: programs("cc", CC="cc"), ("gcc", "libc6-dev")),
    "iproute2": Program(
        lambda: programs("iproute2", IP="ip", UNSHARE="unshare", NSENTER="nsenter"),
        ("iproute2", "util-linux"),
        ask=("-V",),
    ),
}
