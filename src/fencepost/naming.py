"""Lock names made from the arguments of a call: ``"account/{id}"`` and ``f(id=42)`` give ``account/42``."""

import inspect
from collections.abc import Callable, Collection
from string import Formatter
from typing import Any, TypeAlias
from uuid import UUID

from fencepost import check
from fencepost.errors import ConfigError

Key: TypeAlias = str | Callable[..., str]
"""A template whose fields are parameter names, or a function of the same arguments that returns the name."""


class Template:
    """Makes a name for each call of a function. What cannot be a template of that function is a ConfigError here.

    A field is a bare parameter name. Its value is a str that is not empty and has no ``/``, an int, or a UUID: an empty
    value would name a path above all others, a ``/`` would change the path, and the text of most other objects differs
    from call to call, so that no two calls would exclude each other.
    """

    def __init__(self, key: Key, signature: inspect.Signature, what: str = "key") -> None:
        self._key = key
        self._signature = signature
        self._what = what
        self._parts: list[tuple[str, str | None]] = []
        if callable(key):
            return
        if not isinstance(key, str):
            raise ConfigError(f"{what}= is a template such as 'account/{{id}}' or a function, not {key!r}")
        check.name(key, what)
        named = [p.name for p in signature.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        try:
            found = list(Formatter().parse(key))
        except ValueError as error:
            raise ConfigError(f"{what}={key!r} is no template: {error}; a brace itself is written twice") from None
        self._parts = [self._part(named, *each) for each in found]

    def _part(
        self, named: Collection[str], text: str, field: str | None, spec: str | None, conversion: str | None
    ) -> tuple[str, str | None]:
        if field is None:
            return text, None
        if spec or conversion or not field.isidentifier():
            raise ConfigError(
                f"a field of {self._what}={self._key!r} is a bare parameter name, without attribute, index or format; "
                f"use a function for anything else"
            )
        if field not in named:
            known = ", ".join(named) or "none"
            raise ConfigError(f"{self._what}={self._key!r}: no parameter is called {field!r}; there are: {known}")
        return text, field

    def name(self, *args: Any, **kwargs: Any) -> str:
        """The name for a call with these arguments; TypeError if it cannot be called so, ConfigError for odd values."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        if callable(self._key):
            return check.name(self._key(*bound.args, **bound.kwargs), f"{self._what} made by a function")
        return check.name("".join(text + self._text(bound.arguments, field) for text, field in self._parts))

    def _text(self, arguments: dict[str, Any], field: str | None) -> str:
        if field is None:
            return ""
        value = arguments[field]
        if isinstance(value, (int, UUID)) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, str) and value and "/" not in value:
            return str(value)
        raise ConfigError(
            f"{field}={value!r} cannot be a part of {self._what}={self._key!r}: it takes an int, a UUID, or a str that "
            f"is not empty and has no '/'"
        )
