"""An agent's connection to the kernel: found again when it breaks, and then nothing is lost or comes twice."""

from __future__ import annotations

import logging
import secrets
import time

import zmq
from zmq.utils.monitor import recv_monitor_message

from tfos_magic.errors import ProtocolError
from tfos_magic.transport.agent_config import AgentConfig
from tfos_magic.transport.curve import allow_slow_handshakes, beat, secure_client, unbounded
from tfos_magic.transport.log_once import LogOnce
from tfos_magic.transport.messages import AgentFailed, Heartbeat, Message, Reconnected, decode, encode
from tfos_magic.transport.redelivery import Redelivery

_EVENTS = zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED

DIAL_SECONDS = 5
"""How long one dial may take, where no packet comes back, before the next."""

log = logging.getLogger("tfos_magic.worker")


class ControlClient:
    """Dials the kernel's control socket with the cluster's key. To be used in one thread."""

    def __init__(self, config: AgentConfig) -> None:
        self._context = zmq.Context()
        self.socket = _socket(self._context, config)
        # Before the socket dials: a handshake that is done before anyone listens would never be heard of.
        self.monitor = self.socket.get_monitor_socket(_EVENTS)
        self.socket.connect(config.endpoint)
        self._delivery = Redelivery()
        self._log = LogOnce(log)
        self._lost_at: float | None = time.monotonic()
        self._endpoint, self._met = config.endpoint.removeprefix("tcp://"), False
        self._relayed = config.relayed
        self.answered = True
        """Whether the kernel's socket has taken a connection since it was lost: then the kernel lives, and is busy.

        So it is taken to be at first, for it has just started this agent.
        """

    @property
    def out_of_reach(self) -> float:
        """Seconds since the kernel was lost; 0 while it is there."""
        return 0.0 if self._lost_at is None else time.monotonic() - self._lost_at

    def describe_loss(self, host: str, seconds: float) -> str:
        """That ``host`` could not reach the kernel for so many ``seconds``, and what to do if it never has."""
        if self._met:
            return f"the kernel has been out of reach for {seconds:.0f} s"
        if self._relayed:
            return (
                f"host {host} had no answer from the kernel by the relay at {self._endpoint}, which it tried for "
                f"{seconds:.0f} s: executors must reach each other at that address, and Spark must have a slot for "
                "messages. Leave %config TFOS.driver_host empty, or set it to an address of the kernel's machine by "
                "which executors have an address for each other; %tfos doctor tries it"
            )
        return (
            f"host {host} could not reach the kernel at {self._endpoint}, which it tried for {seconds:.0f} s: open "
            "that port between them, or set %config TFOS.driver_host to an address of the kernel's machine that "
            "executors reach, and TFOS.control_port to a port that is open; %tfos doctor tries it. Or let messages go "
            "by Spark: --via spark"
        )

    @property
    def backlog(self) -> int:
        """Bytes of messages that the kernel has not acknowledged; it does so about once a second."""
        return self._delivery.unacknowledged

    def excuse(self, seconds: float) -> None:
        """Do not count these seconds, in which this process could not look for the kernel."""
        if self._lost_at is not None:
            self._lost_at = min(self._lost_at + seconds, time.monotonic())

    def send(self, message: Message) -> None:
        """Send now, or as soon as the kernel is there again."""
        frames = encode(message)
        passing = isinstance(message, (Heartbeat, Reconnected))
        self._put(self._delivery.passing(frames) if passing else self._delivery.numbered(frames))

    def receive(self) -> Message | None:
        """Take a message that has come; None where it came before, or is malformed."""
        try:
            frames = self._delivery.take(self.socket.recv_multipart())
            return decode(frames) if frames else None
        except ProtocolError as error:
            self._log.warning(error.kind, f"dropped a malformed command: {error}")
            return None

    def note_connection(self) -> None:
        """Take an event of the connection; one that is there again makes both sides repeat what was lost with it."""
        event = recv_monitor_message(self.monitor)["event"]
        if event != zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.answered = event == zmq.EVENT_CONNECTED
            self._lost_at = self._lost_at or time.monotonic()
            return
        self._lost_at, self._met = None, True
        self.send(Reconnected())
        for frames in self._delivery.again():
            self._put(frames)

    def close(self) -> None:
        """Send what is left, for at most a second."""
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close()
        self._context.term()

    def _put(self, frames: list[bytes]) -> None:
        self.socket.send_multipart(frames, copy=False)


def report_failure(config: AgentConfig, host: str, reason: str) -> None:
    """Tell the kernel that no agent can run on this host, and why."""
    client = ControlClient(config)
    client.send(AgentFailed(host, reason))
    client.close()


def _socket(context: zmq.Context[zmq.Socket[bytes]], config: AgentConfig) -> zmq.Socket[bytes]:
    control = context.socket(zmq.DEALER)
    # By this name the kernel knows the agent when it comes back.
    control.routing_id = f"{config.job}-{secrets.token_hex(8)}".encode()
    secure_client(control, config.server_public, config.public, config.secret)
    if config.relayed:
        allow_slow_handshakes(control)
    unbounded(control, linger=1)
    beat(control, seconds=1, patience=config.contact_timeout, peers_patience=3 * config.contact_timeout)
    control.reconnect_ivl = 100
    control.connect_timeout = DIAL_SECONDS * 1000
    return control
