"""What every local upstream is made of: requests, answers, injected failures, and the base class of simulators."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields

from ...errors import InvalidInput
from .policies import UpstreamBooks, UpstreamPolicy, parse_policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """A request as it was read. Header names are in lower case; `path` has no query."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON; raises ValueError where it is none."""
        return json.loads(self.body)


@dataclass(slots=True)
class UpstreamResponse:
    """An answer. A body that is not bytes is sent as JSON.

    It is sent `delay` seconds after the request was judged. With `chunks`, pairs of (seconds to wait before it, bytes), the
    body is streamed. `drop=True` closes the connection without a word.
    """

    status: int = 200
    body: Any = b""
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    chunks: Iterable[tuple[float, bytes]] | None = None
    drop: bool = False

    def payload(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass(slots=True)
class Fault:
    """A failure to inject: the next `count` requests whose path begins with `path`, after `skip` of them, fail.

    They are answered with `status`, `body` and `headers`; or, with `drop`, the connection ends; `delay` seconds late. They
    reach no books but the count of failures, unless `counted` is set: then the call is counted as accepted or refused
    first, and its answer is lost. `status` 0 with a delay alone answers late and as usual.
    """

    status: int = 503
    count: int = 1
    skip: int = 0
    path: str = ""
    drop: bool = False
    delay: float = 0.0
    counted: bool = False
    body: Any = field(default_factory=lambda: {"error": "an injected failure"})
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Any) -> Fault:
        """A fault from a JSON object with these fields; anything else is `InvalidInput`."""
        known = [one.name for one in fields(cls)]
        if not isinstance(value, dict) or not value.keys() <= set(known):
            raise InvalidInput(f"a fault is an object with some of {', '.join(known)}, not {value!r}")
        return cls(**value)

    def strikes(self, path: str) -> bool:
        """Whether it is this request's turn to fail."""
        if self.count <= 0 or not path.startswith(self.path):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.count -= 1
        return True


@dataclass(frozen=True, slots=True)
class Option:
    """A setting of one simulator, by name: `headgate upstream NAME --the-name VALUE`. The default says what it takes."""

    default: bool | int | float | str
    help: str


