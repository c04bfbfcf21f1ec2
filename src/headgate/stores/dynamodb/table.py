"""One table of DynamoDB: its requests as methods, and what its errors mean."""

from __future__ import annotations

import re
from collections import Counter

from ...aws import THROTTLED, AwsClient, ResultUnknown, ServiceError, Throttled
from ...errors import StoreFormatError, StoreUnavailable
from .clock import ServerClock, steady

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    Item = dict[str, dict[str, Any]]

#: Names of attributes, other than the item's key and its time to live, which the URL may name.
TOKEN, FORMAT, STATE, RECENT = "w", "f", "s", "r"

#: BatchGetItem and TransactWriteItems take no more.
MOST_ITEMS = 100

#: Seconds for an answer about the table itself, which no decision waits for.
PATIENT_S = 10.0

#: What a table with another key says, in whatever words.
KEY = re.compile(r"\bkeys?\b", re.IGNORECASE)
#: Another process writes to the same item at this moment.
CONFLICTS = {"TransactionConflictException", "TransactionInProgressException", "ReplicatedWriteConflictException"}
#: Operations whose answers can tell what they cost.
METERED = {"get_item", "batch_get_item", "put_item", "update_item", "transact_write_items"}


class Conflict(Exception):
    """Another process has written the item since it was read. `item` is what is there now, if the answer told (`known`)."""

    def __init__(self, item: Item | None = None, known: bool = False) -> None:
        super().__init__("written by another")
        self.item = item
        self.known = known


