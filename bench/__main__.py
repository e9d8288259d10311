"""`python -m bench [WORD...]`: run the benches whose name contains every WORD, and print the ratios."""

import argparse
import importlib
import json
import pkgutil
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import bench
from bench import page, profile
from bench.harness import Bench, Fact, Result, facts, measure, profile_fact, registry
from bench.profile import Profile


def load() -> None:
    """Import every `bench_*.py`, which registers its benches."""
    for module in pkgutil.iter_modules(bench.__path__):
        if module.name.startswith("bench_"):
            importlib.import_module(f"bench.{module.name}")


def span(seconds: float) -> str:
    """A duration at the unit that suits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def row(result: Result) -> str:
    """One line of the table."""
    aim = "" if result.aim is None else f"  aim <= {result.aim:g}x: {'met' if result.met else 'MISSED'}"
    spread = f"[{result.low:.2f} .. {result.high:.2f}]"
    cores = f"cores {result.client:.2f} + {result.servers:.2f}"
    return (
        f"  {result.side:<32} {span(result.seconds):>10}  {result.ratio:>7.2f}x  {spread:<18}{cores}{aim}".rstrip()
        + samples(result.profile)
    )


def samples(found: Profile | None) -> str:
    """What a profile adds to the table."""
    return "" if found is None else f"\n    profile ({found.size or 'no samples'}): {found.text}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD", help="only benches whose name contains every word")
    parser.add_argument("--quick", action="store_true", help="a fifth of the rounds, or less: a smoke test only")
    parser.add_argument("--json", action="store_true", help="print one JSON array instead of tables")
    parser.add_argument(
        "--page", type=Path, metavar="FILE.md", help="also write the ratios to FILE.md, and to FILE.json for --check"
    )
    parser.add_argument(
        "--check",
        nargs="?",
        const=page.COMMITTED,
        type=Path,
        metavar="FILE.json",
        help=f"exit 1 when a figure is more than {100 * (page.WORSE - 1):.0f} percent worse than in FILE.json "
        "(docs/speed.json)",
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="also show in which functions the client spends its time, for each side with an aim; needs py-spy. "
        "--page does so for those that missed theirs",
    )
    parser.add_argument("--aims", action="store_true", help="exit 1 when an aim is missed")
    parser.add_argument("--list", action="store_true", help="name the benches and stop")
    parser.add_argument("--seed", type=int, default=None, help="fixes the order of the sides")
    options = parser.parse_args()

    if options.profile and profile.tool() is None:
        parser.error(f"--profile: {profile.MISSING}; install it with: {profile.INSTALL}")
    before = page.read(options.check, parser.error) if options.check else {}
    load()

    def names(benches: Sequence[Bench], counts: Sequence[Fact]) -> Iterator[str]:
        yield from (each.name for each in benches)
        yield from (each.name for each in counts)

    def named(subject: Bench | Fact) -> bool:
        return all(word.lower() in subject.name.lower() for word in options.words)

    chosen, counted = [*filter(named, registry)], [*filter(named, facts)]
    if not chosen and not counted:
        parser.error(f"no bench matches {' '.join(options.words)!r}; there are: {[*names(registry, facts)]}")
    if options.page and (left_out := page.unmeasured(options.page, names(chosen, counted))):
        parser.error(
            f"--page: {options.page} has figures that this run does not measure: {left_out}; measure everything, with "
            f"the peers of bench/peers.txt installed, or remove its .json file first"
        )
    if options.list:
        print("\n".join(names(chosen, counted)))
        return 0

    def profiled(met: bool | None) -> bool:
        return met is not None and bool(options.profile or (options.page and not met))

    results: list[Result] = []
    order = random.Random(options.seed)
    for each in chosen:
        rounds = max(3, each.rounds // 5) if options.quick else each.rounds
        found = measure(each, rounds=rounds, order=order, profiled=lambda result: profiled(result.met))
        results += found
        if not options.json:
            print(f"{each.name}  ({rounds} rounds x {each.iterations}; per call, ratio, 10th .. 90th percent)")
            print("\n".join(map(row, found)), flush=True)
    found_facts = []
    for subject in counted:
        value = subject.quick() if options.quick else subject.find()
        met = value <= subject.aim
        functions = profile_fact(subject) if profiled(met) else None
        found_facts.append(
            {
                "bench": subject.name,
                "value": value,
                "aim": subject.aim,
                "met": met,
                "bound": subject.bound,
                "profile": functions,
            }
        )
        if not options.json:
            verdict = f"  {value:.3g}  aim <= {subject.aim:g}: {'met' if met else 'MISSED'}"
            print(f"{subject.name}\n{verdict}{samples(functions)}", flush=True)
    if options.page:
        page.write(options.page, " ".join(["python -m bench", *sys.argv[1:]]), results, found_facts)
    every = [{**asdict(result), "met": result.met} for result in results] + found_facts
    if options.json:
        print(json.dumps(every, indent=2, default=asdict))
    worse = page.worse(before, every) if options.check else []
    for sentence in worse:
        print(sentence, file=sys.stderr)
    return int(bool(worse) or (options.aims and any(each["met"] is False for each in every)))


if __name__ == "__main__":
    sys.exit(main())
