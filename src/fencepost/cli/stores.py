"""``fencepost backends`` and ``doctor``: what the stores promise, and how one of them is set up."""

import json
from dataclasses import asdict, fields
from typing import Annotated, Any

import typer

from fencepost.backend import Backend as Store
from fencepost.backend import Finding, Promises
from fencepost.cli import exits
from fencepost.cli.options import Backend, Json, store
from fencepost.cli.text import say

_SIGNS = {"ok": "ok  ", "warn": "warn", "risk": "RISK"}


def backends(
    as_json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables of docs/backends.md.")] = False,
) -> None:
    """Print what each backend promises: fairness, sharing, consensus, failover, clock, token source, ttl limits."""
    rows = promised()
    if as_json:
        print(json.dumps(rows, indent=2))
    elif markdown:
        print(tables(rows))
    else:
        for row in rows:
            print(f"{', '.join(f'{scheme}://' for scheme in row['schemes'])}")
            for key, value in in_words(row).items():
                print(f"  {key:<9} {value}")


def promised() -> list[dict[str, Any]]:
    """One row for each backend: its schemes and its promises, or what to install for it."""
    from fencepost import registry
    from fencepost.errors import ConfigError

    rows: dict[str, dict[str, Any]] = {}
    for scheme, (target, _) in registry.SCHEMES.items():
        if target in rows:
            rows[target]["schemes"].append(scheme)
            continue
        try:
            kind = registry.find(scheme)
        except ConfigError as error:
            rows[target] = {"schemes": [scheme], "missing": str(error)}
        else:
            rows[target] = {"schemes": [scheme], "promises": asdict(kind.promises)}
    return list(rows.values())


_KEEPS = {
    "any": "a lock after its block for as long as at_least= says",
    "ttl": "a lock after its block (at_least=) for its ttl at most",
    "no": "no lock after its block: at_least= is refused",
}


def in_words(row: dict[str, Any]) -> dict[str, str]:
    """A row in words."""
    if "missing" in row:
        return {"missing": row["missing"]}
    promises = dict(row["promises"])
    low, high = promises.pop("min_ttl"), promises.pop("max_ttl")
    words = {key: value if isinstance(value, str) else "yes" if value else "no" for key, value in promises.items()}
    words["keeps"] = _KEEPS[words["keeps"]]
    return words | {"ttl": f"{low:g} s to {'any' if high >= 1e9 else f'{high:g} s'}"}


def tables(rows: list[dict[str, Any]]) -> str:
    """The rows as the documents show them: yes and no side by side, what needs words below each other."""
    short = ["reach", "fair", "shared", "consensus", "ttl"]
    long = [field.name for field in fields(Promises) if field.name not in {*short, "min_ttl", "max_ttl"}]
    lines = [f"| backend | {' | '.join(short)} |", "|---" * (len(short) + 1) + "|"]
    for row in rows:
        words = in_words(row)
        lines.append(f"| `{row['schemes'][0]}://` | {' | '.join(words.get(key, '') for key in short)} |")
    for row in rows:
        words = in_words(row)
        lines += ["", f"### {', '.join(f'`{scheme}://`' for scheme in row['schemes'])}", ""]
        lines += [f"- **{key}**: {words[key]}" for key in long if key in words]
        lines += [words["missing"]] if "missing" in words else []
    return "\n".join(lines)


def doctor(
    url: Annotated[
        str | None, typer.Argument(help="The store; default: $FENCEPOST_URL, else an SQLite file of this user.")
    ] = None,
    backend: Backend = None,
    as_json: Json = False,
) -> None:
    """Connect to a store and report its version, topology, ttl limits, persistence and restore risks.

    Says in plain words what each finding means for locks. Exit code 1 if one of them is a risk.
    """
    from fencepost import registry
    from fencepost.driver import run
    from fencepost.driver.threads import Blocking

    driver = Blocking()
    if url is not None and backend is not None:
        raise typer.BadParameter("name the store once: as the argument, or with --backend")
    found = registry.connect(store(backend if url is None else url), driver)
    try:
        findings = [*run(found.doctor()), *guarantees(found)]
    finally:
        run(found.close())
        driver.close()
    if as_json:
        print(json.dumps([finding._asdict() for finding in findings], indent=2))
    else:
        for finding in findings:
            say(f"{_SIGNS[finding.level]}  {finding.what}")
            say(f"      {finding.means}")
    if any(finding.level == "risk" for finding in findings):
        raise typer.Exit(exits.FAILED)


def guarantees(backend: Store) -> list[Finding]:
    """The guarantee level of the backend as such, in plain words."""
    promises = backend.promises
    exact = "agreed on by a majority" if promises.consensus else "one server's word"
    return [
        Finding(
            "ok",
            f"guarantee: grants are {exact}; {promises.failover}",
            "no store can stop a holder that was paused past its ttl: put a guard where the data lives",
        ),
        Finding(
            "ok",
            f"expiry is decided by {promises.clock}",
            "it must not jump by more than a ttl while locks are held",
        ),
        Finding(
            "ok",
            f"ttl from {promises.min_ttl:g} to {promises.max_ttl:g} s; waiters are "
            f"{'served in the order they came' if promises.fair else 'served in no particular order'}",
            f"tokens: {promises.token}",
        ),
    ]
