"""Record the clean histories that test_plants spoils: python -m tests.lab.histories.record

Real contenders on a real store, one process of them stopped past its lease, and the guarded resource.
"""

import tempfile
from contextlib import ExitStack
from pathlib import Path

from fencepost_lab.contend.plan import Plan
from fencepost_lab.contend.run import contend
from fencepost_lab.history.checks import check
from fencepost_lab.history.format import load
from fencepost_lab.servers.stores import store
from tests.harness.resource import Service

FOLDER = Path(__file__).parent


def main() -> None:
    for name in ("sqlite", "redis"):
        path = FOLDER / f"contend-{name}.jsonl"
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            where = stack.enter_context(store(name, folder))
            service = stack.enter_context(Service())
            plan = Plan(
                backend=where.url,
                key="counter",
                contenders=4,
                ttl=0.5,
                work=0.05,
                warmup=0,
                duration=6,
                sections=24,
                pause=1.2,
                resource=service.url,
                history=True,
            )
            contend(plan, history=path)
        report = check(load(path))
        assert report.verdict == "kept", report
        assert report.counts["overlapping_beliefs"], "the stopped holder was not replaced; record it again"
        print(path, report.counts)


if __name__ == "__main__":
    main()
