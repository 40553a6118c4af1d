"""What a call waits for, said once it takes long."""

from __future__ import annotations

import math
import sys
import time

SAY_SECONDS = 3.0


class Waiting:
    """Call it with what is waited for: from three seconds on, each text is written once, to the standard error."""

    def __init__(self) -> None:
        self._begun, self._said = time.monotonic(), ""

    def __call__(self, what: str, until: float = math.inf) -> None:
        if what != self._said and time.monotonic() - self._begun > SAY_SECONDS:
            self._said = what
            print(f"TFCluster waits for {what}", file=sys.stderr, flush=True)
