"""Whose request it is, by address: the peer's own, unless the peer is a proxy that the operator trusts."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class TrustedProxies:
    """Proxies whose word about the caller is believed; none of them by default."""

    networks: tuple[Network, ...] = ()

    @classmethod
    def of(cls, texts: Sequence[str]) -> Self:
        """The proxies at these addresses and in these networks."""
        return cls(tuple(ipaddress.ip_network(text) for text in texts))

    def caller(self, peer: str, forwarded: Sequence[str]) -> str:
        """Return the caller's address: the last hop of `X-Forwarded-For` that no trusted proxy is.

        Whoever calls can write anything into that header, so it is read from its end, where trusted proxies wrote, and
        not at all when the peer is none of them.
        """
        if not self.networks:
            return peer
        hops = [hop.strip() for line in forwarded for hop in line.split(",")]
        address = peer
        while hops and self._trusts(address):
            address = _without_port(hops.pop())
        return address

    def _trusts(self, address: str) -> bool:
        try:
            known = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(known, ipaddress.IPv6Address) and known.ipv4_mapped is not None:
            # A socket that listens for both families names an IPv4 peer so.
            known = known.ipv4_mapped
        return any(known in network for network in self.networks)


def _without_port(hop: str) -> str:
    """Return a hop's address: some proxies write `192.0.2.1:4711` or `[2001:db8::1]:4711`, a port a connection."""
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop
