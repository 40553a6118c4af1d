"""Functions made distributed: what is refused before anything starts, and how they show themselves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pandas as pd
import pytest

from tfos_magic import distributed
from tfos_magic.cluster import shared
from tfos_magic.cluster.runs.run import Run
from tfos_magic.errors import ClusterError, UsageError


def fit(data: object, rate: float = 0.1) -> None:
    """Nothing runs here."""


def test_a_table_of_this_process_is_refused_where_options_tell_how_a_spark_dataframe_is_fed() -> None:
    with pytest.raises(UsageError, match=r"fit has label, matrix, .* pass spark\.createDataFrame\(data\)"):
        distributed(label="y", matrix=True)(fit)(pd.DataFrame({"x": [1.0], "y": [2.0]}))


def test_an_unknown_option_is_refused_where_the_function_is_decorated() -> None:
    with pytest.raises(UsageError, match=r"no option 'lable'\. Did you mean 'label'"):
        distributed(lable="y")(fit)  # type: ignore[call-overload]


def test_it_shows_its_name_and_parameters() -> None:
    assert repr(distributed(fit)) == "<distributed fit(data: 'object', rate: 'float' = 0.1) -> 'None'>"


def test_runs_are_told_apart_by_defaults_too() -> None:
    assert distributed(fit)._options_of((1,), {})["names"] == {"data": 1, "rate": 0.1}


def test_a_run_that_starts_the_cluster_is_named_to_those_who_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "SHARED", shared.SharedCluster())
    with pytest.raises(ClusterError, match="There is no cluster: %tfos start starts one"):
        shared.current_cluster()
    shared.SHARED.queue.join(cast(Run, SimpleNamespace(name="run 1")))
    with pytest.raises(ClusterError, match="no cluster yet: run 1 is starting it"):
        shared.current_cluster()
