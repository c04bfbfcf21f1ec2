"""Sentinel Hub: what a request costs in processing units, and the `sentinelhub` package under a gate.

`processing_units` and `processing_units_of` need nothing but the standard library. `download_client(gate)` needs the
`sentinelhub` package, which the extra `sentinelhub` brings.
"""

from __future__ import annotations

from .units import APIS, processing_units, processing_units_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .client import download_client as download_client

__all__ = ["APIS", "download_client", "processing_units", "processing_units_of"]


def __getattr__(name: str) -> Any:
    if name == "download_client":
        from .client import download_client

        return download_client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
