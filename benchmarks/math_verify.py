"""Verifying mathematical answers: plain numbers, symbolic ones in a process that can be killed, and hostile ones.

Plain answers are integers, fractions and decimals, a third each, half of them right. Symbolic answers need a process: gold
and answer are equal (or nearly) and written differently. Hostile answers are towers of powers, deep nesting, long texts and
what is slow to compute; while they are verified, a task on the same event loop wakes every millisecond, and its longest
delay is the loop's longest pause.

    python -m benchmarks.math_verify [--plain 20000] [--symbolic 300] [--hostile 1000] [--rounds 3] [--json]
"""

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Sequence
from typing import TypeAlias

from benchmarks.measure import Row, abba_async, at_least, at_most, ratio, report
from envhub.rewards import process_pool
from envhub.rewards.math_verify import Gold, Verdict, typed, verify

Pair: TypeAlias = tuple[str, Gold]
_TICK = 0.001


def plain(count: int, seed: int = 0) -> list[Pair]:
    """Texts with a boxed integer, fraction or decimal, and their gold answers; every second one is wrong."""
    rng, out = random.Random(seed), []
    for number in range(count):
        top, bottom = rng.randrange(1, 10_000), rng.randrange(2, 100)
        gold, answer = (
            (str(top), str(top)),
            (f"{top}/{bottom}", rf"\frac{{{2 * top}}}{{{2 * bottom}}}"),
            (f"{top}.{bottom}", f"{top}.{bottom}0"),
        )[number % 3]
        out.append((f"So the answer is \\boxed{{{answer if number % 2 else '-' + answer}}}.", typed(gold)))
    return out


def symbolic(count: int, seed: int = 0) -> list[Pair]:
    """Texts whose answer equals the gold one and is written otherwise; every fourth is wrong by a little."""
    rng, out = random.Random(seed), []
    for number in range(count):
        a, b = rng.randrange(2, 30), rng.randrange(2, 30)
        gold, answer = (
            (rf"(x+{a})(x-{b})", rf"x^2 + {a - b}x - {a * b}"),
            (rf"\sqrt{{{a * a * b}}}", rf"{a}\sqrt{{{b}}}"),
            (rf"\sin(2x)+{a}", rf"2\sin(x)\cos(x)+{a}"),
            (rf"\frac{{{a}}}{{\sqrt{{{b}}}}}", rf"\frac{{{a}\sqrt{{{b}}}}}{{{b}}}"),
        )[number % 4]
        wrong = number // 4 % 4 == 3
        out.append((f"\\boxed{{{answer}{' + 0.001' if wrong else ''}}}", typed(gold)))
    return out


def hostile(count: int, seed: int = 0) -> list[Pair]:
    """Texts that are dear to read or to compute."""
    rng, gold, out = random.Random(seed), typed(r"\sqrt{2}+x"), []
    for number in range(count):
        size = rng.randrange(200, 4000)
        answer = (
            "9^" * (size % 9 + 2) + "9",
            "(" * size + "x" + ")" * size,
            r"\frac{1}{" * (size // 4) + "x" + "}" * (size // 4),
            "+".join(f"x^{{{n}}}" for n in range(size % 300 + 2)),
            "x" * size,
            rf"{10 ** (size % 400)}!",
            r"\sqrt{" * (size // 4) + "2" + "}" * (size // 4),
            rf"\sin({size}^{{{size}}}x)" + r"\cdot\sin(x)" * (size // 40),
            "1" * (size * 8),
            rf"\boxed{{{size}}}" * (size // 8),
        )[number % 10]
        out.append((f"\\boxed{{{answer}}}", gold))
    return out


async def rate(pairs: Sequence[Pair], at_once: int = 1) -> float:
    """Verdicts a second."""
    waiting = iter(pairs)

    async def work() -> None:
        for text, gold in waiting:
            judgement = await verify(text, gold)
            assert judgement.verdict is not Verdict.unverifiable, judgement

    begun = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(at_once)))
    return len(pairs) / (time.perf_counter() - begun)


async def longest_pause(pairs: Sequence[Pair], at_once: int = 16) -> tuple[float, float]:
    """The longest delay in milliseconds of a task that wakes every millisecond, and the seconds that all verdicts took."""
    longest, waiting = 0.0, iter(pairs)

    async def tick() -> None:
        nonlocal longest
        while True:
            before = time.perf_counter()
            await asyncio.sleep(_TICK)
            longest = max(longest, time.perf_counter() - before - _TICK)

    async def work() -> None:
        for text, gold in waiting:
            await verify(text, gold)

    ticking, begun = asyncio.create_task(tick()), time.perf_counter()
    await asyncio.gather(*(work() for _ in range(at_once)))
    ticking.cancel()
    return longest * 1e3, time.perf_counter() - begun


async def measure(given: argparse.Namespace) -> list[Row]:
    """All rows."""
    numbers, formulas, nasty = plain(given.plain), symbolic(given.symbolic), hostile(given.hostile)
    await rate(numbers[:1000])
    await rate(formulas[:8], 2)
    one, other = await abba_async(lambda: rate(numbers), lambda: rate(numbers), given.rounds)
    first, second = await abba_async(lambda: rate(formulas, 2), lambda: rate(formulas, 2), given.rounds)
    pauses = [await longest_pause(nasty) for _ in range(given.rounds)]
    await process_pool().close()
    return [
        at_least("integers, fractions and decimals, one core", statistics.median(one + other), "a second", 20_000),
        Row("against itself (A/A)", ratio(one, other), "ratio"),
        at_least(
            "symbolic answers, in a process that can be killed", statistics.median(first + second), "a second", 100
        ),
        Row("against itself (A/A)", ratio(first, second), "ratio"),
        at_most("longest pause of the event loop, hostile answers", statistics.median(p for p, _ in pauses), "ms", 50),
        Row("of that, the longest of all rounds", max(pause for pause, _ in pauses), "ms"),
        Row("all hostile answers", statistics.median(seconds for _, seconds in pauses), "s"),
    ]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plain", type=int, default=20_000)
    parser.add_argument("--symbolic", type=int, default=300)
    parser.add_argument("--hostile", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    return report("math_verify", asyncio.run(measure(parser.parse_args())))


if __name__ == "__main__":
    sys.exit(main())
