"""The metrics of several processes as one, for Prometheus."""

from typing import Any

from fencepost.hooks.page import Page


class Totals:
    """Adds up what each process has counted so far."""

    def __init__(self) -> None:
        self._counted: dict[int, dict[str, Any]] = {}

    def take(self, process: int, counted: dict[str, Any]) -> None:
        """What a process has counted since it began."""
        self._counted[process] = counted

    def text(self) -> bytes:
        """The page of all of them."""
        page = Page()
        for counted in list(self._counted.values()):
            page.merge(counted)
        return page.text()
