"""What ranks do together at the seams of a loop: mixed into a callback, of Keras 3 and of ``tf_keras``."""

from __future__ import annotations

from typing import Any

from tfos_magic.training.loop import Loop
from tfos_magic.training.rank_session import Session


class _Hooks:
    def __init__(self, session: Session, loop: Loop) -> None:
        super().__init__()
        self._session = session
        self._loop = loop


class RunHooks(_Hooks):
    """Keeps ranks together; the last of a loop's callbacks, so that it sees what the others did."""

    model: Any
    params: Any

    def take_over(self) -> None:
        """Give every rank rank 0's variables."""
        raise NotImplementedError

    def begin(self) -> None:
        """What there is to do more when a training begins."""

    def _count(self, name: str) -> int:
        """A count among Keras's ``params``, a number of NumPy's too; 0 for none, which Keras refuses by itself."""
        return int(self.params.get(name) or 0)

    def on_train_begin(self, logs: Any = None) -> None:
        self._loop.epochs, self._loop.steps = self._count("epochs"), self._count("steps")
        self._session.reporter.begin_fit()
        self._session.checkpointer.begin(self._loop)
        if self._session.replicas.may_wait(self._loop):
            self._loop.opening = self._open
        else:
            self._open()
        self.begin()
        if self._session.many:
            self._session.strategy.begin(self.model)

    def _open(self) -> None:
        """What wants the model's variables. Where the model is not built, its first step does this, as in one process:
        callbacks may have seeded what draws its weights."""
        self._loop.opening = None
        self._session.replicas.prepare(self._loop)
        self._session.checkpointer.open(self._loop)
        self.take_over()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._loop.epoch, self._loop.step = epoch, 0
        if self._session.many:
            self._session.strategy.begin_epoch(epoch)
        self._session.checkpointer.epoch_begins(self._loop)
        self._session.report("train", self._loop)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._session.report("train", self._loop, logs)
        self._session.reporter.epoch_end(epoch, self._loop.epochs, logs or {})
        if self._session.many:
            self._session.poll_end(self._loop, logs)
        self._session.checkpointer.epoch_ends(self._loop)

    def on_train_end(self, logs: Any = None) -> None:
        if self._session.many:
            self._session.replicas.unify(self.model)

    def on_test_begin(self, logs: Any = None) -> None:
        loop = self._session.loop
        if loop is None:
            return
        self._session.replicas.prepare(loop)
        if loop is self._loop:
            loop.steps = self._count("steps")
            self.take_over()
        else:
            loop.epoch, loop.epochs = self._loop.epoch, self._loop.epochs
        self._session.report("validate", loop)


class EndHooks(_Hooks):
    """Lets a training end after the very batch after which a callback before it wants that, as one process does."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._session.poll_end(self._loop)
