"""What both gates are made of: the policy, the store, and all that does not wait."""

from __future__ import annotations

from .. import duration
from ..errors import HeadgateError, InvalidInput, StoreUnavailable
from ..events import emit
from ..kernel import flows
from ..kernel.commands import Admit, Extend, Release, Settle, Stamp, Stand, admit
from ..kernel.flows import denied, granted
from ..kernel.limits import Limit
from ..kernel.model import NEVER, SECOND, Ended, Grant, Refusal, Wait, label_of
from ..kernel.plan import CLAIM, PATIENCE, Policy, check_key
from ..stores import open_store
from ..stores.base import declared, shown
from .following import PolicyFollower
from .inspection import Inspection, checked_lease
from .keeper import keeper_of
from .outage import OnStoreError
from .permit import NOT_LEASED, Terms, hand_out
from .prepared import numbers, places, prepare_ask
from .stamping import UNTRACKED, steady
from .workers import tell_if_unshared

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any, Self, TypeVar

    from ..config.sources import Refresher
    from ..kernel.commands import Cancel, Command
    from ..kernel.flows import Flow, Undo
    from ..kernel.model import OnStoreErrorMode, Waiting
    from ..kernel.plan import Plan
    from ..stores.base import InProcess, PolicySource, Store
    from .permit import BasePermit
    from .prepared import Ask

    Duration = str | int | float
    Cost = float | Mapping[str, float]
    Key = Mapping[str, str]
    AnyGate = TypeVar("AnyGate", bound="BaseGate")


#: The cost that is not said. CPython has one object for the int 1, and another for True, which is no cost.
ONE = 1


#: The answer to a release that the store will be told of later.
SETTLED_LATER = Ended()


def ends(command: Command) -> bool:
    """Whether it ends a permit: that may be said twice, and anything else that is settled may not."""
    return not isinstance(command, Settle) or command.outcome is not None


def decide(store: Store, command: Command) -> Any:
    """As `Outage.guard`, for a store that is in this process and never away."""
    return store.decide(command)


def widened(limits: Iterable[Limit], spread_us: int) -> Iterable[Limit]:
    """The limits for a store whose clocks may be apart by so much. What is no limit is left for `Policy` to refuse."""
    if not spread_us or not hasattr(limits, "__iter__"):
        return limits
    return [limit.widened(spread_us) if isinstance(limit, Limit) else limit for limit in limits]


#: Terms from their parts: naming them takes longer.
_new = tuple.__new__


