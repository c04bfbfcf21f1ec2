"""The worker: takes queued runs, works on them, completes them."""

import random
import threading
import time

from django.core.management.base import BaseCommand
from django.db import OperationalError, connection

from deployments.models import WorkflowExecution
from headgate.contrib.django import keep


class Command(BaseCommand):
    help = "Work on queued runs until it is stopped"

    def add_arguments(self, parser) -> None:
        parser.add_argument("--threads", type=int, default=8)
        parser.add_argument("--seconds", type=float, default=1.0, help="How long a run takes, about")

    def handle(self, *args, threads: int, seconds: float, **options) -> None:
        for _ in range(threads - 1):
            threading.Thread(target=work, args=(seconds,), daemon=True).start()
        work(seconds)


def work(seconds: float) -> None:
    while True:
        try:
            run = WorkflowExecution.claim()
            if run is None:
                time.sleep(0.05)
                continue
            length = random.uniform(0.5, 1.5) * seconds
            if run.source != "api":
                time.sleep(length)
                run.update_execution("completed")
                continue
            # A run longer than its lease keeps its slot; a worker that dies gives it back.
            with keep(run.id) as kept:
                if not kept.lost:  # else it has waited in the queue for longer than its lease
                    time.sleep(length)
                    kept.renew()  # a process that was held up for a whole lease learns here that it has lost its slot
            if kept.lost:
                WorkflowExecution.objects.filter(pk=run.pk).update(status="expired")
            else:
                run.update_execution("completed")
        except OperationalError:  # SQLite was locked for too long
            connection.close()
