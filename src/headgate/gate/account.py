"""A gate whose account is asked now and then: what is left is its starting balance, and a smaller contract tightens it."""

from __future__ import annotations

import threading
from dataclasses import replace

from ..background import start_daemon
from ..config.account import Account, AccountError, limit_for, merged
from ..errors import ConfigError, HeadgateError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..config.account import FetchedPolicy
    from ..config.file import GateSpec
    from ..kernel.limits import Limit
    from .sync import Gate

#: What the upstream may have counted more than the gate before it is charged, as a share of the capacity: both count a call
#: at slightly different moments.
TOLERANCE = 0.01
#: Seconds: a tightening lasts a day at most.
DAY = 86_400.0


def with_contract(spec: GateSpec, file: str | None) -> GateSpec:
    """The gate with the limits of its account's contract beside its own.

    Where the account does not answer, its own are all; without any it cannot be made, and that is a ConfigError.
    """
    assert spec.account is not None
    try:
        return replace(spec, limits=tuple(merged(spec.limits, Account(spec.account).fetch())))
    except AccountError as error:
        if not spec.limits:
            raise ConfigError(
                f"the account could not be read, and there are no limits beside it: {error}",
                file=file,
                path=f"gates.{spec.name}.account",
                remedy="name limits in the file or with --limit, which hold until the account answers",
            ) from None
        _log("warning", "gate %s starts with its configured limits: %s", spec.name, error)
        return spec


class AccountFollower:
    """Keeps a gate in step with its account, in a thread. It never raises a limit, and gives nothing back.

    What the account has spent and the gate does not know of (another program's use, the time before the gate was there) is
    charged to the one limit that it is about. A failed read changes nothing.
    """

    def __init__(self, gate: Gate, account: Account) -> None:
        self.gate = gate
        self.account = account
        self.failures = 0
        self._ended = threading.Event()

    def start(self) -> None:
        start_daemon(f"headgate-account-{self.gate.name}", self._run)

    def close(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self.account.spec.refresh_s):
            self.refresh()

    def refresh(self) -> bool:
        """Ask the account once. Returns whether it answered; what is in force stays otherwise."""
        try:
            policies = self.account.fetch()
            self.adopt(policies)
        except (AccountError, HeadgateError) as error:
            self.failures += 1
            _log("warning", "gate %s keeps its limits, the account could not be read: %s", self.gate.name, error)
            return False
        return True

    def adopt(self, policies: list[FetchedPolicy]) -> None:
        """Tighten limits that are larger than the contract, and charge what is spent and not known of."""
        for policy in policies:
            limit = limit_for(self.gate.policy.limits, policy)
            if limit is None:
                continue
            if policy.capacity < limit.limit:
                lasts = min(3 * self.account.spec.refresh_s, DAY)
                reason = f"the contract has {policy.capacity:.15g}"
                self.gate.tighten(limit.name, policy.capacity, expires_in=lasts, reason=reason)
            if policy.left is not None:
                self._charge(limit, policy.capacity - policy.left, policy.capacity)

    def _charge(self, limit: Limit, spent: float, capacity: float) -> None:
        row = self.gate.usage()[limit.name]
        missing = spent - row.used
        if missing <= TOLERANCE * capacity:
            return
        # A version of the gate that has this limit alone charges this limit alone: state is kept by its name.
        part = type(self.gate)(self.gate.name, [limit], store=self.gate.store, waiting=self.gate.policy.waiting)
        permit = part.try_acquire({limit.unit: min(missing, 1e-6 * capacity)})
        if permit is None:
            return  # full already: nothing can be taken that it would have to protect
        permit.settle({limit.unit: missing})  # which may exceed the limit, and holds back later asks
        permit.release()
        _log("info", "gate %s: %s of %s were spent elsewhere", self.gate.name, f"{missing:g}", limit.name)


def _log(level: str, message: str, *values: object) -> None:
    import logging

    getattr(logging.getLogger("headgate.gate.account"), level)(message, *values)
