"""The calibrated clock: never ahead of the server, and as close as the answers allow."""

from __future__ import annotations

from email.utils import formatdate

from hypothesis import given
from hypothesis import strategies as st

from headgate.kernel.model import SECOND
from headgate.stores.dynamodb.clock import DRIFT, FAR_AHEAD, ServerClock

#: The server's clock at the steady clock's zero, and how this machine's clock runs (parts per million).
START = 1_763_000_000 * SECOND
OFFSET = st.integers(START, START + 10 * SECOND)
RATE = st.integers(-DRIFT // 2, DRIFT // 2)

#: How long before an answer, how long the way there and the way back take; in microseconds.
ANSWERS = st.lists(
    st.tuples(st.integers(0, 3 * SECOND), st.integers(0, 200_000), st.integers(0, 200_000)), min_size=1, max_size=60
)


class Machine:
    """A machine whose steady clock runs a little fast or slow, and a server that is asked from it."""

    def __init__(self, offset: int, rate: int) -> None:
        self.now = 0
        self.offset = offset
        self.rate = rate
        self.clock = ServerClock(lambda: self.now)

    def server(self) -> int:
        return self.offset + self.now + self.now * self.rate // SECOND

    def ask(self, there: int, back: int) -> None:
        sent = self.now
        self.now += there
        header = formatdate(self.server() // SECOND, usegmt=True)
        self.now += back
        self.clock.observe(header, sent, self.now)


@given(OFFSET, RATE, ANSWERS)
def test_it_is_never_ahead_of_the_server_and_never_further_behind_than_it_says(
    offset: int, rate: int, answers: list[tuple[int, int, int]]
) -> None:
    machine = Machine(offset, rate)
    before = 0
    for pause, there, back in answers:
        machine.now += pause
        machine.ask(there, back)
        now = machine.clock.now()
        assert now <= machine.server()
        assert machine.server() - now <= machine.clock.width() + 1
        assert now >= before, "never backwards"
        before = now


def test_an_answer_on_each_side_of_a_tick_leaves_their_distance_open() -> None:
    machine = Machine(START + 980_000, 0)
    machine.ask(1000, 1000)
    assert machine.clock.width() > SECOND - 10_000
    machine.now = 30_000
    machine.ask(1000, 1000)
    assert machine.clock.width() <= 32_000 + 10


def test_what_is_open_grows_with_the_time_since_the_last_answer() -> None:
    machine = Machine(START + 990_000, 0)
    machine.ask(1000, 1000)
    machine.now = 20_000
    machine.ask(1000, 1000)
    before = machine.clock.width()
    machine.now += 1000 * SECOND
    assert machine.clock.width() == before + 2 * 1000 * DRIFT


def test_the_stamp_of_another_process_narrows_it_and_one_far_ahead_is_refused() -> None:
    machine = Machine(START + 500_000, 0)
    machine.ask(1000, 1000)
    assert machine.clock.witness(machine.server() - 5000, machine.now)
    assert machine.server() - machine.clock.now() <= 5000
    assert not machine.clock.witness(machine.server() + SECOND + FAR_AHEAD, machine.now)
    assert machine.clock.now() <= machine.server()


def test_a_server_whose_clock_jumps_is_followed() -> None:
    machine = Machine(START, 0)
    machine.ask(1000, 1000)
    for jump in (3600 * SECOND, -7200 * SECOND):
        machine.offset += jump
        machine.ask(1000, 1000)
        assert 0 <= machine.server() - machine.clock.now() <= SECOND + 10_000


def test_a_header_that_is_no_date_is_ignored() -> None:
    machine = Machine(START, 0)
    machine.ask(1000, 1000)
    before = machine.clock.width()
    machine.clock.observe("yesterday", machine.now, machine.now)
    assert machine.clock.width() == before
