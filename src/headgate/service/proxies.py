"""The address of a client behind proxies: `X-Forwarded-For` is believed only of proxies that are configured."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from .web import Scope


class Proxies:
    """The proxies of `serve.proxies`: addresses, or networks such as `10.0.0.0/8`."""

    __slots__ = ("_networks",)

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = tuple(ip_network(network) for network in networks)

    def client_of(self, scope: Scope) -> str:
        """The address that a request comes from; empty where the server does not know it.

        Each proxy appends the address that it was asked from. So the list is read from its end for as long as the address
        is a proxy's own; what comes before is what the client wrote, and text that is no address ends it too.
        """
        client = scope.get("client")
        found: str = client[0] if client else ""
        if not self._networks or not self._trusts(found):
            return found
        told = b",".join(value for name, value in scope["headers"] if name == b"x-forwarded-for")
        for entry in reversed(str(told, "latin-1").split(",")):
            try:
                address = str(ip_address(entry.strip()))
            except ValueError:
                break
            found = address
            if not self._trusts(address):
                break
        return found

    def _trusts(self, address: str) -> bool:
        try:
            parsed = ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._networks)
