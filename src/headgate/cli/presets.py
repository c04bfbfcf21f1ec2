"""The configurations that `headgate init` writes. `docs/reference/presets.md` has the reasons; a test compares them."""

from __future__ import annotations

from dataclasses import dataclass

_HEAD = """\
# Headgate: the limits of this project. Every process that reads this file shares them.
#   headgate status     how full they are
#   headgate top        the same, live
#   headgate doctor     check this file and the store
#   headgate acquire {gate} -- CMD     run a program under a permit
# All keys: docs/reference/configuration.md

# Where the state lives. SQLite serves every process of one machine.
store = "sqlite:///headgate.db"

"""

_ADOBE = """\
# Adobe PDF Services: {about}
[gates.adobe]
limits = [
  # At most so many calls in any minute, counted where Adobe counts. Its own limit is 200.
  {{ window = {per_minute}, per = "1m", name = "rpm" }},
  # At most so many at the same time. A slot is a lease: a killed worker's comes back by itself.
  {{ concurrency = {in_flight}, name = "in_flight" }},
]
"""


@dataclass(frozen=True, slots=True)
class Preset:
    """One configuration: the gate that it is about, a sentence, and the text of the file after its head."""

    gate: str
    about: str
    body: str

    @property
    def text(self) -> str:
        return _HEAD.format(gate=self.gate) + self.body


def _adobe(in_flight: int, per_minute: int, about: str) -> Preset:
    return Preset("adobe", about, _ADOBE.format(in_flight=in_flight, per_minute=per_minute, about=about))


DEFAULT = Preset(
    "mygate",
    "60 calls in any minute, 10 at a time: a gate to begin with",
    """\
# A gate is a named set of limits that are always asked together. Rename it after the service that you call.
[gates.mygate]
limits = [
  # At most 60 calls in any minute: a sliding window, without a burst at the turn of the minute.
  { window = 60, per = "1m", name = "rpm" },
  # At most 10 at the same time. A slot is a lease: a killed worker's comes back by itself.
  { concurrency = 10, name = "in_flight", lease = "30s" },
]
""",
)

PRESETS: dict[str, Preset] = {
    "adobe-conservative": _adobe(100, 150, "the largest margin below 200 a minute"),
    "adobe-balanced": _adobe(150, 190, "a good balance"),
    "adobe-aggressive": _adobe(180, 195, "the most throughput, with hardly a margin"),
    "sentinel-hub": Preset(
        "sentinel-hub",
        "requests and processing units, by the minute and by the month",
        """\
# Sentinel Hub: several buckets, all of which must allow a request. Each ask names its processing units: --cost pu=3.2
[gates.sentinel-hub]
# Each ask is given its time at once, and sleeps until then.
waiting = "promise"
# Batch work uses at most 80 % of every limit, so that live requests find room at every moment.
priorities = { live = 1.0, batch = 0.8 }
limits = [
  { bucket = 1000, per = "1m", name = "requests" },
  { bucket = 1000, per = "1m", name = "pu-minute", unit = "pu" },
  { bucket = 400000, per = "744h", name = "pu-month", unit = "pu" },
]
""",
    ),
    "nanobanana": Preset(
        "nanobanana",
        "50 a minute, and a concurrency that finds its own level between 2 and 20",
        """\
# The Gemini image API: what it bears at once is not published, so the working limit follows its answers.
[gates.nanobanana]
limits = [
  # A window, not a bucket: a bucket that starts full lets 99 through in the first minute.
  { window = 50, per = "1m", name = "rpm" },
  # Starts at 8; a 429 takes 2 off, ten successes in a row add 1; between 2 and 20. The whole fleet shares it.
  { concurrency = 20, name = "in_flight", adaptive = { start = 8, minimum = 2, decrease = 2, increase_every = 10 } },
]
""",
    ),
    "api-deployment": Preset(
        "api-deployment",
        "20 at a time for each organisation, 100 for all together",
        """\
# An API of one's own, shared by organisations. Each ask names its own: --key org=acme
[gates.api-deployment]
# Without the store requests are let pass, counted and logged.
on_store_error = "open"
limits = [
  { concurrency = 20, name = "org", by = "org", lease = "6h" },
  # Expected use of 10 organisations with 20 each is 200; then 250 to 300 would be right here.
  { concurrency = 100, name = "global", lease = "6h" },
]
""",
    ),
    "openai": Preset(
        "openai",
        "500 requests and 30,000 tokens in any minute, as of the first paid tier",
        """\
# OpenAI: requests and tokens per minute, for the whole organisation. Yours are on its limits page: change them here.
# Each ask names its tokens: --cost tokens=700. headgate.clients.tokens estimates and settles them.
[gates.openai]
limits = [
  { window = 500, per = "1m", name = "rpm" },
  { window = 30000, per = "1m", name = "tpm", unit = "tokens" },
]
""",
    ),
    "anthropic": Preset(
        "anthropic",
        "50 requests, 30,000 input and 8,000 output tokens a minute, as of the first tier",
        """\
# Anthropic: token buckets, with input and output apart. Yours are in its console: change them here.
# Each ask names both: --cost input_tokens=500 --cost output_tokens=200.
[gates.anthropic]
limits = [
  { bucket = 50, per = "1m", name = "rpm" },
  { bucket = 30000, per = "1m", name = "itpm", unit = "input_tokens" },
  { bucket = 8000, per = "1m", name = "otpm", unit = "output_tokens" },
]
""",
    ),
    "gemini": Preset(
        "gemini",
        "10 requests and 250,000 tokens in any minute, 250 requests a day, as of the free tier",
        """\
# Gemini: per project, not per key. The day ends at midnight Pacific time. Each ask names its tokens: --cost tokens=700
[gates.gemini]
limits = [
  { window = 10, per = "1m", name = "rpm" },
  { window = 250000, per = "1m", name = "tpm", unit = "tokens" },
  { quota = 250, per = "day", zone = "America/Los_Angeles", name = "rpd" },
]
""",
    ),
    "github": Preset(
        "github",
        "5,000 requests in any hour, 900 points in any minute, 100 at a time",
        """\
# GitHub's REST interface for one user. Its secondary limits count points: a GET is 1, anything that writes is 5.
# Each ask names them: --cost points=1
[gates.github]
limits = [
  { window = 5000, per = "1h", name = "hourly" },
  { window = 900, per = "1m", name = "points", unit = "points" },
  { concurrency = 100, name = "in_flight" },
]
""",
    ),
    "stripe": Preset(
        "stripe",
        "100 requests a second, as of live mode",
        """\
# Stripe: 100 a second in live mode, 25 in a sandbox. What it bears at once is not published, so the working limit follows
# its answers.
[gates.stripe]
limits = [
  { window = 100, per = "1s", name = "rps" },
  { concurrency = 50, name = "in_flight", adaptive = { start = 20, minimum = 5 } },
]
""",
    ),
}
