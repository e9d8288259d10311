"""What was logged in a test."""

import logging

import pytest


def logged(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What fencepost logged. What another test left behind may be collected meanwhile, and asyncio tell of it."""
    return [record for record in caplog.records if record.name.partition(".")[0] == "fencepost"]
