"""What is asked of DynamoDB, and what its answers mean. The one file that knows boto3."""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from contextlib import suppress

import boto3
from botocore import exceptions as aws
from botocore.config import Config

from ...errors import InvalidInput, StoreFormatError, StoreUnavailable
from .clock import ServerClock, steady

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    Item = dict[str, dict[str, Any]]

#: Other names than those of the item's key and its time to live, which the URL may give.
TOKEN, FORMAT, STATE, RECENT = "w", "f", "s", "r"

#: BatchGetItem and TransactWriteItems take no more.
MOST_ITEMS = 100

#: Seconds in which an answer about the table itself must come: who makes one can wait.
PATIENT = 10.0

THROTTLED = {
    "ProvisionedThroughputExceededException",
    "ProvisionedThroughputExceeded",
    "ThrottlingException",
    "ThrottlingError",
    "RequestLimitExceeded",
    "LimitExceededException",
}
#: What a table with another key says, in whatever words.
KEY = re.compile(r"\bkeys?\b", re.IGNORECASE)
#: Somebody else writes to the same item at this moment.
CONFLICTS = {"TransactionConflictException", "TransactionInProgressException", "ReplicatedWriteConflictException"}
CREDENTIALS = {
    "ExpiredTokenException": "the credentials have expired",
    "ExpiredToken": "the credentials have expired",
    "UnrecognizedClientException": "the credentials are not known",
    "InvalidClientTokenId": "the credentials are not known",
    "MissingAuthenticationTokenException": "the credentials are incomplete",
    "InvalidSignatureException": "the signature was refused: the secret key is wrong, or this machine's clock is",
    "RequestTimeTooSkewed": "the signature was refused: this machine's clock is wrong",
    "AccessDeniedException": "access was denied",
}
#: Raised where credentials are looked for, before anything is sent.
NO_CREDENTIALS = (
    aws.NoCredentialsError,
    aws.PartialCredentialsError,
    aws.CredentialRetrievalError,
    aws.TokenRetrievalError,
    aws.UnauthorizedSSOTokenError,
)


_session: Any = None
_session_lock = threading.Lock()


def made(anew: bool, *arguments: Any, **options: Any) -> Any:
    """A client. Sessions are shared, since making one takes as long as a hundred requests; they are not for threads."""
    global _session
    with _session_lock:
        if _session is None or anew:
            _session = boto3.session.Session()
        with suppress(*NO_CREDENTIALS):  # the first request tells, in words
            _session.get_credentials()
        return _session.client(*arguments, **options)


def _after_fork() -> None:
    global _session_lock
    _session_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


class Conflict(Exception):
    """Somebody else wrote since: `item` is what is there now, if the answer told."""

    def __init__(self, item: Item | None = None, known: bool = False) -> None:
        super().__init__("written by another")
        self.item = item
        self.known = known


class Throttled(Exception):
    """The table has no capacity left for now; nothing was done."""


class Unsure(Exception):
    """No answer, or none that says: it may have been done or not, and may still be."""


class Unreachable(StoreUnavailable):
    """There is nobody to ask; nothing was sent."""


