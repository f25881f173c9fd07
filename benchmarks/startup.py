"""How long a user waits for nothing: `import envhub` on top of a bare Python, and `envhub --help`.

python -m benchmarks.startup [--json]
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.measure import Row, abba, at_most, ratio, report

ROUNDS = 8


def seconds(command: Sequence[str]) -> Callable[[], float]:
    """A function that runs the command once and returns its wall time. Raises CalledProcessError when it fails."""

    def run() -> float:
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "COLUMNS": "120"})
        return time.perf_counter() - began

    run()  # compiles, and fills the page cache
    return run


def main() -> int:
    """Measure and print."""
    python = [sys.executable, "-c"]
    bare, importing = seconds([*python, "pass"]), seconds([*python, "import envhub"])
    command = seconds([str(Path(sys.executable).with_name("envhub")), "--help"])
    with_import, without = abba(importing, bare, ROUNDS)
    first, second = abba(importing, importing, ROUNDS // 2)
    helping, _ = abba(command, bare, ROUNDS)
    empty = statistics.median(without)
    rows = [
        Row("bare Python", empty, "s"),
        Row("python -c 'import envhub'", statistics.median(with_import), "s"),
        at_most("of which the import", statistics.median(with_import) - empty, "s", 0.3),
        Row("the import against itself (A/A)", ratio(first, second), "ratio"),
        at_most("envhub --help", statistics.median(helping), "s", 0.5),
    ]
    return report("start-up", rows)


if __name__ == "__main__":
    sys.exit(main())
