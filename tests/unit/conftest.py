"""A control server, and what it hears."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import pytest

from tests.unit.control import Inbox
from tfos_magic.transport.control_server import ControlServer


@pytest.fixture
def inbox() -> Inbox:
    return queue.SimpleQueue()


@pytest.fixture
def server(inbox: Inbox) -> Iterator[ControlServer]:
    made = ControlServer("127.0.0.1", 0, lambda peer, message: inbox.put((peer, message)))
    yield made
    made.close()
