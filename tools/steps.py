"""Steps of a tool that takes minutes: a title as each begins, what it said and its time as it ends."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping

TAIL = 40


class StepFailed(Exception):
    """A step went wrong; the message says what was seen."""


def take(steps: Mapping[str, Callable[[], str]]) -> int:
    """Take the steps in turn, up to the first that fails; gives 1 then, and else 0."""
    for number, (title, step) in enumerate(steps.items(), start=1):
        print(f"\n[{number}/{len(steps)}] {title} ...", flush=True)
        began = time.monotonic()
        try:
            said = step()
        except (StepFailed, OSError, subprocess.SubprocessError) as error:
            print(shown(str(error)), f"\nFailed after {time.monotonic() - began:.1f} s: {title}")
            return 1
        print(shown(said), f"    {time.monotonic() - began:.1f} s", sep="\n", flush=True)
    print("\nAll that can be replayed here works.")
    return 0


def shown(text: str) -> str:
    """The end of what a step said, set off to the right."""
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines()[-TAIL:])
