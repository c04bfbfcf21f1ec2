"""Async views of DRF, with the real adrf: the mixin guards them as it guards sync ones, and leaves no slot behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from django.test import AsyncClient, Client

from headgate.contrib.django import complete, slot, slot_released
from headgate.contrib.django.models import Organization
from tests.contrib.django.conftest import occupy, used
from tests.contrib.django.views import AsyncSteps, Broken


def post(acme: Organization, client: Any = None, id: str = "", **data: Any) -> Any:
    headers = {"X-Org": acme.name, **({"X-Id": id} if id else {})}
    return (client or Client()).post("/asteps/", data, content_type="application/json", headers=headers)


def test_an_async_view_of_drf_holds_its_slot_while_it_runs_and_not_afterwards(acme: Organization) -> None:
    seen: list[bool] = []
    slot_released.connect(note := lambda ended, **more: seen.append(ended))
    assert post(acme).json() == {"slots": 1}
    slot_released.disconnect(note)
    assert seen == [True]
    assert used(acme) == 0


def test_it_runs_under_an_event_loop_and_many_at_once_get_no_more_than_the_limit(
    acme: Organization, limits: Callable[..., None]
) -> None:
    limits(API_DEPLOYMENT_DEFAULT_RATE_LIMIT=3)
    occupy(acme, 2)

    async def ask() -> list[int]:
        client = AsyncClient()
        answers = await asyncio.gather(*(post(acme, client) for _ in range(8)))
        return [answer.status_code for answer in answers]

    statuses = asyncio.run(ask())
    assert set(statuses) <= {200, 429}
    assert 200 in statuses
    assert used(acme) == 2


def test_its_429_is_the_same_and_what_is_wrong_or_unknown_takes_no_slot(
    acme: Organization, limits: Callable[..., None]
) -> None:
    limits(API_DEPLOYMENT_DEFAULT_RATE_LIMIT=1)
    with slot(acme):
        answer = post(acme)
        assert (answer.status_code, answer["Retry-After"]) == (429, "5")
        assert "(1/1). Please try again later." in answer.json()["errors"][0]["detail"]
        assert post(acme, bad=True).status_code == 400
        assert Client().post("/asteps/", {}, headers={"X-Org": "nobody"}).status_code == 403
    assert used(acme) == 0


def test_an_async_view_of_drf_that_raises_gives_its_slot_back(acme: Organization) -> None:
    with pytest.raises(Broken):
        post(acme, fail=True)
    assert used(acme) == 0


def test_a_client_that_goes_away_while_the_view_waits_gives_the_slot_back(acme: Organization) -> None:
    async def leave() -> None:
        AsyncSteps.entered[:] = [asyncio.Event()]
        request = asyncio.create_task(post(acme, AsyncClient(), wait=True))
        await AsyncSteps.entered[0].wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request

    asyncio.run(leave())
    assert used(acme) == 0


def test_a_slot_that_is_taken_after_its_client_has_gone_is_given_back(acme: Organization) -> None:
    """Under adrf the slot is taken in a thread, which goes on when the task that waits for it is cancelled."""
    view = AsyncSteps()
    view._answered = True
    view.slot_methods = None
    request = view.initialize_request(_request(acme))
    view.request, view.args, view.kwargs, view.headers, view.format_kwarg = request, (), {}, {}, None
    view.initial(request)
    assert used(acme) == 0


def _request(acme: Organization) -> Any:
    from django.test import RequestFactory

    return RequestFactory().post("/asteps/", {}, headers={"X-Org": acme.name})


def test_an_async_response_that_streams_holds_its_slot_until_it_has_been_sent(acme: Organization) -> None:
    async def read() -> tuple[bytes, int, int]:
        answer = await post(acme, AsyncClient(), stream=True)
        parts = aiter(answer.streaming_content)
        first = await anext(parts)
        held = await asyncio.to_thread(used, acme)
        rest = b"".join([part async for part in parts])
        return first + rest, held, await asyncio.to_thread(used, acme)

    assert asyncio.run(read()) == (b"onetwothree", 1, 0)


def test_an_async_view_of_drf_hands_its_run_over(acme: Organization) -> None:
    assert post(acme, id="one", hand=True).json() == {"slots": 1}
    assert used(acme) == 1
    complete("one")
    assert used(acme) == 0


def test_a_slot_of_async_code_is_not_released_by_a_call_that_cannot_await(acme: Organization) -> None:
    async def wrong() -> None:
        async with slot(acme) as held:
            with pytest.raises(TypeError, match=r"await slot\.arelease"):
                held.release()

    asyncio.run(wrong())
    assert used(acme) == 0
