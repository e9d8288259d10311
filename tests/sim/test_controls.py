"""Every control of the page, by hand and by key, in a real Chromium.

Half a minute of a browser's work; test_people.py and test_sharing.py use the page in each ``make test``.
"""

import json
from base64 import urlsafe_b64encode
from typing import Any

import pytest

from fencepost_lab.sim.scenario import FENCINGS
from tests.harness.waiting import until
from tests.sim.browser import Browser, wait_score, wait_words

pytestmark = pytest.mark.experiment

CARD = '.card[data-who="{}"] [data-do="{}"]'
HELD = [{"at": 0, "who": "A", "do": "acquire"}, {"at": 0.5, "who": "B", "do": "acquire"}]
"""A holds, and B waits."""


def open_own(browser: Browser, page: str, *actions: dict[str, Any], t: float = 0, **settings: Any) -> None:
    """A scenario of one's own, by its address; the clock waits to be started."""
    scenario = {"seed": 1, "settings": settings, "actions": list(actions), "until": 20}
    shared = urlsafe_b64encode(json.dumps(scenario).encode()).decode().rstrip("=")
    browser.open(f"{page}#s={shared}&t={t}")
    browser.wait(f"document.querySelector('#story').value === '*own' && document.querySelector('#scrub').value == {t}")
    browser.click("#startclock")


def do(browser: Browser, who: str, what: str) -> None:
    """Press a button of a card, and wait until the new run is shown."""
    count = "document.querySelectorAll('.action').length"
    before = browser.run(f"return {count}")
    browser.click(CARD.format(who, what))
    browser.wait(f"{count} > {before}")


def at(browser: Browser, seconds: float) -> None:
    """Drag the slider there."""
    browser.run(f"const s = document.querySelector('#scrub'); s.value = {seconds}; s.dispatchEvent(new Event('input'))")


@pytest.mark.parametrize(
    ("what", "said", "status", "band", "undone"),
    [
        ("kill", "A is killed", "✕ down", ".band.down", ("Restart", "A is started again", "idle")),
        (
            "cut",
            "A is cut off from all",
            "✂ cut off from everything",
            ".band.cut",
            ("Heal: all", "A is connected again", "believes it holds"),
        ),
        (
            "cutservice",
            "A is cut off from service",
            "✂ cut off from the lock service",
            ".band.cut",
            ("Heal: the service", "A is connected again", "believes it holds"),
        ),
        ("pause", "A stops for 3 s", "‖ paused", ".band.pause", ("Resume", "A goes on", "believes it holds")),
    ],
)
def test_a_client_is_hurt_and_mended(
    browser: Browser, page: str, what: str, said: str, status: str, band: str, undone: tuple[str, str, str]
) -> None:
    open_own(browser, page, *HELD, t=1, ttl=4)
    if what == "pause":
        field = '.card[data-who="A"] [data-amount="pause"]'
        browser.run(f"document.querySelector('{field}').select()")
        browser.type(field, "3\ue004")
    do(browser, "A", what)
    wait_words(browser, "#log", said)
    assert status in browser.text('.card[data-who="A"] .status')
    assert browser.run(f"return document.querySelectorAll('#timeline {band}').length") == 1
    at(browser, 2)
    button, ended, now = undone
    assert browser.text(CARD.format("A", what)) == button
    do(browser, "A", what)
    wait_words(browser, "#log", ended)
    assert now in browser.text('.card[data-who="A"] .status')
    assert browser.text(CARD.format("A", what)) != button


def test_a_partitioned_holder_is_replaced(browser: Browser, page: str) -> None:
    open_own(browser, page, *HELD, t=1, ttl=4)
    do(browser, "A", "cut")
    browser.click("#finish")
    wait_score(browser, holder="B", token="2")


def test_a_slow_clock_believes_too_long(browser: Browser, page: str) -> None:
    open_own(browser, page, ttl=2, renew=False)
    field = '.card[data-who="A"] [data-amount="skew"]'
    browser.run(f"document.querySelector('{field}').select()")
    browser.type(field, "0.25\ue004")
    do(browser, "A", "skew")
    wait_words(browser, "#log", "The clock of A now runs at 0.25 times its speed")
    do(browser, "A", "acquire")
    at(browser, 5)
    assert "the service does not agree" in browser.text('.card[data-who="A"] .status')


def test_a_killed_service_is_down_until_it_is_restarted(browser: Browser, page: str) -> None:
    open_own(browser, page, t=1)
    do(browser, "service", "kill")
    assert browser.text('.card[data-who="service"] .status') == "✕ down"
    do(browser, "A", "acquire")
    at(browser, 2)
    wait_score(browser, holder="none")
    assert browser.text(CARD.format("service", "kill")) == "Restart"
    do(browser, "service", "kill")
    assert browser.text('.card[data-who="service"] .status') == "running"
    do(browser, "B", "acquire")
    at(browser, 3)
    wait_score(browser, holder="B")


