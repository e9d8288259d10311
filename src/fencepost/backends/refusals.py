"""Many asked for at once, where the store refuses all of them because of one."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, TypeVar

from fencepost.errors import BackendError

T = TypeVar("T")
R = TypeVar("R")
Answers: TypeAlias = list[bool | BackendError | None]
"""What ``Backend.release_all`` answers."""

_ALONE = 8  # refused ones that are found before the rest counts as refused, too


async def ask_apart(
    ask: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
    items: Sequence[T],
    refused: Callable[[BackendError], bool],
    note: Callable[[T, R | BackendError], None] = lambda item, answer: None,
) -> list[R | BackendError]:
    """What ``ask`` answers for each of these, or why that one is refused.

    As long as there is one among them that is refused, halves are asked for. Any other error is raised; what was
    answered before it is known to ``note``, which is called with each item and its answer.
    """
    answers: list[R | BackendError] = []
    parts, alone = [items] if items else [], 0
    while parts:
        part = parts.pop()
        try:
            found: Sequence[R | BackendError] = await ask(part)
        except BackendError as error:
            if not refused(error):
                raise
            if len(part) > 1 and alone < _ALONE:
                parts += [part[len(part) // 2 :], part[: len(part) // 2]]
                continue
            found = [error] * len(part)
            alone += 1
        for item, answer in zip(part, found, strict=True):
            note(item, answer)
        answers += found
    return answers


async def in_batches(
    release: Callable[[Sequence[tuple[int, T]], Answers], Awaitable[BackendError | None]],
    items: Sequence[tuple[int, T]],
    size: int,
    answers: Answers,
) -> Answers:
    """Release so many at a time. ``release`` notes each answer at its item's place, and returns why the store failed.

    Those that come after such a failure are not asked for: None.
    """
    failed: BackendError | None = None
    for start in range(0, len(items), size):
        batch = items[start : start + size]
        if failed is None:
            failed = await release(batch, answers)
        else:
            for at, _ in batch:
                answers[at] = None
    return answers
