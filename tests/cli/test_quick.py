"""The quick way to a command says and does what Typer does; and completion at a real shell."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import fencepost
from fencepost.cli import locks, quick, run, top
from fencepost.cli.app import COMMANDS
from fencepost.cli.loader import LAB
from fencepost.cli.top import Sort
from tests.harness.child import Child


def test_plain_arguments_are_read() -> None:
    found = quick.parse(
        quick.command(COMMANDS["run"]), ["--quiet", "job", "--ttl", "500ms", "-E", "0", "--", "sh", "-c", "x"]
    )
    assert (found["name"], found["command"], found["ttl"], found["busy_exit"]) == ("job", ["sh", "-c", "x"], 0.5, 0)
    assert (found["quiet"], found["verbose"], found["timeout"]) == (True, False, None)
    found = quick.parse(top.top, ["--sort", "name", "a/", "--every=2s", "--json"])
    assert (found["prefix"], found["sort"], found["every"], found["as_json"]) == ("a/", Sort.NAME, 2.0, True)
    assert quick.parse(locks.ls, [])["prefix"] == ""
    found = quick.parse(quick.command(COMMANDS["resource"]), ["--prefix", "a/", "--port=0", "--prefix", "b/"])
    assert (found["prefix"], found["port"], found["clients"]) == (["a/", "b/"], 0, None)
    found = quick.parse(quick.command(LAB["worker"]), ["--no-enter", "--resource", "http://127.0.0.1:1"])
    assert (found["enter"], found["renew"]) == (False, True)


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["job"],  # no command
        ["job", "--ttl", "soon", "--", "true"],
        ["job", "--ttl"],
        ["job", "--busy-exit", "256", "--", "true"],
        ["job", "--no-wait=1", "--", "true"],
        ["job", "-qv", "--", "true"],
        ["job", "sh", "-c", "true"],
        [],
    ],
)
def test_whatever_else_is_left_to_typer(words: list[str]) -> None:
    with pytest.raises(quick.Unknown):
        quick.parse(run.run, words)


def test_what_the_environment_decides_is_left_to_typer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEPOST_AUDIT", "audit.jsonl")
    with pytest.raises(quick.Unknown):
        quick.parse(top.top, [])
    with pytest.raises(quick.Unknown):
        quick.command(COMMANDS["guard"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["ls"], 0),
        (["ls", "--json"], 0),
        (["show"], 2),
        (["ls", "--jsn"], 2),
        (["show", "a" * 600], 2),
        (["watch", "--every", "0"], 2),
        (["break", "job"], 1),
        (["run", "--no-wait", "--timeout", "1s", "job", "--", "true"], 2),
        (["run", "job", "--", "sh", "-c", "exit 41"], 41),
        (["resource", "--port", "0", "--prefix", "a/", "--store", "mysql://x"], 2),
        (["worker", "--no-enter", "--metrics", "off", "--resource", "x"], 2),
    ],
)
def test_both_ways_end_alike(words: list[str], code: int, tmp_path: Path) -> None:
    env = {**os.environ, "FENCEPOST_URL": f"sqlite://{tmp_path}/locks.db"}
    slow = "import sys\nfrom fencepost.cli import quick\nquick.command = lambda target: exec('raise quick.Unknown')\n"
    slow += "import fencepost.cli\nfencepost.cli.main()"
    ends = []
    for program in (["-m", "fencepost"], ["-c", slow]):
        done = subprocess.run([sys.executable, *program, *words], env=env, capture_output=True, text=True, check=False)
        ends.append((done.returncode, done.stdout, done.stderr))
    assert ends[0] == ends[1]
    assert ends[0][0] == code


def test_the_quick_way_loads_neither_pydantic_nor_asyncio(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom fencepost.cli import main\n"
        f"sys.argv = ['fencepost', 'ls', '--backend', 'sqlite://{tmp_path}/locks.db']\n"
        "try:\n    main()\nfinally:\n    print('LOADED', *({'pydantic', 'asyncio', 'rich'} & set(sys.modules)))"
    )
    with Child.python("-c", code) as program:
        assert program.wait() == 0, program.story
    assert program.output[-1].strip() == "LOADED"


def test_a_reader_that_went_away_is_no_traceback(tmp_path: Path) -> None:
    with fencepost.connect(f"sqlite://{tmp_path}/locks.db") as held:
        held.acquire("a")
        command = f"{sys.executable} -m fencepost watch --every 10ms --for 2s --backend sqlite://{tmp_path}/locks.db"
        done = subprocess.run(
            ["bash", "-c", f"{command} > >(true); exit $?"], capture_output=True, text=True, check=False
        )
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_bash_completes_commands_and_the_names_of_locks(tmp_path: Path) -> None:
    program = tmp_path / "fencepost"
    patient = "from fencepost.cli import main, options; options.SOON = 60; main()"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "{patient}" "$@"\n')
    program.chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "FENCEPOST_URL": f"sqlite://{tmp_path}/locks.db"}
    script = """source <(fencepost completion bash)
    try() {
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
        _fencepost_completion fencepost; echo "${COMPREPLY[@]}"
    }
    try fencepost ba
    try fencepost show acc
    try fencepost show -
    """
    with fencepost.connect(env["FENCEPOST_URL"], ttl=300) as held:
        held.acquire("account/42")
        held.acquire("other")
        # What a shell would obey, once it stands in a command: zsh's script evaluates what it is given.
        for name in ("acc $(id)", "acc`id`", r"acc\$(id)", "acc'", 'acc"', "acc*", "acc;id", "acc\\", "~acc", "--acc"):
            held.acquire(name)
        done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=False)
    backends, names, options = done.stdout.splitlines()
    assert (backends, names) == ("backends", "account/42"), done.stderr
    assert "--json" in options
    assert "--acc" not in options


@pytest.mark.parametrize(("shell", "word"), [("zsh", "compdef"), ("fish", "complete --command fencepost")])
def test_other_shells_have_a_script(shell: str, word: str) -> None:
    with Child.fencepost("completion", shell) as program:
        assert program.wait() == 0, program.story
    assert word in "\n".join(program.output)
