"""Numbered messages over a line that loses, repeats and reorders."""

from __future__ import annotations

import random

import pytest

from tfos_magic.errors import ProtocolError
from tfos_magic.transport.redelivery import Redelivery


def test_messages_are_taken_once_and_in_order_whatever_the_line_does() -> None:
    chance = random.Random(4)
    here, there = Redelivery(), Redelivery()
    taken: list[bytes] = []
    for count in range(200):
        line = [here.numbered([b"%d" % count])]
        if chance.random() < 0.3:
            line += here.again()
        line = [frames for frames in line if chance.random() < 0.6]
        for frames in line + line[:1]:
            if (message := there.take(frames)) is not None:
                taken += message
        if chance.random() < 0.5:
            here.take(there.passing([b"heard"]))
    for frames in here.again():
        taken += there.take(frames) or []
    assert taken == [b"%d" % count for count in range(200)]


def test_what_was_acknowledged_is_not_kept() -> None:
    here, there = Redelivery(), Redelivery()
    for count in range(5):
        there.take(here.numbered([b"%d" % count]))
    here.numbered([b"lost"])
    assert here.take(there.passing([b"heard"])) == [b"heard"]
    assert [frames[1] for frames in here.again()] == [b"lost"]
    assert here.unacknowledged == len(b"lost")


def test_a_passing_message_is_taken_whatever_was_lost_before_it() -> None:
    here, there = Redelivery(), Redelivery()
    here.numbered([b"lost"])
    assert there.take(here.passing([b"beat"])) == [b"beat"]
    assert there.take(here.numbered([b"too early"])) is None


@pytest.mark.parametrize("frames", [[], [b"short"], [b"x" * 17, b""]])
def test_a_message_without_envelope_is_refused(frames: list[bytes]) -> None:
    with pytest.raises(ProtocolError, match="envelope"):
        Redelivery().take(frames)
