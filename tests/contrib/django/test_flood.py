"""One organisation's flood costs another's request no more than its turn, by count: round trips, commands, records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import ceil

import pytest

from headgate.contrib.django import LimitReached, Slot, slot, tenants
from headgate.contrib.django.models import Organization
from tests.contrib.django.conftest import make_organization, occupy, used
from tests.support.reordering import ReorderingProxy
from tests.support.servers import Server

#: Commands that one round trip carries at most, and round trips that an event loop has under way at most.
AT_ONCE, UNDER_WAY = 256, 2


async def ask(organization: Organization) -> Slot | None:
    try:
        return await slot(organization, tenants=tenants()).atake()
    except LimitReached:
        return None


@pytest.mark.parametrize("flood", [10, 250, 1000])
def test_a_request_goes_with_the_next_round_trip_however_many_of_another_organization_are_before_it(
    acme: Organization, limits: Callable[..., None], flood: int
) -> None:
    """All of them ask in one turn of an event loop, the flood first. What the server was sent is counted by a proxy."""
    bolt = make_organization("bolt")
    with Server() as server:
        proxy = ReorderingProxy(server.port, b"")
        try:
            limits(HEADGATE_STORE=f"{proxy.url}?timeout=60s", API_DEPLOYMENT_DEFAULT_RATE_LIMIT=3)
            occupy(acme, 3)
            before = len(proxy.requests)

            async def together() -> Slot | None:
                *refused, mine = await asyncio.gather(*(ask(acme) for _ in range(flood)), ask(bolt))
                assert set(refused) == {None}
                return mine

            mine = asyncio.run(together())
            sent = b"".join(proxy.requests[before:])
        finally:
            proxy.close()
    assert mine is not None
    passed, named, _ = sent.partition(b"org_bolt")
    assert named
    turn = passed.count(b"FCALL")
    assert turn <= UNDER_WAY + ceil(flood / AT_ONCE), "with the first that has room after those that are under way"
    assert sent.count(b"FCALL") < 2 * flood, "and those of the flood share theirs: alone, each would need two"


@pytest.mark.parametrize("url", ["sqlite", "redis"])
def test_a_flood_that_was_refused_leaves_nothing_that_another_request_would_have_to_pass(
    acme: Organization, limits: Callable[..., None], url: str, request: pytest.FixtureRequest
) -> None:
    server: Server | None = request.getfixturevalue("redis") if url == "redis" else None
    limits(API_DEPLOYMENT_DEFAULT_RATE_LIMIT=3)
    bolt = make_organization("bolt")
    occupy(acme, 3)
    for _ in range(200):
        with pytest.raises(LimitReached):
            slot(acme).take()
    usage = tenants().gate.usage(key=tenants().key(bolt))
    assert (usage.waiting, int(usage["org"].used), int(usage["global"].used)) == (0, 0, 3), "no ticket, no slot"
    calls, begun = (0 if server is None else server.calls("fcall")), usage.seq
    held = slot(bolt).take()
    if server is not None:
        assert server.calls("fcall") - calls == 1, "one round trip, and none for those before it"
    assert tenants().gate.usage().seq == begun + 1, "one command that writes"
    held.release()
    assert used(acme) == 3
