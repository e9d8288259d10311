"""The command line's skeleton: help, version, errors and their exit codes."""

import sys
from importlib.metadata import EntryPoint, version
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from fencepost import errors
from fencepost.cli import app as root
from fencepost.cli import exits
from fencepost.cli.options import Duration
from fencepost.cli.text import in_words
from fencepost.rule import Stamp, Verdict
from tests.harness.child import Child

run = CliRunner().invoke


def test_the_version() -> None:
    done = run(root.app, ["--version"])
    assert (done.exit_code, done.stdout) == (0, version("fencepost") + "\n")


def test_help_lists_every_command_and_every_exit_code() -> None:
    done = run(root.app, ["--help"], env={"COLUMNS": "200"})
    assert done.exit_code == 0
    assert all(command in done.stdout for command in root.COMMANDS)
    assert all(f"{code} " in done.stdout for code, _ in exits.CODES.values())


@pytest.mark.parametrize("command", root.COMMANDS)
def test_every_command_has_help(command: str) -> None:
    done = run(root.app, [command, "--help"])
    assert done.exit_code == 0, done.output


def test_help_loads_no_server_and_no_client() -> None:
    code = (
        "import sys\nfrom fencepost.cli.app import app\n"
        "try:\n    app(['--help'])\nfinally:\n"
        "    print('LOADED', *({'uvicorn', 'starlette', 'redis', 'prometheus_client'} & set(sys.modules)))"
    )
    with Child.python("-c", code) as program:
        program.wait()
    assert program.output[-1].strip() == "LOADED"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("no such thing"), 2),
        (errors.BackendError("gone", backend="redis", ambiguous=False), 69),
        (errors.NotAcquired("lock", 1.0), 75),
        (errors.QueueFull("lock", 1), 75),
        (errors.LeaseLost("lock", 1, "gone"), 76),
        (errors.refusal(Verdict.STALE, "thing", Stamp(1), Stamp(2)), 77),
        (errors.FencepostError("something else"), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_of_ours_ends_with_one_line_and_its_code(
    error: errors.FencepostError, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = typer.Typer(add_completion=False)

    @failing.command()
    def fail() -> None:
        raise error

    monkeypatch.setitem(sys.modules, "tests.failing", typer.Typer())
    monkeypatch.setattr(sys.modules["tests.failing"], "app", failing, raising=False)
    monkeypatch.setitem(root.COMMANDS, "fail", "tests.failing:app")
    done = run(root.app, ["fail"])
    assert (done.exit_code, done.stderr) == (code, f"fencepost: {in_words(error)}\n")


def test_an_unknown_command_is_wrong_usage() -> None:
    assert run(root.app, ["resourse"]).exit_code == 2


def test_a_duration_option_takes_units_and_says_what_is_wrong() -> None:
    timed = typer.Typer(add_completion=False)

    @timed.command()
    def wait(ttl: Annotated[float, Duration("--ttl", help="How long.")] = 2.0) -> None:
        print(ttl)

    assert run(timed, []).stdout == "2.0\n"
    assert run(timed, ["--ttl", "500ms"]).stdout == "0.5\n"
    wrong = run(timed, ["--ttl", "soon"], env={"COLUMNS": "200"})
    assert wrong.exit_code == 2
    assert "500ms, 2s, 5m" in wrong.stderr


def test_without_its_packages_it_names_the_pip_command() -> None:
    code = "import sys; sys.modules['typer'] = None\nfrom fencepost.cli import main; main()"
    with Child.python("-c", code) as program:
        assert program.wait() == 2, program.story
    assert program.errors.endswith("pip install 'fencepost[cli]'\n"), program.errors


def test_a_bad_option_of_the_service_is_one_line() -> None:
    done = run(root.app, ["resource", "--port", "77777"])
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1


def test_a_package_that_cannot_be_loaded_costs_only_its_own_command(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("broken", "no_such_package.cli:app", "fencepost.commands")

    def points(*, group: str, name: str | None = None) -> list[EntryPoint]:
        return [broken] if group == "fencepost.commands" and name in (None, "broken") else []

    monkeypatch.setattr("importlib.metadata.entry_points", points)
    done = run(root.app, ["--help"])
    assert done.exit_code == 0
    assert "break" in done.stdout
    done = run(root.app, ["broken", "--anything"])
    assert done.exit_code == 2
    assert "cannot be loaded" in done.stderr


def test_an_empty_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEPOST_URL", "")
    done = run(root.app, ["ls"])
    assert done.exit_code == 2
    assert "$FENCEPOST_URL is empty" in done.stderr
