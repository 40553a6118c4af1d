"""How often a rank tells where it is."""

from __future__ import annotations

from collections import Counter
from typing import Any

import keras
import numpy as np
import pytest

from tfos_magic.training.logs import progress
from tfos_magic.training.logs.progress import Reporter
from tfos_magic.training.loop import Fit
from tfos_magic.transport.messages import Message


@pytest.mark.parametrize(("ranks", "of_rank_0", "of_others"), [(2, 41, 41), (250, 41, 41), (4000, 41, 3)])
def test_many_ranks_do_not_tell_more_than_the_kernel_hears(
    monkeypatch: pytest.MonkeyPatch, ranks: int, of_rank_0: int, of_others: int
) -> None:
    now, told = 100.0, Counter[int]()
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)

    def take(message: Message) -> None:
        told[message.rank] += 1  # type: ignore[attr-defined]

    reporters = [Reporter("run", rank, take, lambda: 0, ranks=ranks) for rank in (0, 1)]
    for step in range(1025):  # 10.24 s
        now = 100.0 + step / 100
        for reporter in reporters:
            if reporter.due():
                reporter.progress("train", epoch=0, epochs=1, step=step, steps=1025)
    assert (told[0], told[1]) == (of_rank_0, of_others)


def test_epochs_before_a_resumed_run_have_the_numbers_that_were_theirs() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((4, 2))
    history = model.fit(
        x, x[:, :1], epochs=5, initial_epoch=1, validation_data=(x, x[:, :1]), validation_freq=2, verbose=0
    )
    history.history["now and then"] = [1.0]
    fit = Fit(0, 1, 5, 2, {}, history)
    told: list[Any] = []
    Reporter("run", 0, told.append, lambda: 0).past_epochs(5, fit.past())
    assert [(end.epoch, sorted(end.metrics)) for end in told] == [
        (1, ["loss", "val_loss"]),
        (2, ["loss"]),
        (3, ["loss", "val_loss"]),
        (4, ["loss"]),
    ]
    assert [end.metrics["val_loss"] for end in told[::2]] == history.history["val_loss"]
