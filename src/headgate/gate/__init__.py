"""Gates: the public surface. `Gate` and `AsyncGate` are two drivers of the same flows, on the same policy and store.

An ask that can go at once takes the short way: one prepared command, decided by the store, no generator. Everything else
(waiting, promises, ids, a store that is away) goes through `flows`.

    base.py    what both are made of        permit.py   what a granted ask holds
    sync.py    Gate, for threads            keeper.py   renewals and heartbeats in the background
    aio.py     AsyncGate, for asyncio       outage.py   what to do while the store is away
    gates.py   the gates of a configuration share.py   what a process uses of the limits meanwhile
"""

from __future__ import annotations

from .aio import AsyncGate
from .permit import AsyncPermit, AsyncPlace, Permit, Place
from .sync import Gate

__all__ = ["AsyncGate", "AsyncPermit", "AsyncPlace", "Gate", "Permit", "Place"]
