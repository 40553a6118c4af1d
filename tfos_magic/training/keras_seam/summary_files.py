"""Sending on what rank 0's cell writes for TensorBoard, so that the notebook has it without a file system in common.

Every writer of TensorFlow 2, the one of ``keras.callbacks.TensorBoard`` included, comes into being through one
operation, which is told the folder. What grows there is read a second later and sent in pieces, each with its place in
its file.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gen_summary_ops

from tfos_magic.errors import ClusterError
from tfos_magic.training.keras_seam.seams import wrap
from tfos_magic.transport.messages import EventFilePart, Message
from tfos_magic.transport.messages.events import EVENT_FILE_BYTES, EVENT_RUN_BYTES

SECONDS_BETWEEN = 1.0
PART_BYTES = 256 << 10
PARTS_AT_ONCE = 16
FILE_BYTES, RUN_BYTES = EVENT_FILE_BYTES, EVENT_RUN_BYTES
SEND_SECONDS = 60.0

# The folders of the run's own scalars: what the cell writes must not become part of their curves.
_TAKEN = ("train", "validation", ".")


@dataclass(frozen=True)
class EventFolder:
    """Where the copies of a folder's event files belong, and the names in it that are older than the run."""

    path: str
    before: frozenset[str]


@contextmanager
def followed(run_id: str, emit: Callable[[Message], None], notice: Callable[[str], None]) -> Iterator[Follower]:
    """Follow the event files that this process begins within the block; all of them have been sent when it ends."""
    with ExitStack() as stack:
        follower = Follower(run_id, emit, notice)
        stack.callback(follower.close)
        wrap(stack, gen_summary_ops, "create_summary_file_writer", follower.note_writer)
        yield follower


class Follower:
    """Knows the folders with event files of this process, and how much of each file was sent.

    A thread looks after them from the first writer on. ``notice`` is told what is left out because a file has more than
    ``FILE_BYTES`` bytes, or all together more than ``RUN_BYTES``.
    """

    def __init__(self, run_id: str, emit: Callable[[Message], None], notice: Callable[[str], None]) -> None:
        self._run_id, self._emit, self._notice = run_id, emit, notice
        self._name_pattern = re.compile(rf"tfevents\..*\.{os.getpid()}\.")
        self._lock = threading.Lock()
        self._writers: list[Any] = []
        self._places: dict[Path, EventFolder] = {}
        self._sent: dict[Path, int] = {}
        self._total = 0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def note_writer(self, original: Callable[..., Any], writer: Any, logdir: Any, *args: Any, **kwargs: Any) -> Any:
        """Make a writer as TensorFlow does, and follow its folder where that is on this machine's disk."""
        folder = local_folder(logdir)
        if folder is None:
            return original(writer, logdir, *args, **kwargs)
        with self._lock:
            self._places.setdefault(folder, EventFolder(place_of(folder), frozenset(self._names(folder))))
        made = original(writer, logdir, *args, **kwargs)
        with self._lock:
            self._writers.append(writer)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="tfos-event-files", daemon=True)
                self._thread.start()
        return made

    def close(self) -> None:
        """Send what is left. Raises :class:`ClusterError` when nothing could be sent for ``SEND_SECONDS`` seconds."""
        self._over.set()
        if self._thread is None:
            return
        self._thread.join(SEND_SECONDS)
        if self._thread.is_alive():
            raise ClusterError(
                f"TensorBoard's event files did not leave the worker within {SEND_SECONDS:.0f} s: the connection to "
                "the kernel is too slow. Write fewer histograms and images, or none."
            )
        self._thread = None
        self._look(RUN_BYTES)

    def _watch(self) -> None:
        while not self._over.wait(SECONDS_BETWEEN):
            self._look(PARTS_AT_ONCE * PART_BYTES)

    def _look(self, budget: int) -> None:
        """Send what is new, at most about ``budget`` bytes of it."""
        self._flush()
        with self._lock:
            places = dict(self._places)
        for folder, place in places.items():
            for name in sorted(set(self._names(folder)) - place.before):
                budget -= self._send(folder / name, f"{place.path}/{name}", budget)

    def _flush(self) -> None:
        """Have the writers put on disk what they hold back, ten values or two minutes; forget those that are closed."""
        with self._lock:
            writers = list(self._writers)
        for writer in writers:
            try:
                with tf.device("CPU:0"):
                    gen_summary_ops.flush_summary_writer(writer)
            except tf.errors.OpError as error:
                if not isinstance(error, tf.errors.NotFoundError):
                    self._notice(f"A writer for TensorBoard cannot write on worker 0: {error.message}")
                with self._lock:
                    self._writers = [known for known in self._writers if known is not writer]

    def _names(self, folder: Path) -> list[str]:
        """The event files of this process in ``folder``: other ranks may write beside it."""
        try:
            return [name for name in os.listdir(folder) if self._name_pattern.search(name)]
        except OSError:
            return []  # not there yet, or no more; where it may not be read, the writer tells the cell

    def _send(self, file: Path, place: str, budget: int) -> int:
        """Send what has grown in ``file``; gives how many bytes that was."""
        begin = offset = self._sent.get(file, 0)
        try:
            with file.open("rb") as stream:
                stream.seek(offset)
                while offset - begin < budget and (piece := stream.read(PART_BYTES)):
                    if not self._has_room(file, offset + len(piece), len(piece)):
                        break
                    self._emit(EventFilePart(self._run_id, 0, place, str(file), offset, piece))
                    offset += len(piece)
        except FileNotFoundError:
            return 0  # the cell has tidied up
        except OSError as error:
            self._notice(f"An event file for TensorBoard cannot be read on worker 0: {file}: {error.strerror}.")
        self._sent[file] = offset
        self._total += offset - begin
        return offset - begin

    def _has_room(self, file: Path, size: int, more: int) -> bool:
        if size <= FILE_BYTES and self._total + more <= RUN_BYTES:
            return True
        self._notice(
            f"Only the first {(size - more) >> 20} MB of the event file {file.name} are sent to the notebook: the "
            f"limits are {FILE_BYTES >> 20} MB per file and {RUN_BYTES >> 20} MB per run. Write fewer histograms and "
            "images, or use a log directory that the notebook can see."
        )
        return False


def local_folder(logdir: Any) -> Path | None:
    """The folder that a writer was told, a string or an eager tensor; None where it is a URL, or not yet known."""
    value = logdir.numpy() if hasattr(logdir, "numpy") else logdir
    text = value.decode(errors="surrogateescape") if isinstance(value, bytes) else value
    if not isinstance(text, (str, os.PathLike)) or "://" in os.fspath(text):
        return None
    return Path(os.path.abspath(text))


def place_of(folder: Path) -> str:
    """Where the copy of ``folder`` belongs below the run's log directory, parts joined by ``/``.

    Below the working directory that is its path there, as the cell named it; elsewhere its whole path.
    """
    here = Path.cwd()
    place = folder.relative_to(here) if folder.is_relative_to(here) else folder.relative_to(folder.anchor)
    return f"cell/{place.as_posix()}" if place.as_posix() in _TAKEN else place.as_posix()
