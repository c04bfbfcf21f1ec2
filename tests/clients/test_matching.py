"""Which hosts a client's gate is for."""

from __future__ import annotations

import pytest

from headgate import InvalidInput
from headgate.clients.matching import Hosts


@pytest.mark.parametrize(
    ("hosts", "host", "port", "matches"),
    [
        (None, "anything", 80, True),
        ("*", "anything", 80, True),
        ("api.example.com", "api.example.com", 443, True),
        ("api.example.com", "API.Example.com.", 443, True),
        ("api.example.com", "evil-api.example.com", 443, False),
        ("api.example.com", "api.example.com.evil.net", 443, False),
        ("*.example.com", "a.b.example.com", 443, True),
        ("*.example.com", "example.com", 443, False),
        ("*.example.com", "notexample.com", 443, False),
        (["a", "b:8080"], "b", 8080, True),
        (["a", "b:8080"], "b", 80, False),
        ("*.x:90", "a.x", 90, True),
        ("*.x:90", "a.x", 91, False),
        ("[::1]:80", "::1", 80, True),
        ("[::1]:80", "::1", 81, False),
        ("::1", "::1", 81, True),
    ],
)
def test_a_host_matches_by_its_whole_name_and_its_port(
    hosts: str | list[str] | None, host: str, port: int, matches: bool
) -> None:
    assert Hosts(hosts).match(host, port) is matches


@pytest.mark.parametrize("hosts", ["", "https://a", "a/b", "a*b", "*.", "a:0", "a:99999", "a:b", "u@a", [], [3], "a b"])
def test_what_is_no_host_is_refused(hosts: object) -> None:
    with pytest.raises(InvalidInput):
        Hosts(hosts)  # type: ignore[arg-type]
