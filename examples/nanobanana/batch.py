"""A batch as nanobanana's users have it: a semaphore, a limiter, retries. One import is changed.

headgate upstream gemini --port 8765 --delay 2s &
GOOGLE_GEMINI_BASE_URL=http://127.0.0.1:8765 GOOGLE_API_KEY=local python examples/nanobanana/batch.py prompts.json out
"""

import asyncio
import json
import logging
import os
import random
import sys
from pathlib import Path

from google import genai
from google.genai import errors

# from nanobanana.rate_limit import AdaptiveSemaphore, RPMLimiter
from headgate.dropin.nanobanana import AdaptiveSemaphore, RPMLimiter

MAX_RETRIES = 5
MODEL = os.environ.get("GEMINI_MODEL", "gemini-2.5-flash-image")

logger = logging.getLogger("nanobanana")


async def image(client: genai.Client, prompt: str) -> bytes:
    answer = await client.aio.models.generate_content(model=MODEL, contents=prompt)
    for part in answer.candidates[0].content.parts:
        if part.inline_data is not None:
            return part.inline_data.data
    raise ValueError("the model made no image")


async def one(client, semaphore, limiter, prompt: str, path: Path) -> bool:
    if path.exists():
        logger.info("Skipped (exists): %s", path.name)
        return True
    for attempt in range(1 + MAX_RETRIES):
        await semaphore.acquire()
        try:
            await limiter.acquire()
            data = await image(client, prompt)
            semaphore.report_success()
        except errors.APIError as error:
            if error.code == 429:
                semaphore.report_rate_limit()
            if error.code not in (429, 503) or attempt == MAX_RETRIES:
                logger.info("Failed after %d attempts: %s", attempt, path.name)
                return False
        else:
            path.write_bytes(data)
            return True
        finally:
            semaphore.release()
        delay = 2 ** (attempt + 1)
        logger.info("Rate limited: %s, retry %d/%d in %ds", path.name, attempt + 1, MAX_RETRIES, delay)
        await asyncio.sleep(delay * random.uniform(0.75, 1.0))
    return False


async def main(prompts: dict[str, str], folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    client = genai.Client(api_key=os.environ["GOOGLE_API_KEY"])
    most = int(os.environ.get("MAX_CONCURRENT", "20"))
    semaphore = AdaptiveSemaphore(initial_value=min(most, 8), min_value=2, max_value=most)
    limiter = RPMLimiter(max_per_minute=int(os.environ.get("RPM_LIMIT", "50")))
    done = await asyncio.gather(
        *(one(client, semaphore, limiter, prompt, folder / name) for name, prompt in prompts.items())
    )
    logger.info("Batch complete: %d/%d successful, %d failed", sum(done), len(done), len(done) - sum(done))
    return 0 if all(done) else 1


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.exit(asyncio.run(main(given, Path(sys.argv[2]))))
