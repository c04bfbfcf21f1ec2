"""PURE. Which limits an ask must pass, and the one decision: ask them all, charge them all or none.

A `Policy` is what a gate is made of: its limits, its priority classes, how long a call and patience last. It turns an ask
into a `Plan`: a tuple of steps, one per limit that the ask must pass. A class's share of a limit is one more step of the
same kind with a state of its own; nothing else knows of shares.
"""

from __future__ import annotations

from ..errors import InvalidInput
from .limits import DUST, KINDS, LARGEST, Concurrency, Limit, RateLimit, check_name, from_spec, positive
from .model import NEVER, SECOND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from .limits.base import Lease, Taker
    from .records import Records

    Asks = Callable[[Records, int, str, float, float, int], int]
    Charges = Callable[[Records, int, str, float, float, int, Lease], bool]

    #: One limit of a plan, unpacked on every decision: the limit; the member where its state lives (name, name@class, with
    #: |value for a keyed limit); cost; value; the limit's own name, under which overrides are filed; the share of it; the
    #: class whose share it is (-1: the limit itself); whether it is by a key.
    Step = tuple[Limit, str, float, float, str, float, int, bool]
    Steps = tuple[Step, ...]
    #: The same before cost and key are known: limit, name, value, base, share, rank.
    Row = tuple[Limit, str, float, str, float, int]
    #: The same before the key is known: limit, member or what it begins with, by, cost, value, base, share, rank.
    Blank = tuple[Limit, str, str | None, float, float, str, float, int]
    #: policy fingerprint, class, costs, key: enough to make the plan again in another process.
    Ref = tuple[str, int, tuple[tuple[str, float], ...], tuple[tuple[str, str], ...]]

WAITING = ("line", "promise")
KEY_ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:@/+~=-"
KEY_RULE = "1 to 200 letters, digits or any of . _ : @ / + ~ = -"

PATIENCE = 60 * SECOND
CLAIM = SECOND

#: How many models a policy keeps: gates are asked with few different costs, or with as many as there are asks.
MODELS = 256

_new = object.__new__


class Model:
    """What all asks of one class and cost have in common. With a key it makes a plan."""

    __slots__ = ("adapts", "final", "fits", "lease", "others", "plain", "policy", "rank", "ref", "rows", "slots", "soonest",
                 "weight", "whole")  # fmt: skip

    def __init__(self, policy: Policy, rows: Iterable[Row], rank: int, costs: Mapping[str, float]) -> None:
        self.policy = policy
        self.rank = rank
        #: (limit, member, by, cost, value, base, share, rank): the steps before the key is known.
        self.rows: list[Blank] = []
        for limit, name, value, base, share, of_rank in rows:
            cost = 1.0 if limit.leased else costs[limit.unit]
            member = name if limit.by is None else f"{name}|"
            self.rows.append((limit, member, limit.by, cost, value, base, share, of_rank))
        rates = [row for row in self.rows if not row[0].leased]
        slots = [(row[0], row) for row in self.rows if isinstance(row[0], Concurrency)]
        fixed = [row for limit, row in slots if limit.adaptive is None]
        self.slots = [(row[1], row[2], row[4] + DUST - 1.0) for row in fixed]
        self.others = [(row[0].earliest, row[0].charge, *row[1:5]) for row in rates[:-1]]
        self.final = (rates[-1][0].taker(*rates[-1][3:5]), *rates[-1][1:3]) if rates else None
        self.adapts = len(fixed) < len(slots)
        #: The largest part of any limit that it takes: by this its lane's turn moves on.
        self.weight: float = max(row[3] / row[4] if not row[0].leased else 1.0 / row[4] for row in self.rows)
        #: What is confirmed now comes free so many microseconds from now, at the soonest.
        self.soonest = min(
            (row[0].per for row in rates if isinstance(row[0], RateLimit) and row[0].confirmable), default=0
        )
        self.fits = all(row[3] <= row[0].largest(row[4]) for row in self.rows)
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
        plan.model = self
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
    """What one ask must pass: a model and a key.

    Most asks go the short way, which needs no more than `slots`, `others` and `final`: see `ShortPlan`.
    """

    __slots__ = ("adapts", "final", "key", "lane", "lease", "model", "others", "plain", "policy", "rank", "ref", "slots",
                 "steps")  # fmt: skip

    model: Model
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
        """The steps with the values in force: an override for the key, else for the limit, else its own."""
        overrides = records.space("overrides")
        changed = []
        for limit, member, cost, value, base, share, rank, keyed in self.steps:
            found = overrides.get(f"{base}|{member.partition('|')[2]}") if keyed else None
            if found is None:
                found = overrides.get(base)
            if found is not None:
                value = round(found * share, 9)
            changed.append((limit, member, cost, value, base, share, rank, keyed))
        return tuple(changed)

    def too_large(self, steps: Steps) -> Step | None:
        """The step that this ask could never pass, if there is one."""
        if steps is self.steps and self.model.fits:
            return None
        for step in steps:
            if step[2] > step[0].largest(step[3]):
                return step
        return None


