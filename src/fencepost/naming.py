"""The name of a lock, made from the arguments of a call."""

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from fencepost import check
from fencepost.errors import ConfigError

Name = str | Callable[..., str]
"""``"report/{account_id}"``, or a function of the call's own arguments."""

Namer = Callable[[tuple[Any, ...], Mapping[str, Any]], str]
"""The name for a call with these arguments; TypeError if they do not fit the function, ConfigError for bad values."""


def from_arguments(name: Name, call: Callable[..., object], signature: inspect.Signature | None = None) -> Namer:
    """A function that names the lock of one call of ``call``; ConfigError if ``name`` cannot do that.

    ``signature`` has the parameters that callers pass, if they differ from those of ``call``.

    The fields of a text are bare parameter names of ``call``, so that ``f(42)`` and ``f(account_id=42)`` take the same
    lock. Their values are text without "/", whole numbers or UUIDs. With other types, several values could have one
    name, or each call another name.
    """
    if isinstance(name, str):
        return _template(name, call, signature)
    if not callable(name):
        raise ConfigError(f"a lock's name is a str, or a function of the call's arguments, not {name!r}")
    if inspect.iscoroutinefunction(name):
        raise ConfigError(f"{_called(name)} names a lock, so it cannot be a coroutine function")

    def computed(args: tuple[Any, ...], options: Mapping[str, Any]) -> str:
        return _whole(name(*args, **options))

    return computed


class Template:
    """A name with fields in it, filled with values that are known by name, such as path parameters."""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise ConfigError(f"a name with fields in it is a str, not {text!r}")
        self.text = text
        self._parts = _fields(text)
        self.fields = tuple(dict.fromkeys(field for _, field in self._parts if field is not None))
        # Where no "/" separates two fields, the text between them may be in a value as well.
        pairs = pairwise(self._parts)
        self._unclear = any(
            before is not None and after is not None and "/" not in between for (_, before), (between, after) in pairs
        )
        if not self.fields:
            self.name({})  # raises now if it cannot be a name

    def fill(self, values: Mapping[str, Any]) -> str:
        """The text for these values; ConfigError for a value that is missing or cannot be part of a name."""
        if missing := [field for field in self.fields if field not in values]:
            raise ConfigError(f"there is no {missing[0]!r} for {self.text!r}, only: {', '.join(values) or 'nothing'}")
        filled = "".join(
            literal if field is None else literal + _value(field, values[field]) for literal, field in self._parts
        )
        if self._unclear:
            self._check_one_reading(filled)
        return filled

    def _check_one_reading(self, filled: str) -> None:
        """ConfigError if other values would make the same text."""
        # Parse it with the shortest and with the longest possible values: if they agree, there is no other reading.
        short, long = self._read(filled, "+?"), self._read(filled, "+")
        if short != long:
            one, other = (", ".join(f"{field}={value!r}" for field, value in each.items()) for each in (short, long))
            raise ConfigError(
                f"{filled!r} is the name for {one}, and for {other}; put a '/' between the fields of {self.text!r}"
            )

    def _read(self, filled: str, more: str) -> dict[str, str]:
        parts, known = [], set[str]()
        for literal, field in self._parts:
            parts.append(re.escape(literal))
            if field is not None:
                parts.append(f"(?P={field})" if field in known else f"(?P<{field}>[^/]{more})")
                known.add(field)
        found = re.fullmatch("".join(parts), filled)
        assert found is not None, "it was made that way"
        return found.groupdict()

    def name(self, values: Mapping[str, Any]) -> str:
        """As ``fill``; ConfigError if the text cannot be the name of a lock."""
        return _whole(self.fill(values))


def _template(text: str, call: Callable[..., object], signature: inspect.Signature | None) -> Namer:
    template = Template(text)
    if not template.fields:
        fixed = template.name({})
        return lambda args, options: fixed
    try:
        signature = signature or inspect.signature(call)
    except (TypeError, ValueError):
        raise ConfigError(
            f"the parameters of {_called(call)} are not known, so {text!r} cannot name them; give a function of its "
            f"arguments as the name"
        ) from None
    for field in template.fields:
        _check_parameter(text, field, call, signature)

    def formatted(args: tuple[Any, ...], options: Mapping[str, Any]) -> str:
        bound = signature.bind(*args, **options)  # TypeError for a wrong call, as the call itself would raise
        bound.apply_defaults()
        return template.name(bound.arguments)

    return formatted


def _fields(text: str) -> list[tuple[str, str | None]]:
    """The literal texts of a template, each with the field after it; None after the last one."""
    from string import Formatter  # only here: few programs need it

    found: list[tuple[str, str | None]] = []
    try:
        for literal, field, spec, conversion in Formatter().parse(text):
            if field is not None and (spec or conversion or not field.isidentifier()):
                odd = "{" + field + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "") + "}"
                raise ConfigError(
                    f"{odd} in the lock name {text!r} is not the bare name of a parameter; give a function of the "
                    f"call's arguments as the name, or write {{{{ and }}}} for braces"
                )
            if field is not None and not literal and found and found[-1][1] is not None:
                raise ConfigError(
                    f"nothing separates {{{found[-1][1]}}} and {{{field}}} in the lock name {text!r}, so that "
                    f"different values would have one name; put a '/' between them"
                )
            found.append((literal, field))
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"the lock name {text!r} has a wrong field: {error}") from None
    return found


def _check_parameter(text: str, field: str, call: Callable[..., object], signature: inspect.Signature) -> None:
    parameter = signature.parameters.get(field)
    if parameter is None:
        there = ", ".join(signature.parameters) or "none"
        raise ConfigError(
            f"{{{field}}} in the lock name {text!r} is no parameter of {_called(call)}, which has: {there}"
        )
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise ConfigError(f"{{{field}}} in the lock name {text!r} stands for any number of arguments; name one of them")


def _value(field: str, value: object) -> str:
    # The value itself, not what a subclass such as an enum prints: that differs between Python versions.
    if isinstance(value, str):
        text = str.__str__(value)
        if not text:
            raise ConfigError(f"{field} is empty: a lock without it would be another lock")
        if "/" in text:
            raise ConfigError(f"{field}={value!r} contains '/', and would be the name of another lock below this one")
        return text
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__repr__(value)
    uuid = sys.modules.get("uuid")  # if the module is not loaded, no value is a UUID
    if uuid is not None and isinstance(value, uuid.UUID):
        return str(value)
    raise ConfigError(
        f"{field}={value!r} cannot be a part of a lock's name: a str, an int or a UUID can; for anything else give a "
        f"function of the call's arguments as the name"
    )


def _whole(name: str) -> str:
    check.name(name)
    if name.endswith("/"):
        raise ConfigError(f"the lock name {name!r} ends with '/': its lease would speak for everything below it")
    return name


def _called(call: object) -> str:
    return str(getattr(call, "__qualname__", None) or repr(call))
