"""Real pytest sessions in a process of their own, as somebody has them who installed fencepost."""

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests import ROOT
from tests.harness.child import Child

OTHERS = ("schemathesis", "hypothesispytest", "xdist", "xdist.looponfail", "timeout", "cacheprovider")
"""Plugins that are installed here, and have no part in this."""


@dataclass(frozen=True)
class Session:
    """What a session said, and what became of each test: "passed", or the words of its failure or error."""

    output: str
    tests: dict[str, str]


def installed(folder: Path) -> Path:
    """A folder for PYTHONPATH in which pytest finds the plugin as it does once the wheel is installed."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]["pytest11"]
    info = folder / "fencepost_plugin-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fencepost-plugin\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[pytest11]\n" + "".join(f"{name} = {target}\n" for name, target in points.items())
    )
    return folder


def run_pytest(folder: Path, *options: str, **files: str) -> Session:
    """Run the tests in ``files``, by module name, and return what became of them."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, "utf-8")
    path = [str(installed(folder / "installed")), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    report = folder / "report.xml"
    arguments = ["-m", "pytest", "--rootdir", folder, f"--junitxml={report}", "-q", *options]
    for other in OTHERS:
        arguments += ["-p", f"no:{other}"]
    with Child.python(*arguments, cwd=folder, env={"PYTHONPATH": os.pathsep.join(path)}, merged=True) as child:
        child.wait()
        output = "\n".join(child.output)
    assert report.exists(), output
    tests: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        wrong = [*case.iter("failure"), *case.iter("error")]
        said = "\n".join(f"{each.get('message')}\n{each.text}" for each in wrong) or "passed"
        name = case.get("name") or ""
        tests[name] = said if tests.get(name, "passed") == "passed" else f"{tests[name]}\n{said}"
    return Session(output, tests)
