"""Clients whose calls take a permit: one module per library, imported where it is used.

    from headgate.clients.httpx import HttpxTransport
    client = httpx.Client(transport=HttpxTransport(gate, hosts="api.example.com"))

Every request to a matching host waits for a permit of the gate, is stamped as it is written, and holds its permit until its
answer has been read or dropped. The answer ends it: status, retry delays and rate-limit headers reach the whole fleet.
"""

from __future__ import annotations

from .answers import Answer
from .discovery import Discovery
from .retry import Retry

__all__ = ["Answer", "Discovery", "Retry"]
