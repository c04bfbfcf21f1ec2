"""A slot is released exactly once on every path, and never before its time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from deployments.models import WorkflowExecution
from django.db import connection, transaction
from django.test import Client, override_settings

from headgate.contrib.django import complete, run_finished, slot, slot_released, tenants
from headgate.contrib.django.models import Organization
from tests.contrib.django.conftest import used
from tests.contrib.django.views import Broken


@pytest.fixture
def released() -> Iterator[list[tuple[Any, bool]]]:
    """(execution id, whether there was one to end) of every release."""
    seen: list[tuple[Any, bool]] = []

    def note(execution_id: Any, ended: bool, **more: Any) -> None:
        seen.append((execution_id, ended))

    slot_released.connect(note)
    yield seen
    slot_released.disconnect(note)


RUN = "0b5a3c1e-7b8f-4f43-9d0a-5d3f6a1f2b11"


def post(acme: Organization, fail: str | None) -> Any:
    return Client(raise_request_exception=False).post(
        "/steps/",
        {"fail": fail} if fail else {},
        content_type="application/json",
        headers={"X-Org": acme.name, "X-Id": RUN},
    )


BEFORE = {"validation": 400, "validation-crash": 500}
WITHIN = {"file": 500, "database": 500, "rollback-exception": 500, "queue": 500}


@pytest.mark.parametrize("atomic_requests", [False, True])
@pytest.mark.parametrize("fail", [*BEFORE, *WITHIN, "rollback"])
def test_a_run_that_fails_at_any_step_leaves_no_slot_and_releases_once(
    acme: Organization, released: list[tuple[Any, bool]], fail: str, atomic_requests: bool
) -> None:
    connection.settings_dict["ATOMIC_REQUESTS"] = atomic_requests
    try:
        answer = post(acme, fail)
    finally:
        connection.settings_dict["ATOMIC_REQUESTS"] = False
    assert answer.status_code == {**BEFORE, **WITHIN}.get(fail, 200)
    assert used(acme) == 0
    assert tenants().gate.holders() == []
    assert released == ([] if fail in BEFORE else [(RUN, True)])
    assert WorkflowExecution.objects.count() == (1 if fail == "queue" else 0)


def test_a_run_that_was_committed_and_dispatched_keeps_its_slot_whatever_the_view_does_then(
    acme: Organization, released: list[tuple[Any, bool]]
) -> None:
    assert post(acme, "after-commit").status_code == 500
    assert used(acme) == 1, "a worker has it, and will complete it"
    assert released == []
    complete(RUN)
    assert released == [(RUN, True)]


def test_in_atomic_requests_what_fails_after_handing_over_is_rolled_back_and_released(
    acme: Organization, released: list[tuple[Any, bool]]
) -> None:
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    try:
        assert post(acme, "after-commit").status_code == 500
    finally:
        connection.settings_dict["ATOMIC_REQUESTS"] = False
    assert WorkflowExecution.objects.count() == 0
    assert released == [(RUN, True)]


def test_success_releases_nothing_until_the_run_is_complete(acme: Organization, released: list[Any]) -> None:
    assert post(acme, None).status_code == 200
    assert (used(acme), released) == (1, [])


def test_a_completion_that_is_rolled_back_keeps_the_slot(acme: Organization, released: list[Any]) -> None:
    post(acme, None)
    with suppress(Broken), transaction.atomic():
        complete(RUN)
        raise Broken
    assert (used(acme), released) == (1, [])


def test_a_slot_is_released_after_the_commit_and_not_before(acme: Organization) -> None:
    post(acme, None)
    with transaction.atomic():
        complete(RUN)
        assert used(acme) == 1
    assert used(acme) == 0


def test_a_rolled_back_savepoint_gives_back_what_was_handed_over_in_it(acme: Organization) -> None:
    with transaction.atomic():
        with slot(acme, "outer") as held:
            held.hand_over()
        with suppress(Broken), transaction.atomic(), slot(acme, "inner") as held:
            held.hand_over()
            raise Broken
        assert {holder.id for holder in tenants().gate.holders()} == {"outer"}
    assert used(acme) == 1


def test_a_connection_that_is_lost_in_a_transaction_gives_back_what_was_handed_over(acme: Organization) -> None:
    with suppress(Broken), transaction.atomic():
        with slot(acme, "one") as held:
            held.hand_over()
        assert used(acme) == 1
        connection.close()
        raise Broken
    assert used(acme) == 0


def test_completing_twice_frees_nobody_elses_slot(acme: Organization, released: list[tuple[Any, bool]]) -> None:
    slot(acme, "one").take()
    slot(acme, "two").take()
    complete("one")
    complete("one")
    assert used(acme) == 1
    assert released == [("one", True), ("one", False)]


def test_a_project_may_send_a_signal_when_a_run_has_finished(acme: Organization) -> None:
    slot(acme, "one").take()
    with transaction.atomic():
        run_finished.send(sender=None, execution_id="one")
        assert used(acme) == 1
    assert used(acme) == 0


def test_an_exception_in_the_block_releases_and_an_ordinary_end_too(
    acme: Organization, released: list[tuple[Any, bool]]
) -> None:
    with pytest.raises(Broken), slot(acme):
        raise Broken
    with slot(acme):
        assert used(acme) == 1
    assert used(acme) == 0
    assert [ended for _, ended in released] == [True, True]


def test_a_slot_without_an_id_cannot_be_handed_over_and_is_released(acme: Organization) -> None:
    with pytest.raises(ValueError, match="needs an id"), slot(acme) as held:
        held.hand_over()
    assert used(acme) == 0


def test_handing_over_twice_is_an_error_and_releases_nothing_twice(acme: Organization, released: list[Any]) -> None:
    with slot(acme, "one") as held:
        held.hand_over()
        with pytest.raises(RuntimeError, match="handed over already"):
            held.hand_over()
    assert (used(acme), released) == (1, [])


def test_the_decorator_hands_over_as_the_block_does(acme: Organization) -> None:
    assert Client().get("/handing/", headers={"X-Org": acme.name, "X-Id": "one"}).status_code == 200
    assert used(acme) == 1


def test_async_code_completes_at_once(acme: Organization) -> None:
    import asyncio

    from headgate.contrib.django import acomplete

    slot(acme, "one").take()
    assert asyncio.run(acomplete("one")) is True
    assert used(acme) == 0


def test_an_async_block_releases_on_cancellation(acme: Organization) -> None:
    import asyncio

    async def cancelled() -> None:
        entered = asyncio.Event()

        async def hold() -> None:
            async with slot(acme):
                entered.set()
                await asyncio.sleep(3600)

        task = asyncio.create_task(hold())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert used(acme) == 0


def test_rates_beside_slots_are_charged_and_the_slot_alone_is_released(acme: Organization) -> None:
    from headgate import Concurrency, Window
    from headgate.contrib.django import LimitReached

    own = {
        "limits": [Concurrency(5, name="org", by="org"), Window(2, per="1m", by="org", name="rate")],
        "messages": {"rate": "At most {limit} a minute; again in {retry_after} s."},
    }
    with override_settings(HEADGATE_TENANTS=own):
        for _ in range(2):
            with slot(acme):
                pass
        with pytest.raises(LimitReached, match=r"At most 2 a minute; again in 6[01] s\."):
            slot(acme).take()
        assert used(acme) == 0
