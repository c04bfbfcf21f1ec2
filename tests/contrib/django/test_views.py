"""Guarding views: the order of the steps, the two 429s to the byte, and a slot that is released with the view."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.test import AsyncClient, Client, override_settings

from headgate.contrib.django import LimitReached, limit_reached, slot, tenants
from headgate.contrib.django.errors import LimiterUnavailable
from headgate.contrib.django.models import Organization
from headgate.contrib.django.views import LimitMiddleware
from headgate.events import subscribe
from tests.contrib.django.conftest import make_organization, occupy, used
from tests.contrib.django.views import Broken

GOLDEN = Path(__file__).parent / "golden"
OWN_HANDLER = {
    "EXCEPTION_HANDLER": "rest_framework.views.exception_handler",
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_AUTHENTICATION_CLASSES": ["deployments.keys.KeyAuthentication"],
    "UNAUTHENTICATED_USER": None,
}

ORGANIZATION_BODY = """{
  "type": "client_error",
  "errors": [
    {
      "code": "error",
      "detail": "Organization has reached the maximum concurrent API requests limit (20/20). Please try again later.",
      "attr": null
    }
  ]
}"""


def run(name: str = "acme-corp", data: Any = None, key: str | None = None) -> Any:
    return Client(raise_request_exception=False).post(
        f"/deployment/api/{name}/invoices/",
        {"document": "x"} if data is None else data,
        content_type="application/json",
        headers={"Authorization": f"Bearer {key or f'key-{name}'}"},
    )


def refused_bodies(acme: Organization, handler: Any = None) -> list[Any]:
    """The answers of every way to guard a view, with the organisation full."""
    client = Client()
    answers = [run(), client.post("/block/", headers={"X-Org": acme.name})]
    answers += [client.get(f"/{page}/", headers={"X-Org": acme.name}) for page in ("plain", "aplain", "throttled")]
    return answers


@pytest.mark.parametrize("handler", ["standardized", "own"])
def test_every_way_to_guard_a_view_answers_a_full_organization_with_the_same_bytes(
    acme: Organization, handler: str
) -> None:
    occupy(acme, 20)
    golden = (GOLDEN / "429_organization.json").read_bytes()
    assert json.loads(golden) == json.loads(ORGANIZATION_BODY)
    with override_settings(**({"REST_FRAMEWORK": OWN_HANDLER} if handler == "own" else {})):
        for answer in refused_bodies(acme):
            assert answer.status_code == 429
            assert answer.content == golden
            assert answer["Content-Type"] == "application/json"
            assert int(answer["Retry-After"]) >= 1
    assert used(acme) == 20


@pytest.mark.parametrize("handler", ["standardized", "own"])
def test_a_full_system_is_told_without_any_number(
    acme: Organization, handler: str, limits: Callable[..., None]
) -> None:
    limits(API_DEPLOYMENT_GLOBAL_RATE_LIMIT=3)
    occupy(make_organization("other"), 3)
    with override_settings(**({"REST_FRAMEWORK": OWN_HANDLER} if handler == "own" else {})):
        for answer in refused_bodies(acme):
            assert answer.status_code == 429
            assert answer.content == (GOLDEN / "429_global.json").read_bytes()
            # Retry-After is the setting's, whatever the leases: it tells nothing of how full the system is.
            headers = {name: value for name, value in answer.items() if any(sign.isdigit() for sign in value)}
            assert {**headers, "Content-Length": ""} == {"Retry-After": "5", "Content-Length": ""}
    assert used(acme) == 0


def test_where_both_are_full_the_organization_is_told_first(acme: Organization, limits: Callable[..., None]) -> None:
    limits(API_DEPLOYMENT_DEFAULT_RATE_LIMIT=2, API_DEPLOYMENT_GLOBAL_RATE_LIMIT=3)
    occupy(acme, 2)
    # The lease that ends last is the other organisation's, so the total is what the ask would wait for longest.
    slot(make_organization("other"), "long", lease="5h").take()
    answer = run()
    assert "(2/2)" in answer.json()["errors"][0]["detail"]


def test_the_limit_that_refused_is_in_the_log_line_and_in_a_signal(
    acme: Organization, limits: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    limits(API_DEPLOYMENT_DEFAULT_RATE_LIMIT=1)
    seen: list[Any] = []
    limit_reached.connect(note := lambda refused, **more: seen.append(refused))
    occupy(acme, 1)
    run()
    [refused] = seen
    assert (refused.limit, refused.used, refused.value, refused.shadow) == ("org", 1, 1, False)
    assert refused.organization == acme
    assert "limit org refused org_a1b2c3d4e5f6g7h8 (1/1)" in caplog.text
    limit_reached.disconnect(note)


def test_a_request_that_is_wrong_unknown_or_not_allowed_takes_no_slot(
    acme: Organization, limits: Callable[..., None]
) -> None:
    """Each is told what is wrong with it while the organisation is full: none of them has asked for a slot."""
    limits(API_DEPLOYMENT_DEFAULT_RATE_LIMIT=1)
    make_organization("other")
    occupy(acme, 1)
    assert run(data={"nothing": 1}).status_code == 400
    assert run(key="wrong").status_code == 401
    assert run(key="key-other").status_code == 403
    assert (
        Client().get("/deployment/api/acme-corp/x/", headers={"Authorization": "Bearer key-acme-corp"}).status_code
        == 405
    )
    assert Client().get("/aplain/?bad", headers={"X-Org": acme.name}).status_code == 400
    assert Client().get("/plain/", headers={"X-Org": "nobody"}).status_code == 403
    assert run().status_code == 429


def test_an_accepted_run_holds_its_slot_until_it_is_completed(acme: Organization) -> None:
    from deployments.models import WorkflowExecution

    answer = run()
    assert answer.status_code == 200
    assert answer.json() == {"execution_id": answer.json()["execution_id"], "status": "queued"}
    assert used(acme) == 1
    WorkflowExecution.objects.get(pk=answer.json()["execution_id"]).update_execution("completed")
    assert used(acme) == 0


def test_runs_of_the_user_interface_schedules_and_etl_take_no_slot(acme: Organization) -> None:
    from django.core.management import call_command

    headers = {"Authorization": "Bearer key-acme-corp"}
    assert Client().post("/workflow/acme-corp/w/run/", headers=headers).status_code == 200
    call_command("run_scheduled", "acme-corp", "w", stdout=StringIO())
    call_command("run_etl", "acme-corp", "w", stdout=StringIO())
    assert tenants().gate.holders() == []


@pytest.mark.parametrize("page", ["plain", "aplain", "throttled"])
def test_a_view_holds_its_slot_while_it_runs_and_not_afterwards(acme: Organization, page: str) -> None:
    answer = Client().get(f"/{page}/", headers={"X-Org": acme.name})
    assert answer.json() == {"slots": 1}
    assert used(acme) == 0


@pytest.mark.parametrize("page", ["plain", "aplain", "throttled"])
def test_a_view_that_raises_gives_its_slot_back(acme: Organization, page: str) -> None:
    with pytest.raises(Broken):
        Client().get(f"/{page}/?fail", headers={"X-Org": acme.name})
    assert used(acme) == 0


def test_an_async_view_under_an_event_loop_takes_and_releases_its_slot(acme: Organization) -> None:
    import asyncio

    async def ask() -> list[Any]:
        client = AsyncClient()
        return await asyncio.gather(*(client.get("/aplain/", headers={"X-Org": acme.name}) for _ in range(5)))

    assert [answer.status_code for answer in asyncio.run(ask())] == [200] * 5
    assert used(acme) == 0


@pytest.mark.parametrize("url", ["sqlite", "redis"])
def test_async_views_of_one_loop_after_another_work_on_the_same_state(
    acme: Organization, url: str, request: pytest.FixtureRequest, limits: Callable[..., None]
) -> None:
    """Under WSGI every async view has an event loop of its own."""
    if url == "redis":
        request.getfixturevalue("redis")
    limits(API_DEPLOYMENT_DEFAULT_RATE_LIMIT=1)
    for _ in range(3):
        assert Client().get("/aplain/", headers={"X-Org": acme.name}).json() == {"slots": 1}
    with slot(acme):
        assert Client().get("/aplain/", headers={"X-Org": acme.name}).status_code == 429


def test_a_response_that_streams_holds_its_slot_until_it_has_been_sent(acme: Organization) -> None:
    answer = Client().get("/stream/", headers={"X-Org": acme.name})
    parts = iter(answer.streaming_content)
    assert next(parts) == b"one"
    assert used(acme) == 1
    assert b"".join(parts) == b"twothree"
    assert used(acme) == 0


def test_a_stream_that_its_client_leaves_gives_its_slot_back(acme: Organization) -> None:
    answer = Client().get("/stream/", headers={"X-Org": acme.name})
    assert used(acme) == 1
    answer.close()
    assert used(acme) == 0


def test_shadow_mode_decides_logs_counts_and_lets_pass(
    acme: Organization, limits: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    limits(API_DEPLOYMENT_DEFAULT_RATE_LIMIT=2, shadow=True)
    events: list[Any] = []
    stop = subscribe(events.append)
    occupy(acme, 2)
    seen: list[Any] = []
    limit_reached.connect(note := lambda refused, **more: seen.append(refused))
    answers = [run(), Client().get("/plain/", headers={"X-Org": acme.name})]
    stop()
    limit_reached.disconnect(note)
    assert [answer.status_code for answer in answers] == [200, 200]
    assert used(acme) == 2, "what would have been refused holds nothing"
    assert [(event.kind, event.facts["limit"]) for event in events] == [("shadow_refused", "org")] * 2
    assert [refused.shadow for refused in seen] == [True, True]
    assert "would have refused org_a1b2c3d4e5f6g7h8 (2/2)" in caplog.text


def test_shadow_refusals_are_counted_for_prometheus(acme: Organization, limits: Callable[..., None]) -> None:
    from headgate.sinks.prometheus import Prometheus

    limits(API_DEPLOYMENT_DEFAULT_RATE_LIMIT=1, shadow=True)
    metrics = Prometheus()
    stop = subscribe(metrics)
    occupy(acme, 1)
    run()
    stop()
    assert metrics.value("headgate_shadow_refused_total", "api-deployment") == 1


def test_the_middleware_answers_what_a_plain_view_let_go(acme: Organization, limits: Callable[..., None]) -> None:
    limits(API_DEPLOYMENT_DEFAULT_RATE_LIMIT=1)
    occupy(acme, 1)
    with pytest.raises(LimitReached) as caught:
        slot(acme).take()
    answer = LimitMiddleware(lambda request: None).process_exception(None, caught.value)
    assert (answer.status_code, answer["Retry-After"]) == (429, "5")
    assert LimitMiddleware(lambda request: None).process_exception(None, Broken()) is None


def test_an_id_is_one_admission_however_often_it_asks(acme: Organization) -> None:
    for _ in range(3):
        slot(acme, "execution-1").take()
    assert used(acme) == 1


def test_an_organization_is_known_by_its_object_or_its_id_and_any_characters_will_do(acme: Organization) -> None:
    with slot(acme.organization_id):
        assert used(acme) == 1
    strange = make_organization("Bücher & Söhne", "Bücher & Söhne / Wien")
    slot(strange, "Lauf Nr. 1").take()
    assert used(strange) == 1
    from headgate.contrib.django import release

    assert release("Lauf Nr. 1") is True
    assert used(strange) == 0


def test_a_closed_gate_without_its_store_answers_503(
    acme: Organization, limits: Callable[..., None], tmp_path: Path
) -> None:
    limits(HEADGATE_STORE="redis://127.0.0.1:1/0", on_store_error="closed")
    with pytest.raises(LimiterUnavailable):
        slot(acme).take()
    answer = run()
    assert (answer.status_code, answer["Retry-After"]) == (503, "1")
    assert answer.json()["type"] == "server_error"
