"""What every store must pass, run through `Gate` and commands on that store with a clock that stands still."""

from __future__ import annotations

from .asks import AskTests
from .changes import ChangeTests
from .ids import IdTests
from .leases import LeaseTests
from .line import LineTests
from .loss import LossTests
from .port import PortTests
from .promises import PromiseTests
from .rates import RateTests
from .sent import SentTests

__all__ = ["StoreSuite"]


class StoreSuite(
    LeaseTests, RateTests, SentTests, AskTests, IdTests, ChangeTests, PromiseTests, LineTests, PortTests, LossTests
):
    """Subclass it, name the class `Test…`, and make a new, empty store on a clock in `make_store`; pytest does the rest.

    `lose_state` may be given as well: it makes the store forget a gate, as a restart without its data would; and
    `another_process`, which opens what such a store has stored as another process would. The clock is
    in microseconds; a store that has a clock of its own cannot use this suite's exact times, and needs its server faked.
    """
