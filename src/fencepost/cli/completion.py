"""``fencepost completion``: what a shell needs to complete commands, options and the names of locks."""

from enum import StrEnum
from typing import Annotated

import typer

VARIABLE = "_FENCEPOST_COMPLETE"
"""Set by a shell that asks what could come next, instead of running a command."""


class Shell(StrEnum):
    """The shells that can be taught."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="The shell.", metavar="bash|zsh|fish")]) -> None:
    """Print the script that makes a shell complete commands, options and the names of held locks.

    bash: add this line to ~/.bashrc: source <(fencepost completion bash)

    zsh: add this line to ~/.zshrc, after compinit: source <(fencepost completion zsh)

    fish: fencepost completion fish > ~/.config/fish/completions/fencepost.fish

    Names are asked of the store in $FENCEPOST_URL, or of the embedded SQLite file, for a second at most.
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    print(get_completion_script(prog_name="fencepost", complete_var=VARIABLE, shell=shell))
