"""What a master of uWSGI's is told; the server itself is started by docs/prefork.md."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace

import pytest

from fencepost.driver.fork import look_for_silent_forks


@pytest.mark.parametrize(
    ("options", "threads", "worker", "warning"),
    [
        ({}, 1, 0, "without telling Python"),
        ({"py-call-osafterfork": True}, 1, 0, "a worker can hang"),
        ({"py-call-uwsgi-fork-hooks": True}, 0, 0, "without telling Python"),  # it does nothing without threads
        ({"py-call-uwsgi-fork-hooks": True}, 1, 0, None),
        ({}, 1, 1, None),  # as with --lazy-apps: this is a worker already
    ],
)
def test_a_master_that_forks_behind_pythons_back_is_warned(
    options: dict[str, bool],
    threads: int,
    worker: int,
    warning: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = SimpleNamespace(opt=options, has_threads=threads, worker_id=lambda: worker)
    monkeypatch.setitem(sys.modules, "uwsgi", server)
    with caplog.at_level(logging.WARNING, "fencepost"):
        look_for_silent_forks.__wrapped__()
    assert [each.getMessage() for each in caplog.records if warning is None or warning not in each.getMessage()] == []
    assert ("--py-call-uwsgi-fork-hooks" in caplog.text) == (warning is not None)
