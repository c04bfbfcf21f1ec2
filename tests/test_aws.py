"""The one home of boto3: a client for any service, and its errors in words."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from headgate.errors import InvalidInput, StoreUnavailable
from tests.support.dynamo_servers import CREDENTIALS

pytest.importorskip("boto3")

from headgate.aws import AwsClient, ResultUnknown, ServiceError, Throttled, Unreachable


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    for name, value in CREDENTIALS.items():
        if "REGION" not in name:
            monkeypatch.setenv(name, value)


def queue(**options: Any) -> AwsClient:
    settings = {"region": "eu-central-1", "endpoint": None, "timeout_s": 1.0, **options}
    return AwsClient("sqs", subject="SQS queue 'jobs'", example="sqs://jobs?region=eu-central-1", **settings)


def refusal(code: str, status: int = 400) -> ServiceError:
    return ServiceError({"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}})


def test_a_client_without_a_region_says_what_to_write() -> None:
    with pytest.raises(InvalidInput) as told:
        queue(region=None).connect()
    assert str(told.value) == (
        "SQS queue 'jobs': no region is named; write sqs://jobs?region=eu-central-1, or set AWS_REGION"
    )


def test_the_region_of_lambda_and_ecs_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert queue(region=None).connect().meta.region_name == "eu-west-1"


def test_a_service_that_cannot_be_reached_is_told_with_its_place() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and not listening: a connection is refused
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Unreachable, match=rf"SQS queue 'jobs' \({endpoint}\) cannot be reached"):
            queue(endpoint=endpoint).request("list_queues")


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (refusal("ThrottlingException"), Throttled, "SQS queue 'jobs' (region eu-central-1) is throttled: no"),
        (refusal("InternalError", 500), ResultUnknown, "InternalError: no"),
        (
            refusal("ExpiredToken"),
            StoreUnavailable,
            "SQS queue 'jobs' (region eu-central-1): the credentials have expired: no",
        ),
        (refusal("NoSuchThing"), StoreUnavailable, "SQS queue 'jobs' (region eu-central-1): NoSuchThing: no"),
    ],
)
def test_errors_of_any_service_are_explained(error: ServiceError, kind: type[Exception], told: str) -> None:
    explained = queue().explain(error)
    assert type(explained) is kind
    assert str(explained) == told


def test_a_client_whose_credentials_failed_is_made_anew_with_another_session() -> None:
    client = queue()
    first = client.connect()
    assert client.connect() is first
    client.explain(refusal("ExpiredToken"))
    assert client.connect() is not first
