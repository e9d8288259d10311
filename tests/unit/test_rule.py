"""The one rule, line by line, and what follows from it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.rule import MAX_TOKEN, Stamp, Verdict, judge, raised

ANN = Stamp(5, 3, "ann")


@pytest.mark.parametrize(
    ("mark", "offer", "verdict"),
    [
        (None, Stamp(1), Verdict.ADMIT),
        (None, Stamp(1, 0), Verdict.ADMIT),
        (ANN, Stamp(4, 9, "ann"), Verdict.STALE),
        (ANN, Stamp(4, 0, "ann"), Verdict.STALE),
        (ANN, Stamp(6, 1, "bob"), Verdict.ADMIT),
        (ANN, Stamp(6, 0, "bob"), Verdict.ADMIT),
        (ANN, Stamp(6, 1, "ann"), Verdict.ADMIT),
        (ANN, Stamp(5, 9, "bob"), Verdict.CLASH),
        (ANN, Stamp(5, 0, "bob"), Verdict.CLASH),
        (ANN, Stamp(5, 0, "ann"), Verdict.ADMIT),
        (ANN, Stamp(5, 4, "ann"), Verdict.ADMIT),
        (ANN, Stamp(5, 3, "ann"), Verdict.REPLAY),
        (ANN, Stamp(5, 2, "ann"), Verdict.LATE),
        (ANN, Stamp(5), Verdict.STALE),
        (Stamp(5), Stamp(5), Verdict.STALE),
        (Stamp(5), Stamp(4), Verdict.STALE),
        (Stamp(5), Stamp(6), Verdict.ADMIT),
        (Stamp(5), Stamp(5, 1, "ann"), Verdict.CLASH),
        (Stamp(5, 0), Stamp(5), Verdict.ADMIT),
        (Stamp(2**53, 1, "a"), Stamp(2**53 + 1, 1, "b"), Verdict.ADMIT),
        (Stamp(2**53 + 1, 1, "a"), Stamp(2**53, 1, "b"), Verdict.STALE),
        (Stamp(MAX_TOKEN, 1, "a"), Stamp(MAX_TOKEN - 1, 2, "b"), Verdict.STALE),
    ],
)
def test_the_table(mark: Stamp | None, offer: Stamp, verdict: Verdict) -> None:
    assert judge(mark, offer) is verdict


@pytest.mark.parametrize(
    ("mark", "offer", "after"),
    [
        (None, Stamp(1, 0, "a"), Stamp(1, 0, "a")),
        (ANN, Stamp(6, 0, "bob"), Stamp(6, 0, "bob")),
        (ANN, Stamp(5, 0, "ann"), ANN),
        (ANN, Stamp(5, 4, "ann"), Stamp(5, 4, "ann")),
    ],
)
def test_the_mark_after_an_admitted_offer(mark: Stamp | None, offer: Stamp, after: Stamp) -> None:
    assert judge(mark, offer) is Verdict.ADMIT
    assert raised(mark, offer) == after


stamps = st.builds(Stamp, st.integers(1, 4), st.integers(0, 3), st.sampled_from(["", "ann", "bob"]))


@given(st.lists(stamps, max_size=30))
def test_the_mark_never_goes_backwards_and_one_token_has_one_holder(offers: list[Stamp]) -> None:
    mark: Stamp | None = None
    holders: dict[int, str] = {}
    for offer in offers:
        if judge(mark, offer) is not Verdict.ADMIT:
            continue
        after = raised(mark, offer)
        assert mark is None or (after.token, after.seq) >= (mark.token, mark.seq)
        mark = after
        assert holders.setdefault(offer.token, offer.holder) == offer.holder


@given(st.lists(stamps.filter(lambda s: s.seq > 0), max_size=30))
def test_no_write_is_admitted_twice(offers: list[Stamp]) -> None:
    mark: Stamp | None = None
    admitted: set[Stamp] = set()
    for offer in offers:
        if judge(mark, offer) is Verdict.ADMIT:
            assert offer not in admitted
            admitted.add(offer)
            mark = raised(mark, offer)
