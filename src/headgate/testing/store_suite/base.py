"""What the tests of the store suite are made of."""

from __future__ import annotations

from unittest import SkipTest

from ...errors import Denied
from ...gate import Gate
from ...kernel.commands import Renew, Stand
from ...kernel.model import SECOND
from ..clock import FakeClock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ...clock import Clock
    from ...gate import Permit
    from ...stores.base import Store


#: Real seconds after which a waiter that was woken must have noticed.
PATIENCE = 60.0


class StoreHarness:
    """A new store for each test, on a clock that stands still, and the steps that the tests are made of."""

    def make_store(self, clock: Clock) -> Store:
        raise NotImplementedError("make_store(clock) returns a new, empty store")

    def lose_state(self, store: Store, gate: str) -> None:
        """Have the store forget a gate, while this process remembers what it had been told."""
        raise SkipTest("this store cannot lose its state while a process lives")

    def another_process(self, store: Store) -> Store:
        """A store on the same state, as another process opens it, which was told nothing yet."""
        raise SkipTest("the state of this store is in one process")

    def setup_method(self, method: Any = None) -> None:
        self.clock = FakeClock()
        self.store = self.make_store(self.clock)

    def teardown_method(self, method: Any = None) -> None:
        self.store.close()

    def gate(self, *limits: Any, **more: Any) -> Gate:
        return Gate("suite", limits, store=self.store, **more)

    def take(self, gate: Gate, count: int = 1, **ask: Any) -> list[Permit]:
        """So many permits, which must all be granted at once."""
        permits = [gate.try_acquire(renew=False, **ask) for _ in range(count)]
        assert None not in permits, f"only {count - permits.count(None)} of {count} were granted"
        return [permit for permit in permits if permit is not None]

    def count(self, gate: Gate, **ask: Any) -> int:
        """How many are granted until one is refused."""
        granted = 0
        while gate.try_acquire(renew=False, **ask) is not None:
            granted += 1
            assert granted < 10_000, "nothing stops it"
        return granted

    def retry(self, gate: Gate, **ask: Any) -> int:
        """Microseconds after which a refused ask may come again."""
        return round((self.denial(gate, **ask).retry_after or 0) * SECOND)

    def denial(self, gate: Gate, **ask: Any) -> Denied:
        denied: Denied = self.raises(Denied, lambda: gate.acquire(timeout=0, **ask))
        return denied

    def stand(self, gate: Gate, id: str, session: str = "one", **ask: Any) -> Any:
        """Stand in line as another process would, or look again: a grant (a tuple) or a `Wait`."""
        plan = gate.policy.plan(**ask)
        return self.store.decide(Stand(plan, id, None, plan.lease, waits=True, session=session))

    def beat(self, gate: Gate, session: str, *tickets: str) -> Any:
        return self.store.decide(Renew(gate.name, (), session, tickets))

    def raises(self, kind: type[BaseException], call: Callable[[], Any]) -> Any:
        """The error that a call raises, which must be of this kind."""
        try:
            call()
        except kind as error:
            return error
        raise AssertionError(f"{kind.__name__} was not raised")
