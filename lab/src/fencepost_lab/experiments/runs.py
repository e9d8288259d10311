"""Running experiments and keeping what they found, as JSON and SVG in one folder."""

import json
import os
import platform
import shlex
import subprocess
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from fencepost.address import masked
from fencepost.errors import ConfigError, FencepostError
from fencepost_lab.contend import clients
from fencepost_lab.experiments import Experiment, Settings
from fencepost_lab.experiments.context import Context
from fencepost_lab.report.outcome import Outcome, Plot
from fencepost_lab.servers import Missing, StartFailed
from fencepost_lab.servers.stores import Store, kind

FOLDER = Path("lab-runs")
Result: TypeAlias = dict[str, Any]
"""One experiment's JSON: what was asked, how it was run, and what came of it."""


def equipped(wanted: Iterable[Settings] = ()) -> None:
    """Return if what the lab needs is installed, also the peers that these settings name.

    ConfigError naming the pip command, before hours are spent: a peer that is missing is no result.
    """
    for package in ("matplotlib", "markdown_it", "starlette", "uvicorn"):
        if find_spec(package) is None:
            raise ConfigError(f"the lab needs the package {package!r}: pip install 'fencepost-lab[all]'")
    for settings in wanted:
        schemes = [kind(backend) for backend in settings.get("backends", ())]
        for name in settings.get("peers", ()):
            if any(clients.reaches(name, scheme) for scheme in schemes):
                clients.installed(name)


def command(experiment: Experiment, *, quick: bool, backends: Sequence[str]) -> str:
    """How to run exactly this again."""
    words = ["fencepost", "lab", "run", experiment.name]
    words += ["--quick"] if quick else []
    for each in backends:
        words += ["--backend", masked(each) if "://" in each else each]
    return shlex.join(words)


def versions(context: Context) -> dict[str, str]:
    """What took part, and its version."""
    found = {"python": platform.python_version(), "fencepost": version("fencepost")}
    for each in context.stores.values():
        found |= each.versions()
    return found


def commit(source: Path = Path(__file__)) -> str:
    """The commit of the code that runs, and whether the code was changed since; "" outside a clone."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=source.parent, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", source.name)  # or it is installed in a clone of another program
        code = [f":/{each}" for each in ("src", "lab/src")]
        changed = git("status", "--porcelain", "--untracked-files=no", "--", *code)
        return git("rev-parse", "--short=12", "HEAD") + (" and changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def conditions(plot: Plot, stores: Iterable[Store]) -> str:
    """What the figures of a plot depend on: the settings of the store in its name, or of all stores."""
    used = {each.name: each.conditions() for each in stores}
    named = [text for name, text in used.items() if name in plot.name.split("-")]
    return "; ".join(named or used.values())


def _broken(why: str) -> Outcome:
    outcome = Outcome()
    outcome.claim("the experiment runs to its end", False, why)
    return outcome


def _forget(earlier: Path) -> None:
    """Remove the histories of an earlier run, whose result is about to be replaced."""
    try:
        for each in json.loads(earlier.read_text("utf-8"))["histories"]:
            (earlier.parent / Path(each["file"]).name).unlink(missing_ok=True)
    except (OSError, ValueError, KeyError, TypeError):
        return  # there is none, or none of the lab's


def run(
    experiment: Experiment,
    *,
    quick: bool = False,
    backends: Sequence[str] = (),
    out: Path = FOLDER,
    say: Callable[[str], None] = lambda text: None,
) -> Result:
    """Run an experiment and keep its result in ``out``; one that breaks off is kept as a claim that did not hold."""
    settings = experiment.settings(quick=quick, backends=backends)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot keep results in {str(out)!r}: {error.strerror}; choose another --out") from error
    _forget(out / f"{experiment.name}.json")
    begun_at, started, begin = commit(), datetime.now(UTC), time.monotonic()
    with Context(keep=out, say=say) as context:
        try:
            outcome = experiment.run(settings, context)
        except (FencepostError, Missing, StartFailed) as error:
            outcome = _broken(str(error))
        except Exception:  # a mistake in one experiment must not take the results of the others with it
            outcome = _broken(traceback.format_exc())
        stores = list(context.stores.values())
        seen = versions(context) | {f"{name} (peer)": found for name, found in outcome.figures.get("peers", {}).items()}
        outcome.plots = [
            replace(plot, caption=f"{plot.caption} ({conditions(plot, stores)})" if stores else plot.caption)
            for plot in outcome.plots
        ]
        used = {each.name: each.conditions() for each in stores}
    result: Result = {
        "experiment": experiment.name,
        "number": experiment.number,
        "command": command(experiment, quick=quick, backends=backends),
        "quick": quick,
        "commit": begun_at,
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - begin, 1),
        "machine": {"cpus": os.cpu_count(), "system": platform.system(), "arch": platform.machine()},
        "versions": seen,
        "stores": used,
        "question": experiment.question,
        "claim": experiment.claim,
        "setup": experiment.setup,
        "meaning": experiment.meaning,
        "settings": settings | ({"backends": [masked(each) for each in settings["backends"]]} if backends else {}),
        "histories": context.kept,
        **outcome.data(),
    }
    for plot in outcome.plots:
        (out / f"{experiment.name}-{plot.name}.svg").write_text(plot.svg, "utf-8")
    text = json.dumps(result, indent=2)
    (out / f"{experiment.name}.json").write_text(text + "\n", "utf-8")
    kept: Result = json.loads(text)
    return kept
