"""A run ends where every rank knows of it: by request, by a callback, or because a peer is lost."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection

import pytest

from tests.soak import every
from tests.training.conftest import succeeded
from tests.training.harness import DATA, PROCESSES, Group

ENDLESS = DATA + (
    """
model = mlp()
model.compile("adam", from_logits)
steps = []
count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: steps.append(step))
raised = ""
try:
    model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(29).repeat(), steps_per_epoch=10**6, epochs=100,
              verbose=0, callbacks=[count])
except Exception as error:
    raised = type(error).__name__
iterations = int(model.optimizer.iterations.numpy())
"""
)


@pytest.mark.parametrize("size", every(3, [3, 1, 2]))
def test_a_request_to_one_rank_stops_all_at_the_same_step(groups, size: int) -> None:
    group = groups[size]
    asked: list[float] = []

    def ask(rank: int, message: object) -> None:
        if not asked and getattr(message, "rows", 0) > 100:
            asked.append(time.monotonic())
            group.stop(size - 1)

    outcomes = succeeded(group.run(ENDLESS, "raised", "iterations", on_message=ask))
    assert time.monotonic() - asked[0] < 10.0
    assert {outcome.values["raised"] for outcome in outcomes} == {"RunStopped"}
    assert len({outcome.values["iterations"] for outcome in outcomes}) == 1
    assert outcomes[0].values["iterations"] > 0


@pytest.mark.parametrize("size", every(2, [2, 1]))
def test_a_request_during_evaluation_stops_all(groups, size: int) -> None:
    cell = DATA + (
        """
model = mlp()
model.compile("adam", from_logits)
raised = ""
try:
    model.evaluate(tf.data.Dataset.from_tensor_slices((x, y)).batch(29).repeat(), steps=10**7, verbose=0)
except Exception as error:
    raised = type(error).__name__
"""
    )
    group = groups[size]

    def ask(rank: int, message: object) -> None:
        if getattr(message, "step", 0) > 0:
            group.stop(rank)

    outcomes = succeeded(group.run(cell, "raised", on_message=ask))
    assert {outcome.values["raised"] for outcome in outcomes} == {"RunStopped"}


@pytest.mark.soak
def test_the_next_cell_trains_after_a_stop(groups, same_as_plain) -> None:
    test_a_request_to_one_rank_stops_all_at_the_same_step(groups, 2)
    cell = DATA + (
        """
model = mlp()
model.compile("adam", from_logits)
history = model.fit(x, y, batch_size=29, verbose=0).history
weights = model.get_weights()
"""
    )
    same_as_plain(cell, 2)


@pytest.mark.parametrize("moment", every(2, ["on_train_batch_end", "on_epoch_end"]))
def test_stop_training_on_one_rank_ends_the_training_of_all(groups, moment: str) -> None:
    cell = DATA + (
        f"""
class Impatient(keras.callbacks.Callback):
    def {moment}(self, index, logs=None):
        if rank == 1 and index == 2:
            self.model.stop_training = True


model = mlp()
model.compile("adam", from_logits)
history = model.fit(x, y, batch_size=10, epochs=6, verbose=0, callbacks=[Impatient()]).history
epochs, iterations, flag = len(history["loss"]), int(model.optimizer.iterations.numpy()), model.stop_training
"""
    )
    outcomes = succeeded(groups[2].run(cell, "epochs", "iterations", "flag"))
    assert outcomes[0].values == outcomes[1].values
    expected = {"on_train_batch_end": (1, 3), "on_epoch_end": (3, 42)}[moment]
    assert (outcomes[0].values["epochs"], outcomes[0].values["iterations"]) == expected
    assert outcomes[0].values["flag"] is True


ENDS = """
seen = []


class Ends(keras.callbacks.Callback):
    def __init__(self, moment, at):
        super().__init__()
        setattr(self, moment, lambda index, logs=None: self.end(index == at))

    def end(self, now):
        if now:
            self.model.stop_training = True


class Looks(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        seen.append(self.model.stop_training)

    def on_epoch_end(self, epoch, logs=None):
        seen.append(self.model.stop_training)


class GoesOn(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = False


def fit(*callbacks):
    seen.append(len(model.fit(x, y, batch_size=29, epochs=4, verbose=0, callbacks=callbacks).epoch))


model = mlp()
model.compile("sgd", from_logits)
fit(Ends("on_epoch_end", 1), Looks())
fit(Looks())
fit(keras.callbacks.EarlyStopping("loss", min_delta=5.0))
model.stop_training = True
fit()
fit(Ends("on_epoch_end", 1), GoesOn())
fit(Ends("on_train_batch_end", 1), GoesOn(), Looks())
seen.append(int(model.optimizer.iterations.numpy()))
history, weights = {}, model.get_weights()
"""


@pytest.mark.soak
@pytest.mark.parametrize("library", every(2, ["keras", "tf_keras as keras"]))
def test_a_training_ends_and_the_next_begins_as_in_one_process(same_as_plain, library: str) -> None:
    pytest.importorskip(library.split()[0])
    cell = DATA.replace("import keras\n", f"import {library}\n") + ENDS
    expected, *outcomes = same_as_plain(cell, 2, "seen")
    for outcome in outcomes:
        assert outcome.values["seen"] == expected.values["seen"]


def test_a_killed_peer_raises_cluster_error_soon() -> None:
    group = Group(2, collective_seconds=20.0)
    try:
        killed: list[float] = []

        def kill(rank: int, message: object) -> None:
            if not killed and getattr(message, "rows", 0) > 100:
                killed.append(time.monotonic())
                group.processes[1].kill()

        outcomes = group.run(ENDLESS, "raised", on_message=kill, seconds=60)
        assert time.monotonic() - killed[0] < 25.0
        assert outcomes[0].values["raised"] == "ClusterError"
        assert outcomes[1].kind == "Died"
    finally:
        group.close()


@pytest.mark.soak
def test_a_peer_that_is_late_raises_cluster_error_after_the_timeout() -> None:
    group = Group(2, collective_seconds=3.0)
    try:
        cell = """
import threading

text = ""
if rank == 0:
    try:
        collectives.barrier(2.0)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
else:
    threading.Event().wait(4.0)
"""
        waited, late = group.run(cell, "text")
        assert waited.values["text"].startswith("ClusterError: rank 0 waited for a barrier with all 2 ranks")
        assert late.kind == "ClusterError"
    finally:
        group.close()


def test_a_group_whose_peer_never_comes_says_who_is_missing() -> None:
    receiver, sender = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=_form_alone, args=(sender,), daemon=True)
    process.start()
    assert receiver.poll(60)
    kind, text = receiver.recv()
    process.kill()
    process.join(10)
    assert kind == "ClusterError"
    assert "rank 1 at 127.0.0.1:1" in text


def _form_alone(sender: Connection) -> None:
    from tfos_magic.errors import ClusterError
    from tfos_magic.training.collectives import form_cluster

    try:
        form_cluster(0, ["127.0.0.1:0", "127.0.0.1:1"], timeout=2.0)
    except ClusterError as error:
        sender.send(("ClusterError", str(error)))
