"""``fencepost backends``: what each backend promises."""

import json
from dataclasses import asdict, fields
from typing import Annotated, Any

import typer

from fencepost.cli.options import Json

app = typer.Typer(add_completion=False)


@app.command()
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
            for key, value in told(row).items():
                print(f"  {key:<9} {value}")


def promised() -> list[dict[str, Any]]:
    """One row for each backend: its schemes and its promises, or what to install for it."""
    from fencepost import url
    from fencepost.errors import ConfigError

    rows: dict[str, dict[str, Any]] = {}
    for scheme, target in url.SCHEMES.items():
        if target in rows:
            rows[target]["schemes"].append(scheme)
            continue
        try:
            kind = url.find(scheme)
        except ConfigError as error:
            rows[target] = {"schemes": [scheme], "missing": str(error)}
        else:
            rows[target] = {"schemes": [scheme], "promises": asdict(kind.promises)}
    return list(rows.values())


def told(row: dict[str, Any]) -> dict[str, str]:
    """A row in words."""
    if "missing" in row:
        return {"missing": row["missing"]}
    promises = dict(row["promises"])
    low, high = promises.pop("min_ttl"), promises.pop("max_ttl")
    words = {key: value if isinstance(value, str) else "yes" if value else "no" for key, value in promises.items()}
    return words | {"ttl": f"{low:g} s to {'any' if high >= 1e9 else f'{high:g} s'}"}


def tables(rows: list[dict[str, Any]]) -> str:
    """The rows as the documents show them: yes and no side by side, what needs words below each other."""
    from fencepost.backend import Promises

    short = ["reach", "fair", "shared", "consensus", "bump", "ttl"]
    long = [field.name for field in fields(Promises) if field.name not in {*short, "min_ttl", "max_ttl"}]
    lines = [f"| backend | {' | '.join(short)} |", "|---" * (len(short) + 1) + "|"]
    for row in rows:
        words = told(row)
        lines.append(f"| `{row['schemes'][0]}://` | {' | '.join(words.get(key, '') for key in short)} |")
    for row in rows:
        words = told(row)
        lines += ["", f"### {', '.join(f'`{scheme}://`' for scheme in row['schemes'])}", ""]
        lines += [f"- **{key}**: {words[key]}" for key in long if key in words]
        lines += [words["missing"]] if "missing" in words else []
    return "\n".join(lines)
