"""When an interrupt is heard."""

from __future__ import annotations

import signal

import pytest

from tfos_magic.notebook.signals import uninterrupted


def test_an_interrupt_is_heard_when_what_must_not_be_cut_off_is_done() -> None:
    before, done = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["all of it"]
    assert signal.getsignal(signal.SIGINT) is before
