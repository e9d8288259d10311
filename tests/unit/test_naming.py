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


@pytest.mark.parametrize(
    ("key", "args", "kwargs"),
    [
        ("{id}-{month}", ("a-b", "c"), {}),  # as ("a", "b-c")
        ("{id}--{month}", ("a", "-b"), {}),  # as ("a-", "b")
        ("run/{tenant} {id}.{month}", (7, "x.y"), {"tenant": "z"}),
        ("{id}-{id}-{month}", ("a", "a-a-a"), {}),
    ],
)
def test_a_name_that_other_values_have_too_is_refused(key: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"is the name for .* and for .*put a '/' between the fields"):
        from_arguments(key, bill, CALLERS)(args, kwargs)


def test_a_name_without_slashes_that_only_these_values_have_is_made() -> None:
    made: list[tuple[str, tuple[Any, ...], str]] = [
        ("{id}-{month}", ("a b", "c"), "a b-c"),
        ("{id}-{id}", ("a-a",), "a-a-a-a"),
        ("{id}/{month}-{tenant}", ("a-b", "c"), "a-b/c-7"),
    ]
    for key, args, name in made:
        assert from_arguments(key, bill, CALLERS)(args, {}) == name
