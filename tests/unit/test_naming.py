"""Lock names made from the arguments of a call, whose callers give less than it takes."""

import inspect
from typing import Any
from uuid import UUID

import pytest

from fencepost.errors import ConfigError
from fencepost.naming import from_arguments


def bill(id: Any, month: str = "2026-11", *rest: Any, tenant: Any = 7, lease: Any, **more: Any) -> None: ...


_PARAMETERS = [each for each in inspect.signature(bill).parameters.values() if each.name != "lease"]
CALLERS = inspect.Signature(_PARAMETERS)
ID = UUID("12345678-1234-5678-1234-567812345678")


@pytest.mark.parametrize(
    ("key", "args", "kwargs", "name"),
    [
        ("account/{id}", (42,), {}, "account/42"),
        ("account/{id}", (), {"id": "42"}, "account/42"),
        ("{tenant}/{id}/{month}", (ID,), {}, f"7/{ID}/2026-11"),
        ("account/{{{id}}}", (-1,), {}, "account/{-1}"),
        ("nightly", (1,), {}, "nightly"),
        (lambda id, **more: f"account/{id}", (1,), {"tenant": 3}, "account/1"),
    ],
)
def test_a_call_has_one_name_however_it_is_written(
    key: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> None:
    assert from_arguments(key, bill, CALLERS)(args, kwargs) == name


def test_what_is_filled_in_later_names_no_lock() -> None:
    with pytest.raises(ConfigError, match="is no parameter of bill, which has: id, month, rest, tenant, more"):
        from_arguments("account/{lease}", bill, CALLERS)
