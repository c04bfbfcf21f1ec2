"""PURE. Which limits an ask must pass, and the one decision: ask them all, charge them all or none.

A `Policy` is what a gate is made of: its limits, its priority classes, how long a call and patience last. It turns an ask
into a `Plan`: a tuple of steps, one per limit that the ask must pass. A class's share of a limit is one more step of the
same kind with a state of its own; nothing else knows of shares.

It is over 500 lines because policy, template and plan are one thing at three moments, and make each other.
"""

from __future__ import annotations

from ..errors import InvalidInput, KindChanged, figure
from .limits import DUST, KINDS, LARGEST, Concurrency, Limit, RateLimit, check_name, from_spec, positive
from .model import NEVER, SECOND
from .overrides import lapse, value_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from .limits.base import Lease, Taker
    from .model import Waiting
    from .records import Records

    Asks = Callable[[Records, int, str, float, float, int], int]
    Charges = Callable[[Records, int, str, float, float, int, Lease], bool]

    Steps = tuple["Step", ...]
    #: policy fingerprint, class, costs, key: enough to make the plan again in another process.
    Ref = tuple[str, int, tuple[tuple[str, float], ...], tuple[tuple[str, str], ...]]

WAITING = ("line", "promise")
KEY_ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:@/+~=-"
KEY_RULE = "1 to 200 letters, digits or any of . _ : @ / + ~ = -"

PATIENCE = 60 * SECOND
CLAIM = SECOND

#: The part of the slack that a client may use up before it writes its call; the rest of it is for the network.
FRESH = 4

#: How many templates a policy keeps: gates are asked with few different costs, or with as many as there are asks.
TEMPLATES = 256

_new = object.__new__


class Step:
    """One limit that an ask must pass. Not changed once it is made.

    Slots and no named tuple: CPython reads an attribute of these three times as fast, and every decision reads five.
    """

    __slots__ = ("base", "by", "cost", "limit", "member", "rank", "share", "value")

    def __init__(
        self, limit: Limit, member: str, by: str | None, cost: float, value: float, base: str, share: float, rank: int
    ) -> None:
        self.limit = limit
        #: Where its state lives: name or name@class, and for a keyed limit |value, once that is known.
        self.member = member
        #: The key that it is by, or None.
        self.by = by
        self.cost = cost
        self.value = value
        #: The limit's own name, under which overrides are filed.
        self.base = base
        #: The share of the limit, and the class whose share it is (-1: the limit itself).
        self.share = share
        self.rank = rank

    def at(self, member: str) -> Step:
        return Step(self.limit, member, self.by, self.cost, self.value, self.base, self.share, self.rank)

    def costing(self, cost: float) -> Step:
        return Step(self.limit, self.member, self.by, cost, self.value, self.base, self.share, self.rank)

    def valued(self, value: float) -> Step:
        return Step(self.limit, self.member, self.by, self.cost, value, self.base, self.share, self.rank)


class PlanTemplate:
    """What all asks of one class and cost have in common. With a key it makes a plan."""

    __slots__ = ("adapts", "final", "fits", "fresh", "lease", "others", "plain", "policy", "rank", "ref", "slots",
                 "soonest", "steps", "weight", "whole")  # fmt: skip

    def __init__(self, policy: Policy, steps: Iterable[Step], rank: int, costs: Mapping[str, float]) -> None:
        self.policy = policy
        self.rank = rank
        #: The steps before the key is known.
        self.steps = [
            step.at(step.member if step.by is None else f"{step.member}|").costing(
                1.0 if step.limit.leased else costs[step.limit.unit]
            )
            for step in steps
        ]
        rates = [step for step in self.steps if not step.limit.leased]
        slots = [(step.limit, step) for step in self.steps if isinstance(step.limit, Concurrency)]
        fixed = [step for limit, step in slots if limit.adaptive is None and limit.whole is None]
        self.slots = [(step.member, step.by, step.value + DUST - 1.0) for step in fixed]
        self.others = [
            (step.limit.earliest, step.limit.charge, step.member, step.by, step.cost, step.value) for step in rates[:-1]
        ]
        last = rates[-1] if rates else None
        self.final = None if last is None else (last.limit.taker(last.cost, last.value), last.member, last.by)
        self.adapts = len(fixed) < len(slots)
        #: The largest part of any limit that it takes: by this its lane's turn moves on.
        self.weight: float = max(step.cost / step.value for step in self.steps)
        #: What is confirmed now comes free so many microseconds from now, at the soonest.
        self.soonest = min(
            (step.limit.per for step in rates if isinstance(step.limit, RateLimit) and step.limit.confirmable),
            default=0,
        )
        #: A grant is fresh for so many microseconds: a call that is written by then needs no stamp. NEVER without rates.
        self.fresh = min((getattr(step.limit, "slack", 0) // FRESH for step in rates), default=NEVER)
        self.fits = all(step.cost <= step.limit.largest(step.value) for step in self.steps)
        self.plain = self.fits and policy.waiting == "line" and not self.adapts
        self.lease = min((limit.lease for limit, _ in slots), default=0)
        self.ref = (policy.fingerprint, rank, tuple(costs.items()))
        #: The plan itself where no limit is by a key.
        self.whole = None if policy.keys else self.plan({})

    def plan_for(self, key: Mapping[str, str] | None) -> Plan:
        """The plan for a key that has yet to be looked at."""
        checked = self.policy.checked_key(key)
        return self.whole or self.plan(checked)

    def plan(self, key: Mapping[str, str]) -> Plan:
        plan = _new(ShortPlan)
        plan.template = self
        plan.key = key
        plan.policy = self.policy
        plan.rank = self.rank
        plan.plain = self.plain
        plan.lease = self.lease
        plan.adapts = self.adapts
        fingerprint, rank, costs = self.ref
        plan.ref = (fingerprint, rank, costs, tuple(key.items()))
        plan.slots = plan.others = ()
        if slots := self.slots:
            plan.slots = [(name if by is None else name + key[by], free) for name, by, free in slots]
        if others := self.others:
            plan.others = [
                (asks, charges, name if by is None else name + key[by], cost, value)
                for asks, charges, name, by, cost, value in others
            ]
        if self.final is None:
            plan.final = None
        else:
            take, name, by = self.final
            plan.final = (take, name if by is None else name + key[by])
        return plan


class Plan:
    """What one ask must pass: a template and a key.

    Most asks go the short way, which needs no more than `slots`, `others` and `final`: see `ShortPlan`.
    """

    __slots__ = ("adapts", "final", "key", "lane", "lease", "others", "plain", "policy", "rank", "ref", "slots",
                 "steps", "template")  # fmt: skip

    template: PlanTemplate
    key: Mapping[str, str]
    policy: Policy
    rank: int
    #: Nothing but the limits themselves decides about it, unless the gate's head says otherwise.
    plain: bool
    #: Length of the lease in microseconds, 0 for rates alone.
    lease: int
    #: Whether one of its limits moves by outcomes.
    adapts: bool
    #: Where a fixed number of slots is counted, and how many may be taken before the last.
    slots: Sequence[tuple[str, float]]
    #: The rates but the last: asked first, charged when the last has let it go.
    others: Sequence[tuple[Asks, Charges, str, float, float]]
    #: The last rate: asked and charged in one.
    final: tuple[Taker, str] | None
    ref: Ref
    steps: Steps
    #: The values of its key, as a name: one lane of the line.
    lane: str

    def current(self, records: Records) -> Steps:
        """The steps with the values in force at the time of the head. What has come to its end by then goes first."""
        lapse(records)
        return tuple(
            [step.valued(value_of(records, step.base, step.member, step.value, step.share)) for step in self.steps]
        )

    def too_large(self, steps: Steps) -> Step | None:
        """The step that this ask could never pass, if there is one."""
        if steps is self.steps and self.template.fits:
            return None
        for step in steps:
            if step.cost > step.limit.largest(step.value):
                return step
        return None


class ShortPlan(Plan):
    """A plan whose steps and lane are made when they are first read; from then on it is a `Plan` like any other.

    A class of its own, because one with a `__getattr__` is slow to look at in everything else.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name not in ("steps", "lane"):
            raise AttributeError(name)
        key = self.key
        self.steps = tuple(
            step if step.by is None else step.at(step.member + key[step.by]) for step in self.template.steps
        )
        self.lane = ",".join([f"{by}={key[by]}" for by in self.policy.keys]) if key else ""
        self.__class__ = Plan  # type: ignore[assignment]
        return getattr(self, name)


def earliest(records: Records, now: int, steps: Steps, start: int) -> tuple[int, Step | None]:
    """The first moment at which every limit allows it, and the limit that is last. On keyed limits, see `line`."""
    at, last = start, None
    while True:
        before = at
        for step in steps:
            begin = at if start > now or last else start
            then = step.limit.earliest(records, now, step.member, step.cost, step.value, begin)
            if then > at:
                at, last = then, step
        # In a line the answer is that moment. A promise must hold on all limits at the same time: ask again from there.
        if at == before or at >= NEVER:
            return at, last


def blocked_by(records: Records, now: int, steps: Steps) -> tuple[int, Step | None]:
    """Like `earliest` for now, in one pass; a keyed limit that refuses is named before a shared one."""
    if len(steps) == 1:
        step = steps[0]
        then = step.limit.earliest(records, now, step.member, step.cost, step.value, now)
        return (then, step) if then > now else (now, None)
    at, last = now, None
    keyed_at, keyed = now, None
    for step in steps:
        then = step.limit.earliest(records, now, step.member, step.cost, step.value, now)
        if then > at:
            at, last = then, step
        if then > keyed_at and step.by:
            keyed_at, keyed = then, step
    return (keyed_at, keyed) if keyed is not None else (at, last)


def charge(records: Records, now: int, steps: Steps, at: int, lease: Lease) -> bool:
    """Charge every limit. Returns whether confirming later would be worth it."""
    worth = False
    for step in steps:
        if step.limit.charge(records, now, step.member, step.cost, step.value, at, lease):
            worth = True
    return worth


def hold(records: Records, now: int, steps: Steps, lease: Lease) -> None:
    for step in steps:
        step.limit.hold(records, now, step.member, step.cost, lease)


def let_go(records: Records, now: int, steps: Steps, lease: Lease) -> None:
    """Give back what `hold` kept. Where the state was lost and another kind came in its place, nothing of it is left."""
    for step in steps:
        if not is_another_kind(records, step):
            step.limit.hold(records, now, step.member, -step.cost, lease)


def is_another_kind(records: Records, step: Step) -> bool:
    """Whether the store holds another kind of limit under the name of a step: its own state was reset or lost."""
    state = records.states.get(step.member)
    return state is not None and state[0] != step.limit.kind


def check_kinds(records: Records, steps: Steps) -> None:
    """Raise KindChanged where the store holds another kind of limit under a name. `earliest` does it by itself."""
    for step in steps:
        if is_another_kind(records, step):
            was = records.states.get(step.member)[0]
            raise KindChanged(gate=records.gate, limit=step.member, was=was, now=step.limit.kind)


class Policy:
    """The limits of one gate, its classes (highest first, name → share), and its timings in microseconds."""

    __slots__ = ("_by_class", "_everything", "_fingerprint", "_ranks", "_templates", "claim", "keys", "limits", "name",
                 "patience", "priorities", "units", "waiting")  # fmt: skip

    def __init__(
        self,
        name: str,
        limits: Iterable[Limit],
        *,
        waiting: Waiting = "line",
        priorities: Mapping[str, float] | None = None,
        patience: int = PATIENCE,
        claim: int = CLAIM,
    ) -> None:
        self.name = check_name("gate name", name)
        if not hasattr(limits, "__iter__"):
            raise InvalidInput(f"gate {name!r} takes a list of limits, such as [Window(190, per='1m')], not {limits!r}")
        if priorities is not None and not hasattr(priorities, "items"):
            raise InvalidInput(
                f"gate {name!r}: priorities map names to shares, as in {{'live': 1.0, 'batch': 0.8}}, not {priorities!r}"
            )
        self.limits = tuple(limits)
        self.waiting = waiting
        self.priorities = dict(priorities or {})
        self.patience = patience
        self.claim = claim
        self._fingerprint = ""
        self._templates: dict[Any, PlanTemplate] = {}
        self._check()
        self.keys = tuple(sorted({limit.by for limit in self.limits if limit.by}))
        self.units = frozenset(limit.unit for limit in self.limits if not limit.leased) | {"requests"}
        self._ranks: dict[str | None, int] = {None: 0}
        self._ranks.update((name, rank) for rank, name in enumerate(self.priorities))
        #: By rank, every limit that a class must pass, before cost and key are known.
        self._by_class = [self._steps(rank) for rank in range(max(1, len(self.priorities)))]
        self._everything: Plan | None = None

    def _check(self) -> None:
        where = f"gate {self.name!r}"
        if not self.limits:
            raise InvalidInput(f"{where} has no limits; give it at least one, such as Window(190, per='1m')")
        seen: set[str] = set()
        for limit in self.limits:
            if not isinstance(limit, Limit):
                *most, last = [kind.__name__ for kind in KINDS.values()]
                raise InvalidInput(f"{where}: {limit!r} is not a limit; use {', '.join(most)} or {last}")
            if limit.name in seen:
                raise InvalidInput(f"{where} has two limits named {limit.name!r}; give each a name= of its own")
            seen.add(limit.name)
        if self.waiting not in WAITING:
            raise InvalidInput(f"{where}: waiting must be 'line' or 'promise', not {self.waiting!r}")
        slots = [limit.name for limit in self.limits if limit.leased]
        if self.waiting == "promise" and slots:
            raise InvalidInput(
                f"{where}: a promise gate has rates and quotas only, since nobody can promise when a slot is released; "
                f"take {', '.join(slots)} out, or use waiting='line'"
            )
        share_above = 1.0
        for name, share in self.priorities.items():
            check_name(f"{where}: priority", name)
            if positive(f"{where}: the share of priority {name!r}", share) > share_above:
                raise InvalidInput(
                    f"{where}: the share of priority {name!r} ({figure(share)}) is above "
                    f"{'the whole' if share_above == 1.0 else 'that of the class before it'}; name classes from the "
                    f"highest to the lowest, with shares that do not grow"
                )
            share_above = share
            for limit in self.limits:
                if limit.leased and limit.limit * share + DUST < 1.0:
                    raise InvalidInput(
                        f"{where}: a share of {figure(share)} of the {figure(limit.limit)} slots of {limit.name!r} is less "
                        f"than one slot, so priority {name!r} could never go; raise the limit or the share"
                    )

    @property
    def fingerprint(self) -> str:
        """The same for two policies that decide alike, whatever process made them."""
        if not self._fingerprint:
            from hashlib import blake2b

            self._fingerprint = blake2b(repr(self.spec()).encode(), digest_size=8).hexdigest()
        return self._fingerprint

    def spec(self) -> tuple[Any, ...]:
        limits = tuple(limit.spec() for limit in self.limits)
        return (self.name, limits, self.waiting, tuple(self.priorities.items()), self.patience, self.claim)

    @classmethod
    def from_spec(cls, spec: Any) -> Policy:
        name, limits, waiting, priorities, patience, claim = spec
        made = [from_spec(limit) for limit in limits]
        shares = dict(priorities)
        return cls(name, made, waiting=waiting, priorities=shares, patience=patience, claim=claim)

    def scaled(self, share: float) -> Policy:
        """The same gate with a share of every limit: what one process may use while the store is gone."""
        limits = [limit.scaled(share) for limit in self.limits]
        return Policy(self.name, limits, waiting=self.waiting, priorities=self.priorities)

    def _steps(self, rank: int) -> list[Step]:
        """Every limit that a class must pass, before cost and key are known."""
        steps: list[Step] = []
        for limit in self.limits:
            steps.append(Step(limit, limit.name, limit.by, 0.0, limit.limit, limit.name, 1.0, -1))
            for at, (name, share) in enumerate(self.priorities.items()):
                if at <= rank and share < 1.0:
                    part = limit.share_for_class(share)
                    member = f"{limit.name}@{name}"
                    steps.append(Step(part, member, limit.by, 0.0, part.limit, limit.name, share, at))
        return steps

    def all_steps(self) -> list[Step]:
        """Every limit of the gate, and every class's share of one."""
        return self._by_class[-1]

    def everything(self) -> Plan:
        """A plan that has every limit and every share of a class, for a look; those by a key are of no key in use."""
        if self._everything is None:
            lowest = list(self.priorities)[-1] if self.priorities else None
            plain = dict.fromkeys(self.keys, "-")
            self._everything = self.plan(dict.fromkeys(self.units, 1.0), plain or None, lowest)
        return self._everything

    def plan(
        self, cost: float | Mapping[str, float] = 1, key: Mapping[str, str] | None = None, priority: str | None = None
    ) -> Plan:
        """What this ask must pass. Any mistake in it is an InvalidInput; nothing has been charged then."""
        rank = self._ranks.get(priority) if priority is None or isinstance(priority, str) else None
        if rank is None:
            known = ", ".join(repr(name) for name in self.priorities) or "none: it has no priorities"
            raise InvalidInput(f"gate {self.name!r} has no priority {priority!r}; it has {known}")
        template = self.template(cost, rank)
        return template.whole if key is None and template.whole is not None else template.plan_for(key)

    def template(self, cost: float | Mapping[str, float] = 1, rank: int = 0) -> PlanTemplate:
        """What all asks of a class with this cost have in common."""
        plain = cost.__class__ is int or cost.__class__ is float  # True is no cost, though it equals 1
        template = self._templates.get((rank, cost)) if plain else None
        if template is None:
            template = self._template(rank, self.checked_costs(cost))
            if plain:
                self._templates[rank, cost] = template
        return template

    def plan_of(self, ref: Any) -> Plan:
        """The plan of a ref of this policy."""
        template = self._template(ref[1], dict(ref[2]))
        return template.whole or template.plan(dict(ref[3]))

    def _template(self, rank: int, costs: Mapping[str, float]) -> PlanTemplate:
        asked = (rank, *costs.items())
        template = self._templates.get(asked)
        if template is None:
            if len(self._templates) >= TEMPLATES:
                self._templates.clear()
            template = self._templates[asked] = PlanTemplate(self, self._by_class[rank], rank, costs)
        return template

    def checked_costs(self, cost: float | Mapping[str, float]) -> dict[str, float]:
        """The cost by unit, each above 0. Raises InvalidInput for a unit that is unknown or missing."""
        if isinstance(cost, int | float):
            costs: dict[str, Any] = {"requests": cost}
        elif hasattr(cost, "items"):
            costs = {"requests": 1, **cost}
        else:
            raise InvalidInput(
                f"gate {self.name!r}: cost is a number of requests or a mapping of unit to amount, not {cost!r}"
            )
        for unit, amount in costs.items():
            if unit not in self.units:
                raise InvalidInput(
                    f"gate {self.name!r} limits no unit {unit!r}; it limits {', '.join(sorted(self.units))}"
                )
            if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 < amount <= LARGEST:
                raise InvalidInput(
                    f"gate {self.name!r}: the cost in {unit!r} must be a finite number above 0, not {amount!r}"
                )
        if len(costs) < len(self.units):
            missing = sorted(self.units - costs.keys())
            raise InvalidInput(
                f"gate {self.name!r}: the cost in {', '.join(map(repr, missing))} is missing; "
                f"name it, as in cost={{{missing[0]!r}: 1.0}}"
            )
        return costs

    def checked_key(self, key: Mapping[str, str] | None) -> dict[str, str]:
        if key is None:
            key = {}
        elif not hasattr(key, "items"):
            raise InvalidInput(f"gate {self.name!r}: key is a mapping such as {{'org': 'acme'}}, not {key!r}")
        checked: dict[str, str] = {}
        for by in self.keys:
            if by not in key:
                break
            value = key[by]
            # What is left without its ends of the alphabet is empty, or begins with what is not in it.
            if value.__class__ is not str or not value or len(value) > 200 or value.strip(KEY_ALPHABET):
                value = check_key(f"gate {self.name!r}: key {by!r}", value)
            checked[by] = value
        if len(checked) != len(self.keys) or len(key) != len(checked):
            if not self.keys:
                raise InvalidInput(f"gate {self.name!r} has no limits by a key; the ask's key names {list(key)!r}")
            wanted = ", ".join(repr(by) for by in self.keys)
            given = f"the ask's key names {list(key)!r}" if key else "the ask has no key"
            raise InvalidInput(
                f"gate {self.name!r} has limits by {wanted}, and {given}; name each, as in key={{{self.keys[0]!r}: 'acme'}}"
            )
        return checked

    def member(self, name: str, key: Mapping[str, str] | None) -> str:
        """Where overrides of a limit are filed: its name, or name|value for one key."""
        limit = self.limit(name)
        if key is None:
            return name
        if not hasattr(key, "items"):
            raise InvalidInput(f"gate {self.name!r}: key is a mapping such as {{'org': 'acme'}}, not {key!r}")
        if limit.by is None or set(key) != {limit.by}:
            by = f"by {limit.by!r}" if limit.by else "not by any key"
            raise InvalidInput(f"limit {name!r} of gate {self.name!r} is {by}; the key given names {list(key)!r}")
        return f"{name}|{check_key(f'key {limit.by!r}', key[limit.by])}"

    def limit(self, name: str) -> Limit:
        for limit in self.limits:
            if limit.name == name:
                return limit
        names = ", ".join(limit.name for limit in self.limits)
        raise InvalidInput(f"gate {self.name!r} has no limit {name!r}; it has {names}")


def check_key(what: str, value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not 0 < len(value) <= 200 or value.strip(KEY_ALPHABET):
        raise InvalidInput(f"{what} must be {KEY_RULE}, not {value!r}")
    return value


_policies: dict[str, Policy] = {}
_plans: dict[Ref, Plan] = {}


def remember(records: Records, policy: Policy) -> None:
    """Leave the policy beside the state, so that any process that serves the line later can make the plan again."""
    policies = records.policies
    if policies.get(policy._fingerprint) is None:
        policies[policy.fingerprint] = policy.spec()


def recall(records: Records, ref: Any, known: Policy | None = None) -> Plan:
    """The plan of a ref, from the policy that was left with the state; `known` where that was lost."""
    if ref.__class__ is tuple and (plan := _plans.get(ref)) is not None:  # in memory it is the very ref that was left
        return plan
    policy = _policies.get(ref[0])
    if policy is None:
        spec = records.space("policies").get(ref[0])
        if spec is None and known is not None:
            return known.plan_of(ref)
        policy = Policy.from_spec(spec)
        if len(_policies) >= 256:
            _policies.clear()
        _policies[ref[0]] = policy
    plan = policy.plan_of(ref)
    if ref.__class__ is tuple:
        if len(_plans) >= TEMPLATES:
            _plans.clear()
        _plans[ref] = plan
    return plan
