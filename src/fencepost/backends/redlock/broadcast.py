"""Asks several servers at once: writes to all of them, then reads the answers as they arrive."""

import asyncio
import threading
from collections.abc import Sequence
from time import monotonic
from typing import Any, cast

from fencepost.backends.redis.answers import Fits
from fencepost.backends.redis.connection import Dial, Endpoint
from fencepost.backends.redis.nodes import Node, ThreadNode
from fencepost.backends.redis.pool import Pool, Socket
from fencepost.backends.redis.stream import Stream
from fencepost.backends.redis.task_node import TaskNode
from fencepost.credentials import LONGEST, Secret
from fencepost.driver import run
from fencepost.driver.interrupts import interruptible
from fencepost.driver.reply import Reply
from fencepost.driver.sockets import READABLE, poller
from fencepost.driver.tasks import shared
from fencepost.errors import BackendError

Asked = Sequence[tuple[Node, Endpoint, Sequence[bytes], Sequence[Fits]]]
"""For each server its requests, and the form of their answers."""
Answers = list[list[Any] | BackendError]
"""For each server its replies, or the error if there are none."""

_LATE = "no answer in time"


async def ask(asked: Asked, dial: Dial) -> Answers:
    """Ask all servers and wait until each has answered or failed, for ``dial.timeout``, and as long for connecting."""
    if asked and isinstance(asked[0][0], TaskNode):
        return await _tasks(asked, dial)
    return _blocking(asked, dial)


async def connect(nodes: Sequence[Node], dial: Dial, *, at_hand: int) -> list[BackendError | None]:
    """Connect to each node within ``dial.timeout``; return for each the error, or None.

    ``at_hand`` is the number of nodes that have a connection already.
    """
    secret = await _secret(dial, at_hand, len(nodes))
    wanted = [node for node in nodes if isinstance(node, TaskNode)]
    connections = await _streams(wanted, monotonic() + dial.timeout, secret)
    late = BackendError(f"Redis: cannot connect: {_LATE}", backend=dial.scheme, ambiguous=False)
    return [None if isinstance(connection, Stream) else connection or late for connection in connections]


def _blocking(asked: Asked, dial: Dial) -> Answers:
    pools = [_pool(node) for node, *_ in asked]
    connections: list[Socket | BackendError | None] = [None] * len(asked)
    answers: list[list[Any] | BackendError | None] = [None] * len(asked)
    waiting: dict[int, int] = {}
    poll = poller()
    try:
        for index, pool in enumerate(pools):
            connections[index] = pool.spare()
        if None in connections:
            lacking = connections.count(None)
            secret = run(_secret(dial, len(connections) - lacking, lacking))
            if isinstance(secret, BackendError):
                connections[:] = [connection or secret for connection in connections]
            else:
                _open(pools, connections, monotonic() + dial.timeout, secret)
        until = monotonic() + dial.timeout  # from now: a server that could not be reached costs the others no time
        for index, (_, endpoint, requests, _) in enumerate(asked):
            connection = connections[index]
            if not isinstance(connection, Socket):
                answers[index] = connection or dial.error(endpoint, f"cannot connect: {_LATE}", ambiguous=False)
                continue
            try:
                connection.post(b"".join(requests))
            except OSError as error:
                answers[index] = _broken(pools[index], connection, error)
                continue
            waiting[connection.raw.fileno()] = index
            poll.register(connection.raw, READABLE)
        late = False
        while waiting and not late:
            left = until - monotonic()
            late = left <= 0  # then look once more: this process may have been paused while the answers arrived
            for number, _ in interruptible(poll.poll, max(left, 0.0) * 1000):
                poll.unregister(number)
                index = waiting.pop(number)
                connection = connections[index]
                assert isinstance(connection, Socket), "it was written to"
                try:
                    replies = connection.replies(asked[index][3])
                    pools[index].back(connection)
                    answers[index] = replies
                except OSError as error:
                    answers[index] = _broken(pools[index], connection, error)
    finally:
        for index, connection in enumerate(connections):
            # Its answers would belong to no request any more, and the node's idle connections may be dead, too.
            if isinstance(connection, Socket) and answers[index] is None:
                pools[index].drop(connection)
                pools[index].close()
    return [
        dial.error(endpoint, _LATE, ambiguous=True) if answer is None else answer
        for (_, endpoint, *_), answer in zip(asked, answers, strict=True)
    ]


