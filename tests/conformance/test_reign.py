"""Leaders are killed, one after the other. At full size, beside the customary elections: ``make reign``."""

from pathlib import Path

import pytest

from tests.conformance.store import Store
from tests.harness.threads import on_thread
from tests.programs.reign import Reign, fencepost, judge


@pytest.mark.processes
@pytest.mark.only("blocking")
async def test_killed_leaders_are_succeeded_each_under_an_epoch_of_its_own(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "journal.db"

    def whole() -> list[float]:
        with Reign(fencepost(store.url, store.name, store.short, path), 2, store.patience) as reign:
            return reign.depose(1, kill=True) + reign.depose(1, kill=False)

    assert len(await on_thread(whole)) == 2
    verdict = judge(path)
    assert verdict.good
    assert verdict.epochs >= 3
