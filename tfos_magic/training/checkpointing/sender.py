"""Checkpoints on their way from rank 0 to the kernel."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from uuid import uuid4

from tfos_magic.checkpoints.checkpoint import Checkpoint, encode, split
from tfos_magic.errors import ClusterError
from tfos_magic.training.logs.progress import Reporter
from tfos_magic.transport.messages import Message

SEND_SECONDS = 300.0
BYTES_PER_SECOND = 100e6


class Sender:
    """Encodes and sends checkpoints in a thread, one at a time. ``seconds`` is what the last one took, in all."""

    def __init__(self, run_id: str, emit: Callable[[Message], None], reporter: Reporter) -> None:
        self._run_id, self._emit, self._reporter = run_id, emit, reporter
        self._thread: threading.Thread | None = None
        self.seconds = 0.01
        self._measured = False

    def expect(self, size: int) -> None:
        """Before the first checkpoint, guess what one of ``size`` bytes will take."""
        if not self._measured:
            self.seconds = max(self.seconds, size / BYTES_PER_SECOND)

    def send(self, checkpoint: Checkpoint, started: float) -> None:
        """Send in the background what was taken from ``started`` on; waits for the one before."""
        self.join()
        copied = time.monotonic() - started
        self._thread = threading.Thread(
            target=self._send, args=(checkpoint, copied), name="tfos-checkpoint-sender", daemon=True
        )
        self._thread.start()

    def join(self) -> None:
        """Return when nothing is being sent. Raises :class:`ClusterError` after ``SEND_SECONDS`` seconds."""
        if self._thread is None:
            return
        self._thread.join(SEND_SECONDS)
        if self._thread.is_alive():
            raise ClusterError(
                f"a checkpoint did not leave the worker within {SEND_SECONDS:.0f} s: the kernel, or the connection to "
                "it, is too slow for this model's size. Take fewer checkpoints with --checkpoint-every."
            )
        self._thread = None

    def _send(self, checkpoint: Checkpoint, copied: float) -> None:
        began = time.monotonic()
        try:
            data = encode(checkpoint)
        except MemoryError:
            self._reporter.notice("A checkpoint was skipped: rank 0 lacks the memory for a copy of the model.")
            return
        for part in split(self._run_id, f"{checkpoint.position.label}-{uuid4().hex[:8]}", checkpoint.position, data):
            self._emit(part)
        self.seconds, self._measured = copied + time.monotonic() - began, True
