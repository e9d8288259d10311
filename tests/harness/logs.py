"""What was logged in a test."""

import logging

import pytest


def logged(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What fencepost logged. Not all records: asyncio may log about objects of another test that are collected now."""
    return [record for record in caplog.records if record.name.partition(".")[0] == "fencepost"]