class BaseGate(PolicyFollower, Inspection):
    """What both gates are made of, and everything that does not wait."""

    _permit: type[BasePermit]
    #: It still asks the store, but an ask that would have to wait in line is denied.
    closed = False

    def __init__(
        self,
        name: str,
        limits: Iterable[Limit] | None = None,
        store: str | Store = "memory://",
        waiting: Waiting = "line",
        priorities: Mapping[str, float] | None = None,
        on_store_error: OnStoreErrorMode = "closed",
        max_delay: Duration | None = None,
        patience: Duration | None = None,
        claim: Duration | None = None,
        sources: Mapping[str, Refresher] | None = None,
    ) -> None:
        self.name = name
        # What is neither is refused by open_store, with what would be right.
        self._store = declared(store) if hasattr(store, "execute") else open_store(store)
        self._can = can = self._store.capabilities
        self._follows = limits is None
        if limits is None:
            given = {"waiting": waiting != "line", "priorities": priorities, "patience": patience, "claim": claim}
            self._use(self._found_policy([argument for argument, value in given.items() if value]))
            waiting = self._policy.waiting
        else:
            held = CLAIM if can.claim_us is None else can.claim_us
            timings = {
                "patience": PATIENCE if patience is None else duration.parse(patience, what="patience"),
                "claim": held if claim is None else duration.parse(claim, what="claim"),
            }
            limits = widened(limits, can.clock_spread_us)
            self._use(Policy(name, limits, waiting=waiting, priorities=priorities, **timings))
        self._check_kinds()
        if can.has_policies:
            policy_source: PolicySource = self._store  # type: ignore[assignment]
            policy_source.follow(name, self._adopt)
        if max_delay is not None and waiting != "promise":
            raise InvalidInput(f"gate {name!r}: max_delay is for promise gates; in a line use acquire(timeout=…)")
        self._max_delay = None if max_delay is None else duration.parse(max_delay, what="max_delay", zero=True)
        #: A store whose state is in this process, which may be called without a command object.
        self._here: InProcess | None = self._store if can.in_process else None  # type: ignore[assignment]
        self._call = None if self._here is None else self._here.caller(name)
        self._keeper = keeper_of(self._store)
        self._store.on_loss = self._keeper.state_lost
        self._prepare()
        self._on_error = OnStoreError(name, on_store_error)
        #: The same for all gates of this name on this store.
        self._outage = self._keeper.outages.of(name)
        self._outage.modes.setdefault(self._on_error.mode)
        self._sources = dict(sources or {})
        if self._sources and not can.has_policies:  # there the guard's values count
            self._refresh()
            self._keeper.refresh(self._refresh)
        self._keeper.add_gate(self)
        tell_if_unshared(self._store, name)

    # --- hooks for faces -----------------------------------------------------------------------------------------

    @property
    def policy(self) -> Policy:
        """What the gate is made of now: its limits, classes and timings. A source of values may change it."""
        return self._policy

    @property
    def store(self) -> Store:
        """Where its state lives."""
        return self._store

    def at_boundary(self) -> Self:
        """The same gate on the same state with a slack of 0: for a gate that is itself the boundary where calls count."""
        if all(limit.with_slack(0) == limit for limit in self._policy.limits):
            return self
        return self._made_again(type(self), [limit.with_slack(0) for limit in self._given_limits()])

    def _given_limits(self) -> list[Limit]:
        """Its limits without what the store's clocks made of them, as a gate is given them."""
        spread_us = self._can.clock_spread_us
        return [limit.widened(-spread_us) if spread_us else limit for limit in self._policy.limits]

    def _made_again(self, kind: type[AnyGate], limits: list[Limit] | None) -> AnyGate:
        """A gate with these limits, in all else like this one, on the same state; None: with the limits of its guard."""
        if limits is None:
            return kind(self.name, store=self._store, on_store_error=self._on_error.text)
        policy = self._policy
        return kind(
            self.name,
            limits,
            store=self._store,
            waiting=policy.waiting,
            priorities=policy.priorities or None,
            on_store_error=self._on_error.text,
            max_delay=None if self._max_delay is None else self._max_delay / SECOND,
            patience=policy.patience / SECOND,
            claim=policy.claim / SECOND,
            sources=self._sources,
        )

    # --- making it -----------------------------------------------------------------------------------------------

    def _check_kinds(self) -> None:
        """Refuse a limit of a kind that the store cannot decide."""
        known = self._can.kinds
        if known is None:
            return
        for limit in self._policy.limits:
            if limit.kind not in known:
                raise InvalidInput(
                    f"gate {self.name!r}: limit {limit.name!r} is of the kind {limit.kind!r}, which "
                    f"{shown(self._store.url)} cannot decide: it has {', '.join(sorted(known))}; use one of those, or a "
                    f"store that runs the kind's own class: memory://, sqlite:///… or dynamodb://…"
                )

    def _use(self, policy: Policy) -> None:
        self._policy = policy
        #: Of an ask that says nothing but its key, and the plan of one that does not say that either.
        self._template = policy.template() if len(policy.units) == 1 else None
        self._plan = None if self._template is None else self._template.whole

    def _prepare(self) -> None:
        """Choose how asks go, and prepare the commonest ask where the state is in this process (see `prepared`)."""
        in_line, remote = self._policy.waiting == "line", self._can.remote
        # An ask whose reply can be lost on the way needs an id that is remembered, so it takes `Stand`, not `Admit`.
        self._short_way = in_line and not remote
        self._remote_way = in_line and remote
        self._prepared_ask: Ask | None = None
        if (template := self._template) is not None and self._here is not None:
            self._prepared_ask = self._here.prepared(self.name, lambda here: prepare_ask(self, here, template))
        self._plain_ask = None if self._plan is None else self._prepared_ask

    def _refresh(self) -> float:
        """Read the sources of limits again; a value that changed makes a new policy. Returns seconds until the next."""
        limits = []
        changed = []
        pause = 3600.0
        for limit in self._policy.limits:
            refresher = self._sources.get(limit.name)
            if refresher is not None:
                value = refresher.value()
                pause = min(pause, refresher.every)
                if value != limit.limit:
                    limit = limit.with_limit(value)
                    changed.append(limit)
            limits.append(limit)
        if changed:
            policy = self._policy
            fresh = Policy(
                policy.name,
                limits,
                waiting=policy.waiting,
                priorities=policy.priorities,
                patience=policy.patience,
                claim=policy.claim,
            )
            self._use(fresh)
            self._prepare()
            for limit in changed:
                emit("value_changed", self.name, limit=limit.name, value=limit.limit)
        return pause

    # --- what an ask needs ---------------------------------------------------------------------------------------

    def _plan_for(self, cost: Cost, key: Key | None, priority: str | None) -> Plan:
        template = self._template
        if cost is ONE and priority is None and template is not None:
            if key is None and template.whole is not None:
                return template.whole
            if not self._follows:
                return template.plan_for(key)
        try:
            return self._policy.plan(cost, key, priority)
        except InvalidInput:
            # The guard may have been given the unit, key or class meanwhile that is unknown here.
            if not self._looked_again():
                raise
            return self._policy.plan(cost, key, priority)

    def _lease_for(self, plan: Plan, lease: Duration | None) -> int:
        if lease is None:
            return plan.lease
        if not plan.lease:
            raise InvalidInput(f"gate {self.name!r} has no concurrency limit, so there is nothing to lease")
        return checked_lease(self.name, lease)

    def _new_id(self, plan: Plan) -> str:
        if plan.lane:
            return f"{self._store.session}-{next(numbers)}~{plan.lane}"
        return f"{self._store.session}-{next(numbers)}"

    def _identify(self, plan: Plan, id: str | None, holder: str | None, lease: Duration | None) -> tuple[str, Terms]:
        """The id of an ask, and what the permit must know."""
        length, shown_holder = self._lease_for(plan, lease), label_of(holder)
        if id is None:
            return self._new_id(plan), Terms(self._can.remote, length, shown_holder)
        return check_key("id", id), Terms(True, length, shown_holder, self._new_attempt())

    def _new_attempt(self) -> str:
        """A name for one ask under a caller's id: what is sent for it again is the same ask, and any other is a new one."""
        return f"{self._store.session}-{next(numbers)}"

    def _waiting(self, plan: Plan, name: str, terms: Terms, wait: int | None, reply: Wait | None = None) -> Flow:
        """The flow of an ask; `reply` is what it was answered when it already stands in line."""
        return flows.acquire(
            plan,
            name,
            self._store.session,
            steady,
            holder=terms.holder,
            lease=terms.lease_us,
            remembered=terms.remembered,
            timeout=wait,
            max_delay=self._max_delay,
            reply=reply,
            attempt=terms.attempt,
        )

    def _standing(self, plan: Plan, name: str, terms: Terms, wait: int | None) -> Stand:
        """The ask that `flows.acquire` would begin with."""
        return Stand(
            plan,
            name,
            terms.holder,
            terms.lease_us,
            waits=wait != 0,
            session=self._store.session,
            remembered=terms.remembered,
            attempt=terms.attempt,
        )

    def _cancel_unanswered(self, error: BaseException, cancel: Cancel) -> None:
        """The request failed and may still have been decided. Cancel it in the background so that no ticket, call or
        grant is left."""
        if isinstance(error, HeadgateError) and (not isinstance(error, StoreUnavailable) or error.decided is False):
            return
        self._keeper.later(cancel)

    def _ask_now(
        self, plan: Plan, holder: str | None, lease: Duration | None, renew: bool, prepared: bool = True
    ) -> Any:
        """One `Admit`, without a flow, on a store that answers in this thread: a permit, or the reply that is none.

        `prepared` is False where the prepared ask has just been tried and could not decide.
        """
        if (
            prepared
            and plan.template is self._template
            and self._prepared_ask is not None
            and (holder is None and lease is None and renew is True)
        ):
            reply = self._prepared_ask(*places(plan))
            if reply is not None:
                return reply
        length = plan.lease if lease is None else self._lease_for(plan, lease)
        id = ""
        if length:
            id = self._new_id(plan) if plan.lane else f"{self._store.session}-{next(numbers)}"
        if holder is not None:
            holder = label_of(holder)
        due = None
        try:
            if self._call is not None:
                reply = self._call(admit, plan, id, holder, length)
            else:
                due = steady()
                reply = self._store.decide(Admit(plan, id, holder, length))
        except StoreUnavailable as error:
            terms = Terms(False, length, holder)
            return self._while_away(plan, id or self._new_id(plan), terms, error, renew)
        if reply.__class__ is not Grant:
            return reply
        terms = _new(Terms, (False, length, holder, "")) if length else NOT_LEASED
        permit = hand_out(self._permit, self, plan, reply, id, terms)
        if due is not None:
            permit._due = due
        if not length:
            return permit
        if renew:
            keeper = self._keeper  # as in Keeper.watch
            keeper.young[id] = permit
            if keeper.parked or length < keeper.shortest:
                keeper.watch(permit, length)
        return permit

    def _permit_for(
        self,
        plan: Plan,
        grant: Grant,
        id: str,
        terms: Terms,
        renew: bool,
        store: Store | None = None,
        due: int | None = None,
    ) -> Any:
        permit = hand_out(self._permit, self, plan, grant, id, terms)
        if due is not None and self._here is None:  # a store in this process tells the time itself
            permit._due = due
        if store is not None:
            permit._store = store
        if terms.lease_us and renew:
            keeper_of(permit._store).watch(permit, terms.lease_us)
        return permit

    def _while_away(self, plan: Plan, id: str, terms: Terms, error: StoreUnavailable, renew: bool = True) -> Any:
        """A permit without the store, or the reply that is none."""
        reply, plan, store = self._decided_here(plan, id, terms, error)
        if reply.__class__ is not Grant:
            if isinstance(reply, Refusal) and reply.at < NEVER:  # of a promise gate: its time is still to come
                longest = NEVER if self._max_delay is None else self._max_delay
                if reply.at - reply.now <= longest:
                    return Wait(reply.at, reply.limit, 1, None, reply.now)
            return reply
        permit = self._permit_for(plan, reply, id, terms, renew and store is not None, store)
        if store is None:
            permit._state = UNTRACKED
        return permit

    def _decided_here(
        self, plan: Plan, id: str, terms: Terms, error: StoreUnavailable, latest: int = 0
    ) -> tuple[Any, Plan, Store | None]:
        """What the gate was told to do while its store is away: raise, let pass, or use the local share.

        Returns the reply, and the plan and the store that it is by; no store where it was let pass. On a promise gate the
        share promises a time at most `latest` microseconds ahead.
        """
        outage, mode = self._outage, self._on_error.mode
        outage.began(error)
        if mode == "closed":
            raise error
        if mode == "open":
            emit("passed_open", self.name, error=str(error))
            return Grant(0, 0, 0, False, 0), plan, None
        share = outage.local_share()
        mine = self._on_error.scaled(self._policy).plan_of(plan.ref)
        attempt = terms.attempt
        stand = Stand(mine, id, terms.holder, terms.lease_us, latest=latest, remembered=bool(attempt), attempt=attempt)
        return share.decide(stand), mine, share

    def _in_share(self, command: Release | Extend | Stamp) -> Any:
        """The reply of the local share to a command about a permit by its id; None where the share has no such permit."""
        if (share := self._outage.share) is None:
            return None
        policy = self._on_error.scaled(self._policy)
        if isinstance(command, Release):
            ended = share.decide(Release(policy, command.id, command.outcome, command.retry_after, command.actual))
            return None if ended.lost else ended
        if isinstance(command, Stamp):
            reply = share.decide(Stamp(policy, command.id, ago=command.ago))
            return None if isinstance(reply, Ended) and reply.lost else reply
        pulse = share.decide(Extend(policy, command.id, command.length))
        return pulse if pulse.expires[command.id] else None

    def _unstamped(self, permit: BasePermit, error: StoreUnavailable) -> float:
        """A call is to be written late, and the store cannot be told: what the gate was told to do then.

        Returns the seconds to wait first, for the local share. The permit goes on as it was.
        """
        self._outage.began(error)
        if self._on_error.mode == "closed":
            raise error
        if self._on_error.mode == "open":
            emit("passed_open", self.name, error=str(error))
            return 0.0
        mine = self._on_error.scaled(self._policy)
        # There it was never charged: it is now, like a new ask. Its lease is the store's.
        reply = self._outage.local_share().decide(Stamp(mine, "", mine.plan_of(permit._plan.ref)))
        return reply.retry_after if isinstance(reply, Wait) else 0.0

    def _settled_later(self, permit: BasePermit, command: Command, error: StoreUnavailable) -> Ended:
        """The store cannot be told now that a permit ends, is confirmed or settled: it is told when it is back.

        Where it may have been decided already and twice would be wrong, a confirmation is left at that, and a caller that
        settles a cost gets the error.
        """
        if not error.decided:
            keeper_of(permit._store).later(command)
        elif isinstance(command, Settle) and command.actual is not None:
            raise error
        return SETTLED_LATER

    def _released_later(self, command: Release, error: StoreUnavailable, later: bool) -> bool:
        """A release by id that the store could not be told. It is told when the store is back, if that is wanted."""
        if not later or (error.decided and command.actual is not None):
            raise error
        self._keeper.later(command)
        return True

    # --- what the drivers share ----------------------------------------------------------------------------------

    def _must_wait(self, plan: Plan, reply: Any, wait: int | None) -> None:
        """The reply was no permit: an ask that may wait goes on to do so. Raises what becomes of any other."""
        if not isinstance(reply, Wait):
            granted(plan, reply)
        if wait == 0:
            raise denied(plan, reply)

    def _without_store(self, plan: Plan, id: str, terms: Terms, error: StoreUnavailable, renew: bool) -> Any:
        """The permit of an ask whose store is away, or a `Wait` for its share. Raises what it is told instead."""
        reply = self._while_away(plan, id, terms, error, renew)
        if reply.__class__ is self._permit or isinstance(reply, Wait):
            return reply
        raise denied(plan, reply) from error

    def _undo(self, effect: Undo, background: bool) -> None:
        """On the way out: at once where nothing is wrong or the store answers at once, else in the background."""
        if (self._can.remote and background) or self._outage.away:
            self._keeper.later(effect.command)
            return
        try:
            self._store.execute([effect.command])
        except HeadgateError:
            self._keeper.later(effect.command)

    def _reservable(self, cost: Cost, key: Key | None, priority: str | None, id: str | None) -> tuple[Plan, str, Terms]:
        if self._policy.waiting != "promise":
            raise InvalidInput(
                f"gate {self.name!r} has a line, so nobody can say when a turn comes: acquire() waits for it; "
                f"reserve() is for gates made with waiting='promise'"
            )
        plan = self._plan_for(cost, key, priority)
        return plan, *self._identify(plan, id, None, None)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {list(self._policy.limits)!r}, store={shown(self._store.url)!r})"
