"""Errors carry their facts, survive pickling, and name the next step."""

import pickle

import pytest

from fencepost import errors
from fencepost.errors import FencepostError, Refused, refusal
from fencepost.rule import Stamp, Verdict

OFFER, MARK = Stamp(5, 2, "ann"), Stamp(6, 1, "bob")

EVERY: list[FencepostError] = [
    errors.ConfigError("no"),
    errors.NotAcquired("lock", 5.0),
    errors.QueueFull("lock", 10),
    errors.LeaseLost("lock", 7, "its deadline has passed"),
    errors.BackendError("gone", backend="redis", ambiguous=True),
    *(refusal(verdict, "thing", OFFER, MARK) for verdict in Verdict if verdict not in ("admit", "missing")),
    refusal(Verdict.MISSING, "thing", None, MARK),
]


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling_with_its_fields(error: FencepostError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
    assert copy.args == error.args


def test_the_list_above_is_complete() -> None:
    def below(kind: type[FencepostError]) -> set[type[FencepostError]]:
        return {kind}.union(*(below(sub) for sub in kind.__subclasses__() if sub.__module__ == errors.__name__))

    assert {type(error) for error in EVERY} == below(FencepostError) - {FencepostError, Refused}


def test_each_verdict_has_an_error_of_its_own() -> None:
    refusals = [error for error in EVERY if isinstance(error, Refused)]
    assert len({type(error) for error in refusals}) == len(refusals)
    assert {error.verdict for error in refusals} == set(Verdict) - {Verdict.ADMIT}


def test_a_stale_token_names_both_tokens() -> None:
    error = refusal(Verdict.STALE, "thing", OFFER, MARK)
    assert isinstance(error, errors.StaleToken)
    assert (error.resource, error.token, error.seen, error.offer, error.mark) == ("thing", 5, 6, OFFER, MARK)
    assert "got 5, seen 6" in str(error)


def test_a_missing_token_has_none() -> None:
    error = refusal(Verdict.MISSING, "thing", None, None)
    assert (error.token, error.seen) == (None, None)


def test_errors_are_also_what_python_calls_them() -> None:
    assert issubclass(errors.NotAcquired, TimeoutError)
    assert issubclass(errors.ConfigError, ValueError)


def test_who_holds_a_lock_is_shown_and_never_obeyed() -> None:
    """A label comes from the store, and an error goes to terminals and logs."""
    for facts in ({"label": "a\x1b[31m\nb"}, {"holder": "a\x1b[31m\nb"}):
        assert r"'a\x1b[31m\nb' holds it" in str(errors.NotAcquired("lock", 5.0, **facts))
    assert ": Jörg holds it" in str(errors.NotAcquired("lock", 5.0, label="Jörg"))


def test_a_clash_with_a_mark_without_a_holder_does_not_blame_the_issuer() -> None:
    """Such a mark was raised by hand, or by a client that sends its token alone."""
    offer = Stamp(7, 1, "ann")
    assert "issued to two holders" in str(refusal(Verdict.CLASH, "thing", offer, Stamp(7, 1, "bob")))
    error = refusal(Verdict.CLASH, "thing", offer, Stamp(7, 1, ""))
    assert "without a holder" in str(error)
    assert "bump" not in str(error)
