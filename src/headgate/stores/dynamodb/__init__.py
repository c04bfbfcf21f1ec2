"""`dynamodb://TABLE?region=…`: the state of gates in a DynamoDB table. Read `store` first."""

from __future__ import annotations

from .store import DynamoStore, open_url

__all__ = ["DynamoStore", "open_url"]
