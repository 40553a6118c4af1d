"""What every program of the corpus gave, as a table: ``python -m tests.corpus [--all] [PART OF A NAME ...]``.

Without ``--all`` they run on two ranks in float64 alone.
"""

from __future__ import annotations

import sys
import time

from tests.corpus.comparison import judge
from tests.corpus.program import programs
from tests.training.conftest import Groups

WAYS = [(2, "float64"), (3, "float64"), (2, "float32"), (3, "float32")]


def main(parts: list[str], ways: list[tuple[int, str]]) -> int:
    groups, wrong, counts = Groups(), [], {}
    largest = dict.fromkeys(ways, 0.0)
    print("| program | must be | " + " | ".join(f"{size} ranks, {floatx}" for size, floatx in ways) + " | seconds |")
    print("|---|---|" + "---|" * (len(ways) + 1))
    for program in programs():
        if parts and not any(part in program.name for part in parts):
            continue
        started, cells = time.monotonic(), []
        for way in ways:
            verdict = judge(program, groups, *way)
            if verdict.wrong:
                wrong.append(f"{program.name}, {way[0]} ranks, {way[1]}: {verdict.wrong}")
            if verdict.difference is not None:
                largest[way] = max(largest[way], verdict.difference)
            cells.append(verdict.outcome if verdict.difference is None else f"{verdict.difference:.0e}")
        counts[program.expect] = counts.get(program.expect, 0) + 1
        seconds = time.monotonic() - started
        print(f"| {program.name} | {program.expect} | {' | '.join(cells)} | {seconds:.1f} |", flush=True)
    groups.close()
    print("\n" + "; ".join(f"{count} {expect}" for expect, count in sorted(counts.items())))
    print("largest differences: " + ", ".join(f"{apart:.1e} ({n} ranks, {f})" for (n, f), apart in largest.items()))
    print("\n\n".join(wrong))
    return len(wrong) > 0


if __name__ == "__main__":
    given = sys.argv[1:]
    sys.exit(main([part for part in given if part != "--all"], WAYS if "--all" in given else WAYS[:1]))
