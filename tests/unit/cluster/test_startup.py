"""Who asked for a cluster hears what is waited for, as it changes."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future

import pytest

from tfos_magic.cluster.startup import (
    Waits,
    await_end,
    heard_by,
    heard_somewhere,
    shown_by,
    tell,
    tell_while,
    wait_until,
)

pytestmark = pytest.mark.slow


def test_what_is_waited_for_is_told_until_it_is_there() -> None:
    changed, there, told = threading.Condition(), list[int](), list[str]()

    def come() -> None:
        for agent in range(2):
            time.sleep(0.1)
            with changed:
                there.append(agent)
                changed.notify_all()

    thread = threading.Thread(target=come)
    with heard_by(lambda what, until: told.append(what)):
        tell("a Spark session")
        thread.start()
        wait_until(changed, lambda: len(there) == 2, 10, lambda: f"agents: {len(there)} of 2")
    thread.join()
    assert (told[0], told[-1]) == ("a Spark session", "agents: 2 of 2")
    assert "agents: 1 of 2" in told
    tell("nobody hears")
    assert "nobody hears" not in told


def test_waiting_ends_in_time_and_who_hears_does_so_without_the_lock() -> None:
    changed, free, deadlines = threading.Condition(), list[bool](), list[float]()

    def look() -> None:
        free.append(changed.acquire(timeout=5))
        changed.release()

    def hear(_: str, until: float) -> None:
        deadlines.append(until)
        other = threading.Thread(target=look)
        other.start()
        other.join()

    began = time.monotonic()
    with heard_by(hear):
        wait_until(changed, lambda: False, 0.3, lambda: "what never comes")
    assert time.monotonic() - began < 5
    assert began < deadlines[0] == deadlines[-1] <= began + 5.3
    assert free
    assert all(free)


def test_what_blocks_is_done_in_a_thread_of_its_own_and_told_again_and_again() -> None:
    told: list[str] = []
    with heard_by(lambda what, until: told.append(what)), heard_somewhere(Waits()):
        name = tell_while("a while", 9.0, lambda: time.sleep(0.8) or threading.current_thread().name)
        with pytest.raises(TimeoutError, match="its own"):
            tell_while("an error", 9.0, lambda: _raise(TimeoutError("its own")))
    assert name != threading.current_thread().name
    assert told.count("a while") > 1


def _raise(error: Exception) -> str:
    raise error


def test_each_wait_of_some_seconds_is_printed_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with heard_somewhere(Waits()):
        for seconds in (0.0, 2.0, 3.5, 4.0):
            now[0] = 100.0 + seconds
            tell(f"free slots of Spark: {seconds:.0f} of 9", 130.0)
        tell("a relay")
    assert capsys.readouterr().out == (
        "waiting for free slots of Spark: 4 of 9 (at most 26 s more)\nwaiting for a relay\n"
    )


def test_who_shows_a_wait_may_end_it_and_a_wait_for_an_end_lasts_no_longer_than_asked() -> None:
    never, noted = Future[None](), list[str]()

    def show() -> None:
        if len(noted) == 2:
            raise InterruptedError

    with shown_by(show, lambda what, until: noted.append(what)), pytest.raises(InterruptedError):
        await_end(never, 60, "run 1 to end")
    assert noted == ["run 1 to end"] * 2
    began = time.monotonic()
    await_end(never, 0.3, "run 1 to end")
    assert 0.3 <= time.monotonic() - began < 5


def test_what_hinders_a_wait_is_told_instead_of_it_and_may_end_it() -> None:
    told, looks = list[str](), iter(["", "a server"])
    work = threading.Event()

    def check() -> str:
        try:
            return next(looks)
        except StopIteration:
            raise InterruptedError from None

    with heard_by(lambda what, until: told.append(what)), pytest.raises(InterruptedError):
        tell_while("a relay", time.monotonic() + 60, work.wait, check)
    work.set()
    assert told == ["a relay", "a server"]
