"""An error reply of a Redis server, and what it is about."""

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
#: The class that redis-py makes of an error → what it is about.
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


class ErrorReply(Exception):
    """The server answered with an error. `kind` is what it is about, `text` its own words."""

    def __init__(self, kind: str, text: str, address: Address | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
        #: Where a cluster says that the command should go instead.
        self.address = address
