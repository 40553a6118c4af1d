"""Hosts in network namespaces, and links between them with a rate, a delay and losses: Linux, as root.

A process that calls :meth:`Network.join` becomes a host with an address of its own, ``10.73.0.1`` and so on, and sees
no other network. Its packets pass through a process that holds them back as links would: what a host sends, and what
comes to it, goes at the rate of its link, waits in a queue of 100 ms, which drops what does not fit, and arrives half a
round trip later. A host can be cut off, and be there again. Packets are larger than Ethernet's, so that a process of
Python keeps up with a gigabit per second.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import heapq
import multiprocessing
import os
import random
import select
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import TracebackType

MTU = 16_000
QUEUE_SECONDS = 0.1
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFMTU = 0x8914, 0x8916, 0x891C, 0x8922
_IFF_UP_RUNNING = 0x41
_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class Link:
    """How each host is connected: bits per second, seconds to another host and back, and the part that gets lost."""

    rate: float = 1e9
    round_trip: float = 0.001
    loss: float = 0.0


class Network:
    """A network of ``size`` hosts, there while the block runs. It is pickled to the processes that are to join it."""

    def __init__(self, size: int, link: Link, open_ports: Sequence[int] | None = None) -> None:
        """With ``open_ports`` no other port of host 0 may be dialled: what tries is dropped, as by a NAT's router."""
        self._address = f"\0tfos-network-{os.getpid()}-{id(self)}"
        # Sockets without a path belong to a namespace of the network: those that join connect before they leave it.
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self._address)
        self._listener.listen(size)
        context = multiprocessing.get_context("fork")
        self.cut_off = context.RawArray("b", size)
        """By host: 1 where no packet of it arrives, nor any for it. To be set while the network is there."""
        self._relay = context.Process(target=_relay, args=(self._listener, link, self.cut_off, open_ports), daemon=True)

    def __enter__(self) -> Network:
        self._relay.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._relay.terminate()
        self._relay.join()
        self._listener.close()

    @property
    def door(self) -> str:
        """What a process needs to know to join."""
        return self._address

    @staticmethod
    def address(number: int) -> str:
        return f"10.73.0.{number + 1}"

    @staticmethod
    def join(door: str, number: int) -> None:
        """Make this process the host ``number`` of the network: its later sockets are there, and its children's."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as relay:
            relay.connect(door)
            if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "no network namespace can be made: this needs root")
            device = os.open("/dev/net/tun", os.O_RDWR)
            fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"tfos0", _IFF_TUN | _IFF_NO_PI))
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
                _bring_up(control, b"lo", None)
                _bring_up(control, b"tfos0", Network.address(number))
            socket.send_fds(relay, [bytes([number])], [device])
            os.close(device)
            relay.recv(1)  # all hosts are there


def available() -> bool:
    """Whether this process may make networks."""
    return os.geteuid() == 0 and os.access("/dev/net/tun", os.R_OK | os.W_OK)


def _bring_up(control: socket.socket, name: bytes, address: str | None) -> None:
    def request(number: int, what: bytes) -> None:
        fcntl.ioctl(control, number, struct.pack("16s24s", name, what))

    if address is not None:
        for number, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, "255.255.255.0")):
            request(number, struct.pack("HH4s", socket.AF_INET, 0, socket.inet_aton(value)))
        request(_SIOCSIFMTU, struct.pack("i", MTU))
    request(_SIOCSIFFLAGS, struct.pack("H", _IFF_UP_RUNNING))


def _relay(listener: socket.socket, link: Link, cut_off: Sequence[int], open_ports: Sequence[int] | None) -> None:
    with ExitStack() as opened:
        devices: dict[int, int] = {}
        hosts = []
        while len(devices) < len(cut_off):
            host = opened.enter_context(listener.accept()[0])
            number, descriptors, _, _ = socket.recv_fds(host, 1, 1)
            devices[number[0]] = descriptors[0]
            os.set_blocking(descriptors[0], False)
            hosts.append(host)
        for host in hosts:
            host.send(b"+")
        _pass_on(devices, link, cut_off, open_ports)


def _pass_on(devices: dict[int, int], link: Link, cut_off: Sequence[int], open_ports: Sequence[int] | None) -> None:
    """Carry packets between the hosts' devices for ever."""
    numbers = {device: number for number, device in devices.items()}
    leaving, arriving = dict.fromkeys(devices, 0.0), dict.fromkeys(devices, 0.0)
    under_way: list[tuple[float, int, int, bytes]] = []
    count = 0
    while True:
        wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        for device in select.select(numbers, [], [], wait)[0]:  # whose timeout is finer than a millisecond
            with suppress(BlockingIOError):
                for _ in range(16):
                    packet = os.read(device, MTU + 64)
                    number, now = packet[19] - 1, time.monotonic()
                    if packet[0] >> 4 != 4 or number not in devices or (link.loss and random.random() < link.loss):
                        continue
                    if number == 0 and open_ports is not None and _dialled(packet) not in (None, *open_ports):
                        continue
                    seconds, source = len(packet) * 8 / link.rate, numbers[device]
                    if cut_off[source] or cut_off[number]:
                        continue
                    sent = max(now, leaving[source]) + seconds
                    come = max(sent, arriving[number] + seconds)
                    if sent - now < QUEUE_SECONDS and come - sent < QUEUE_SECONDS:
                        leaving[source], arriving[number] = sent, come
                        count += 1
                        heapq.heappush(under_way, (come + link.round_trip / 2, count, devices[number], packet))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, device, packet = heapq.heappop(under_way)
            try:
                os.write(device, packet)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EIO, errno.EBADFD):
                    raise


def _dialled(packet: bytes) -> int | None:
    """The port to which a packet is the first of a connection; None for others."""
    tcp = (packet[0] & 15) * 4
    is_first = packet[9] == socket.IPPROTO_TCP and packet[tcp + 13] & 0x12 == 0x02
    return int.from_bytes(packet[tcp + 2 : tcp + 4], "big") if is_first else None
