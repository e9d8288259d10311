"""The gate of a store: what happens when a signal handler raises where it waits."""

import pytest

from fencepost.driver.gate import Gate


class Interrupted:
    """A lock whose first acquire is interrupted."""

    def __init__(self, lock: object) -> None:
        self._lock = lock
        self.left = 1

    def acquire(self, *args: object, **options: object) -> object:
        if self.left:
            self.left -= 1
            raise ZeroDivisionError("the handler's")
        return self._lock.acquire(*args, **options)  # type: ignore[attr-defined]

    def release(self) -> None:
        self._lock.release()  # type: ignore[attr-defined]


def test_a_handler_that_raises_while_another_thread_forks_leaves_the_gate_open() -> None:
    gate = Gate("test")
    for enter in (gate.__enter__, gate.unhurried().__enter__):
        gate._work = Interrupted(gate._work)  # type: ignore[assignment]
        with pytest.raises(ZeroDivisionError):
            enter()
        with gate:
            assert gate.inside()
        assert not gate.inside()


def test_one_that_stepped_aside_is_inside_again_whatever_a_handler_raises() -> None:
    gate = Gate("test")
    with gate:
        gate._work = lock = Interrupted(gate._work)  # type: ignore[assignment]
        with pytest.raises(ZeroDivisionError):
            gate.step_aside("why", lambda: None)
        assert not lock.left
        assert gate.held_up == ""
        assert not gate.hold(0), "what is done inside is done by this thread"
    with gate:
        assert gate.inside()
