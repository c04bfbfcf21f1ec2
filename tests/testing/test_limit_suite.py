"""Every kind of limit passes the suite that users run on their own."""

import pytest

from headgate import Aimd, Bucket, Concurrency, Probing, Quota, Window
from headgate.kernel.limits import KINDS, Limit
from headgate.testing import LimitSuite


class TestWindow(LimitSuite):
    def make_limit(self) -> Limit:
        return Window(20, per="1m")


class TestWindowWithoutSlack(LimitSuite):
    def make_limit(self) -> Limit:
        return Window(12, per="1s", slack=0, unit="calls")


class TestWindowOfFractions(LimitSuite):
    cost = 0.25

    def make_limit(self) -> Limit:
        return Window(6, per=0.777777, slack="33ms", unit="pu")


class TestBucket(LimitSuite):
    def make_limit(self) -> Limit:
        return Bucket(16, per="1m")


class TestBucketOfFractions(LimitSuite):
    cost = 0.75

    def make_limit(self) -> Limit:
        return Bucket(100, per="37s", burst=9, slack="250ms", unit="pu")


class TestQuota(LimitSuite):
    def make_limit(self) -> Limit:
        return Quota(10, per="day", zone="Europe/Berlin")


class TestQuotaOfAMinute(LimitSuite):
    cost = 2.5

    def make_limit(self) -> Limit:
        return Quota(20, per="minute", slack=0, unit="pu")


class TestConcurrency(LimitSuite):
    def make_limit(self) -> Limit:
        return Concurrency(8, lease="10s")


class TestAdaptiveConcurrency(LimitSuite):
    def make_limit(self) -> Limit:
        return Concurrency(8, lease="10s", adaptive=Aimd(start=8))

    @pytest.mark.skip(reason="only the limit itself adapts: a share of it is fixed")
    def test_two_versions_of_a_configuration_share_one_state(self) -> None: ...


class TestProbingConcurrency(TestAdaptiveConcurrency):
    def make_limit(self) -> Limit:
        return Concurrency(8, lease="10s", adaptive=Probing(start=8))


def test_every_kind_in_the_table_has_passed_the_suite() -> None:
    kinds = {suite().make_limit().kind for suite in LimitSuite.__subclasses__()}
    assert kinds >= set(KINDS)
