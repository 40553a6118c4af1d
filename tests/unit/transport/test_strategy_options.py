"""Options of a strategy are those that it has, with values that mean something."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from tfos_magic.errors import TrainingError, UsageError
from tfos_magic.transport.messages import STRATEGIES, TOGETHER, StrategyOptions


def test_a_strategy_takes_its_own_options_alone() -> None:
    assert StrategyOptions.of("local", {"sync_every": 3}).sync_every == 3
    with pytest.raises(UsageError, match="strategy sync has no option sync_every: it has bucket_mb"):
        StrategyOptions.of("sync", {"sync_every": 3})
    assert StrategyOptions.of("local", {"compression": "int8"}).given() == {"compression": "int8"}
    with pytest.raises(UsageError, match="take bfloat16, or strategy local"):
        StrategyOptions.of("sync", {"compression": "int8"})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"bucket_mb": 0}, "bucket_mb: '0' is not greater than 0"),
        ({"compression": "zip"}, "'zip' is none of none, float16, bfloat16"),
        ({"max_staleness": -1}, "max_staleness: '-1' is not a whole number"),
        ({"outer_momentum": 1.0}, "from 0 to below 1"),
        ({"outer_learning_rate": float("nan")}, "not a finite number"),
    ],
)
def test_values_that_mean_nothing_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(TrainingError, match=says):
        StrategyOptions(**options)


def test_what_is_offered_is_what_trainers_know() -> None:
    from tfos_magic.training import distributed_cell

    assert set(STRATEGIES) == set(distributed_cell.STRATEGIES)
    assert set(TOGETHER) <= set(STRATEGIES)
    assert {name for field in fields(StrategyOptions) for name in field.metadata["strategies"]} <= set(STRATEGIES)
