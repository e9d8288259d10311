"""Requests for many items at once, which a store refuses as a whole if it refuses one of them."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, TypeVar

from fencepost.errors import BackendError

T = TypeVar("T")
R = TypeVar("R")
Answers: TypeAlias = list[bool | BackendError | None]
"""What ``Backend.release_all`` answers."""

_ALONE = 8  # after this many refused items were found, a refusal counts for the whole part that was asked for


async def ask_apart(
    ask: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
    items: Sequence[T],
    refused: Callable[[BackendError], bool],
    note: Callable[[T, R | BackendError], None] = lambda item, answer: None,
) -> list[R | BackendError]:
    """For each item, what ``ask`` answers, or the error with which the store refuses that item.

    A part that the store refuses is cut in half, and each half is asked for. Any other error is raised. ``note`` is
    called with each item and its answer as soon as it is known, so the caller has those that came before an error.
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
    """Release ``size`` items at a time. ``release`` writes each answer to its index, and returns why the store failed.

    After such a failure the later batches are not sent; their answers are None.
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