class ShortPlan(Plan):
    """A plan whose steps and lane nobody has looked at yet: then they are made, and it is a `Plan` like any other.

    A class of its own, because one with a `__getattr__` is slow to look at in everything else.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name not in ("steps", "lane"):
            raise AttributeError(name)
        key = self.key
        self.steps = tuple(
            (limit, name if by is None else name + key[by], cost, value, base, share, rank, by is not None)
            for limit, name, by, cost, value, base, share, rank in self.model.rows
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
            then = step[0].earliest(records, now, step[1], step[2], step[3], at if start > now or last else start)
            if then > at:
                at, last = then, step
        # In a line the answer is that moment. A promise must hold on all limits at the same time: ask again from there.
        if at == before or at >= NEVER:
            return at, last


def blocked_by(records: Records, now: int, steps: Steps) -> tuple[int, Step | None]:
    """Like `earliest` for now, in one pass; a keyed limit that refuses is named before a shared one."""
    if len(steps) == 1:
        step = steps[0]
        then = step[0].earliest(records, now, step[1], step[2], step[3], now)
        return (then, step) if then > now else (now, None)
    at, last = now, None
    keyed_at, keyed = now, None
    for step in steps:
        then = step[0].earliest(records, now, step[1], step[2], step[3], now)
        if then > at:
            at, last = then, step
        if then > keyed_at and step[7]:
            keyed_at, keyed = then, step
    return (keyed_at, keyed) if keyed is not None else (at, last)


def charge(records: Records, now: int, steps: Steps, at: int, lease: Lease) -> bool:
    """Charge every limit. Returns whether confirming later would be worth it."""
    worth = False
    for limit, member, cost, value, _, _, _, _ in steps:
        if limit.charge(records, now, member, cost, value, at, lease):
            worth = True
    return worth


def hold(records: Records, now: int, steps: Steps, lease: Lease) -> None:
    for limit, member, cost, _, _, _, _, _ in steps:
        limit.hold(records, now, member, cost, lease)


def let_go(records: Records, now: int, steps: Steps, lease: Lease) -> None:
    for limit, member, cost, _, _, _, _, _ in steps:
        limit.hold(records, now, member, -cost, lease)


class Policy:
    """The limits of one gate, its classes (highest first, name → share), and its timings in microseconds."""

    __slots__ = ("_fingerprint", "_models", "_ranks", "_templates", "claim", "keys", "limits", "name", "patience",
                 "priorities", "units", "waiting")  # fmt: skip

    def __init__(
        self,
        name: str,
        limits: Iterable[Limit],
        *,
        waiting: str = "line",
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
        self._models: dict[Any, Model] = {}
        self._check()
        self.keys = tuple(sorted({limit.by for limit in self.limits if limit.by}))
        self.units = frozenset(limit.unit for limit in self.limits if not limit.leased) | {"requests"}
        self._ranks: dict[str | None, int] = {None: 0}
        self._ranks.update((name, rank) for rank, name in enumerate(self.priorities))
        self._templates = [self._template(rank) for rank in range(max(1, len(self.priorities)))]

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
                    f"{where}: the share of priority {name!r} ({share:g}) is above "
                    f"{'the whole' if share_above == 1.0 else 'that of the class before it'}; name classes from the "
                    f"highest to the lowest, with shares that do not grow"
                )
            share_above = share
            for limit in self.limits:
                if limit.leased and limit.limit * share + DUST < 1.0:
                    raise InvalidInput(
                        f"{where}: a share of {share:g} of the {limit.limit:g} slots of {limit.name!r} is less than one "
                        f"slot, so priority {name!r} could never go; raise the limit or the share"
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

    def _template(self, rank: int) -> list[Row]:
        """Every limit that a class must pass."""
        rows: list[Row] = []
        for limit in self.limits:
            rows.append((limit, limit.name, limit.limit, limit.name, 1.0, -1))
            for at, (name, share) in enumerate(self.priorities.items()):
                if at <= rank and share < 1.0:
                    part = limit.scaled(share)
                    rows.append((part, f"{limit.name}@{name}", part.limit, limit.name, share, at))
        return rows

    def all_rows(self) -> list[Row]:
        """Every limit of the gate, and every class's share of one."""
        return self._templates[-1]

    def plan(
        self, cost: float | Mapping[str, float] = 1, key: Mapping[str, str] | None = None, priority: str | None = None
    ) -> Plan:
        """What this ask must pass. Any mistake in it is an InvalidInput; nothing has been charged then."""
        rank = self._ranks.get(priority) if priority is None or isinstance(priority, str) else None
        if rank is None:
            known = ", ".join(repr(name) for name in self.priorities) or "none: it has no priorities"
            raise InvalidInput(f"gate {self.name!r} has no priority {priority!r}; it has {known}")
        model = self.model(cost, rank)
        return model.whole if key is None and model.whole is not None else model.plan_for(key)

    def model(self, cost: float | Mapping[str, float] = 1, rank: int = 0) -> Model:
        """What all asks of a class with this cost have in common."""
        plain = cost.__class__ is int or cost.__class__ is float  # True is no cost, though it equals 1
        model = self._models.get((rank, cost)) if plain else None
        if model is None:
            model = self._model(rank, self.checked_costs(cost))
            if plain:
                self._models[rank, cost] = model
        return model

    def plan_of(self, ref: Any) -> Plan:
        """The plan of a ref of this policy."""
        model = self._model(ref[1], dict(ref[2]))
        return model.whole or model.plan(dict(ref[3]))

    def _model(self, rank: int, costs: Mapping[str, float]) -> Model:
        asked = (rank, *costs.items())
        model = self._models.get(asked)
        if model is None:
            if len(self._models) >= MODELS:
                self._models.clear()
            model = self._models[asked] = Model(self, self._templates[rank], rank, costs)
        return model

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
            wanted = ", ".join(repr(by) for by in self.keys) or "none"
            raise InvalidInput(f"gate {self.name!r} has limits by {wanted}; the ask's key names {list(key)!r}")
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
    """Leave the policy beside the state, so that whoever serves the line later can make the plan again."""
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
        if len(_plans) >= MODELS:
            _plans.clear()
        _plans[ref] = plan
    return plan