class Upstream:
    """A local upstream. A simulator derives from it, answers requests, and gets a line in `UPSTREAMS`.

    `answer` asks `self.books.arrive(…)` once for every call that the real service would count, and answers as that does. It
    knows nothing of Headgate's limits. Options that the class names in `options` arrive as `self.settings[name]`.
    """

    #: As the table, the command line and the books call it.
    name: ClassVar[str] = ""
    #: One line for `headgate upstream --help`, and what a person does with it, for `headgate upstream NAME --help`.
    summary: ClassVar[str] = ""
    #: The policies of one that is started without any, and the kind of policies that name none.
    policies: ClassVar[tuple[str, ...]] = ("requests=60/1m",)
    kind: ClassVar[str] = "bucket"
    options: ClassVar[Mapping[str, Option]] = {}
    #: Seconds that an accepted call takes, where nothing else is said.
    delay_s: ClassVar[float] = 0.0

    def __init__(
        self, policies: Iterable[str | UpstreamPolicy] | None = None, delay: float | None = None, **settings: Any
    ) -> None:
        known: dict[str, Any] = {name: option.default for name, option in self.options.items()}
        for name, value in settings.items():
            if name not in known:
                raise InvalidInput(f"{self.name} has no setting {name!r}; it has {', '.join(known) or 'none'}")
            known[name] = value
        self.settings = known
        #: Seconds that an accepted call takes before it is answered.
        self.delay = self.delay_s if delay is None else delay
        given = list(self.policies if policies is None else policies)
        self.books = UpstreamBooks(self.adapt([self._policy(one) for one in given]))
        self.faults: list[Fault] = []

    def _policy(self, given: str | UpstreamPolicy) -> UpstreamPolicy:
        return given if isinstance(given, UpstreamPolicy) else parse_policy(given, self.kind)

    def adapt(self, policies: list[UpstreamPolicy]) -> list[UpstreamPolicy]:
        """The policies that are enforced, from those that were named; override it where settings change them."""
        return policies

    async def answer(self, request: UpstreamRequest) -> UpstreamResponse:
        """The answer to one request. An exception is a 500 that names it."""
        raise NotImplementedError

    def page(self) -> dict[str, Any]:
        """What `/_books` answers: the books, and whatever a simulator adds."""
        return {"upstream": self.name, **self.books.page()}

    def inject(self, fault: Fault) -> None:
        """Have requests fail from now on, as the fault says."""
        self.faults.append(fault)

    async def respond(self, request: UpstreamRequest) -> UpstreamResponse:
        """The answer, after injected failures and the pages of its own (`/`, `/_books`, `/_faults`)."""
        if request.path in ("/_books", "/_faults", "/") and (own := self._own(request)) is not None:
            return own
        fault = next((one for one in self.faults if one.strikes(request.path)), None)
        if fault is None:
            return await self._answer(request)
        as_usual = UpstreamResponse()
        if fault.counted or not fault.status:
            as_usual = await self._answer(request)
        else:
            self.books.fail()
        answer = UpstreamResponse(fault.status, fault.body, dict(fault.headers)) if fault.status else as_usual
        answer.drop = fault.drop
        answer.delay += fault.delay
        return answer

    async def _answer(self, request: UpstreamRequest) -> UpstreamResponse:
        try:
            return await self.answer(request)
        except Exception as error:  # the simulator's own fault: say so, rather than close the connection
            return UpstreamResponse(500, {"error": f"the simulator failed: {type(error).__name__}: {error}"})

    def _own(self, request: UpstreamRequest) -> UpstreamResponse | None:
        if request.path == "/_books":
            page = self.page()
            if "brief" in request.query:
                page = {name: value for name, value in page.items() if not name.endswith("_at")}
            return UpstreamResponse(body=page)
        if request.path == "/_faults" and request.method == "POST":
            try:
                self.inject(Fault.from_json(request.json()))
            except (ValueError, InvalidInput) as error:
                return UpstreamResponse(400, {"error": str(error)})
            return UpstreamResponse(body={"faults": len(self.faults)})
        if request.path == "/" and request.method in ("GET", "HEAD"):
            return UpstreamResponse(
                body=PAGE.replace("NAME", self.name).encode(), headers={"Content-Type": "text/html"}
            )
        return None


PAGE = """<!doctype html><meta charset=utf-8><title>NAME, a local upstream</title>
<style>body{font:16px/1.5 system-ui;max-width:50rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}
td,th{text-align:left;padding:.1rem 1.5rem .1rem 0}b{font-size:1.4rem}</style>
<h1>NAME</h1><p>A local upstream with books of its own: <a href=/_books>/_books</a> is this page as JSON.</p>
<p><b id=accepted>0</b> accepted, <b id=refused>0</b> refused, <b id=failed>0</b> failed by injection;
utilisation <b id=used></b></p><table><thead><tr><th>policy<th>left now<tbody id=policies></table>
<script>
async function look() {
  const books = await (await fetch("/_books")).json()
  for (const name of ["accepted", "refused", "failed"]) document.getElementById(name).textContent = books[name]
  document.getElementById("used").textContent = (100 * books.utilisation).toFixed(1) + " %"
  document.getElementById("policies").replaceChildren(...books.policies.map(policy => {
    const row = document.createElement("tr")
    const per = policy.per ? ` per ${policy.per} s` : ""
    const by = policy.by ? `, by ${policy.by}` : ""
    row.insertCell().textContent = `${policy.limit} ${policy.unit}${per} (${policy.kind}${by})`
    row.insertCell().textContent = policy.left ?? ""
    return row
  }))
}
look(); setInterval(look, 1000)
</script>"""
