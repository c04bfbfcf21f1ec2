"""How commands travel is in one table; what goes over both wires is as it ever was, since other versions read it."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest

from headgate import Concurrency, Window
from headgate.kernel.commands import (
    FORMS,
    Admit,
    Cancel,
    Command,
    Configure,
    Extend,
    Pause,
    Peek,
    Release,
    Renew,
    Reset,
    Settle,
    Stamp,
    Stand,
    Tighten,
)
from headgate.kernel.commands.peek import Question
from headgate.kernel.model import NEVER
from headgate.kernel.plan import Policy
from headgate.service.store_protocol.read import RequestReader
from headgate.service.tokens import SCOPES
from headgate.stores.http import wire as http_wire
from headgate.stores.redis import wire as redis_wire

POLICY = Policy("g", [Window(5, per="1m", name="w", by="org"), Concurrency(2, name="c")], priorities={"a": 1, "b": 0.5})
PLAN = POLICY.plan(1, {"org": "acme"}, "b")
ASK = [0, 1, {"requests": 1}, {"org": "acme"}]
LEASE = (PLAN, "id-1", 7, 30_000_000, 3, "me")

#: A command, and its row in a request to a guard.
ROWS: list[tuple[Command, list[Any]]] = [
    (Admit(PLAN, "id-1", None, 30_000_000), ["a", *ASK, "id-1", None, 30_000_000, 4, "", NEVER]),
    (
        Stand(PLAN, "id-1", "me", 30_000_000, waits=True, session="s", remembered=True, latest=9),
        ["a", *ASK, "id-1", "me", 30_000_000, 3, "s", 9],
    ),
    (
        Stand(PLAN, "id-1", "me", 30_000_000, remembered=True, attempt="a-1"),
        ["a", *ASK, "id-1", "me", 30_000_000, 2, "", NEVER, "a-1"],
    ),
    (Settle(PLAN, 7, "id-1", "ok", fence=8), ["e", *ASK, 7, "id-1", "ok", True, 0, None, 0, True, 8]),
    (
        Settle(PLAN, 7, "id-1", "ok", True, 5, {"requests": 2}, 6, False),
        ["e", *ASK, 7, "id-1", "ok", True, 5, {"requests": 2}, 6, False],
    ),
    (Settle(PLAN, 7, "", None, False), ["e", *ASK, 7, "", None, False, 0, None, 0, True]),
    (Release(POLICY, "id-1", "unsent", 5, {"requests": 2}), ["r", 0, "id-1", "unsent", 5, {"requests": 2}]),
    (Release(POLICY, "id-1", "ok", ago=9), ["r", 0, "id-1", "ok", 0, None, 9]),
    (Cancel(POLICY, "id-1"), ["c", 0, "id-1"]),
    (Cancel(POLICY, "id-1", "a-1", True), ["c", 0, "id-1", "a-1", True]),
    (Extend(POLICY, "id-1", 8), ["t", 0, "id-1", 8]),
    (Stamp(POLICY, "id-1", PLAN, 7, 5, 3), ["s", 0, "id-1", ASK, 7, 5, 3]),
    (Stamp(POLICY, "id-1"), ["s", 0, "id-1", None, 0, 0, 0]),
    (
        Renew("g", (LEASE,), "s", ("t-1", "t-2")),
        ["n", "g", "s", ["t-1", "t-2"], [[*ASK, "id-1", 7, 30_000_000, 3, "me"]]],
    ),
    (Peek(POLICY, plan=PLAN, leases=True), ["p", 0, ASK, True, False, None, 0, ""]),
    (Peek(POLICY, waiters=True), ["p", 0, None, False, True, None, 0, ""]),
    (Configure("g", "w|acme", 4.5), ["o", "g", "w|acme", 4.5]),
    (Configure("g", "w", 4.5, 7, "why"), ["o", "g", "w", 4.5, 7, "why"]),
    (Configure("g", "w", None, tightened=True), ["o", "g", "w", None, 0, "", True]),
    (Tighten("g", "w|acme", 4.5, 9, 7, "why"), ["i", "g", "w|acme", 4.5, 9, 7, "why"]),
    (Pause("g", 5, "why"), ["u", "g", 5, "why"]),
    (Reset("g", "w"), ["x", "g", "w"]),
]

#: The letters of the script's commands, and what is packed behind them.
SCRIPT: list[tuple[Command, list[Any]]] = [
    (Release(POLICY, "id-1", "ok", 5, {"requests": 2}), ["r", POLICY.fingerprint, "id-1", "ok", 5, (("requests", 2),), 0]),
    (Release(POLICY, "id-1", "ok", ago=9), ["r", POLICY.fingerprint, "id-1", "ok", 0, None, 9]),
    (Cancel(POLICY, "id-1"), ["c", POLICY.fingerprint, "id-1", "", False]),
    (Cancel(POLICY, "id-1", "a-1", True), ["c", POLICY.fingerprint, "id-1", "a-1", True]),
    (Extend(POLICY, "id-1", 8), ["l", POLICY.fingerprint, "id-1", 8]),
    (Stamp(POLICY, "id-1"), ["s", POLICY.fingerprint, "id-1", None, 0, 0, 0]),
    (Configure("g", "w", None), ["o", "w", None, 0, "", False]),
    (Tighten("g", "w", 4.5, 9, 7, "why"), ["i", "w", 4.5, 9, 7, "why"]),
    (Pause("g", 5, "why"), ["u", 5, "why"]),
    (Reset("g", None), ["x", None]),
]  # fmt: skip


def every(kind: type[Command]) -> set[type[Command]]:
    return {kind}.union(*(every(below) for below in kind.__subclasses__()))


def test_every_command_has_its_form_and_its_own_letter_on_both_wires() -> None:
    # A question is what a look decides, where it is decided: it never travels by itself.
    assert {kind for kind in every(Command) if kind.__module__.startswith("headgate.")} - {Command, Question} == set(
        FORMS
    )
    forms = {form.name: form for form in FORMS.values()}
    assert len({form.letter for form in forms.values()}) == len(forms)
    assert len({form.for_script()[0] for form in forms.values()}) == len(forms)
    assert {form.scope for form in forms.values()} <= set(SCOPES)


@pytest.mark.parametrize("form", list(dict.fromkeys(FORMS.values())), ids=lambda form: form.name)
def test_the_guards_reader_of_a_command_takes_the_fields_of_its_form_in_their_order(form: Any) -> None:
    places: dict[str, tuple[str, ...]] = {"plan": ("number", "rank", "costs", "key"), "policy": ("number",)}
    wanted = [name for field in form.fields for name in places.get(field, (field,))]
    assert list(inspect.signature(getattr(RequestReader, form.name)).parameters)[1:] == wanted


@pytest.mark.parametrize(("command", "row"), ROWS, ids=lambda value: type(value).__name__)
def test_a_command_goes_to_a_guard_as_it_ever_did(command: Command, row: list[Any]) -> None:
    sent = json.loads(http_wire.encode([command], {"g": 12, "other": 5}))
    assert sent["commands"] == [row]
    assert sent["seen"] == {"g": 12}
    assert sent["v"] == 1
    named = isinstance(row[1], int) or bool(row[-1:] and isinstance(command, Renew))
    assert sent["policies"] == ([[POLICY.fingerprint, json.loads(json.dumps(POLICY.spec()))]] if named else [])


def test_a_request_is_written_as_json_without_spaces_and_names_each_policy_once() -> None:
    commands = [command for command, _ in ROWS]
    raw = http_wire.encode(commands, {})
    assert raw == json.dumps(json.loads(raw), separators=(",", ":")).encode()
    assert len(json.loads(raw)["policies"]) == 1


@pytest.mark.parametrize(("command", "parts"), SCRIPT, ids=lambda value: type(value).__name__)
def test_a_command_goes_to_the_script_as_it_ever_did(command: Command, parts: list[Any]) -> None:
    frame = redis_wire.encode("g", [command])[0]
    assert redis_wire.pack([redis_wire.inside(redis_wire.pack(parts))]) in frame


def test_asks_and_ends_that_are_alike_are_sent_to_the_script_with_what_they_have_in_common_once() -> None:
    ask = Stand(PLAN, "id-1", "me", 9, waits=True, session="s", remembered=True, latest=7)
    head = (True, 9, False, True, True, 7, "s", True)
    frame, *rest = redis_wire.encode("g", [ask, ask])
    assert redis_wire.pack((*head, False))[1:] in frame
    key = b"\x91\x92\xa3org\xa4acme"
    assert rest == [0, "", 0, "id-1", "me", key, "id-1", "me", key]
    ask.attempt = "a-1"
    frame, *rest = redis_wire.encode("g", [ask])
    assert redis_wire.pack((*head, True))[1:] in frame
    assert rest == [0, "", 0, "id-1", "me", "a-1", key]
    end = Settle(PLAN, 7, "id-1", "ok", True, 5, {"requests": 2}, 6, False)
    frame, *rest = redis_wire.encode("g", [end])
    assert redis_wire.pack((True, "ok", True, 5, (("requests", 2),), 6, False))[1:] in frame
    assert rest == [0, "", 0, "id-1", 7, key]
