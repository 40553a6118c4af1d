"""A program that does what strangers can, all at once, and an agent that turned bad.

It is told the ports and the keys of two agents. It says ``begun`` when it has idle connections at every port and each
kind of attack has come once, goes on until its input ends, and then says how often it did what.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress

import zmq

from tests.security.conftest import GREETING, HUGE, dial
from tests.security.nonsense import nonsense
from tfos_magic.transport.control_server import AgentKeys
from tfos_magic.transport.curve import secure_client
from tfos_magic.transport.redelivery import Redelivery

IDLE, BETWEEN = 1000, 0.2
Address = tuple[str, int]


class Attack:
    """Kinds of attack, each in a thread of its own, until ``end``."""

    def __init__(self, ports: list[Address], control: Address, keys: AgentKeys, others: AgentKeys) -> None:
        self.ports, self.control, self.keys, self.others = ports, control, keys, others
        self.done: Counter[str] = Counter()
        self.end = threading.Event()
        self._hello = b""

    def begin(self) -> list[threading.Thread]:
        kinds: list[Callable[[Address], None]] = [
            self.noise, self.half_a_frame, self.oversize, self.wrong_keys, self.foreign_certificate, self.replay,
        ]  # fmt: skip
        threads = [threading.Thread(target=self._each, args=(kind,)) for kind in kinds]
        threads += [threading.Thread(target=self.drip), threading.Thread(target=self.mutate)]
        for thread in threads:
            thread.start()
        return threads

    def _each(self, kind: Callable[[Address], None]) -> None:
        while not self.end.is_set():
            for address in self.ports:
                with suppress(OSError):
                    kind(address)
                self.done[kind.__name__] += 1
            self.end.wait(BETWEEN)

    def noise(self, address: Address) -> None:
        self._say(address, os.urandom(4096))

    def half_a_frame(self, address: Address) -> None:
        self._say(address, GREETING + b"\x04\x20half of it")

    def oversize(self, address: Address) -> None:
        self._say(address, GREETING + b"\x06" + HUGE + bytes(1 << 20))
        self._say(address, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff\xff\xff\x00\x00" + bytes(1 << 20))

    def wrong_keys(self, address: Address) -> None:
        """Greet as one whom the server's public key is known to, with a pair that nobody issued."""
        with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
            stranger.linger = 0
            secure_client(stranger, self.keys.server_public, *zmq.curve_keypair())
            stranger.connect("tcp://{}:{}".format(*address))
            stranger.send(b"hear me")
            stranger.poll(50)

    def foreign_certificate(self, address: Address) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with (
            socket.create_connection(address, timeout=2) as plain,
            context.wrap_socket(plain, server_hostname="worker-0.tfos") as wrapped,
        ):
            wrapped.sendall(bytes(1 << 16))
            wrapped.recv(1)

    def replay(self, address: Address) -> None:
        """Say again what a worker said that was let in: its half of the handshake, and what came after."""
        self._say(address, self._hello or self._listen_in())

    def _listen_in(self) -> bytes:
        """The bytes that a worker with a key says to the control socket, whose answers it gets."""
        with socket.create_server(("127.0.0.1", 0)) as between, zmq.Context() as context:
            agent = dial(context, between.getsockname()[1], self.others, "other")
            agent.send_multipart([b"?"])
            taken, _ = between.accept()
            with taken, socket.create_connection(self.control, timeout=2) as real:
                ends, heard = {taken: real, real: taken}, b""
                for end in ends:
                    end.settimeout(0.05)
                for _ in range(20):
                    for end, other in ends.items():
                        with suppress(TimeoutError):
                            words = end.recv(1 << 16)
                            other.sendall(words)
                            heard += words if end is taken else b""
            agent.close()
        self._hello = heard
        return heard

    def drip(self) -> None:
        """One byte at a time at every port."""
        while not self.end.is_set():
            with ExitStack() as opened, suppress(OSError):
                drops = [opened.enter_context(socket.create_connection(each, timeout=2)) for each in self.ports]
                self.done["drip"] += 1
                for at in range(len(GREETING)):
                    for each in drops:
                        each.sendall(GREETING[at : at + 1])
                    if self.end.wait(0.5):
                        break
            self.end.wait(BETWEEN)

    def mutate(self) -> None:
        """Send all mutated messages as an agent that has a key, no faster than they are taken."""
        with zmq.Context() as context, dial(context, self.control[1], self.keys) as agent:
            delivery = Redelivery()
            for frames in nonsense():
                agent.send_multipart([delivery.passing([])[0], *frames])
                self.done["mutate"] += 1
                time.sleep(0.0002)
            agent.linger = 2000

    def _say(self, address: Address, words: bytes) -> None:
        with socket.create_connection(address, timeout=2) as stranger:
            stranger.sendall(words)


def main() -> None:
    told = json.loads(sys.stdin.readline())
    ports = [(host, port) for host, port in told["ports"]]
    attack = Attack(ports, ports[0], *(AgentKeys(*(key.encode() for key in pair)) for pair in told["keys"]))
    with ExitStack() as opened:
        for number in range(IDLE):
            with suppress(OSError):
                opened.enter_context(socket.create_connection(ports[number % len(ports)], timeout=2))
        threads = attack.begin()
        while len(attack.done) < len(threads):
            time.sleep(0.05)
        print("begun", flush=True)
        sys.stdin.read()
        attack.end.set()
        for thread in threads:
            thread.join()
    print(json.dumps(attack.done), flush=True)


if __name__ == "__main__":
    main()
