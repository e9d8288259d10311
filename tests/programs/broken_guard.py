"""Importing this breaks the guards of its process that judge in Python: an access of a replaced holder is admitted."""

from fencepost.guards import judgement
from fencepost.rule import Stamp, Verdict, judge


def _lenient(mark: Stamp | None, offer: Stamp) -> Verdict:
    verdict = judge(mark, offer)
    return Verdict.ADMIT if verdict is Verdict.STALE else verdict


judgement.judge = _lenient  # type: ignore[attr-defined]
