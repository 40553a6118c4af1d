"""Interrupting what runs in the main thread, where that is allowed."""

from __future__ import annotations

import threading
import time

import pytest

from tfos_magic.worker.interrupts import Interrupts


def test_an_interrupt_ends_the_block_under_way() -> None:
    interrupts = Interrupts()
    sender = threading.Timer(0.2, interrupts.send)
    sender.start()
    with pytest.raises(KeyboardInterrupt), interrupts.allowed():
        time.sleep(30)
    sender.join()


def test_one_that_comes_before_the_block_ends_it_and_not_the_next_cells() -> None:
    interrupts = Interrupts()
    interrupts.send()
    with pytest.raises(KeyboardInterrupt), interrupts.allowed():
        time.sleep(30)
    interrupts.forget()
    with interrupts.allowed():
        time.sleep(0.5)
