"""Many asked for at once, where the store refuses all of them because of one."""

from collections.abc import Sequence

import pytest

from fencepost.backends.refusals import ask_apart
from fencepost.driver import run
from fencepost.errors import BackendError

DENIED = BackendError("denied", backend="test", ambiguous=False)
OUTAGE = BackendError("no answer", backend="test", ambiguous=True)


@pytest.mark.parametrize(("denied", "most"), [((), 1), ((0,), 15), ((37, 99), 29), (range(100), 60)])
def test_those_that_are_refused_are_found_and_the_others_answered(denied: Sequence[int], most: int) -> None:
    asked = []

    async def ask(items: Sequence[int]) -> list[str]:
        asked.append(len(items))
        if any(item in denied for item in items):
            raise DENIED
        return [str(item) for item in items]

    answers = run(ask_apart(ask, range(100), lambda error: error is DENIED))
    assert answers == [DENIED if item in denied else str(item) for item in range(100)]
    assert len(asked) <= most


def test_no_answer_is_no_refusal() -> None:
    async def ask(items: Sequence[int]) -> list[str]:
        raise OUTAGE

    with pytest.raises(BackendError, match="no answer"):
        run(ask_apart(ask, range(100), lambda error: error is DENIED))
