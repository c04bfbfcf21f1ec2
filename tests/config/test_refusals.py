"""Configuration: every mistake is refused with the file, the path in it and what would be right."""

from __future__ import annotations

import pickle

import pytest

from headgate.config.file import GATE_KEYS, TOP_KEYS, parse
from headgate.errors import ConfigError

FILE = "conf/headgate.toml"

# Each: a name, the text, the path of the mistake, and words of the problem and the remedy.

G = "[gates.g]\n"
ONE = 'limits = [{ window = 190, per = "1m" }]\n'
REFUSED: dict[str, tuple[str, str, list[str]]] = {
    "an unknown key at the top": (
        "stroe = 'memory://'\n" + G + ONE,
        "stroe",
        ["'stroe' is unknown", "did you mean 'store'?"],
    ),
    "an unknown key that resembles nothing": (
        "[xyzzy]\n" + G + ONE,
        "xyzzy",
        ["'xyzzy' is unknown; the keys here are store, gates, serve and sinks"],
    ),
    "an unknown key of a gate": (G + ONE + "limit = 3", "gates.g.limit", ["did you mean 'limits'?", "on_store_error"]),
    "a key in the wrong case": (G + ONE + 'Waiting = "line"', "gates.g.Waiting", ["did you mean 'waiting'?"]),
    "an unknown key of a limit": (
        G + 'limits = [{ window = 190, pre = "1m" }]',
        "gates.g.limits[0].pre",
        ["'pre' is unknown", "did you mean 'per'?", "a window takes window, per, slack"],
    ),
    "a key of another kind of limit": (
        G + 'limits = [{ window = 190, per = "1m", burst = 3 }]',
        "gates.g.limits[0].burst",
        ["'burst' is unknown", "a window takes"],
    ),
    "an unknown key of adaptive": (
        G + "limits = [{ concurrency = 9, adaptive = { strat = 3 } }]",
        "gates.g.limits[0].adaptive.strat",
        ["did you mean 'start'?", "minimum"],
    ),
    "a key of another adaptive rule": (
        G + 'limits = [{ concurrency = 9, adaptive = { rule = "probing", decrease = 3 } }]',
        "gates.g.limits[0].adaptive.decrease",
        ["'decrease' is unknown", "the rule 'probing'", "probe_every"],
    ),
    "an unknown adaptive rule": (
        G + 'limits = [{ concurrency = 9, adaptive = { rule = "cubic" } }]',
        "gates.g.limits[0].adaptive.rule",
        ["'cubic' is not one of its values", "aimd or probing"],
    ),
    "an unknown key of on_store_error": (
        G + ONE + "on_store_error = { locale = 0.1 }",
        "gates.g.on_store_error.locale",
        ["did you mean 'local'?"],
    ),
    "a gate's dotted name without quotes": (
        "[gates.adobe.eu]\n" + ONE,
        "gates.adobe.eu",
        ['in quotes: [gates."adobe.eu"]'],
    ),
    "a key that needs quotes": (G + ONE + '"a b" = 1', 'gates.g."a b"', ["'a b' is unknown"]),
    "no gates at all": ("", "gates", ["there are no gates", "[gates.adobe]", "window = 190"]),
    "an empty table of gates": ("[gates]", "gates", ["there are no gates", "[gates.adobe]"]),
    "gates that are no table": ("gates = 3", "gates", ["it is a number", "must be a table"]),
    "a gate that is no table": ("[gates]\ng = 'x'", "gates.g", ["it is a string", "must be a table"]),
    "a gate's name outside the grammar": ('[gates."a b"]\n' + ONE, 'gates."a b"', ["'a b' is not a name", "letters"]),
    "a gate's name that is empty": ('[gates.""]\n' + ONE, 'gates.""', ["is not a name", "letters"]),
    "a gate's name that is too long": (f"[gates.{'x' * 101}]\n" + ONE, f"gates.{'x' * 101}", ["is not a name", "100"]),
    "a gate without limits": (G + 'waiting = "line"', "gates.g.limits", ["there are no limits", "limits = [{ window"]),
    "a gate with no limit in its array": (G + "limits = []", "gates.g.limits", ["there are no limits", "limits = ["]),
    "limits that are a table": (G + "limits = { window = 1 }", "gates.g.limits", ["a table", "must be an array"]),
    "a limit that is no table": (
        G + "limits = [190]",
        "gates.g.limits[0]",
        ["it is a number", "a table like { window"],
    ),
    "a limit without a kind": (
        G + 'limits = [{ per = "1m" }]',
        "gates.g.limits[0]",
        ["does not say what kind", "window, bucket, quota and concurrency"],
    ),
    "a limit whose kind has a typo": (
        G + 'limits = [{ widnow = 190, per = "1m" }]',
        "gates.g.limits[0]",
        ["does not say what kind", "did you mean 'window'?"],
    ),
    "a limit of two kinds": (
        G + 'limits = [{ window = 190, bucket = 3, per = "1m" }]',
        "gates.g.limits[0]",
        ["window and bucket at once", "one of"],
    ),
    "a rate without its time": (G + "limits = [{ window = 190 }]", "gates.g.limits[0].per", ["missing", 'per = "1m"']),
    "a limit of nought": (
        G + 'limits = [{ window = 0, per = "1m" }]',
        "gates.g.limits[0].window",
        ["above 0", "not 0"],
    ),
    "a negative limit": (G + "limits = [{ concurrency = -1 }]", "gates.g.limits[0].concurrency", ["above 0", "not -1"]),
    "a limit in quotes": (
        G + 'limits = [{ bucket = "190", per = "1m" }]',
        "gates.g.limits[0].bucket",
        ["must be a number above 0", "'190'"],
    ),
    "a limit that is true": (
        G + "limits = [{ quota = true }]",
        "gates.g.limits[0].quota",
        ["must be a number above 0"],
    ),
    "a limit that is not a number": (
        G + 'limits = [{ window = nan, per = "1m" }]',
        "gates.g.limits[0].window",
        ["finite number above 0"],
    ),
    "an infinite limit": (
        G + 'limits = [{ window = inf, per = "1m" }]',
        "gates.g.limits[0].window",
        ["finite number above 0"],
    ),
    "a limit of 400 digits": (
        G + f'limits = [{{ window = {"9" * 400}, per = "1m" }}]',
        "gates.g.limits[0].window",
        [],
    ),
    "half a slot": (G + "limits = [{ concurrency = 1.5 }]", "gates.g.limits[0].concurrency", ["whole number"]),
    "a limit that is an array": (
        G + "limits = [{ quota = [1] }]",
        "gates.g.limits[0].quota",
        ["an array", "single value"],
    ),
    "a duration without a unit": (
        G + 'limits = [{ window = 190, per = "60" }]',
        "gates.g.limits[0].per",
        ["'60' is not a duration", '"60s"'],
    ),
    "a duration of the wrong type": (G + "limits = [{ window = 190, per = true }]", "gates.g.limits[0].per", ['"1m"']),
    "a duration that is a date": (
        G + "limits = [{ window = 190, per = 2024-01-01 }]",
        "gates.g.limits[0].per",
        ["is not a duration"],
    ),
    "an array for a period": (G + 'limits = [{ quota = 1, per = ["day"] }]', "gates.g.limits[0].per", ["single value"]),
    "a negative slack": (
        G + 'limits = [{ concurrency = 1 }, { window = 190, per = "1m", slack = -1 }]',
        "gates.g.limits[1].slack",
        ["-1 is negative"],
    ),
    "a burst of nought": (
        G + 'limits = [{ bucket = 190, per = "1m", burst = 0 }]',
        "gates.g.limits[0].burst",
        ["burst", "above 0"],
    ),
    "a period that no calendar has": (
        G + 'limits = [{ quota = 5, per = "fortnight" }]',
        "gates.g.limits[0].per",
        ["per must be one of", "day", "'fortnight'"],
    ),
    "a time zone that does not exist": (
        G + 'limits = [{ quota = 5, zone = "Mars/Olympus" }]',
        "gates.g.limits[0].zone",
        ["Mars/Olympus"],
    ),
    "a lease of nought": (
        G + 'limits = [{ concurrency = 5, lease = "0s" }]',
        "gates.g.limits[0].lease",
        ["more than zero"],
    ),
    "a limit's name outside the grammar": (
        G + 'limits = [{ concurrency = 5, name = "in flight" }]',
        "gates.g.limits[0].name",
        ["'in flight' is not a name", "letters"],
    ),
    "a name that is a number": (
        G + "limits = [{ concurrency = 5, name = 5 }]",
        "gates.g.limits[0].name",
        ["not a name"],
    ),
    "a unit outside the grammar": (
        G + 'limits = [{ bucket = 5, per = 1, unit = "p u" }]',
        "gates.g.limits[0].unit",
        ["'p u' is not a name"],
    ),
    "a by outside the grammar": (
        G + 'limits = [{ concurrency = 5, by = "" }]',
        "gates.g.limits[0].by",
        ["is not a name"],
    ),
    "two limits of one name": (
        G + 'limits = [{ concurrency = 5, name = "a" }, { window = 5, per = 1, name = "a" }]',
        "gates.g.limits[1].name",
        ["limits[0] has the name 'a' too", 'name = "a-2"'],
    ),
    "two limits of one kind without names": (
        G + "limits = [{ window = 5, per = 1 }, { window = 50, per = 60 }]",
        "gates.g.limits[1]",
        ["limits[0] has the name 'window' too", "its own name"],
    ),
    "adaptive that is a number": (
        G + "limits = [{ concurrency = 5, adaptive = 8 }]",
        "gates.g.limits[0].adaptive",
        ["it is a number", "true, or a table"],
    ),
    "an adaptive start of nought": (
        G + "limits = [{ concurrency = 5, adaptive = { start = 0 } }]",
        "gates.g.limits[0].adaptive",
        ["start", "at least 1"],
    ),
    "an adaptive minimum above the limit": (
        G + "limits = [{ concurrency = 5, adaptive = { start = 9, minimum = 9 } }]",
        "gates.g.limits[0].adaptive",
        ["minimum (9) is above the limit (5)"],
    ),
    "a slot in a promise gate": (
        G + 'waiting = "promise"\nlimits = [{ bucket = 5, per = 1 }, { concurrency = 5, name = "slots" }]',
        "gates.g.limits[1]",
        ["'slots' is a concurrency", "rates and quotas only", 'waiting = "line"'],
    ),
    "a way of waiting with a typo": (
        G + ONE + 'waiting = "promises"',
        "gates.g.waiting",
        ["'promises'", "did you mean 'promise'?", "line or promise"],
    ),
    "a way of waiting of the wrong type": (G + ONE + "waiting = true", "gates.g.waiting", ["it is true", "a string"]),
    "max_delay in a line gate": (
        G + ONE + 'max_delay = "1m"',
        "gates.g.max_delay",
        ["means nothing", 'waiting = "promise"'],
    ),
    "patience in a promise gate": (
        G + ONE + 'waiting = "promise"\npatience = "1m"',
        "gates.g.patience",
        ["means nothing", 'waiting = "line"'],
    ),
    "claim in a promise gate": (
        G + ONE + 'waiting = "promise"\nclaim = "1s"',
        "gates.g.claim",
        ["means nothing", 'waiting = "line"'],
    ),
    "a patience that is no duration": (G + ONE + 'patience = "soon"', "gates.g.patience", ["'soon'", '"1m"']),
    "a claim of nought": (G + ONE + "claim = 0", "gates.g.claim", ["more than zero", '"1m"']),
    "a negative max_delay": (
        G + ONE + 'waiting = "promise"\nmax_delay = -5',
        "gates.g.max_delay",
        ["negative", '"1m"'],
    ),
    "priorities that are no table": (
        G + ONE + 'priorities = ["live"]',
        "gates.g.priorities",
        ["it is an array", "live = 1.0, batch = 0.8"],
    ),
    "no priorities in their table": (
        G + ONE + "priorities = {}",
        "gates.g.priorities",
        ["names no class", "leave it out"],
    ),
    "a share of nought": (G + ONE + "priorities = { a = 0 }", "gates.g.priorities.a", ["0 is not a share", "like 0.8"]),
    "a share above one": (
        G + ONE + "priorities = { a = 1.1 }",
        "gates.g.priorities.a",
        ["1.1 is not a share", "at most 1"],
    ),
    "a share that is not a number": (
        G + ONE + "priorities = { a = nan }",
        "gates.g.priorities.a",
        ["nan is not a share"],
    ),
    "a share that is true": (G + ONE + "priorities = { a = true }", "gates.g.priorities.a", ["True is not a share"]),
    "shares that grow": (
        G + ONE + "priorities = { batch = 0.8, live = 1.0 }",
        "gates.g.priorities.live",
        ["larger than that of the class above", "highest class first"],
    ),
    "a class's name outside the grammar": (
        G + ONE + 'priorities = { "a b" = 1 }',
        'gates.g.priorities."a b"',
        ["'a b' is not a name"],
    ),
    "an unknown on_store_error": (
        G + ONE + 'on_store_error = "ignore"',
        "gates.g.on_store_error",
        ["'ignore'", '"closed" (the default), "open", or { local = 0.02 }'],
    ),
    "an on_store_error of the wrong type": (
        G + ONE + "on_store_error = 0.02",
        "gates.g.on_store_error",
        ["number", "local"],
    ),
    "an on_store_error without its share": (
        G + ONE + 'on_store_error = "local"',
        "gates.g.on_store_error",
        ["{ local = 0.02 }"],
    ),
    "an on_store_error with a word for its share": (
        G + ONE + 'on_store_error = "local:x"',
        "gates.g.on_store_error",
        ["'local:x'", "{ local = 0.02 }"],
    ),
    "an empty on_store_error": (
        G + ONE + "on_store_error = {}",
        "gates.g.on_store_error",
        ["empty", "{ local = 0.02 }"],
    ),
    "a local share of nought": (
        G + ONE + "on_store_error = { local = 0 }",
        "gates.g.on_store_error.local",
        ["0 is not a share", "like 0.02"],
    ),
    "a local share above one": (
        G + ONE + 'on_store_error = "local:2"',
        "gates.g.on_store_error",
        ["2.0 is not a share"],
    ),
    "a local share in quotes": (
        G + ONE + 'on_store_error = { local = "0.02" }',
        "gates.g.on_store_error.local",
        ["'0.02' is not a share"],
    ),
    "a store that is no URL": (
        "store = 'headgate.db'\n" + G + ONE,
        "store",
        ["not a store's URL", "sqlite:///headgate.db"],
    ),
    "a store of the wrong type": ("store = 3\n" + G + ONE, "store", ["it is a number", "a string"]),
    "a gate's store that is no URL": (
        G + ONE + "store = 'localhost'",
        "gates.g.store",
        ["not a store's URL", "redis://"],
    ),
    "a source with an unknown scheme": (
        G + 'limits = [{ window = 190, per = "1m", source = "vault:x" }]',
        "gates.g.limits[0].source",
        ["'vault:x' names no source", "env:ADOBE_RPM"],
    ),
    "a source without a scheme": (
        G + 'limits = [{ window = 190, per = "1m", source = "ADOBE_RPM" }]',
        "gates.g.limits[0].source",
        ["names no source", "env:ADOBE_RPM"],
    ),
    "a source without a name": (
        G + 'limits = [{ window = 190, per = "1m", source = "env:" }]',
        "gates.g.limits[0].source",
        ["not the name of an environment variable", "env:ADOBE_RPM"],
    ),
    "a source of the wrong type": (
        G + 'limits = [{ window = 190, per = "1m", source = 3 }]',
        "gates.g.limits[0].source",
        ["it is a number", "a string"],
    ),
    "a refresh that is no duration": (
        G + 'limits = [{ window = 190, per = "1m", source = "env:RPM", refresh = "often" }]',
        "gates.g.limits[0].refresh",
        ["'often'", '"1m"'],
    ),
    "a refresh without a source": (
        G + 'limits = [{ window = 190, per = "1m", refresh = "5m" }]',
        "gates.g.limits[0].refresh",
        ["means nothing without a source", 'source = "env:ADOBE_RPM"'],
    ),
}


