"""Server programs from Debian's other releases, PyPI and npm, verified, and unpacked into the cache."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from zipfile import ZipFile

from fencepost_lab.servers.programs import cache

ELSEWHERE = (
    "start them with 'docker compose -f deploy/stores.yaml up -d --wait' and export the\n"
    "FENCEPOST_TEST_*_URL variables listed at the top of that file, or put the programs on PATH"
)


class Failure(Exception):
    """Something is missing and cannot be downloaded; the message names the next step."""


def debian() -> str:
    """This machine's Debian release name; Failure anywhere else."""
    with contextlib.suppress(OSError):
        fields = dict(line.split("=", 1) for line in shlex.split(Path("/etc/os-release").read_text(), comments=True))
        if fields.get("ID") == "debian" and shutil.which("apt-get"):
            return fields.get("VERSION_CODENAME", "")
    raise Failure(f"this machine is not Debian, so nothing can be installed here: {ELSEWHERE}")


def run(command: Sequence[str], *, cwd: Path | None = None) -> str:
    """Run quietly and return what it printed; wait while another apt-get holds a lock; Failure otherwise."""
    deadline = time.monotonic() + 600
    env = {**os.environ, "LC_ALL": "C"}
    while True:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode == 0:
            return done.stdout
        locked = re.search(r"Could not get lock|Unable to (acquire|lock)", done.stdout)
        if not locked or time.monotonic() > deadline:
            # The mirror's address may carry credentials or name a private host: neither belongs in a log.
            tail = re.sub(r"(\w+://|host ')[^\s']+", r"\1...", "\n".join(done.stdout.splitlines()[-15:]))
            raise Failure(f"{shlex.join(command[:6])} ... failed:\n{tail}\ntry again, or {ELSEWHERE}")
        time.sleep(2)


def mirror(release: str) -> tuple[str, str]:
    """The address this machine gets Debian from, and its keyring ('' for apt's default ones)."""
    asked = run(
        [
            "apt-get",
            "indextargets",
            "--format",
            "$(REPO_URI) $(RELEASE) $(COMPONENT) $(SOURCESENTRY)",
            "Created-By: Packages",
        ]
    )
    for line in asked.splitlines():
        address, name, component, source = line.split(" ", 3)
        if name == release and component == "main":
            file = Path(source.rpartition(":")[0])
            sources = re.split(r"\n\s*\n" if file.suffix == ".sources" else r"\n", file.read_text())
            ours = [text for text in sources if address.rstrip("/") in text]
            keyring = re.search(
                r"^[^#\n]*signed-by\s*[:=]\s*(/[^\s\],]+)", "\n".join(ours), re.IGNORECASE | re.MULTILINE
            )
            return address, keyring[1] if keyring else ""
    raise Failure(f"apt has no source for Debian {release}, so its mirror is unknown: add one, or {ELSEWHERE}")


@contextlib.contextmanager
def _scratch(name: str) -> Iterator[Path]:
    """A folder to work in; what the block leaves in its `unpacked` becomes the cache's folder of that name."""
    with tempfile.TemporaryDirectory(dir=cache(), prefix=".scratch-") as scratch:
        folder = Path(scratch)
        (folder / "unpacked").mkdir()
        yield folder
        shutil.rmtree(cache() / name, ignore_errors=True)
        (cache() / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "unpacked").rename(cache() / name)


def unpack(name: str, packages: Sequence[str], release: str, *, libraries: str = "") -> None:
    """Download packages of another Debian release; needs no root.

    If ``libraries`` names a release, the libraries that the packages need come along from there, unless their own
    release has them. apt checks the releases' signatures, and the packages by the hashes that these cover.
    """
    address, keyring = mirror(debian())
    with _scratch(name) as state:
        for folder in ("lists/partial", "cache/archives/partial"):
            (state / folder).mkdir(parents=True)
        (state / "status").touch()
        options = f"[signed-by={keyring}] " if keyring else ""
        sources = [f"deb {options}{address} {each} main\n" for each in dict.fromkeys((release, libraries)) if each]
        (state / "sources.list").write_text("".join(sources))
        settings = {
            "Dir::Etc::sourcelist": state / "sources.list",
            "Dir::Etc::sourceparts": "-",
            "Dir::Etc::preferences": "-",
            "Dir::Etc::preferencesparts": "-",
            "Dir::State": state,
            "Dir::State::lists": state / "lists",
            "Dir::State::status": state / "status",
            "Dir::Cache": state / "cache",
            "APT::Sandbox::User": "root",  # the sandbox user could not write into a private cache folder
            "APT::Default-Release": release,
            "Acquire::Languages": "none",
            "Acquire::Retries": "3",
        }
        apt = ["-q", *(part for key, value in settings.items() for part in ("-o", f"{key}={value}"))]
        run(["apt-get", *apt, "update"])
        wanted = _with_libraries(apt, packages) if libraries else list(packages)
        run(["apt-get", *apt, "download", *wanted], cwd=state)
        for package in state.glob("*.deb"):
            run(["dpkg", "-x", str(package), str(state / "unpacked")])


def _with_libraries(apt: Sequence[str], packages: Sequence[str]) -> list[str]:
    """The packages, and every library package that they need, down to the C library."""
    wanted, level = list(packages), list(packages)
    while level:
        said = run(["apt-cache", *apt, "depends", "--no-recommends", "--no-suggests", "--no-enhances", *level])
        needed = re.findall(r"^ [ |](?:Pre)?Depends: ((?:lib|zlib|lua-)[^\s<>]+)$", said, re.MULTILINE)
        level = [each for each in dict.fromkeys(needed) if each not in wanted]
        wanted += level
    return wanted


def fetch(package: str, *, sha256: str, name: str = "") -> None:
    """Download an npm package and unpack it into the cache; nothing of it is run. Failure if it is another one."""
    with _scratch(name or package) as scratch:
        run(["npm", "pack", "--silent", package], cwd=scratch)
        for archive in scratch.glob("*.tgz"):
            if (found := hashlib.sha256(archive.read_bytes()).hexdigest()) != sha256:
                raise Failure(f"npm's {package} has the SHA-256 {found}, not {sha256}: do not use it")
            run(["tar", "-xzf", str(archive), "-C", str(scratch / "unpacked")])


def fetch_wheel(requirement: str, *, name: str, sha256: str, tags: Sequence[str], python: Path) -> None:
    """Download a wheel from the Python package index, and unpack it into the cache; nothing of it is run.

    ``tags`` are pip's options that say for which Python and platform; ``python`` is an interpreter that has pip.
    """
    with _scratch(name) as scratch:
        (scratch / "wanted.txt").write_text(f"{requirement} --hash=sha256:{sha256}\n")
        pip = [str(python), "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        run([*pip, "--require-hashes", *tags, "-r", "wanted.txt"], cwd=scratch)
        for wheel in scratch.glob("*.whl"):
            with ZipFile(wheel) as archive:
                archive.extractall(scratch / "unpacked")


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Two runs install one after the other."""
    cache().mkdir(parents=True, exist_ok=True)
    with open(cache() / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