def test_a_node_of_redlock_restarts_without_its_data_and_votes_again(browser: Browser, page: str) -> None:
    away = [{"at": 0, "who": "A", "do": "cut", "from": node, "for": 0.5} for node in ("r4", "r5")]
    open_own(browser, page, *away, {"at": 0.1, "who": "A", "do": "acquire"}, t=1, backend="redlock", ttl=60)
    wait_score(browser, holder="A", token="1")
    browser.choose("#machine", "r3")
    assert browser.run(f"return document.querySelector({CARD.format('service', 'empty')!r}).disabled") is True
    do(browser, "service", "kill")
    do(browser, "service", "empty")
    wait_words(browser, "#log", "r3 is started again, without its data")
    do(browser, "B", "acquire")
    at(browser, 2)
    wait_score(browser, holder="B", token="1")
    assert "believes it holds, token 1" in browser.text('.card[data-who="A"] .status')


@pytest.mark.parametrize(
    ("backend", "what", "label", "said", "outcome"),
    [
        ("redis", "failover", "Failover: stale replica", "another machine takes over", {"holder": "B", "token": "1"}),
        ("redis", "jump", "Clock jump", "jumps by 30 s", {"holder": "B", "token": "2"}),
        ("etcd", "failover", "Failover: new leader", "another machine takes over", {"holder": "A", "token": "2"}),
        ("zookeeper", "jump", "Clock jump", "jumps by 30 s", {"holder": "A", "token": "2"}),
    ],
)
def test_the_service_is_hurt(
    browser: Browser, page: str, backend: str, what: str, label: str, said: str, outcome: dict[str, str]
) -> None:
    open_own(browser, page, *HELD, t=1, backend=backend)
    wait_score(browser, holder="A")
    assert browser.text(CARD.format("service", what)) == label
    do(browser, "service", what)
    wait_words(browser, "#log", said)
    at(browser, 4.5)
    wait_score(browser, **outcome)


def test_a_lost_counter_grants_the_same_token_again(browser: Browser, page: str) -> None:
    open_own(browser, page, *HELD, t=1)
    do(browser, "service", "lose")
    wait_words(browser, "#log", "loses its counter")
    do(browser, "A", "release")
    at(browser, 2)
    wait_score(browser, holder="B", token="1")


def test_three_jumping_machines_of_five_give_redlock_two_holders(browser: Browser, page: str) -> None:
    open_own(browser, page, *HELD, t=1, backend="redlock", renew=False)
    for machine in ("r1", "r2", "r3"):
        browser.choose("#machine", machine)
        do(browser, "service", "jump")
        wait_words(browser, "#log", f"The clock of {machine} jumps by 30 s")
    at(browser, 3)
    wait_score(browser, holder="B", token="2")
    assert "the service does not agree" in browser.text('.card[data-who="A"] .status')
    browser.choose("#backend", "embedded")
    wait_words(browser, "#settings", "embedded")
    wait_score(browser, holder="A")
    assert browser.run("return document.querySelectorAll('.card.service').length") == 0


def test_the_switches_run_the_same_actions_again(browser: Browser, page: str) -> None:
    open_own(browser, page, *HELD, t=12)
    wait_score(browser, holder="A")

    browser.click("#renew")
    wait_score(browser, holder="none")
    assert "renew false" in browser.text("#settings").replace("\n", " ")
    browser.click("#renew")
    wait_score(browser, holder="A")

    for backend in ("redlock", "zookeeper", "etcd"):
        browser.choose("#backend", backend)
        browser.wait(f"document.querySelector('#timeline').textContent.includes('{backend}')")
        wait_score(browser, holder="A")
    for fencing in FENCINGS:
        browser.choose("#fencing", fencing)
        browser.wait(f"document.querySelector('#timeline').textContent.includes('fencing {fencing}')")

    browser.click("#renew")
    wait_score(browser, holder="none")
    browser.run("document.querySelector('#ttl').select()")
    browser.type("#ttl", "8\ue004")
    wait_score(browser, holder="B")
    assert "ttl 8" in browser.text("#settings").replace("\n", " ")


def test_an_action_right_after_a_switch_keeps_the_switch(browser: Browser, page: str) -> None:
    open_own(browser, page, *HELD, fencing="off")
    button = json.dumps(CARD.format("C", "acquire"))
    browser.run(
        "const fencing = document.querySelector('#fencing');"
        "const switchTo = (value) => { fencing.value = value; fencing.dispatchEvent(new Event('change')) };"
        f"switchTo('writes'); document.querySelector({button}).click(); switchTo('enter')"
    )
    browser.wait("document.querySelector('#timeline').textContent.includes('fencing enter')")
    assert browser.text("#log").count("asks for the lock") == 2, "A's and C's"


