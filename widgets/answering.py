"""Answering a page that was loaded again while a cell keeps the kernel's main thread.

A page that finds a widget in its notebook asks the kernel for the widget's state. The kernel would answer when the cell
has ended. The cell that trains is ours, though, and passes here some times a second: it looks what the page asked and
answers that itself, as the kernel would have done; everything else waits, in its order, until the cell has ended.

ipykernel 7 and later hands messages to its main thread through a socket, which is what is read here; its names are not
public, so where they are not found, nothing is answered and pages wait, as they do without this. The idea is that of
jupyter_ui_poll.
"""

from __future__ import annotations

import inspect
import sys
import threading
from contextvars import copy_context
from typing import Any

import zmq

from tfos_magic.notebook.signals import uninterrupted

_CONTROL = "jupyter.widget.control"
_QUESTIONS = ("kernel_info_request", "comm_info_request")


class Answering:
    """Answers questions for widgets' states in the main thread, from :meth:`poll` to :meth:`poll`."""

    def __init__(self) -> None:
        ipython = sys.modules.get("IPython")
        shell = ipython.get_ipython() if ipython else None
        self._kernel: Any = getattr(shell, "kernel", None)
        self._socket = _main_socket(self._kernel)
        self._controls: set[str] = set()
        self._kept: list[list[Any]] = []
        self.asked = False

    def poll(self) -> None:
        """Answer what came since the last call. To be called in the thread that runs the cell."""
        if self._socket is None or threading.current_thread() is not threading.main_thread():
            return
        while self._socket.poll(0):
            with uninterrupted():  # else what was received could be lost
                try:
                    frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
                except zmq.Again:
                    return
                if not self._answer(frames):
                    self._kept.append(frames)

    def close(self) -> None:
        """Give back what was not answered: the kernel handles it when the cell has ended."""
        kept, self._kept, self._socket = self._kept, [], None
        for frames in kept:
            self._kernel.io_loop.add_callback(self._kernel.shell_main, None, frames)

    def _answer(self, frames: list[Any]) -> bool:
        session = self._kernel.session
        try:
            idents, rest = session.feed_identities(frames, copy=False)
            peeked = session.deserialize(rest, content=False, copy=False)
            if not self._concerns_us(peeked["header"]["msg_type"], session.unpack(peeked["content"])):
                return False
        except (ValueError, KeyError, TypeError, IndexError):  # not a message of Jupyter's: the kernel shall say so
            return False
        message = session.deserialize(rest, content=True, copy=False)
        parent = self._kernel.get_parent("shell")
        ident = self._kernel._get_shell_context_var(self._kernel._shell_parent_ident)
        try:
            copy_context().run(self._handle, idents, message)
        finally:
            self._kernel.set_parent(ident, parent, channel="shell")
            self._kernel._publish_status("busy", "shell")
        return True

    def _concerns_us(self, kind: str, content: dict[str, Any]) -> bool:
        if kind == "comm_open" and content.get("target_name") == _CONTROL:
            self._controls.add(content["comm_id"])
            return True
        if kind == "comm_msg":
            asks = content.get("data", {}).get("method") == "request_state"
            self.asked = self.asked or asks or content["comm_id"] in self._controls
            return asks or content["comm_id"] in self._controls
        return kind in _QUESTIONS

    def _handle(self, idents: Any, message: dict[str, Any]) -> None:
        kernel = self._kernel
        stream = kernel.shell_channel_thread.manager.get_subshell_to_shell_channel_socket(None)
        kernel.set_parent(idents, message, channel="shell")
        kernel._publish_status("busy", "shell")
        result = kernel.shell_handlers[message["header"]["msg_type"]](stream, idents, message)
        if inspect.iscoroutine(result):
            try:
                result.send(None)  # none of these waits for anything
            except StopIteration:
                pass
            finally:
                result.close()
        kernel._publish_status("idle", "shell")


def _main_socket(kernel: Any) -> Any:
    """Where the kernel's main thread gets its messages; None where this ipykernel has no such place."""
    manager = getattr(getattr(kernel, "shell_channel_thread", None), "manager", None)
    socket = getattr(getattr(manager, "_shell_channel_to_main", None), "to_socket", None)
    needed = ("shell_main", "get_parent", "_get_shell_context_var", "_shell_parent_ident", "_publish_status")
    return socket if all(hasattr(kernel, name) for name in needed) else None
