"""Work that another process finishes: its worker keeps the slot, a dead worker gives it back after one lease."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import override_settings

from headgate.contrib.django import keep, slot, slot_lost, tenants
from headgate.contrib.django.models import Organization
from tests.contrib.django.conftest import example_process, patient, used
from tests.support import ROOT
from tests.support.servers import Server
from tests.support.waiting import until


def ends_in(id: str) -> float:
    """Seconds until the lease of a slot ends; 0 without one."""
    return next((holder.expires_in for holder in tenants().gate.holders() if holder.id == id), 0.0)


def test_a_run_that_is_longer_than_its_lease_keeps_its_slot(acme: Organization) -> None:
    slot(acme, "run", lease=2).take()
    end = time.monotonic() + 5
    with keep("run", lease=2) as kept:
        while time.monotonic() < end:
            assert used(acme) == 1
            time.sleep(0.05)
    assert not kept.lost


def test_keeping_begins_a_lease_of_its_own_at_once(acme: Organization) -> None:
    """The view's lease is long, for the time in the queue. Once a worker has the run, its death is noticed sooner."""
    slot(acme, "run").take()
    assert ends_in("run") > 500
    with keep("run", lease=60):
        assert ends_in("run") <= 60

    async def keeps() -> None:
        async with keep("run", lease=50) as kept:
            assert ends_in("run") <= 50
            assert not kept.lost

    asyncio.run(keeps())
    assert used(acme) == 1, "leaving the block does not release"


def test_a_slot_that_was_lost_is_told_and_not_taken_again(acme: Organization) -> None:
    seen: list[str] = []
    slot_lost.connect(note := lambda execution_id, **more: seen.append(execution_id))
    with keep("never-taken") as kept:
        assert kept.lost
    slot_lost.disconnect(note)
    assert seen == ["never-taken"]
    assert used(acme) == 0


def test_many_runs_are_kept_by_one_thread_which_ends_with_them(acme: Organization) -> None:
    import threading

    for number in range(5):
        slot(acme, f"run-{number}", lease=600).take()
    kept = [keep(f"run-{number}", lease=60).__enter__() for number in range(5)]
    until(lambda: all(0 < ends_in(f"run-{number}") <= 60 for number in range(5)))
    assert [thread.name for thread in threading.enumerate()].count("headgate-keep") == 1
    for one in kept:
        one.__exit__(None, None, None)
    until(lambda: "headgate-keep" not in [thread.name for thread in threading.enumerate()])


def test_nothing_is_kept_for_longer_than_the_hours_of_the_setting(acme: Organization) -> None:
    slot(acme, "run", lease=1).take()
    with override_settings(API_DEPLOYMENT_RATE_LIMIT_TTL_HOURS=0.5 / 3600), keep("run", lease=1):
        until(lambda: used(acme) == 0)


WORKER = """
import os, sys, time
import django; django.setup()
from headgate.contrib.django import keep
with keep(sys.argv[1], lease=float(sys.argv[2])):
    print("keeping", flush=True)
    time.sleep(600)
"""


def worker(id: str, lease: float, store: str) -> subprocess.Popen[str]:
    env = example_process(store)
    return subprocess.Popen([sys.executable, "-c", WORKER, id, str(lease)], env=env, stdout=subprocess.PIPE, text=True)


def test_a_worker_that_is_killed_gives_its_slot_back_after_one_lease_and_not_before(
    acme: Organization, store: str
) -> None:
    slot(acme, "run").take()
    process = worker("run", 6, store)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "keeping\n"
        until(lambda: ends_in("run") <= 6)
        process.send_signal(signal.SIGKILL)
        process.wait()
        # A renewal is at most a third of the lease old, so that much is left of it at the least.
        left = ends_in("run")
        begun = time.monotonic()
        until(lambda: used(acme) == 0)
        waited = time.monotonic() - begun
        assert waited >= left - 0.5
        assert left <= 6
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


# --- Celery ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def celery() -> Iterator[Any]:
    from celery import Celery

    from headgate.contrib.django.celery import connect

    app = Celery("tests", broker="memory://", set_as_current=False)
    app.conf.task_always_eager = False
    runs = connect()
    yield app
    runs.disconnect()


