"""Headgate: admission control for fleets of workers that share rate-limited services.

All of the capacity, none of the 429s, for any number of workers, through crashes.
"""

from __future__ import annotations

from .errors import (
    ConfigError,
    Denied,
    HeadgateError,
    IdConflict,
    InvalidInput,
    KindChanged,
    LeaseLost,
    PolicyChanged,
    StoreFormatError,
    StoreUnavailable,
)
from .gate import AsyncGate, AsyncPermit, AsyncPlace, Gate, Permit, Place
from .http.report import Report
from .kernel.limits import Aimd, Bucket, Concurrency, Probing, Quota, Window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from os import PathLike

    from .gate.gates import Gates, GuardGates
    from .kernel.model import Explanation, Holder, LimitUsage, OnStoreErrorMode, Override, Usage, Waiter

__version__ = "0.1.0"


def load(path: str | PathLike[str] | None = None) -> Gates:
    """The gates of `headgate.toml` (or of `$HEADGATE_CONFIG`) by name: `load()["adobe"]`, `load().async_gate("adobe")`."""
    from .config.file import load as load_config
    from .gate.gates import Gates

    return Gates(load_config(path))


def connect(url: str, token: str | None = None, on_store_error: OnStoreErrorMode = "closed") -> GuardGates:
    """The gates of a guard by name: `connect("http://guard:8434")["adobe"]`, `connect(…).async_gate("adobe")`.

    Their limits are the guard's. The token is the URL's, else `token`, else `$HEADGATE_TOKEN`. A gate is made with one
    round trip to the guard, and raises StoreUnavailable where that does not answer.
    """
    from .gate.gates import GuardGates
    from .stores import open_store

    if token is None:
        return GuardGates(open_store(url), on_store_error)
    from .stores.http.store import HttpStore

    return GuardGates(HttpStore(url, token=token), on_store_error)


def __getattr__(name: str) -> object:
    """What a look tells is loaded when it is first asked for: most programs ask and release, and name none of it."""
    if name not in {"Explanation", "Holder", "LimitUsage", "Override", "Usage", "Waiter"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .kernel import looks

    value = globals()[name] = getattr(looks, name)
    return value


__all__ = [
    "Aimd",
    "AsyncGate",
    "AsyncPermit",
    "AsyncPlace",
    "Bucket",
    "Concurrency",
    "ConfigError",
    "Denied",
    "Explanation",
    "Gate",
    "HeadgateError",
    "Holder",
    "IdConflict",
    "InvalidInput",
    "KindChanged",
    "LeaseLost",
    "LimitUsage",
    "Override",
    "Permit",
    "Place",
    "PolicyChanged",
    "Probing",
    "Quota",
    "Report",
    "StoreFormatError",
    "StoreUnavailable",
    "Usage",
    "Waiter",
    "Window",
    "__version__",
    "connect",
    "load",
]
