"""Widgets without a page: what they would send is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import comm
import ipykernel.kernelapp  # noqa: F401  before channels are recorded: loading it takes them over
import pytest
from comm.base_comm import BaseComm
from ipywidgets import Widget


class RecordingComm(BaseComm):
    """Stands in for the channel to a page, which needs a kernel."""

    sent: list[tuple[str, Any]]

    def publish_msg(self, msg_type: str, data: Any = None, *_: Any, **__: Any) -> None:
        self.sent.append((msg_type, data))


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, Any]]]:
    messages: list[tuple[str, Any]] = []
    monkeypatch.setattr(RecordingComm, "sent", messages, raising=False)
    monkeypatch.setattr(comm, "create_comm", RecordingComm)
    yield messages
    Widget.close_all()