def test_a_setting_that_cannot_be_is_explained(browser: Browser, page: str) -> None:
    open_own(browser, page, *HELD)
    browser.run("document.querySelector('#ttl').select()")
    browser.type("#ttl", "1000\ue004")
    wait_words(browser, "#error", "ttl lies between 0.05 and 600 seconds")
    until(lambda: any("400" in said for said in browser.complaints()), "the console tells of the refusal")
    browser.click("#undo")
    browser.wait("document.querySelector('#error').hidden")
    assert browser.run("return document.querySelector('#ttl').value") == "5"


def test_time_goes_by_steps_by_speed_and_by_hand(browser: Browser, page: str) -> None:
    browser.open(f"{page}#story=gc-pause&v=1")
    wait_score(browser, accepted="0")

    def clock() -> float:
        return float(browser.text("#clock").split()[0])

    seen = [clock()]
    for _ in range(4):
        browser.click("#next")
        seen.append(clock())
    assert seen == sorted(set(seen))
    browser.click("#back")
    assert clock() == seen[-2]
    browser.click("#finish")
    assert clock() == 12
    browser.click("#start")
    assert clock() == 0

    # Slow enough that it cannot reach the end, and become a Play button again, before the click.
    browser.choose("#speed", "0.01")
    browser.click("#play")
    browser.wait("document.querySelector('#clock').innerText > '0.000'")
    assert browser.text("#play") == "‖ Pause"
    browser.click("#play")
    assert browser.text("#play") == "▶ Play"
    stopped = clock()
    browser.wait(f"location.hash.includes('t={stopped:g}')")

    browser.choose("#speed", "8")
    browser.click("#play")
    wait_score(browser, refused="1")
    browser.wait("document.querySelector('#play').innerText === '▶ Play'")
    assert clock() == 12

    browser.click("#timeline")
    assert 5 < clock() < 8
    browser.click("#closer")
    browser.wait("document.querySelectorAll('.axis text').length > 2")
    near = browser.text("#timeline .axis")
    browser.click("#wider")
    browser.wait(f"document.querySelector('#timeline .axis').textContent !== {json.dumps(near)}")
    browser.click("#closer")
    browser.click("#whole")
    browser.wait("document.querySelector('#timeline .axis').textContent.includes('11 s')")
    browser.click("#log .when")
    assert clock() < 8


@pytest.mark.parametrize("later", [True, False])
def test_acting_in_the_past_forks_or_keeps_what_came_later(browser: Browser, page: str, later: bool) -> None:
    release = {"at": 6, "who": "A", "do": "release"}
    open_own(browser, page, *HELD, release, t=10)
    wait_score(browser, holder="B")
    at(browser, 3)
    if later:
        browser.click("#keeplater")
    browser.click(CARD.format("C", "acquire"))
    wait_words(browser, "#log", "C asks for the lock")
    at(browser, 10)
    wait_score(browser, holder="B" if later else "A")


def test_acting_starts_the_clock_if_it_may(browser: Browser, page: str) -> None:
    open_own(browser, page)
    do(browser, "D", "acquire")
    assert browser.text("#play") == "▶ Play"
    browser.click("#startclock")
    do(browser, "D", "rmw")
    browser.wait("document.querySelector('#play').innerText === '‖ Pause'")
    wait_score(browser, accepted="1")
    browser.click("#play")


@pytest.mark.parametrize(
    ("fencing", "outcome"),
    [("off", {"accepted": "2", "corrupted": "1"}), ("enter", {"accepted": "1", "refused": "1", "corrupted": "0"})],
    ids=["off", "enter"],
)
def test_a_holder_cut_off_from_the_service_alone_writes_as_a_zombie(
    browser: Browser, page: str, fencing: str, outcome: dict[str, str]
) -> None:
    open_own(browser, page, *HELD, t=1, fencing=fencing, ttl=4)
    do(browser, "A", "read")
    do(browser, "A", "cutservice")
    at(browser, 7)
    do(browser, "B", "rmw")
    at(browser, 8)
    do(browser, "A", "write")
    at(browser, 9)
    wait_score(browser, **outcome)
    assert browser.text(CARD.format("A", "cutservice")) == "Heal: the service"
    assert browser.text(CARD.format("A", "cut")) == "Partition: all"


def test_the_embedded_store_cannot_be_cut_off(browser: Browser, page: str) -> None:
    open_own(browser, page, *HELD, t=1, backend="embedded")
    assert browser.run(f"return document.querySelector({json.dumps(CARD.format('A', 'cutservice'))}).disabled") is True
    assert "nothing to partition" in browser.text("#store")


