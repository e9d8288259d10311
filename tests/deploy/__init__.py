"""What deploy/ has, read as Docker, Kubernetes, Prometheus and Grafana read it, and held against the real programs."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests import ROOT

DEPLOY = ROOT / "deploy"
SECRETS = {"clients.toml", "worker", "prometheus", "postgres", "pgpass", "grafana"}
"""What make_secrets.py makes."""
yaml: Any = importlib.import_module("yaml")


def document(name: str) -> Any:
    """A file of deploy/ that has one document."""
    return yaml.safe_load((DEPLOY / name).read_text())


def services() -> dict[str, Any]:
    """The services of compose.yaml, with what they extend."""
    found: dict[str, Any] = document("compose.yaml")["services"]
    for name, service in found.items():
        if base := service.pop("extends", None):
            parent = document(base["file"])["services"][base["service"]]
            mappings = {key: parent[key] | service[key] for key in ("environment",) if key in service and key in parent}
            found[name] = parent | service | mappings
    return found


def manifests() -> Iterator[tuple[Path, Any]]:
    """Every object of deploy/kubernetes."""
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        if path.name != "kustomization.yaml":
            for found in yaml.safe_load_all(path.read_text()):
                yield path, found


def understood(command: Sequence[str]) -> None:
    """Return if the program `fencepost` takes these arguments, without doing what they say; else its usage error."""
    import typer

    from fencepost.cli.app import app

    group: Any = typer.main.get_command(app)
    name, *arguments = command
    found = group.get_command(None, name)
    assert found is not None, f"there is no command {name!r}"
    found.make_context(name, list(arguments))
