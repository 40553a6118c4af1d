"""What is said where a message cannot be sent or obeyed as it is: less of it, or why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tfos_magic.errors import MessageTooLarge
from tfos_magic.transport.messages.commands import RunCell, StartTrainer
from tfos_magic.transport.messages.events import CellLeft, Display, Notice, Output, RunFinished, TrainerReady
from tfos_magic.transport.messages.message import Message, encode

KEPT = 100_000
"""Letters that are kept of a text that is far too long."""


def encode_fitting(message: Message) -> list[bytes]:
    """The frames of ``message``, or of what there is room for of a text, a display or an error that is too large.

    Raises :class:`MessageTooLarge` for other messages.
    """
    try:
        return encode(message)
    except MessageTooLarge as error:
        return encode(_cut(message, error))


def refusal(order: Message, rank: int, error: Exception) -> Message | None:
    """What the kernel, which waits for an answer to ``order``, is told where the agent cannot carry it out."""
    said = f"{type(error).__name__}: {error}"[:KEPT]
    match order:
        case RunCell():
            return failed(order.run_id, rank, type(error).__name__, str(error))
        case StartTrainer():
            return TrainerReady(order.generation, order.rank, 0, error=said)
    return None


def failed(run_id: str, rank: int, kind: str, why: str) -> RunFinished:
    """The end of a run on a trainer that cannot be used any more."""
    told = {"kind": kind, "message": _shortened(why), "traceback": "", "line": 0, "cell_lines": "", "stopped": False}
    return RunFinished(run_id, rank, "error", error=told, clean=False)


def _cut(message: Message, error: MessageTooLarge) -> Message:
    match message:
        case Display():
            text = _shortened(str(message.data.get("text/plain", "")))
            return replace(message, data={"text/plain": f"{text}\n[not shown as it is: {error}]"}, metadata={})
        case Notice() | Output():
            return replace(message, text=_shortened(message.text))
        case TrainerReady():
            return replace(message, error=_shortened(message.error))
        case RunFinished():
            return _cut_end(message, error)
    raise error


def _cut_end(end: RunFinished, error: MessageTooLarge) -> RunFinished:
    told = {name: _shortened(value) if isinstance(value, str) else value for name, value in end.error.items()}
    cut = replace(end, error=told, missing=[_shortened(text) for text in end.missing])
    try:
        encode(cut)
    except MessageTooLarge:  # by what the cell has left in its process
        return replace(failed(end.run_id, end.rank, "MessageTooLarge", str(error)), left=CellLeft(), clean=end.clean)
    return cut


def _shortened(text: Any) -> str:
    """The beginning and the end of a text that is too long, and how much is missing in between."""
    whole = str(text)
    left_out = len(whole) - KEPT
    return whole if left_out <= 0 else f"{whole[: KEPT // 2]}\n[{left_out:,} letters left out]\n{whole[-KEPT // 2 :]}"