def refusal(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse(text, file=FILE)
    return caught.value


@pytest.mark.parametrize("case", REFUSED)
def test_a_mistake_is_refused_with_the_file_the_path_and_what_would_be_right(case: str) -> None:
    text, path, words = REFUSED[case]
    error = refusal(text)
    assert error.file == FILE
    assert error.path == path
    message = str(error)
    assert message.startswith(f"{FILE}: {path}: ")
    for word in words:
        assert word in message


def test_every_key_is_known_and_named_when_another_is_not() -> None:
    message = str(refusal(G + ONE + "xyzzy = 1"))
    assert all(key in message for key in GATE_KEYS)
    assert all(key in str(refusal("xyzzy = 1")) for key in TOP_KEYS)


def test_of_several_mistakes_the_first_is_told() -> None:
    assert refusal(G + ONE + "aaa = 1\nzzz = 2").path == "gates.g.aaa"


def test_the_message_of_a_bad_store_does_not_repeat_its_password() -> None:
    assert "hunter2" not in str(refusal("store = '//:hunter2@cache'\n" + G + ONE))


def test_a_refusal_survives_a_process_pool() -> None:
    error = refusal(G + ONE + "xyzzy = 1")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.path, copy.file, copy.remedy) == (str(error), error.path, error.file, error.remedy)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[gates.g\n", "line 1"),
        ("[gates.g]\nlimits = [\n  { window = 190 per = 1 },\n]", "line 3"),
        ("[gates.g]\nwaiting = 'line'\nwaiting = 'line'\n", "line 3"),
        ("[gates.g]\nwaiting = ", "end of document"),
    ],
)
def test_what_is_not_toml_is_refused_with_its_line(text: str, place: str) -> None:
    error = refusal(text)
    assert place in str(error)
    assert str(error).startswith(f"{FILE}: ")
    assert "not TOML" in str(error)


@pytest.mark.parametrize("text", ["a = " + "9" * 5000, "a = " + "[" * 20000])
def test_toml_that_breaks_its_reader_is_refused_all_the_same(text: str) -> None:
    assert "not TOML" in str(refusal(text))
