"""The three things that can go wrong on a connection to a Redis server."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .client import Address

#: How an error of the server begins → what it is about, where the class that redis-py makes of it does not say.
PREFIXES = {
    "LOADING": "loading",
    "OOM": "oom",
    "NOAUTH": "auth",
    "WRONGPASS": "auth",
    "NOPERM": "permission",
    "CLUSTERDOWN": "moving",
    "TRYAGAIN": "moving",
    "MASTERDOWN": "moving",
    "BUSY": "busy",
    "WRONGTYPE": "foreign",
}
NAMES = {
    "BusyLoadingError": "loading",
    "OutOfMemoryError": "oom",
    "AuthenticationError": "auth",
    "AuthorizationError": "auth",
    "NoPermissionError": "permission",
    "ClusterDownError": "moving",
    "TryAgainError": "moving",
    "MasterDownError": "moving",
}


class Refused(Exception):
    """The server answered with an error. `kind` is what it is about, `text` its own words."""

    def __init__(self, kind: str, text: str, address: Address | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
        #: Where to go instead.
        self.address = address


class Broken(Exception):
    """The connection is gone. `begun` says whether it had been there."""

    def __init__(self, text: str, begun: bool) -> None:
        super().__init__(text)
        self.begun = begun


class Silent(Exception):
    """There was no answer in time."""
