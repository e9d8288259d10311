"""Clients side by side: which of them can be put on a store, and one run of each."""

from importlib.metadata import version
from typing import Any

from fencepost.address import parse
from fencepost_lab.contend import clients, report
from fencepost_lab.contend.plan import Plan
from fencepost_lab.contend.run import Result, contend
from fencepost_lab.servers.stores import Store

OURS = "fencepost"


def able(store: Store, wanted: list[str]) -> list[str]:
    """Those of the wanted clients that reach this store, fencepost first.

    ConfigError if one is not installed: a row that is missing would look like a result.
    """
    scheme = parse(store.url).scheme
    found = [name for name in dict.fromkeys([OURS, *wanted]) if clients.reaches(name, scheme)]
    for name in found:
        clients.installed(name)
    return found


def versions(names: set[str]) -> dict[str, str]:
    """The peers' packages, by their versions."""
    return {package: version(package) for package in sorted({clients.known(name).package for name in names} - {""})}


def measure(store: Store, client: str, **options: Any) -> tuple[Result, dict[str, Any]]:
    """One run, and its summary without what only a single run is looked at for."""
    result = contend(Plan(backend=store.url, client=client, **options))
    if result.interrupted:
        raise KeyboardInterrupt  # what was cut short says nothing about a claim
    found = report.summary(result)
    for name in ("backlog", "pauses", "writes"):
        del found[name]
    return result, found


def longest(found: dict[str, Any]) -> float:
    """The longest wait, also of those who were not served before the end."""
    return max(float(found["wait"]["max"] or 0.0), float(found["waiting_at_end"]["longest"]))
