"""The whole store suite on real DynamoDB servers: dynoxide, and AWS's own DynamoDB Local as the oracle."""

from __future__ import annotations

import os
from itertools import count
from typing import Any

import pytest

from headgate.stores.dynamodb import DynamoStore
from headgate.testing import FakeClock, StoreSuite
from tests.support.dynamo_servers import CREDENTIALS, Server, client, make_table, started

_numbers = count()


class OnServer(StoreSuite):
    kind = ""
    server: Server

    @classmethod
    def setup_class(cls) -> None:
        cls.before = dict(os.environ)
        os.environ.update(CREDENTIALS)
        cls.server = started(cls.kind)

    @classmethod
    def teardown_class(cls) -> None:
        cls.server.stop()
        os.environ.clear()
        os.environ.update(cls.before)

    def make_store(self, clock: FakeClock) -> Any:
        name = f"suite-{next(_numbers)}"
        make_table(self.server.endpoint, name)
        return DynamoStore(name, endpoint=self.server.endpoint, region="eu-central-1", timeout=10, clock=clock)

    def another_process(self, store: Any) -> Any:
        return DynamoStore(
            store.table.name, endpoint=self.server.endpoint, region="eu-central-1", timeout=10, clock=self.clock
        )

    def lose_state(self, store: Any, gate: str) -> None:
        client(self.server.endpoint).delete_item(
            TableName=store.table.name, Key={"counter_id": {"S": f"headgate:{gate}"}}
        )


class TestDynoxide(OnServer):
    kind = "dynoxide"


@pytest.mark.slow
class TestDynamoDBLocal(OnServer):
    kind = "local"


del OnServer