def test_cards_count_down_what_the_client_and_the_service_count_on(browser: Browser, page: str) -> None:
    stop = {"at": 1, "who": "A", "do": "pause", "for": 8}
    open_own(browser, page, *HELD, stop, t=2, ttl=4, renew=False)
    card = '.card[data-who="{}"] .countdown'

    def state(who: str) -> str:
        return str(browser.run(f"return document.querySelector('.card[data-who={who}]').dataset.state"))

    left = browser.run("return [...document.querySelectorAll('.card[data-who=A] meter')].map((each) => each.value)")
    assert [round(each) for each in left] == [2, 2]
    assert "its own deadline: 2.00 s left" in browser.text(card.format("A"))
    assert (state("A"), state("B"), state("C")) == ("holds", "waits", "idle")
    at(browser, 6)
    assert "its own deadline: passed 2.00 s ago, unnoticed" in browser.text(card.format("A"))
    assert "lease at the service: none" in browser.text(card.format("A"))
    assert (state("A"), state("B")) == ("zombie", "holds")
    border = "return getComputedStyle(document.querySelector('.card[data-who={}]')).borderLeftStyle"
    assert [browser.run(border.format(who)) for who in "ABC"] == ["double", "solid", "dotted"]


@pytest.mark.parametrize(
    ("settings", "token"),
    [
        ({"backend": "redis"}, "INCR of a counter"),
        ({"backend": "redis", "fence": "hybrid"}, "the server's time in microseconds"),
        ({"backend": "redlock", "fence": "hybrid"}, "the largest counter or clock"),
        ({"backend": "etcd"}, "create revision"),
    ],
)
def test_the_page_says_where_the_token_comes_from(
    browser: Browser, page: str, settings: dict[str, str], token: str
) -> None:
    open_own(browser, page, *HELD, t=1, **settings)
    assert token in browser.text(".card.service .token")
    assert token in browser.text("#store")


def test_the_highest_token_is_shown_with_fencing_off_too(browser: Browser, page: str) -> None:
    browser.open(f"{page}#story=gc-pause&v=0&t=12")
    wait_score(browser, corrupted="1", mark="2")
    assert "Highest token\n2\nseen, not compared" in browser.text("#score")
    drawn = "return [...document.querySelectorAll('#timeline .mark.unused .number')].map((each) => each.textContent)"
    assert browser.run(drawn) == ["1", "2"]


def test_quick_faults_do_not_print_over_each_other(browser: Browser, page: str) -> None:
    jumps = [{"at": 1 + number / 50, "who": "service", "do": "jump", "by": 1} for number in range(3)]
    jumps += [{"at": 1.05, "who": "service", "do": "failover", "lag": 0}]
    open_own(browser, page, *jumps, t=3)
    boxes: list[list[float]] = browser.run(
        "return [...document.querySelectorAll('#timeline .pointlabel')].map((each) => each.getBBox())"
        ".map((box) => [box.x, box.x + box.width, box.y + 2, box.y + box.height - 2])"
    )
    assert len(boxes) == 3, "there is room for three; the fourth says it when the pointer is over its line"
    assert browser.run("return document.querySelectorAll('#timeline .pointline').length") == 4
    for number, one in enumerate(boxes):
        for other in boxes[number + 1 :]:
            apart = one[1] <= other[0] or other[1] <= one[0] or one[3] <= other[2] or other[3] <= one[2]
            assert apart, (one, other)


def test_only_what_is_past_its_deadline_has_diagonal_stripes(browser: Browser, page: str) -> None:
    browser.open(f"{page}#story=gc-pause&v=1&t=12")
    wait_score(browser, refused="1")
    fill = "return getComputedStyle(document.querySelector('#timeline {}')).fill"
    assert "#hatch" in browser.run(fill.format(".overdue"))
    assert "#" not in browser.run(fill.format(".band.pause"))
    for number in (1, 2, 3):
        path = browser.run(f"return document.querySelector('#timeline #p{number} path')?.getAttribute('d') ?? ''")
        assert "L" not in path, "neither are the clients' textures"


def test_a_write_that_was_answered_done_and_never_made_is_told(browser: Browser, page: str) -> None:
    browser.open(f"{page}#story=failover-counter&v=1&t=10")
    wait_score(browser, accepted="5", lost="0")
    assert "1 told 'done', never made" in browser.text("#score")
    assert "⚠ B was told 'done', but its write (token 4) was never made" in browser.text("#log")


def test_every_setting_says_what_it_means(browser: Browser, page: str) -> None:
    browser.open(page)
    wait_score(browser, accepted="0")
    rows = browser.run("return [...document.querySelectorAll('#settings > div')].map((each) => each.innerText)")
    assert all(len(row.splitlines()) == 3 for row in rows), rows
    assert "raises the token counter past the mark" in browser.text("#settings")
    browser.choose("#fencing", "noseq")
    wait_words(browser, "#fencingabout", "Writes of one lease are not numbered")
    assert "What you are looking at" in browser.text("#what")
