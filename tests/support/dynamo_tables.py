"""What tests of the DynamoDB store need beside a server: names of tables, what is in one, and faults by number."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from tests.support.dynamo_servers import Fault, Server, client

#: For the names of tables, each of which is used once.
NUMBERS = count()

#: For what is between the store and the proxy alone, or takes long: any server will do.
ON_ANY = pytest.mark.parametrize("server", ["dynoxide"], indirect=True)


def items(server: Server, table: str) -> dict[str, Any]:
    return {item["counter_id"]["S"]: item for item in client(server.endpoint).scan(TableName=table)["Items"]}


def sometimes(
    fault: Fault, *operations: str, times: int | None = None, every: int = 1
) -> Callable[[str], Fault | None]:
    seen = count(1)

    def decide(operation: str) -> Fault | None:
        if operation not in operations:
            return None
        number = next(seen)
        if number % every or (times is not None and number // every > times):
            return None
        return fault

    return decide