def _pool(node: Node) -> Pool:
    assert isinstance(node, ThreadNode), "the nodes of one backend are of one kind"
    return node.transport


def _broken(pool: Pool, connection: Socket, error: OSError) -> BackendError:
    try:
        pool.broken(connection, error)
    except BackendError as failure:
        return failure


async def _secret(dial: Dial, at_hand: int, lacking: int) -> Secret | BackendError | None:
    """The credentials, asked for once for all servers, and before their timeouts begin.

    If a majority has connections, it does not wait longer for the caller's function than for a server.
    """
    try:
        return await dial.secret(dial.timeout if at_hand > lacking else LONGEST)
    except BackendError as error:
        return error


def _open(
    pools: Sequence[Pool], connections: list[Socket | BackendError | None], until: float, secret: Secret | None
) -> None:
    """Connect to the servers without a connection, all at once: a server that hangs must not delay the others."""
    gate = threading.Lock()
    over = False

    def connect(index: int) -> None:
        opened: Socket | BackendError
        try:
            opened = run(pools[index].open(secret))
        except BackendError as error:
            opened = error
        with gate:
            if not over:
                connections[index] = opened
            elif isinstance(opened, Socket):
                pools[index].drop(opened)

    threads: list[threading.Thread] = []
    try:
        for index in [index for index, connection in enumerate(connections) if connection is None]:
            thread = threading.Thread(target=connect, args=(index,), name="fencepost-redlock", daemon=True)
            try:
                thread.start()
                threads.append(thread)
            except (RuntimeError, MemoryError):  # no thread can be started now: connect one after the other
                connect(index)
        for thread in threads:
            thread.join(max(until - monotonic(), 0.0))
    finally:
        with gate:
            over = True


async def _tasks(asked: Asked, dial: Dial) -> Answers:
    nodes = [node for node, *_ in asked if isinstance(node, TaskNode)]
    lacking = sum(node.at_hand() is None for node in nodes)
    secret = await _secret(dial, len(nodes) - lacking, lacking) if lacking else None
    connections = await _streams(nodes, monotonic() + dial.timeout, secret)
    until = monotonic() + dial.timeout  # from now: a server that could not be reached costs the others no time
    sent: list[list[Reply] | BackendError] = []
    try:
        for (_, endpoint, requests, fits), connection in zip(asked, connections, strict=True):
            if not isinstance(connection, Stream):
                sent.append(connection or dial.error(endpoint, f"cannot connect: {_LATE}", ambiguous=False))
                continue
            try:
                sent.append(list(map(connection.call, requests, fits)))
            except BackendError as error:
                sent.append(error)
        replies = [reply for each in sent if isinstance(each, list) for reply in each]
        if replies:
            # A Reply has the methods of a future that asyncio.wait needs.
            await asyncio.wait(cast("list[asyncio.Future[Any]]", replies), timeout=max(until - monotonic(), 0.0))
        return [
            _collect(each, node, dial.error(endpoint, _LATE, ambiguous=True)) if isinstance(each, list) else each
            for each, (node, endpoint, *_) in zip(sent, asked, strict=True)
        ]
    finally:
        for each in sent:
            for reply in each if isinstance(each, list) else ():
                reply.cancel()


def _collect(replies: list[Reply], node: Node, late: BackendError) -> list[Any] | BackendError:
    if not all(reply.done() for reply in replies):
        node.close()
        return late
    for reply in replies:
        failure = reply.exception()
        if isinstance(failure, BackendError):
            return failure
    return [reply.result() for reply in replies]


async def _streams(
    nodes: Sequence[TaskNode], until: float, secret: Secret | BackendError | None
) -> list[Stream | BackendError | None]:
    connections: list[Stream | BackendError | None] = [node.at_hand() for node in nodes]
    if isinstance(secret, BackendError):
        return [connection or secret for connection in connections]
    opening = {
        shared(nodes[index].ready(secret), "fencepost-redlock-connect"): index
        for index, connection in enumerate(connections)
        if connection is None
    }
    if opening:
        try:
            await asyncio.wait(opening, timeout=max(until - monotonic(), 0.0))
        finally:
            for task in opening:
                task.cancel()
        for task, index in opening.items():
            if task.done() and not task.cancelled():
                failure = task.exception()
                if failure is None:
                    connections[index] = task.result()
                elif isinstance(failure, BackendError):
                    connections[index] = failure
                else:
                    raise failure
    return connections