class Table:
    """One table. Each call is one request, without botocore's own retries: who asks knows better what a retry may cost."""

    def __init__(
        self, name: str, *, region: str | None, endpoint: str | None, key: str, ttl: str, timeout: float
    ) -> None:
        self.name = name
        self.region = region
        self.endpoint = endpoint
        self.key = key
        self.ttl = ttl
        self.timeout = timeout
        self.clock = ServerClock()
        #: How often each operation was asked for, and what it cost as far as the answers told: for doctor and benchmarks.
        self.requests: Counter[str] = Counter()
        self.capacity: Counter[str] = Counter()
        #: Set it to have answers tell what they cost.
        self.count_capacity = False
        self._lock = threading.Lock()
        self._client: Any = None
        #: The next client looks for credentials anew.
        self._anew = False

    @property
    def place(self) -> str:
        where = self.endpoint or f"region {self.region or 'of the environment'}"
        return f"DynamoDB table {self.name!r} ({where})"

    def begin_in_child(self) -> None:
        self._lock = threading.Lock()
        self._client = None

    def close(self) -> None:
        """Let go of its connections; the next request makes new ones."""
        client, self._client = self._client, None
        if hasattr(client, "close"):
            client.close()

    def connect(self) -> Any:
        """The client. Making one reads files, and may ask the machine it runs on for credentials."""
        with self._lock:
            if self._client is None:
                config = Config(
                    connect_timeout=self.timeout / 2,
                    read_timeout=self.timeout,
                    retries={"total_max_attempts": 1, "mode": "standard"},
                    tcp_keepalive=True,
                    max_pool_connections=32,
                    parameter_validation=False,
                    user_agent_extra="headgate",
                )
                try:
                    self._client = made(
                        self._anew,
                        "dynamodb",
                        # boto3 looks at AWS_DEFAULT_REGION alone; Lambda and ECS say AWS_REGION.
                        region_name=self.region or os.environ.get("AWS_REGION"),
                        endpoint_url=self.endpoint,
                        config=config,
                    )
                    self._anew = False
                except aws.NoRegionError:
                    raise InvalidInput(
                        f"DynamoDB table {self.name!r}: no region is named; write "
                        f"dynamodb://{self.name}?region=eu-central-1, or set AWS_REGION"
                    ) from None
                except (aws.InvalidRegionError, aws.ProfileNotFound, aws.ConfigParseError, ValueError) as error:
                    raise InvalidInput(f"DynamoDB table {self.name!r}: {error}") from error
            return self._client

    # --- requests -----------------------------------------------------------------------------------------------

    def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """One request. Raises Conflict, Throttled, Unsure, or a HeadgateError that says what is wrong."""
        client = self.connect()
        if self.count_capacity and operation in COUNTED:
            arguments["ReturnConsumedCapacity"] = "TOTAL"
        self.requests[operation] += 1
        sent = steady()
        try:
            answer: dict[str, Any] = getattr(client, operation)(**arguments)
        except aws.ClientError as error:
            self._told(error.response, sent)
            raise self._meaning(error) from error
        except NO_CREDENTIALS as error:
            self._client, self._anew = None, True
            raise StoreUnavailable(f"{self.place}: no credentials: {error}") from error
        except (aws.ConnectTimeoutError, aws.EndpointConnectionError, aws.ProxyConnectionError, aws.SSLError) as error:
            raise Unreachable(f"{self.place} cannot be reached: {error}") from error
        except (aws.HTTPClientError, aws.BotoCoreError, OSError) as error:
            raise Unsure(str(error)) from error
        self._told(answer, sent)
        if self.count_capacity:
            self._count(operation, answer)
        return answer

    def _count(self, operation: str, answer: dict[str, Any]) -> None:
        used = answer.get("ConsumedCapacity") or ()
        for row in [used] if isinstance(used, dict) else used:
            self.capacity[operation] += row.get("CapacityUnits", 0.0)

    def _told(self, answer: dict[str, Any], sent: int) -> None:
        header = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        if header:
            self.clock.observe(header, sent, steady())

    def _meaning(self, error: Any) -> Exception:
        code, message = error.response["Error"].get("Code", ""), error.response["Error"].get("Message", "")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code == "ConditionalCheckFailedException":
            return Conflict(error.response.get("Item"), known=True)
        if code == "TransactionCanceledException":
            return self._cancelled(error.response.get("CancellationReasons") or [], message)
        if code in CONFLICTS:
            return Conflict()
        if code in THROTTLED:
            return Throttled(f"{self.place} is throttled: {message or code}")
        if code == "ResourceNotFoundException":
            return StoreUnavailable(
                f"{self.place} does not exist: name another table or region, or make it with `headgate doctor --create`"
            )
        if code in CREDENTIALS:
            self._client, self._anew = None, True
            return StoreUnavailable(f"{self.place}: {CREDENTIALS[code]}: {message}")
        if code == "ValidationException" and KEY.search(message):
            return StoreFormatError(
                f"{self.place} has another key than {self.key!r} (a string, and no sort key): {message}; "
                f"name it in the URL, as in dynamodb://{self.name}?key=NAME"
            )
        if status >= 500:
            return Unsure(f"{code}: {message}")
        return StoreUnavailable(f"{self.place}: {code}: {message}")

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
        answer = self.call("get_item", TableName=self.name, Key={self.key: {"S": name}}, ConsistentRead=True)
        return answer.get("Item")

    def get_many(self, names: Iterable[str]) -> dict[str, Item]:
        """Those items that there are, as they are now."""
        found: dict[str, Item] = {}
        wanted = [{self.key: {"S": name}} for name in names]
        while wanted:
            asked = {"Keys": wanted[:MOST_ITEMS], "ConsistentRead": True}
            answer = self.call("batch_get_item", RequestItems={self.name: asked})
            for item in answer.get("Responses", {}).get(self.name, ()):
                found[item[self.key]["S"]] = item
            left = answer.get("UnprocessedKeys", {}).get(self.name, {}).get("Keys", [])
            if len(left) == len(wanted[:MOST_ITEMS]):
                raise Throttled(f"{self.place} is throttled: none of {len(left)} items could be read")
            wanted = [*left, *wanted[MOST_ITEMS:]]
        return found

    def item(self, name: str, token: str, format: int, state: bytes, ttl: int | None, recent: str = "") -> Item:
        made: Item = {
            self.key: {"S": name},
            TOKEN: {"S": token},
            FORMAT: {"N": str(format)},
            STATE: {"B": state},
        }
        if recent:
            made[RECENT] = {"S": recent}
        if ttl is not None:
            made[self.ttl] = {"N": str(ttl)}
        return made

    def write(self, item: Item, was: str | None, others: list[Item]) -> None:
        """Put an item if its token is still the one that was read (None: if there is none), and others with it."""
        put: dict[str, Any] = {"TableName": self.name, "Item": item, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
        if was is None:
            put["ConditionExpression"] = "attribute_not_exists(#k)"
            put["ExpressionAttributeNames"] = {"#k": self.key}
        else:
            put["ConditionExpression"] = "#w = :w"
            put["ExpressionAttributeNames"] = {"#w": TOKEN}
            put["ExpressionAttributeValues"] = {":w": {"S": was}}
        if not others:
            self.call("put_item", **put)
            return
        rest = [{"Put": {"TableName": self.name, "Item": other}} for other in others]
        self.call("transact_write_items", TransactItems=[{"Put": put}, *rest])

    def beat(self, name: str, attribute: str, until: int, token: str) -> Item:
        """Put a number beside the state of an item that is there. Returns the item as it is then, which costs no read."""
        answer = self.call(
            "update_item",
            TableName=self.name,
            Key={self.key: {"S": name}},
            UpdateExpression="SET #h = :h, #w = :w",
            ConditionExpression="attribute_exists(#w)",
            ExpressionAttributeNames={"#h": attribute, "#w": TOKEN},
            ExpressionAttributeValues={":h": {"N": str(until)}, ":w": {"S": token}},
            ReturnValues="ALL_NEW",
        )
        item: Item = answer["Attributes"]
        return item

    # --- the table itself ---------------------------------------------------------------------------------------

    def patient(self) -> Table:
        """The same for who can wait."""
        timeout = max(self.timeout, PATIENT)
        return Table(self.name, region=self.region, endpoint=self.endpoint, key=self.key, ttl=self.ttl, timeout=timeout)

    def describe(self) -> dict[str, Any]:
        found: dict[str, Any] = self.call("describe_table", TableName=self.name)["Table"]
        return found

    def time_to_live(self) -> dict[str, Any]:
        told = self.call("describe_time_to_live", TableName=self.name)
        found: dict[str, Any] = told.get("TimeToLiveDescription", {})
        return found

    def create(self) -> None:
        """Make it, billed by request, and wait until it is there."""
        client = self.connect()
        try:
            client.create_table(
                TableName=self.name,
                KeySchema=[{"AttributeName": self.key, "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": self.key, "AttributeType": "S"}],
                BillingMode="PAY_PER_REQUEST",
            )
            client.get_waiter("table_exists").wait(TableName=self.name, WaiterConfig={"Delay": 1, "MaxAttempts": 60})
        except aws.ClientError as error:
            if error.response["Error"].get("Code") != "ResourceInUseException":
                raise self._meaning(error) from error
        except (aws.BotoCoreError, OSError) as error:
            raise StoreUnavailable(f"{self.place} cannot be made: {error}") from error

    def enable_ttl(self) -> None:
        spec = {"Enabled": True, "AttributeName": self.ttl}
        self.call("update_time_to_live", TableName=self.name, TimeToLiveSpecification=spec)


COUNTED = {"get_item", "batch_get_item", "put_item", "update_item", "transact_write_items"}