def test_a_celery_task_keeps_its_run_and_completes_it(acme: Organization, celery: Any) -> None:
    seen: list[float] = []

    @celery.task(name="run")
    def run(execution_id: str, fail: bool = False) -> None:
        until(lambda: 0 < ends_in(execution_id) <= 600)
        seen.append(used(acme))
        if fail:
            raise ValueError("the run failed")

    for fail in (False, True):
        id = f"run-{fail}"
        slot(acme, id, lease="1h").take()
        run.apply(kwargs={"execution_id": id, "fail": fail})
        assert used(acme) == 0
    assert seen == [1, 1]


def test_a_celery_task_that_is_retried_keeps_its_slot(acme: Organization, celery: Any) -> None:
    from celery import signals

    slot(acme, "run").take()
    signals.task_postrun.send(
        sender=None, task_id="1", task=None, args=(), kwargs={"execution_id": "run"}, state="RETRY"
    )
    assert used(acme) == 1


def test_a_celery_task_that_is_revoked_or_whose_worker_died_completes_its_run(acme: Organization, celery: Any) -> None:
    from types import SimpleNamespace

    from celery import signals

    slot(acme, "revoked").take()
    slot(acme, "dead").take()
    request = SimpleNamespace(args=(), kwargs={"execution_id": "revoked"})
    signals.task_revoked.send(sender=None, request=request, terminated=True, signum=9, expired=False)
    assert used(acme) == 1
    signals.task_failure.send(sender=None, task_id="2", args=(), kwargs={"execution_id": "dead"}, exception=None)
    assert used(acme) == 0


def test_a_celery_task_that_is_no_run_is_left_alone(acme: Organization, celery: Any) -> None:
    slot(acme, "other").take()

    @celery.task(name="mail")
    def mail(to: str) -> None: ...

    mail.apply(kwargs={"to": "x"})
    assert used(acme) == 1


@pytest.mark.slow
def test_a_real_celery_worker_completes_runs_that_end_fail_die_or_are_revoked(
    acme: Organization, redis: Server
) -> None:
    """Each slot is back although its lease is of 10 minutes; that of a process that died too, since Celery tells of it."""
    from celery import Celery

    env = example_process(patient(redis), TEST_BROKER=redis.url)
    env["PYTHONPATH"] = os.pathsep.join((env["PYTHONPATH"], str(ROOT)))
    app = Celery("runs", broker=redis.url, set_as_current=False)
    words = ["-A", "tests.contrib.django.celery_app", "worker", "--pool", "prefork", "--concurrency", "2",
             "--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "ERROR"]  # fmt: skip
    worker = subprocess.Popen([sys.executable, "-m", "celery", *words], env=env, cwd=ROOT)
    try:
        for what in ("end", "fail", "die"):
            slot(acme, what).take()
            app.send_task("run", kwargs={"execution_id": what, "what": what})
            until(lambda: used(acme) == 0, seconds=240)
        slot(acme, "hang", lease="1h").take()
        task = app.send_task("run", kwargs={"execution_id": "hang", "what": "hang"})
        until(lambda: 0 < ends_in("hang") <= 600, seconds=240)  # it runs: its worker keeps it
        app.control.revoke(task.id, terminate=True)
        until(lambda: used(acme) == 0, seconds=240)
    finally:
        worker.terminate()
        try:
            worker.wait(timeout=60)
        finally:
            worker.kill()
        app.close()


# --- Tasks ----------------------------------------------------------------------------------------------------------


def run_task(execution_id: str, fail: bool) -> None:
    if fail:
        raise ValueError("the run failed")


def test_a_task_of_django_completes_its_run_whatever_its_end(acme: Organization) -> None:
    try:
        from django.tasks import task
        from django.tasks.signals import task_finished
    except ImportError:
        from django_tasks import task
        from django_tasks.signals import task_finished

    from headgate.contrib.django.tasks import connect

    connect()
    try:
        for fail in (False, True):
            slot(acme, f"run-{fail}").take()
            task(run_task).enqueue(execution_id=f"run-{fail}", fail=fail)
            assert used(acme) == 0
    finally:
        task_finished.disconnect(dispatch_uid="headgate-task-finished")
