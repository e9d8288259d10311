"""Fleets of which half still has the old lock: both halves exclude each other and get their sections."""

import pytest

from tests.programs.mixed import run

pytestmark = [pytest.mark.redis, pytest.mark.experiment]


@pytest.mark.parametrize(
    ("old", "new", "each"), [("redis", "native", 2), ("redis", "compat", 2), ("redis_lock", "compat", 1)]
)
def test_no_process_of_a_mixed_fleet_starves_and_no_two_are_inside_at_once(old: str, new: str, each: int) -> None:
    # Without a pause one of fencepost's always waits: then it is the gaps alone that let the others in.
    pause = 0.0 if new == "native" else 0.005
    outcome = run(old=old, new=new, each=each, seconds=60, section=0.003, pause=pause, enough=4)
    assert outcome.overlaps == 0
    assert min(outcome.old.sections + outcome.new.sections) >= 4
