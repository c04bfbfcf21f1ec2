"""Org and global limits as the system built them that the Django app replaces: what bench_django measures beside ours.

A lock per organisation around nine round trips: take the lock, drop old entries of both sorted sets, count the
organisation's, read the cached limit and put it back to extend its life, count all, add to both, give the lock back. A lock
that is not had in time lets the request pass uncounted.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import redis
from redis.lock import Lock

PREFIX = "api_deployment:rate_limit"


class SeedLimiter:
    """Its `check_and_acquire` and `release_slot`, on a client of redis-py; Django's cache is the same Redis."""

    def __init__(self, client: redis.Redis, limit: int, total: int, blocking: float = 5.0, ttl: int = 6 * 3600) -> None:
        self.client, self.limit, self.total, self.blocking, self.ttl = client, limit, total, blocking, ttl

    def check_and_acquire(self, org: str, execution_id: str) -> tuple[bool, Mapping[str, Any] | None]:
        client, mine, everybody = self.client, f"{PREFIX}:org:{org}", f"{PREFIX}:global"
        now = time.time()
        lock = Lock(client, f"lock:rate_limit:org:{org}", timeout=2, blocking_timeout=self.blocking)
        if not lock.acquire():
            return True, None  # open, and not counted
        try:
            client.zremrangebyscore(mine, 0, now - self.ttl)
            client.zremrangebyscore(everybody, 0, now - self.ttl)
            count, limit = client.zcard(mine), self._limit(org)
            if count >= limit:
                return False, {"limit_type": "organization", "current_usage": count, "limit": limit}
            count = client.zcard(everybody)
            if count >= self.total:
                return False, {"limit_type": "global", "current_usage": count, "limit": self.total}
            pipeline = client.pipeline()
            for key in (mine, everybody):
                pipeline.zadd(key, {execution_id: now})
                pipeline.expire(key, self.ttl)
            pipeline.execute()
            return True, None
        finally:
            with suppress(redis.exceptions.LockError):  # it ran out while the work under it was done
                lock.release()

    def _limit(self, org: str) -> int:
        key = f"rate_limit:cache:org_limit:{org}"
        known = self.client.get(key)
        limit = self.limit if known is None else int(known)
        self.client.set(key, limit, ex=600)
        return limit

    def release_slot(self, org: str, execution_id: str) -> None:
        pipeline = self.client.pipeline()
        pipeline.zrem(f"{PREFIX}:org:{org}", execution_id)
        pipeline.zrem(f"{PREFIX}:global", execution_id)
        pipeline.execute()
