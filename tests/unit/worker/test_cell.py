"""How a trainer tells what a cell raised."""

from __future__ import annotations

from tfos_magic.transport.messages import RunCell
from tfos_magic.worker.cell import describe_error


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_an_error_that_cannot_tell_itself_is_told_by_its_kind() -> None:
    described = describe_error(Mute(), RunCell("run", "raise Mute()", "<cell>", "sync", 0, []))
    assert described["kind"] == "Mute"
    assert described["message"] == "(its text cannot be told: RuntimeError)"
