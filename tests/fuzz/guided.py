"""One target under atheris: ``python -m tests.fuzz.guided TARGET SEED SECONDS``.

The corpus that it grows is kept in out/fuzz/TARGET, and is where the next run begins. A finding is written to
out/fuzz/TARGET-crash-*; give that file as a fourth argument to run it alone.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable, Iterable

import atheris

with atheris.instrument_imports(include=["fencepost", "fencepost_lab"]):
    from tests.fuzz import etcd, histories, redis, texts
from tests import ROOT

TARGETS: dict[str, tuple[Callable[[bytes], str], Callable[[], Iterable[bytes]]]] = {
    "urls": (texts.url, lambda: [each.encode() for each in texts.URLS]),
    "tokens": (texts.token, lambda: texts.TOKENS),
    "redis": (redis.stream, lambda: [b"".join(redis.dialogue(random.Random(seed), 4)) for seed in range(20)]),
    "etcd": (etcd.frames, etcd.corpus),
    "history": (histories.history, lambda: [b"\n".join(lines) for lines in histories.corpus()]),
}


def main() -> None:
    name, seed, seconds, *files = sys.argv[1:]
    check, seeds = TARGETS[name]
    folder = ROOT / "out" / "fuzz" / name
    folder.mkdir(parents=True, exist_ok=True)
    for data in seeds():
        (folder / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)
    options = [f"-seed={seed}", f"-max_total_time={seconds}", "-timeout=30", "-max_len=20000", "-print_final_stats=1"]
    options += [f"-artifact_prefix={folder.parent}/{name}-", "-verbosity=0"]

    def one(data: bytes) -> None:
        check(data)

    print(f"{name}: guided, seed {seed}, {seconds} s, corpus {folder.relative_to(ROOT)}", flush=True)
    atheris.Setup([sys.argv[0], *options, *(files or [str(folder)])], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
