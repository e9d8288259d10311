"""What a framework's function asks for by keyword-only parameters: ``def bill(id, *, lease)``."""

import inspect
from collections.abc import Callable, Collection
from typing import Any

from fencepost.errors import ConfigError
from fencepost.locks import awaited, yields


class Asked:
    """The parameters of ``call`` that its callers give, and those of ``offered`` that it asks us for."""

    def __init__(self, call: Callable[..., object], offered: Collection[str], *, bound: bool = False) -> None:
        self.name = getattr(call, "__qualname__", repr(call))
        try:
            signature = inspect.signature(call)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{self.name} tells nothing of its parameters: {error}") from None
        own = list(signature.parameters.values())
        if bound:
            if not own:
                raise ConfigError(f"{self.name} is bound, so that its first parameter is the task: it has none")
            del own[0]
        for each in own:
            if each.name in offered and each.kind is not each.KEYWORD_ONLY:
                raise ConfigError(
                    f"{self.name}: {each.name!r} is filled in by fencepost; make it a keyword-only parameter "
                    f"(def f(..., *, {each.name})), or call it something else"
                )
        self.names = frozenset(each.name for each in own if each.name in offered)
        self.signature = signature.replace(parameters=[each for each in own if each.name not in self.names])
        """Of what callers give: without the task itself, and without what fencepost fills in."""

    def pick(self, offers: dict[str, Any]) -> dict[str, Any]:
        """The ``offers`` that the function asks for."""
        return {name: offers[name] for name in self.names}


def outlives(call: object) -> bool:
    """Whether a call returns before its work is done."""
    return awaited(call) or yields(call)
