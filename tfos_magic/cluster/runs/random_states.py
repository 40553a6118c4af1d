"""Where the random numbers of a run come from."""

from __future__ import annotations

import random
import secrets
from typing import Any

from tfos_magic.cluster.runs.request import RunRequest
from tfos_magic.errors import UsageError
from tfos_magic.values.random_state import ended, of_seed, seed_for, taken


class Randomness:
    """The ``seed`` of a run and the ``states`` that its cell begins with, empty where the seed was asked for.

    A cell without a seed of its own goes on with the random states of this process, as if it ran here. One that
    is detached gets states of a seed, as this process may draw meanwhile.
    """

    def __init__(self, request: RunRequest) -> None:
        self._request = request
        self._lent = request.seed is None and not (request.alone or request.detached)
        self.states: dict[str, Any] = taken() if self._lent else {}
        self.seed = self._seed() if request.seed is None else request.seed
        if request.seed is None and not self._lent:
            self.states = of_seed(self.seed)

    def _seed(self) -> int:
        if self._lent:
            return seed_for(self.states)
        return random.getrandbits(31) if self._request.detached else secrets.randbelow(2**31)

    def go_on(self, seed: int | None, states: dict[str, Any]) -> None:
        """Begin as the run that left the checkpoints did, if there are any: its seed made the order of the rows."""
        if seed is None:
            return
        if self._request.seed not in (None, seed):
            raise UsageError(
                f"the run to go on from in {self._request.checkpoint_dir} had another seed than {self._request.seed}: "
                "leave the seed out to go on with its own, or begin a new run."
            )
        self.seed, self.states, self._lent = seed, states, False

    def give_back(self, states: dict[str, Any]) -> None:
        """Let this process have the states that a cell has left, if it went on with those here and began."""
        if self._lent:
            ended(self.states, states)
