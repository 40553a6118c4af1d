"""Who asked for a cluster hears what is waited for, as it changes."""

from __future__ import annotations

import threading
import time

from tfos_magic.cluster.startup import heard_by, tell, wait_until


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
