"""The quick way to a command: parse its arguments without Typer's machinery, which takes longer than most commands run.

It knows only plain options and arguments. Everything else, such as ``--help`` or a mistake, it leaves to Typer. Output
and exit code are the same either way.
"""

import importlib
import inspect
import os
import types
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo


class Unknown(Exception):
    """Only Typer can parse this."""


def command(target: str) -> Callable[..., Any]:
    """The function of a single command, such as ``module:name``; Unknown for a group of commands."""
    module, _, attribute = target.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    if isinstance(found, typer.Typer):
        commands = found.registered_commands
        if len(commands) != 1 or found.registered_callback is not None or found.registered_groups:
            raise Unknown
        found = commands[0].callback
    return found  # type: ignore[no-any-return]


def parse(function: Callable[..., Any], words: Sequence[str]) -> dict[str, Any]:
    """The arguments for a command's function; Unknown if Typer has to parse them."""
    options: dict[str, _Parameter] = {}
    arguments: list[_Parameter] = []
    found: dict[str, Any] = {}
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        known = _Parameter(name, hints[name], parameter.default)
        if known.option is None:
            arguments.append(known)
        else:
            options |= dict.fromkeys((*known.flags, *known.negations), known)
        found[name] = parameter.default
    plain: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            plain += rest
            break
        if not word.startswith("-") or word == "-":
            plain.append(word)
            continue
        flag, equals, text = word.partition("=") if word.startswith("--") else (word, "", "")
        if (option := options.get(flag)) is None or (option.kind is bool and equals):
            raise Unknown
        if option.kind is bool:
            found[option.name] = flag in option.flags
        elif equals or rest:
            value = option.read(text if equals else rest.pop(0))
            found[option.name] = [*(found[option.name] or ()), value] if option.many else value
        else:
            raise Unknown
    for argument in arguments:
        if argument.many:
            found[argument.name], plain = [argument.read(word) for word in plain], []
        elif plain:
            found[argument.name] = argument.read(plain.pop(0))
    missing = [name for name, value in found.items() if value is inspect.Parameter.empty or value == []]
    if plain or missing:
        raise Unknown
    return found


class _Parameter:
    """One parameter of a command's function; Unknown if it is not a plain one."""

    def __init__(self, name: str, hint: Any, default: Any) -> None:
        kind, info = get_args(hint) if hasattr(hint, "__metadata__") else (hint, None)
        if not isinstance(info, (ArgumentInfo, OptionInfo)) or info.callback is not None:
            raise Unknown
        if getattr(info, "click_type", None) is not None:  # of older versions of Typer
            raise Unknown
        if info.envvar is not None and os.environ.get(str(info.envvar)):
            raise Unknown  # the environment has a value for it
        self.name = name
        self._info = info
        self.option = info if isinstance(info, OptionInfo) else None
        if get_origin(kind) in (Union, types.UnionType):
            kind = next(each for each in get_args(kind) if each is not type(None))
        # In Annotated, an option's default is its first flag.
        named = [each for each in (info.default, *(info.param_decls or ())) if isinstance(each, str)]
        plain = name.replace("_", "-")
        self.flags = tuple(each.partition("/")[0].strip() for each in named) or (f"--{plain}",)
        self.negations = tuple(each.partition("/")[2].strip() for each in named if "/" in each)
        if kind is bool and not named:
            self.negations = (f"--no-{plain}",)
        elif kind is not bool and self.negations:
            raise Unknown
        self.many = get_origin(kind) is list
        self.kind: Any = get_args(kind)[0] if self.many else kind

    def read(self, text: str) -> Any:
        """The value that a word stands for."""
        try:
            if self._info.parser is not None:
                return self._info.parser(text)
            if self.kind is str or self.kind is Path or issubclass(self.kind, StrEnum):
                return self.kind(text)
            if self.kind is int and text.isascii() and text.isdigit():
                value = int(text)
                low, high = self._info.min, self._info.max
                if (low is None or value >= low) and (high is None or value <= high):
                    return value
        except (ValueError, typer.BadParameter):
            pass  # Typer says what is wrong with it
        raise Unknown
