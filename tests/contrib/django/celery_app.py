"""A real Celery worker for the tests: `celery -A tests.contrib.django.celery_app worker`."""

from __future__ import annotations

import os
import signal
import time

import django

django.setup()

from celery import Celery  # noqa: E402

from headgate.contrib.django.celery import connect  # noqa: E402

app = Celery("runs", broker=os.environ["TEST_BROKER"])
connect()


@app.task(name="run")
def run(execution_id: str, what: str) -> None:
    if what == "fail":
        raise ValueError("the run failed")
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "hang":
        time.sleep(600)
