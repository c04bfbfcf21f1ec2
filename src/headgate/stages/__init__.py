"""Stages: a queue, a gate and a handler each; a pipeline is a chain of them. Workers take the permit first, then a message.

message.py     messages, histories, dead letters, schemas            pure
outcomes.py    how work ends, and what becomes of the message        pure
queues/        where messages live: memory, SQLite                   SCHEMES
stage.py       Stage and Pipeline
worker.py      Worker;  runner.py: one stage of it;  queue_io.py, threads.py: what it blocks in
job.py         what a handler gets
"""

from __future__ import annotations

from .job import AsyncJob, Job
from .message import BadMessage, DeadLetter, MessageHistory, MessageSchema, QueueStats
from .outcomes import AttemptFailed, Limited, Poison, QuotaSpent, RetryPolicy, StageOutcome, UpstreamRefused
from .queues import open_queue
from .queues.base import DeadFilter, PutResult
from .stage import Pipeline, Stage
from .worker import Worker

__all__ = [
    "AsyncJob",
    "AttemptFailed",
    "BadMessage",
    "DeadFilter",
    "DeadLetter",
    "Job",
    "Limited",
    "MessageHistory",
    "MessageSchema",
    "Pipeline",
    "Poison",
    "PutResult",
    "QueueStats",
    "QuotaSpent",
    "RetryPolicy",
    "Stage",
    "StageOutcome",
    "UpstreamRefused",
    "Worker",
    "open_queue",
]
