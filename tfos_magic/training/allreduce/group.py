"""How a group of ranks comes to its wire: shared memory on a host, sockets between hosts."""

from __future__ import annotations

import hmac
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from tfos_magic.errors import ClusterError
from tfos_magic.training.allreduce import AllReduce
from tfos_magic.training.allreduce.handshake import accept, connect, listen
from tfos_magic.training.allreduce.hierarchical import HostGroups
from tfos_magic.training.allreduce.host_links import Links
from tfos_magic.training.allreduce.rendezvous import Star
from tfos_magic.training.allreduce.shared_memory import SharedMemory, open_listener, share_memory
from tfos_magic.training.allreduce.tcp_peers import TcpPeers
from tfos_magic.training.allreduce.unix_peers import GroupInvitation
from tfos_magic.transport.secret import Secret
from tfos_magic.transport.tls import TlsPeers, secure


def meet(
    rank: int, addresses: Sequence[str], secret: str, timeout: float, share: bool, tls: TlsPeers | None = None
) -> AllReduce:
    """Connect this rank to all others and return when all are connected.

    ``addresses`` holds ``host:port`` by rank; a rank listens on its own, on that host's address alone, until all have
    come. Ranks that do not know ``secret`` are not let in. Those of one host share memory where they can and ``share``
    is true. With ``tls`` all that crosses TCP is encrypted.

    Raises :class:`ClusterError` that names the ranks which did not answer within ``timeout`` seconds.
    """
    key = secret.encode()
    with ExitStack() as opened:
        try:
            listener = opened.enter_context(listen(addresses[rank]))
        except OSError as error:
            raise ClusterError(
                f"rank {rank} cannot listen on {addresses[rank]}: {error}. The port is taken or the address is not on "
                "this host: restart the cluster."
            ) from error
        star = Star(rank, addresses, listener, key, timeout, tls)
        opened.callback(star.close)
        nonce = star.gather({"nonce": os.urandom(16).hex()})[0]["nonce"]
        hosts = _hosts(addresses) if share else [[peer] for peer in range(len(addresses))]
        local = _share(star, rank, hosts, addresses, hmac.digest(key, nonce.encode(), "sha256"))
        if local is None:
            hosts = [[peer] for peer in range(len(addresses))]
        elif len(hosts) == 1 and isinstance(local, SharedMemory):
            return local
        firsts = [members[0] for members in hosts]

        def link_hosts() -> Links:
            where = [addresses[first] for first in firsts]
            return link(firsts.index(rank), firsts, where, listener, key, timeout, tls)

        return _connect(star, hosts, addresses, local, link_hosts if rank in firsts else None)


@dataclass(frozen=True)
class Meeting:
    """What the ranks of a group need to meet, as :func:`meet` takes it."""

    addresses: Sequence[str]
    secret: str = field(repr=False)
    share: bool
    tls: TlsPeers | None

    def pair(self, rank: int, other: int, timeout: float) -> AllReduce:
        """Connect ``rank``, which this process is, with one ``other`` alone, who does the same at the same time.

        Both listen where they did when all met, and travel on what they would have travelled on then.
        """
        both = sorted((rank, other))
        where = [self.addresses[each] for each in both]
        tls = None if self.tls is None else self.tls.among(both)
        try:
            return meet(both.index(rank), where, Secret(f"{self.secret} {both}"), timeout, self.share, tls)
        except ClusterError as error:
            raise ClusterError(
                f"workers {both[0]} and {both[1]}, here ranks 0 and 1, did not connect: {error}"
            ) from error


def _hosts(addresses: Sequence[str]) -> list[list[int]]:
    """The ranks of each host, hosts in the order of their first ranks."""
    hosts: dict[str, list[int]] = {}
    for rank, address in enumerate(addresses):
        hosts.setdefault(address.rpartition(":")[0], []).append(rank)
    return list(hosts.values())


def _share(
    star: Star, rank: int, hosts: list[list[int]], addresses: Sequence[str], key: bytes
) -> SharedMemory | bool | None:
    """This host's shared memory, True where the rank is alone on its host, None on all ranks where any cannot."""
    ranks = next(members for members in hosts if rank in members)
    if all(len(members) == 1 for members in hosts):
        return True
    with ExitStack() as opened:
        invitation = GroupInvitation.derive(key, addresses[ranks[0]].rpartition(":")[0])
        listener: socket.socket | None = None
        if ranks[0] == rank and len(ranks) > 1 and (listener := open_listener(invitation)) is not None:
            opened.enter_context(listener)
        listening = star.gather({"listening": listener is not None or ranks[0] != rank or len(ranks) == 1})
        local: SharedMemory | None = None
        if len(ranks) > 1 and all(said["listening"] for said in listening):
            local = share_memory(ranks, rank, invitation, listener)
        if all(said["shared"] for said in star.gather({"shared": local is not None or len(ranks) == 1})):
            return local or True
        if local is not None:
            local.close()
        return None


def _connect(
    star: Star,
    hosts: list[list[int]],
    addresses: Sequence[str],
    local: SharedMemory | bool | None,
    link_hosts: Callable[[], Links] | None,
) -> AllReduce:
    """Link the first ranks of the hosts, where this is one, and give the exchange of this rank."""
    between, trouble = None, ""
    if link_hosts is not None:
        try:
            between = TcpPeers(link_hosts())
        except OSError as error:
            trouble = str(error) or type(error).__name__
    exchange = HostGroups(local if isinstance(local, SharedMemory) else None, between, hosts)
    troubles = {peer: said["trouble"] for peer, said in enumerate(star.gather({"trouble": trouble})) if said["trouble"]}
    if troubles:
        exchange.close()
        said = "; ".join(f"rank {peer} at {addresses[peer]}: {why}" for peer, why in troubles.items())
        raise ClusterError(
            f"the hosts cannot reach each other ({said}). Check that no firewall blocks traffic between executors."
        )
    return exchange


def link(
    place: int,
    names: Sequence[int],
    addresses: Sequence[str],
    listener: socket.socket,
    secret: bytes,
    seconds: float,
    tls: TlsPeers | None = None,
) -> Links:
    """Connect the member ``place`` to all others, who do the same; ``addresses`` are those of the members.

    Raises OSError (TimeoutError after ``seconds``) when one does not come.
    """
    deadline = time.monotonic() + seconds
    connections: dict[str, dict[int, socket.socket]] = {"data": {}, "words": {}}
    with ExitStack() as opened:
        for use, sockets in connections.items():
            for other in range(place):
                peer = connect(addresses[other], names[place], use, secret, deadline)
                sockets[other] = secure(tls, peer, names[other], deadline)
                opened.callback(sockets[other].close)
            pending_members = set(range(place + 1, len(names)))
            for rank, peer in accept(listener, use, secret, deadline) if pending_members else ():
                other = names.index(rank) if rank in names else -1
                if other in pending_members:
                    sockets[other] = secure(tls, peer, rank, deadline, accepted=True)
                    opened.callback(sockets[other].close)
                    pending_members.remove(other)
                else:
                    peer.close()
                if not pending_members:
                    break
        opened.pop_all()
    return Links(place, names, connections["data"], connections["words"])
