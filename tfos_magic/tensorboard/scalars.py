"""Epoch metrics as TensorBoard event files, written beside the kernel without TensorFlow.

The layout is the one of ``keras.callbacks.TensorBoard``: training values in ``train``, validation values in
``validation`` without their ``val_``, each tagged ``epoch_<metric>`` with the epoch as its step; a second ``fit`` of
the cell has its own in ``fit-2``. Records go straight through TensorBoard's own record writer; its higher-level writer
would import TensorFlow (seconds, hundreds of MB).
"""

from __future__ import annotations

import os
import socket
import time
from types import TracebackType

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_SCALAR, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_FLOAT
from tensorboard.plugins.scalar import metadata as scalar_plugin
from tensorboard.summary.writer.record_writer import RecordWriter

from tfos_magic.tensorboard.log_folders import local_path
from tfos_magic.transport.messages import EpochEnd


class ScalarWriter:
    """Writes a run's metrics under ``log_dir``, a local path; give :meth:`take` each epoch's end, then :meth:`close`.

    Raises :class:`~tfos_magic.errors.UsageError` for a ``log_dir`` that is not on this machine.
    """

    def __init__(self, log_dir: str) -> None:
        self._root = local_path(log_dir)
        self._files: dict[tuple[int, str], RecordWriter] = {}
        self._rewinding = False

    def take(self, end: EpochEnd) -> None:
        """Write what a run says of an epoch. The first that is trained again after :meth:`await_rewind` rewinds."""
        if end.past and self._rewinding:
            return
        if self._rewinding:
            self.rewind(end.epoch, end.fit)
            self._rewinding = False
        self.epoch(end.epoch, end.metrics, end.fit)

    def await_rewind(self) -> None:
        """The run begins, or begins again, from a checkpoint that is not known here."""
        self._rewinding = bool(self._files)

    def epoch(self, epoch: int, metrics: dict[str, float], fit: int = 0) -> None:
        """Write one value per metric at step ``epoch`` (from 0), and flush, so that a reader sees it at once."""
        for name, value in metrics.items():
            part, metric = ("validation", name[4:]) if name.startswith("val_") else ("train", name)
            self._file(fit, part).write(_scalar_event(f"epoch_{metric}", value, epoch))
        for file in self._files.values():
            file.flush()

    def rewind(self, epoch: int, fit: int = 0) -> None:
        """Take back what was written from step ``epoch`` of a fit on, for it is trained again; readers drop it.

        The mark is the one that TensorFlow's training sessions leave when they start from a checkpoint.
        """
        for (number, _), file in self._files.items():
            if number >= fit:
                file.write(_session_start(epoch if number == fit else 0))

    def close(self) -> None:
        """Close the files. A writer that is closed can be closed again."""
        while self._files:
            self._files.popitem()[1].close()

    def __enter__(self) -> ScalarWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _file(self, fit: int, part: str) -> RecordWriter:
        """Open an event file on first use: a run without validation leaves no empty curve."""
        if (fit, part) not in self._files:
            folder = self._root / (f"fit-{fit + 1}" if fit else "") / part
            folder.mkdir(parents=True, exist_ok=True)
            now = time.time_ns()
            name = f"events.out.tfevents.{now // 10**9:010d}.{socket.gethostname()}.{os.getpid()}.{now}.v2"
            self._files[fit, part] = writer = RecordWriter(open(folder / name, "xb"))  # noqa: SIM115 - closed by close()
            writer.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
            writer.write(_session_start(0))
        return self._files[fit, part]


def _session_start(step: int) -> bytes:
    """Encode a session's start: a file's first tells nothing, each further one that what follows replaces its steps."""
    start = SessionLog(status=SessionLog.START)
    encoded: bytes = Event(wall_time=time.time(), step=step, session_log=start).SerializeToString()
    return encoded


def _scalar_event(tag: str, value: float, step: int) -> bytes:
    """Encode a float32 scalar as TensorFlow 2's ``tf.summary.scalar`` does."""
    plugin = SummaryMetadata.PluginData(plugin_name=scalar_plugin.PLUGIN_NAME)
    metadata = SummaryMetadata(plugin_data=plugin, data_class=DATA_CLASS_SCALAR)
    tensor = TensorProto(dtype=DT_FLOAT, float_val=[value])
    summary = Summary(value=[Summary.Value(tag=tag, tensor=tensor, metadata=metadata)])
    encoded: bytes = Event(wall_time=time.time(), step=step, summary=summary).SerializeToString()
    return encoded
