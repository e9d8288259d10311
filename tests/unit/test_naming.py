"""Lock names made from arguments."""

import inspect
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from fencepost.errors import ConfigError
from fencepost.naming import Template


def bill(id: Any, month: str = "2026-11", *rest: Any, tenant: Any = 7, **more: Any) -> None: ...


SIGNATURE = inspect.signature(bill)
ID = UUID("12345678-1234-5678-1234-567812345678")


@pytest.mark.parametrize(
    ("key", "args", "kwargs", "name"),
    [
        ("account/{id}", (42,), {}, "account/42"),
        ("account/{id}", (), {"id": "42"}, "account/42"),
        ("{tenant}/{id}/{month}", (ID,), {}, f"7/{ID}/2026-11"),
        ("account/{{{id}}}", (-1,), {}, "account/{-1}"),
        ("nightly", (1,), {}, "nightly"),
        (lambda id, month, *rest, tenant, **more: f"a/{id}/{tenant}/{len(rest)}", (1, "x", 3), {}, "a/1/7/1"),
    ],
)
def test_a_call_has_one_name_however_it_is_written(
    key: str | Callable[..., str], args: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> None:
    assert Template(key, SIGNATURE).name(*args, **kwargs) == name


@pytest.mark.parametrize("value", ["", "a/b", None, True, 1.5, b"42", object(), ["42"], "a\nb", "x" * 600])
def test_an_empty_or_odd_value_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError):
        Template("account/{id}", SIGNATURE).name(value)


@pytest.mark.parametrize(
    ("key", "complaint"),
    [
        ("account/{ids}", "no parameter is called 'ids'; there are: id, month, tenant"),
        ("account/{rest}", "no parameter is called 'rest'"),
        ("account/{}", "a bare parameter name"),
        ("account/{0}", "a bare parameter name"),
        ("account/{id.real}", "a bare parameter name"),
        ("account/{id[0]}", "a bare parameter name"),
        ("account/{id!r}", "a bare parameter name"),
        ("account/{id:>8}", "a bare parameter name"),
        ("account/{id", "a brace itself is written twice"),
        ("", "cannot be empty"),
        (42, "is a template such as"),
    ],
)
def test_what_cannot_be_a_template_is_refused_where_it_is_written(key: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Template(key, SIGNATURE)


def test_a_call_that_cannot_be_made_and_a_function_that_returns_nothing() -> None:
    with pytest.raises(TypeError):
        Template("account/{id}", SIGNATURE).name()
    with pytest.raises(ConfigError, match="made by a function"):
        Template(lambda *_, **__: "", SIGNATURE).name(1)
