"""The pause between one try and the next."""

from fencepost.driver.backoff import Backoff
from tests.harness.child import Child


def test_pauses_grow_up_to_the_longest_and_begin_again() -> None:
    pauses = Backoff(1.0, 5.0)
    assert [pauses.next() for _ in range(4)] == [1.0, 2.0, 4.0, 5.0]
    pauses.reset()
    assert pauses.next() == 1.0


def test_with_jitter_no_two_are_alike_and_none_is_far_off() -> None:
    found = {Backoff(1.0, 5.0, jitter=True).next() for _ in range(20)}
    assert len(found) > 10
    assert all(0.5 <= each <= 1.5 for each in found)


def test_a_process_that_is_out_of_descriptors_goes_on_pausing() -> None:
    source = """
import resource, sys
from fencepost.driver.backoff import Backoff
assert "random" not in sys.modules, "or this shows nothing"
pauses = Backoff(1.0, 5.0, jitter=True)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
assert 0.5 <= pauses.next() <= 1.5
"""
    with Child.python("-c", source) as child:
        child.succeed()
