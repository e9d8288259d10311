"""Where servers say that something is: followed if a server can be there, else refused, and nothing is remembered."""

import pytest

from fencepost.backends.redis import answers
from fencepost.backends.redis.connection import Dial, cause
from fencepost.backends.redis.topology import Masters
from fencepost.driver.threads import Blocking
from fencepost.errors import BackendError

HUGE = 10 * 2**20


@pytest.fixture
def masters() -> Masters:
    dial = Dial("redis+cluster", None, None, 0, None, connect_timeout=1.0, timeout=1.0)
    return Masters(Blocking(), dial, [("seed", 7000)], "channel", lambda node, push: None, lambda node: None)


@pytest.mark.parametrize("kind", ["MOVED", "ASK"])
@pytest.mark.parametrize(
    "rest",
    [
        "",
        " ",
        " 12",
        " 12 ",
        " 12 there",
        " there:7001",
        " x there:7001",
        " -1 there:7001",
        " 16384 there:7001",
        f" {'9' * 5000} there:7001",
        " \N{ARABIC-INDIC DIGIT ONE} there:7001",
        " 12 there:",
        " 12 there:x",
        " 12 there:0",
        " 12 there:65536",
        " 12 :65536",
        f" 12 there:{'9' * 5000}",
        " 12 the re:7001",
        " 12 the\0re:7001",
        " 12 the..re:7001",
        f" 12 {'a' * 64}:7001",
        f" 12 {'a.' * 200}re:7001",
        f" 12 {'a' * HUGE}:7001",
        f" 12 there:7001 {'a' * HUGE}",
    ],
    ids=lambda rest: ascii(rest)[:20],
)
def test_one_that_leads_nowhere_is_refused_and_forgotten(masters: Masters, kind: str, rest: str) -> None:
    with pytest.raises(BackendError, match=kind) as refused:
        masters.moved(cause(kind + rest), None)
    assert len(str(refused.value)) < 1200
    assert not masters.nodes
    assert masters._slots == [None] * 16384


def test_one_that_leads_somewhere_is_followed(masters: Masters) -> None:
    node, once = masters.moved("MOVED 12 there:7001", None)
    assert not once
    assert masters._slots[12] is node
    other, once = masters.moved("ASK 12 fe80::1:7002", None)
    assert once
    assert masters._slots[12] is node, "for this once only"
    assert list(masters._by_endpoint) == [("there", 7001), ("fe80::1", 7002)]
    here, _ = masters.moved("ASK 13 :7003", other)
    assert masters._by_endpoint["fe80::1", 7003] is here, "the host of the server that sent it"


@pytest.mark.parametrize(
    ("host", "port", "there"),
    [
        (b"there", 7001, True),
        (b"", 7001, True),
        (b"?", 0, True),  # of a node that is not known well
        (b"the..re", 7001, False),
        (b"\xff", 7001, False),
        (b"a" * HUGE, 7001, False),
        (b"there", -1, False),
        (b"there", 65536, False),
    ],
    ids=lambda value: repr(value)[:10],
)
def test_servers_that_cannot_be_there_are_no_answer(host: bytes, port: int, there: bool) -> None:
    assert answers.slots([[0, 16383, [host, port, b"id"]]]) is there
    if host and port:
        assert answers.address([host, b"%d" % port]) is there
    assert not answers.address([b"there", b"9" * 5000])


def test_a_token_that_no_counter_can_come_to_is_no_answer() -> None:
    assert answers.SCRIPTS["take"](b"9223372036854775807")
    assert not answers.SCRIPTS["take"](b"9" * 5000)
