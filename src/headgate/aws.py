"""AWS, through boto3: sessions, credentials, clients, and errors in words. The one file that imports boto3.

`AwsClient` is for one service (DynamoDB, SQS, S3, SSM, CloudWatch, Secrets Manager). Each request is sent once, without
botocore's own retries: the caller knows what a second attempt may cost. Import this module where a client is needed, not
before: loading boto3 takes longer than everything else in Headgate.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress

import boto3
from botocore import exceptions as botocore
from botocore.config import Config

from .errors import InvalidInput, StoreUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Codes of errors by which a service says that it has no capacity left for now.
THROTTLED = {
    "ProvisionedThroughputExceededException",
    "ProvisionedThroughputExceeded",
    "ThrottlingException",
    "ThrottlingError",
    "RequestLimitExceeded",
    "LimitExceededException",
}
#: Codes of errors about credentials, in words.
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
#: Raised while boto3 looks for credentials, before anything is sent.
NO_CREDENTIALS = (
    botocore.NoCredentialsError,
    botocore.PartialCredentialsError,
    botocore.CredentialRetrievalError,
    botocore.TokenRetrievalError,
    botocore.UnauthorizedSSOTokenError,
)
#: Raised before anything was sent.
NOT_CONNECTED = (
    botocore.ConnectTimeoutError,
    botocore.EndpointConnectionError,
    botocore.ProxyConnectionError,
    botocore.SSLError,
)


class ServiceError(Exception):
    """The service answered with an error: its `code`, `message` and HTTP `status`, and the whole `response`."""

    def __init__(self, response: dict[str, Any]) -> None:
        error = response["Error"]
        self.code: str = error.get("Code", "")
        self.message: str = error.get("Message", "")
        self.status: int = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        self.response = response
        super().__init__(f"{self.code}: {self.message}")


class Throttled(Exception):
    """The service has no capacity left for now; nothing was done."""


class ResultUnknown(Exception):
    """No answer came, or one that does not tell: the request may have been done or not, and may still be."""


class Unreachable(StoreUnavailable):
    """No connection to the service could be made; nothing was sent."""


class AwsClient:
    """A client of one service, for all threads of a process. It is made on first use, and anew after its credentials fail.

    `subject` names what it is for in error messages (`DynamoDB table 'headgate'`), `example` is what to write where no
    region is named. `timeout_s` (seconds) is for one answer.
    """

    def __init__(
        self, service: str, *, region: str | None, endpoint: str | None, timeout_s: float, subject: str, example: str
    ) -> None:
        self.service = service
        self.region = region
        self.endpoint = endpoint
        self.timeout_s = timeout_s
        self._subject = subject
        self._example = example
        self._lock = threading.Lock()
        self._boto: Any = None
        #: The next client looks for credentials again.
        self._renew_session = False

    @property
    def place(self) -> str:
        """The subject and where it is, for error messages."""
        where = self.endpoint or f"region {self.region or 'of the environment'}"
        return f"{self._subject} ({where})"

    def begin_in_child(self) -> None:
        """After a fork: the child makes connections of its own."""
        self._lock = threading.Lock()
        self._boto = None

    def close(self) -> None:
        """Close its connections; the next request makes new ones."""
        boto, self._boto = self._boto, None
        if hasattr(boto, "close"):
            boto.close()

    def connect(self) -> Any:
        """The boto3 client. Making one reads files, and may ask the machine it runs on for credentials."""
        with self._lock:
            if self._boto is None:
                config = Config(
                    connect_timeout=self.timeout_s / 2,
                    read_timeout=self.timeout_s,
                    retries={"total_max_attempts": 1, "mode": "standard"},
                    tcp_keepalive=True,
                    max_pool_connections=32,
                    parameter_validation=False,
                    user_agent_extra="headgate",
                )
                try:
                    self._boto = _boto_client(
                        self._renew_session,
                        self.service,
                        # boto3 looks at AWS_DEFAULT_REGION alone; Lambda and ECS say AWS_REGION.
                        region_name=self.region or os.environ.get("AWS_REGION"),
                        endpoint_url=self.endpoint,
                        config=config,
                    )
                    self._renew_session = False
                except botocore.NoRegionError:
                    raise InvalidInput(
                        f"{self._subject}: no region is named; write {self._example}, or set AWS_REGION"
                    ) from None
                except (
                    botocore.InvalidRegionError,
                    botocore.ProfileNotFound,
                    botocore.ConfigParseError,
                    ValueError,
                ) as error:
                    raise InvalidInput(f"{self._subject}: {error}") from error
            return self._boto

    def request(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Send one request. Raises ServiceError, ResultUnknown, Unreachable, or another StoreUnavailable in words."""
        boto = self.connect()
        try:
            answer: dict[str, Any] = getattr(boto, operation)(**arguments)
        except botocore.ClientError as error:
            raise ServiceError(error.response) from error
        except NO_CREDENTIALS as error:
            self._credentials_failed()
            raise StoreUnavailable(f"{self.place}: no credentials: {error}") from error
        except NOT_CONNECTED as error:
            raise Unreachable(f"{self.place} cannot be reached: {error}") from error
        except (botocore.HTTPClientError, botocore.BotoCoreError, OSError) as error:
            raise ResultUnknown(str(error)) from error
        return answer

    def wait_until(self, condition: str, *, every_s: int, attempts: int, **arguments: Any) -> None:
        """Poll until one of boto3's named conditions holds (`table_exists`). Raises ResultUnknown when it never does."""
        waiter = self.connect().get_waiter(condition)
        try:
            waiter.wait(WaiterConfig={"Delay": every_s, "MaxAttempts": attempts}, **arguments)
        except (botocore.BotoCoreError, OSError) as error:
            raise ResultUnknown(str(error)) from error

    def explain(self, error: ServiceError) -> Exception:
        """What an error means on every service, to be raised: Throttled, ResultUnknown, or StoreUnavailable in words."""
        if error.code in THROTTLED:
            return Throttled(f"{self.place} is throttled: {error.message or error.code}")
        if error.code in CREDENTIALS:
            self._credentials_failed()
            return StoreUnavailable(f"{self.place}: {CREDENTIALS[error.code]}: {error.message}")
        if error.status >= 500:
            return ResultUnknown(str(error))
        return StoreUnavailable(f"{self.place}: {error}")

    def _credentials_failed(self) -> None:
        self._boto, self._renew_session = None, True


# --- sessions ---------------------------------------------------------------------------------------------------------

_session: Any = None
_session_lock = threading.Lock()


def _boto_client(renew_session: bool, service: str, **options: Any) -> Any:
    """A client of the process's session, which is shared, since making one takes as long as a hundred requests.

    Sessions are not safe for threads, so clients are made under a lock.
    """
    global _session
    with _session_lock:
        if _session is None or renew_session:
            _session = boto3.session.Session()
        with suppress(*NO_CREDENTIALS):  # the first request says so, in words
            _session.get_credentials()
        return _session.client(service, **options)


def _after_fork() -> None:
    global _session_lock
    _session_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
