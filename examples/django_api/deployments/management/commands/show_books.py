"""The example's own books: how many runs of the API were under way at once, by when each was accepted and ended."""

import json
import time
from collections import defaultdict

from django.core.management.base import BaseCommand

from deployments.models import WorkflowExecution


class Command(BaseCommand):
    help = "Print, for each organization and for all, how many runs there were and how many at once"

    def add_arguments(self, parser) -> None:
        parser.add_argument(
            "--lost-for", type=float, default=0.0,
            help="Seconds for which a run without an end counts, from when its slot was asked for: one lease",
        )  # fmt: skip

    def handle(self, *args, lost_for: float, **options) -> None:
        moments = defaultdict(list)
        counts: dict[str, dict[str, int]] = defaultdict(lambda: {"accepted": 0, "ended": 0, "expired": 0})
        runs = WorkflowExecution.objects.filter(source="api").values_list(
            "organization__name", "asked_at", "accepted_at", "ended_at", "status"
        )
        for name, asked, accepted, ended, status in runs:
            lost = max(accepted, (accepted if asked is None else asked) + lost_for)
            for which in (name, "all"):
                moments[which] += [(accepted, 1), (lost if ended is None else ended, -1)]
                counts[which]["accepted"] += 1
                counts[which]["ended"] += ended is not None
                counts[which]["expired"] += status == "expired"
        books = {which: {**counts[which], "most_at_once": most(moments[which])} for which in counts}
        self.stdout.write(json.dumps({"at": time.monotonic(), "books": books}))


def most(moments: list[tuple[float, int]]) -> int:
    """The highest number at any moment; an end at the same instant as a beginning comes first."""
    at_once = highest = 0
    for _, change in sorted(moments):
        at_once += change
        highest = max(highest, at_once)
    return highest
