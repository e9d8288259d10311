"""The pytest plugin of fencepost: the fixtures ``locks`` and ``aio_locks``.

pytest loads this in every run where fencepost is installed, so it is no part of the package, which it would import:
nothing of fencepost is loaded before a test asks for a fixture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencepost import testing
    from fencepost.testing import aio


@pytest.fixture
def locks(request: pytest.FixtureRequest) -> Iterator[testing.Locks]:
    """fencepost's locks on a store of this test's own, in memory: ``locks.clock.advance(20)``,
    ``locks.failing("refused")``. The test fails if it leaves a lease behind."""
    from fencepost import testing

    made = testing.connect()
    failed = request.session.testsfailed
    try:
        yield made
        _check(request, failed, made)
    finally:
        made.close()


@pytest.fixture
def aio_locks(request: pytest.FixtureRequest) -> Iterator[aio.Locks]:
    """The same for asyncio. It needs no plugin for that: use it in any event loop that the test has."""
    from fencepost.testing import aio

    made = aio.connect()
    failed = request.session.testsfailed
    try:
        yield made
        _check(request, failed, made)
    finally:
        _close(made)


def _check(request: pytest.FixtureRequest, failed: int, made: testing.Locks | aio.Locks) -> None:
    __tracebackhide__ = True
    if request.session.testsfailed > failed:
        return  # what it left behind is no news
    message = ""
    try:
        made.assert_released()
    except AssertionError as error:
        message = str(error)
    if message:  # not above, or it would be told twice
        pytest.fail(message, pytrace=False)


def _close(made: aio.Locks) -> None:
    """Close locks whose event loop is closed by now, or not this fixture's to run: in a loop of their own."""
    import asyncio
    import threading

    raised: list[BaseException] = []

    def work() -> None:
        try:
            asyncio.run(made.close())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work, name="fencepost-testing-close")  # the caller's thread may run a loop
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
