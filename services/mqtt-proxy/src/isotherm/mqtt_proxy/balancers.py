"""Which balancers may name a client's address by the PROXY protocol: the type of the setting, the check of a peer."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv6Address, IPv6Network, ip_address, ip_network
from typing import Annotated

from pydantic import AfterValidator, ValidationInfo

_ALLOWED = "allowed are networks such as 10.0.0.0/8 or fd00::/8, and single addresses"


def _check_network(text: str) -> str:
    try:
        network = ip_network(text)
    except ValueError as error:
        raise ValueError(f"{error}; {_ALLOWED}") from None
    if isinstance(network, IPv6Network) and network.network_address.ipv4_mapped is not None:
        # A peer's address is compared as IPv4, so nobody would be trusted.
        raise ValueError(f"IPv4 within IPv6 is written as IPv4; {_ALLOWED}")
    return text


def _check_use(networks: list[str], info: ValidationInfo) -> list[str]:
    if info.data.get("proxy_protocol", bool(networks)) == bool(networks):
        return networks
    if networks:
        raise ValueError("without proxy_protocol=true nothing reads them")
    raise ValueError(f"proxy_protocol=true needs the networks of the balancers; {_ALLOWED}")


BalancerNetworks = Annotated[list[Annotated[str, AfterValidator(_check_network)]], AfterValidator(_check_use)]
"""Type of a setting that lists networks. It is set if and only if `proxy_protocol` beside it is true."""


class TrustedBalancers:
    """The networks whose connections begin with a PROXY header."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = [ip_network(network) for network in networks]

    def contain(self, peer: str) -> bool:
        """Return whether the address of a peer is in one of the networks. IPv4 within IPv6 counts as IPv4."""
        try:
            address = ip_address(peer)
        except ValueError:
            # A peer that is gone has no address any more.
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)
