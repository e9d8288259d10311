"""Type-checked by `make check`, never run: what a user's editor knows about the public face."""

from typing import assert_type

from fencepost import errors
from fencepost.rule import Stamp, Verdict, judge


def the_rule(mark: Stamp | None) -> None:
    assert_type(judge(mark, Stamp(7)), Verdict)
    assert_type(Stamp(7).token, int)
    assert_type(Stamp(7, 2, "holder").seq, int)


def the_errors(error: errors.StaleToken) -> None:
    family: tuple[errors.Refused, errors.FencepostError, Exception] = (error, error, error)
    assert_type(family[0].verdict, Verdict)
