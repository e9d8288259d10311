"""What an audit log says about lost locks."""

from typing import Any

from fencepost.hooks.losses import losses


def fact(kind: object, at: object = 10.0, source: object = "redis", **more: Any) -> dict[str, Any]:
    return {"kind": kind, "at": at, "source": source} | more


def test_each_kind_of_loss_is_counted_for_its_locks() -> None:
    redis, other = losses(
        [
            *(fact("acquired", at) for at in (30.0, 10.0, 20.0)),
            fact("lost", detail="its deadline has passed"),
            fact("lost", detail="the store gave it away or lost it"),
            fact("lost"),
            fact("not_owner"),
            fact("released", source="sqlite"),
        ]
    )
    assert (redis.source, redis.acquired, redis.expired, redis.taken, redis.too_late) == ("redis", 3, 1, 2, 1)
    assert (redis.first, redis.last) == (10.0, 30.0)
    assert (other.source, other.acquired) == ("sqlite", 0)


def test_lines_of_guards_and_odd_lines_are_passed_over() -> None:
    odd = [
        fact("decision"),
        fact(["lost"]),
        fact("lost", "noon"),
        fact("lost", float("nan")),
        fact("lost", source=7),
        {},
    ]
    assert losses([*odd, fact("lost", at=4.0)], since=5.0) == []