class DynamoTable:
    """One table. Each method is one request, without retries, but for `get_many` and `create`.

    Methods raise `Conflict`, `Throttled`, `ResultUnknown`, or a `HeadgateError` that says what is wrong. Every answer also
    calibrates `clock`. `timeout` (seconds) is for one answer.
    """

    def __init__(
        self, name: str, *, region: str | None, endpoint: str | None, key: str, ttl: str, timeout: float
    ) -> None:
        self.name = name
        self.key = key
        self.ttl = ttl
        self.timeout = timeout
        self.clock = ServerClock()
        #: How often each operation was requested, and what it cost as far as the answers told: for benchmarks.
        self.requests: Counter[str] = Counter()
        self.capacity: Counter[str] = Counter()
        #: Set it to have answers tell what they cost.
        self.count_capacity = False
        self._client = AwsClient(
            "dynamodb",
            region=region,
            endpoint=endpoint,
            timeout_s=timeout,
            subject=f"DynamoDB table {name!r}",
            example=f"dynamodb://{name}?region=eu-central-1",
        )

    @property
    def place(self) -> str:
        """The table and where it is, for error messages."""
        return self._client.place

    def connect(self) -> None:
        """Make the client now, so that a missing region or profile is told here and not by the first request."""
        self._client.connect()

    def begin_in_child(self) -> None:
        self._client.begin_in_child()

    def close(self) -> None:
        """Close its connections; the next request makes new ones."""
        self._client.close()

    # --- requests -----------------------------------------------------------------------------------------------

    def request(self, operation: str, **arguments: Any) -> dict[str, Any]:
        self._client.connect()  # before the time is taken: making a client is no part of a round trip
        if self.count_capacity and operation in METERED:
            arguments["ReturnConsumedCapacity"] = "TOTAL"
        self.requests[operation] += 1
        sent = steady()
        try:
            answer = self._client.request(operation, **arguments)
        except ServiceError as error:
            self._calibrate(error.response, sent)
            raise self._meaning(error) from error
        self._calibrate(answer, sent)
        if self.count_capacity:
            self._count(operation, answer)
        return answer

    def _count(self, operation: str, answer: dict[str, Any]) -> None:
        used = answer.get("ConsumedCapacity") or ()
        for row in [used] if isinstance(used, dict) else used:
            self.capacity[operation] += row.get("CapacityUnits", 0.0)

    def _calibrate(self, answer: dict[str, Any], sent: int) -> None:
        header = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        if header:
            self.clock.observe(header, sent, steady())

    def _meaning(self, error: ServiceError) -> Exception:
        code, message = error.code, error.message
        if code == "ConditionalCheckFailedException":
            return Conflict(error.response.get("Item"), known=True)
        if code == "TransactionCanceledException":
            return self._cancelled(error.response.get("CancellationReasons") or [], message)
        if code in CONFLICTS:
            return Conflict()
        if code == "ResourceNotFoundException":
            return StoreUnavailable(
                f"{self.place} does not exist: name another table or region, or make it with `headgate doctor --create`"
            )
        if code == "ValidationException" and KEY.search(message):
            return StoreFormatError(
                f"{self.place} has another key than {self.key!r} (a string, and no sort key): {message}; "
                f"name it in the URL, as in dynamodb://{self.name}?key=NAME"
            )
        return self._client.explain(error)

    def _cancelled(self, reasons: list[dict[str, Any]], message: str) -> Exception:
        for reason in reasons:
            if reason.get("Code") in THROTTLED:
                return Throttled(f"{self.place} is throttled: {reason.get('Message') or reason['Code']}")
        for reason in reasons:
            if reason.get("Code") == "ConditionalCheckFailed":
                return Conflict(reason.get("Item"), known=True)
        if any(reason.get("Code") == "TransactionConflict" for reason in reasons):
            return Conflict()
        return StoreUnavailable(f"{self.place}: {message}")

    # --- items --------------------------------------------------------------------------------------------------

    def get(self, name: str) -> Item | None:
        """One item as it is now."""
        answer = self.request("get_item", TableName=self.name, Key={self.key: {"S": name}}, ConsistentRead=True)
        return answer.get("Item")

    def get_many(self, names: Iterable[str]) -> dict[str, Item]:
        """By name, as they are now, those of these items that exist. Takes as many requests as it needs."""
        found: dict[str, Item] = {}
        wanted = [{self.key: {"S": name}} for name in names]
        while wanted:
            asked = {"Keys": wanted[:MOST_ITEMS], "ConsistentRead": True}
            answer = self.request("batch_get_item", RequestItems={self.name: asked})
            for item in answer.get("Responses", {}).get(self.name, ()):
                found[item[self.key]["S"]] = item
            left = answer.get("UnprocessedKeys", {}).get(self.name, {}).get("Keys", [])
            if len(left) == len(wanted[:MOST_ITEMS]):
                raise Throttled(f"{self.place} is throttled: none of {len(left)} items could be read")
            wanted = [*left, *wanted[MOST_ITEMS:]]
        return found

    def new_item(self, name: str, token: str, format: int, state: bytes, ttl: int | None, recent: str = "") -> Item:
        item: Item = {
            self.key: {"S": name},
            TOKEN: {"S": token},
            FORMAT: {"N": str(format)},
            STATE: {"B": state},
        }
        if recent:
            item[RECENT] = {"S": recent}
        if ttl is not None:
            item[self.ttl] = {"N": str(ttl)}
        return item

    def write(self, item: Item, was: str | None, others: list[Item]) -> None:
        """Put `item` if its token is still `was` (None: if there is no such item), and `others` in the same transaction."""
        put: dict[str, Any] = {"TableName": self.name, "Item": item, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
        if was is None:
            put["ConditionExpression"] = "attribute_not_exists(#k)"
            put["ExpressionAttributeNames"] = {"#k": self.key}
        else:
            put["ConditionExpression"] = "#w = :w"
            put["ExpressionAttributeNames"] = {"#w": TOKEN}
            put["ExpressionAttributeValues"] = {":w": {"S": was}}
        if not others:
            self.request("put_item", **put)
            return
        rest = [{"Put": {"TableName": self.name, "Item": other}} for other in others]
        self.request("transact_write_items", TransactItems=[{"Put": put}, *rest])

    def set_number(self, name: str, attribute: str, number: int, token: str) -> Item:
        """Set one attribute of an existing item, and its token. Returns the item as it is then, which costs no read."""
        answer = self.request(
            "update_item",
            TableName=self.name,
            Key={self.key: {"S": name}},
            UpdateExpression="SET #h = :h, #w = :w",
            ConditionExpression="attribute_exists(#w)",
            ExpressionAttributeNames={"#h": attribute, "#w": TOKEN},
            ExpressionAttributeValues={":h": {"N": str(number)}, ":w": {"S": token}},
            ReturnValues="ALL_NEW",
        )
        item: Item = answer["Attributes"]
        return item

    # --- the table itself ---------------------------------------------------------------------------------------

    def patient(self) -> DynamoTable:
        """The same table with a longer time-out, for commands that are run by hand."""
        timeout, client = max(self.timeout, PATIENT_S), self._client
        return DynamoTable(
            self.name, region=client.region, endpoint=client.endpoint, key=self.key, ttl=self.ttl, timeout=timeout
        )

    def describe(self) -> dict[str, Any]:
        found: dict[str, Any] = self.request("describe_table", TableName=self.name)["Table"]
        return found

    def time_to_live(self) -> dict[str, Any]:
        told = self.request("describe_time_to_live", TableName=self.name)
        found: dict[str, Any] = told.get("TimeToLiveDescription", {})
        return found

    def create(self) -> None:
        """Make it, billed by request, and wait until it is there."""
        try:
            self._client.request(
                "create_table",
                TableName=self.name,
                KeySchema=[{"AttributeName": self.key, "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": self.key, "AttributeType": "S"}],
                BillingMode="PAY_PER_REQUEST",
            )
            self._client.wait_until("table_exists", every_s=1, attempts=60, TableName=self.name)
        except ServiceError as error:
            if error.code != "ResourceInUseException":
                raise self._meaning(error) from error
        except ResultUnknown as error:
            raise StoreUnavailable(f"{self.place} cannot be made: {error}") from error

    def enable_ttl(self) -> None:
        spec = {"Enabled": True, "AttributeName": self.ttl}
        self.request("update_time_to_live", TableName=self.name, TimeToLiveSpecification=spec)
