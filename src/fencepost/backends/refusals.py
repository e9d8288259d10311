"""Many asked for at once, where the store refuses all of them because of one."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from fencepost.errors import BackendError

T = TypeVar("T")
R = TypeVar("R")

_ALONE = 8  # refused ones that are found before the rest counts as refused, too


async def ask_apart(
    ask: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
    items: Sequence[T],
    refused: Callable[[BackendError], bool],
) -> list[R | BackendError]:
    """What ``ask`` answers for each of these, or why that one is refused.

    As long as there is one among them that is refused, halves are asked for. Any other error is raised.
    """
    answers: list[R | BackendError] = []
    parts, alone = [items] if items else [], 0
    while parts:
        part = parts.pop()
        try:
            answers += await ask(part)
        except BackendError as error:
            if not refused(error):
                raise
            if len(part) == 1 or alone >= _ALONE:
                answers += [error] * len(part)
                alone += 1
            else:
                parts += [part[len(part) // 2 :], part[: len(part) // 2]]
    return answers
