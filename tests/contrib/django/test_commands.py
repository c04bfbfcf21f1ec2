"""The five commands: the outputs that their operators know, and what they do where something is not as it should be."""

from __future__ import annotations

import json
import os
import pty
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from headgate.contrib.django import tenants
from headgate.contrib.django.models import Organization, OrganizationRateLimit
from tests.contrib.django.conftest import example_process, make_organization, occupy, used

GOLDEN = Path(__file__).parent / "golden"


def manage(*words: str) -> str:
    out = StringIO()
    call_command(*words, stdout=out)
    return out.getvalue()


def golden(name: str) -> str:
    return (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("org", ["org_a1b2c3d4e5f6g7h8", "acme-corp"])
def test_set_creates_and_updates_by_id_or_name(acme: Organization, org: str) -> None:
    occupy(acme, 5)
    assert manage("set_org_rate_limit", org, "50") == golden("set_created")
    assert manage("set_org_rate_limit", org, "50") == golden("set_created").replace("Created", "Updated")
    assert tenants().values() == {"org_a1b2c3d4e5f6g7h8": 50}


def test_get_shows_the_table_the_store_and_the_usage(acme: Organization) -> None:
    manage("set_org_rate_limit", "acme-corp", "50")
    at = datetime(2025, 11, 8, 10, 30, tzinfo=UTC)
    OrganizationRateLimit.objects.update(modified_at=at)
    occupy(acme, 5)
    for name in ("one", "two"):
        occupy(make_organization(name), 20)
    assert manage("get_org_rate_limit", "org_a1b2c3d4e5f6g7h8") == golden("get")


def test_list_shows_every_organization_with_a_limit_of_its_own(acme: Organization) -> None:
    for organization, limit, count in (
        (acme, 50, 5),
        (make_organization("widgets-inc", "org_r1II1U07Th3RnSfv"), 100, 0),
        (make_organization("tech-startup", "org_zj4xaTiCdTToPlaj"), 25, 18),
    ):
        OrganizationRateLimit.objects.create(organization=organization, concurrent_request_limit=limit)
        occupy(organization, count)
    shown = golden("list_with_usage")
    assert manage("list_org_rate_limits", "--with-usage") == shown
    assert manage("list_org_rate_limits") == re.sub(r"  Usage: .+\n", "", shown)
    # Scenario 3: what its operators search the output for.
    assert [line for line in shown.splitlines() if re.search(r"([7-9][0-9]|100)\.0%", line)] == [
        "  Usage: 18/25 (72.0%)"
    ]


def test_clear_all_rewrites_the_store_from_the_table_and_tells_how_much(acme: Organization) -> None:
    for number in range(137):
        tenants().set_value({"org": f"org_{number}"}, 7)  # what raw SQL left behind: no row has it
    OrganizationRateLimit.objects.create(organization=acme, concurrent_request_limit=50)
    assert manage("clear_org_rate_limit_cache", "--all") == golden("clear_all")
    assert tenants().values() == {"org_a1b2c3d4e5f6g7h8": 50}


def at_a_terminal(store: str, *words: str, answer: str) -> tuple[str, int]:
    """What a person sees of a command in a process of its own, and its exit code."""
    environment = example_process(store, NO_COLOR="1", DJANGO_COLORS="nocolor")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-m", "django", *words], environment)
    seen = b""
    answered = False
    with suppress(OSError):  # the terminal is gone with the child
        while part := os.read(terminal, 4096):
            seen += part
            if not answered and seen.endswith(b"[y/N]: "):
                os.write(terminal, f"{answer}\n".encode())
                answered = True
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    return seen.decode().replace("\r\n", "\n"), os.waitstatus_to_exitcode(status)


def test_delete_asks_at_a_terminal(acme: Organization, store: str) -> None:
    manage("set_org_rate_limit", "acme-corp", "50")
    occupy(acme, 5)
    assert at_a_terminal(store, "delete_org_rate_limit", "org_a1b2c3d4e5f6g7h8", answer="n")[0].endswith(
        "\n\nCancelled\n"
    )
    assert at_a_terminal(store, "delete_org_rate_limit", "org_a1b2c3d4e5f6g7h8", answer="y") == (golden("delete"), 0)
    assert tenants().values() == {}


def test_delete_with_force_asks_nothing(acme: Organization) -> None:
    manage("set_org_rate_limit", "acme-corp", "50")
    occupy(acme, 5)
    expected = golden("delete").split("[y/N]: y\n\n")[1]
    assert manage("delete_org_rate_limit", "acme-corp", "--force") == expected
    assert manage("delete_org_rate_limit", "acme-corp", "--force") == (
        'No custom rate limit found for organization "acme-corp" (org_a1b2c3d4e5f6g7h8)\n'
    )


def test_delete_never_goes_on_without_a_terminal(acme: Organization, monkeypatch: pytest.MonkeyPatch) -> None:
    manage("set_org_rate_limit", "acme-corp", "50")
    for answer in ("", "y\n"):
        monkeypatch.setattr(sys, "stdin", StringIO(answer))
        with pytest.raises(CommandError, match="no terminal to confirm it at, so nothing was deleted; say --force"):
            manage("delete_org_rate_limit", "acme-corp")
    assert OrganizationRateLimit.objects.count() == 1


def test_an_organization_without_a_row_has_the_default(acme: Organization) -> None:
    text = manage("get_org_rate_limit", "acme-corp")
    assert text.startswith("Database Limit: Not set\nUsing Default: 20\nCached Limit: 20 ✓\n\n--- Current Usage ---\n")
    assert manage("list_org_rate_limits") == "No custom rate limits configured\n"
    assert manage("clear_org_rate_limit_cache") == "No custom rate limits found - nothing to clear\n"


@pytest.mark.parametrize("words", ["set_org_rate_limit {} 5", "get_org_rate_limit {}", "delete_org_rate_limit {} --force",
                                   "clear_org_rate_limit_cache --org-id {}"])  # fmt: skip
def test_an_unknown_or_ambiguous_organization_is_an_error_that_says_which(words: str, acme: Organization) -> None:
    with pytest.raises(CommandError, match='Organization with ID or name "nobody" does not exist'):
        manage(*words.format("nobody").split())
    Organization.objects.create(organization_id="org_other", name="acme-corp")
    with pytest.raises(
        CommandError, match="several organizations; name one by its id: org_a1b2c3d4e5f6g7h8, org_other"
    ):
        manage(*words.format("acme-corp").split())
    assert OrganizationRateLimit.objects.count() == 0


def test_an_id_is_believed_before_a_name(acme: Organization) -> None:
    other = Organization.objects.create(organization_id="acme-corp", name="other")
    manage("set_org_rate_limit", "acme-corp", "7")
    assert OrganizationRateLimit.objects.get().organization == other


@pytest.mark.parametrize("value", ["0", "-3", "abc", "1.5", "", "99999999999999"])
def test_a_limit_that_is_none_changes_nothing(acme: Organization, value: str) -> None:
    with pytest.raises(CommandError, match="must be a whole number of at least 1"):
        manage("set_org_rate_limit", "acme-corp", "--", value)
    assert OrganizationRateLimit.objects.count() == 0
    assert tenants().values() == {}


def test_a_limit_below_the_usage_warns_and_takes_nothing_away(acme: Organization) -> None:
    occupy(acme, 5)
    text = manage("set_org_rate_limit", "acme-corp", "3")
    assert (
        "Current usage: 5/3 concurrent requests\nWARNING: Current usage exceeds new limit! Nothing is taken away"
        in text
    )
    assert used(acme) == 5
    assert "WARNING" not in manage("set_org_rate_limit", "acme-corp", "5")


def test_get_shows_both_values_where_table_and_store_differ_and_clear_cache_mends_it(acme: Organization) -> None:
    manage("set_org_rate_limit", "acme-corp", "50")
    OrganizationRateLimit.objects.update(concurrent_request_limit=30)  # tells nobody
    assert "Database Limit: 30\n" in manage("get_org_rate_limit", "acme-corp")
    assert "Cached Limit: 50 ✗ (the store decides by this, and the table has 30: run " in manage(
        "get_org_rate_limit", "acme-corp"
    )
    text = manage("get_org_rate_limit", "acme-corp", "--clear-cache")
    assert text.startswith("Cache cleared\nDatabase Limit: 30\n")
    assert "Cached Limit: 30 ✓" in text
    assert tenants().values() == {"org_a1b2c3d4e5f6g7h8": 30}


@pytest.mark.parametrize("words", ["--org-id acme-corp", "--org-id org_a1b2c3d4e5f6g7h8", "", "--all"])
def test_clear_reads_the_table_again(acme: Organization, words: str) -> None:
    manage("set_org_rate_limit", "acme-corp", "50")
    row = OrganizationRateLimit.objects.get()
    row.concurrent_request_limit = 30
    OrganizationRateLimit.objects.bulk_update([row], ["concurrent_request_limit"])
    assert tenants().values() == {"org_a1b2c3d4e5f6g7h8": 50}
    text = manage("clear_org_rate_limit_cache", *words.split())
    assert tenants().values() == {"org_a1b2c3d4e5f6g7h8": 30}
    expected = {
        "": "✓ Cleared cache for 1 organizations with custom limits\n",
        "--all": golden("clear_all").replace("138", "1"),
    }
    assert text == expected.get(words, "✓ Cleared cache for acme-corp (org_a1b2c3d4e5f6g7h8): the limit is 30\n")


def test_clearing_one_organization_and_all_at_once_is_an_error(acme: Organization) -> None:
    with pytest.raises(CommandError, match="take one of them"):
        manage("clear_org_rate_limit_cache", "--all", "--org-id", "acme-corp")


def test_the_reading_commands_print_json(acme: Organization) -> None:
    manage("set_org_rate_limit", "acme-corp", "50")
    occupy(acme, 5)
    one: dict[str, Any] = json.loads(manage("get_org_rate_limit", "acme-corp", "--json"))
    assert one.pop("last_modified")
    assert one == {
        "organization_id": "org_a1b2c3d4e5f6g7h8", "name": "acme-corp", "database_limit": 50, "default_limit": 20,
        "store_limit": 50, "agree": True, "usage": 5, "global_usage": 5, "global_limit": 100, "percent": 10.0,
    }  # fmt: skip
    assert json.loads(manage("list_org_rate_limits", "--json", "--with-usage")) == {
        "limits": [
            {"organization_id": "org_a1b2c3d4e5f6g7h8", "name": "acme-corp", "limit": 50, "usage": 5, "percent": 10.0}
        ]
    }
    manage("delete_org_rate_limit", "acme-corp", "--force")
    assert json.loads(manage("get_org_rate_limit", "acme-corp", "--json"))["database_limit"] is None


def test_a_store_that_is_away_is_told_and_the_row_is_saved(acme: Organization, limits: Callable[..., None]) -> None:
    limits(HEADGATE_STORE="redis://127.0.0.1:1/0")
    with pytest.raises(CommandError, match="the table is changed, and the store could not be told"):
        manage("set_org_rate_limit", "acme-corp", "50")
    assert OrganizationRateLimit.objects.get().concurrent_request_limit == 50
    with pytest.raises(CommandError, match=r"127\.0\.0\.1:1"):
        manage("get_org_rate_limit", "acme-corp")
