"""The `[serve]` table: what it takes, what it refuses, and what holds without it."""

from __future__ import annotations

import pytest

from headgate.config.file import parse
from headgate.config.serve import SERVE_KEYS, Serve
from headgate.errors import ConfigError

GATES = '[gates.g]\nlimits = [{ window = 1, per = "1s" }]\n'


def test_without_a_table_a_guard_listens_on_loopback_with_caps() -> None:
    assert parse(GATES).serve == Serve()
    assert Serve().host == "127.0.0.1"
    assert Serve().tokens is None


def test_every_key_is_taken() -> None:
    values = {
        "host": '"::1"',
        "port": "0",
        "tokens": '"t.toml"',
        "audit": '"/var/log/a.jsonl"',
        "history": '"h.jsonl"',
        "max_body": "2048",
        "max_batch": "7",
        "max_wait": '"1500ms"',
        "max_waiters": "0",
        "max_keys": "9",
        "proxies": '["127.0.0.1", "10.0.0.0/8"]',
        "request_timeout": '"2s"',
        "max_connections": "50",
    }
    assert values.keys() == SERVE_KEYS.keys()
    text = GATES + "[serve]\n" + "\n".join(f"{key} = {value}" for key, value in values.items())
    proxies = ("127.0.0.1", "10.0.0.0/8")
    assert parse(text).serve == Serve(
        "::1", 0, "t.toml", "/var/log/a.jsonl", "h.jsonl", 2048, 7, 1.5, 0, 9, proxies, 2.0, 50
    )


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("hosts = 'x'", "serve.hosts"),
        ("host = 1", "serve.host"),
        ("host = ' '", "serve.host"),
        ("port = -1", "serve.port"),
        ("proxies = '10.0.0.1'", "serve.proxies"),
        ("proxies = ['10.0.0.1/8']", "serve.proxies"),
        ("max_connections = 0", "serve.max_connections"),
        ("port = 65536", "serve.port"),
        ("port = '80'", "serve.port"),
        ("port = true", "serve.port"),
        ("port = 80.0", "serve.port"),
        ("tokens = ['x']", "serve.tokens"),
        ("audit = 3", "serve.audit"),
        ("max_body = 10", "serve.max_body"),
        ("max_batch = 0", "serve.max_batch"),
        ("max_wait = '0s'", "serve.max_wait"),
        ("max_wait = 'soon'", "serve.max_wait"),
        ("max_waiters = -1", "serve.max_waiters"),
        ("max_keys = 0", "serve.max_keys"),
    ],
)
def test_a_mistake_is_refused_with_its_place_also_where_nobody_serves(line: str, path: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(f"{GATES}[serve]\n{line}\n", file="headgate.toml")
    assert (refused.value.file, refused.value.path) == ("headgate.toml", path)


def test_a_table_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError):
        parse(f"serve = 3\n{GATES}")
