"""A reply that its task takes up at once is a future in every other way."""

import asyncio
from contextvars import Context, ContextVar
from typing import Any, cast

import pytest

from fencepost.driver.reply import Reply

who: ContextVar[str] = ContextVar("who", default="nobody")


async def waiting(reply: Reply) -> "asyncio.Task[Any]":
    async def take() -> Any:
        return await reply

    task = asyncio.create_task(take())
    await asyncio.sleep(0)
    assert not task.done()
    return task


def brought(reply: Reply, value: object) -> None:
    """Bring it as the loop does, while no task is running."""
    asyncio.get_running_loop().call_soon(reply.bring, value)


async def test_the_task_goes_on_within_the_call_that_brings_it() -> None:
    reply = Reply(asyncio.get_running_loop())
    task = await waiting(reply)
    order: list[str] = []
    task.add_done_callback(lambda _: order.append("the loop's next turn"))

    def bring() -> None:
        reply.bring("value")
        order.append("done" if task.done() else "not done")

    asyncio.get_running_loop().call_soon(bring)
    assert await task == "value"
    assert order[0] == "done"


async def test_one_that_was_there_before_is_had_at_once() -> None:
    reply = Reply(asyncio.get_running_loop())
    reply.bring("value")
    assert await reply == "value"


async def test_a_cancelled_task_does_not_get_what_comes_later() -> None:
    reply = Reply(asyncio.get_running_loop())
    task = await waiting(reply)
    task.cancel("enough")
    brought(reply, "value")
    with pytest.raises(asyncio.CancelledError, match="enough"):
        await task
    assert reply.done()


async def test_a_failure_reaches_the_task() -> None:
    reply = Reply(asyncio.get_running_loop())
    task = await waiting(reply)
    assert reply.fail(ConnectionError("cut"))
    assert not reply.fail(ConnectionError("again")), "once is enough"
    with pytest.raises(ConnectionError, match="cut"):
        await task


def test_the_task_keeps_its_context_even_an_empty_one() -> None:
    async def main() -> None:
        reply = Reply(asyncio.get_running_loop())
        asyncio.get_running_loop().call_later(0.001, reply.bring, None)
        await reply
        token = who.set("me")
        await asyncio.sleep(0)
        who.reset(token)  # refused in any other context

    Context().run(asyncio.run, main())


async def test_several_can_be_waited_for() -> None:
    replies = [Reply(asyncio.get_running_loop()) for _ in range(3)]
    brought(replies[0], 1)
    brought(replies[2], 3)
    futures = cast("list[asyncio.Future[Any]]", replies)
    done, pending = await asyncio.wait(futures, timeout=0.01)
    assert {future.result() for future in done} == {1, 3}
    assert pending == {futures[1]}
    assert replies[1].cancel()
