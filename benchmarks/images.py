"""500 real images, three processes, one working limit: google-genai against the local Gemini, whose capacity changes.

    python -m benchmarks.images --scale 5

`benchmarks/adaptive.py` in real life: processes, HTTP and a SQLite file instead of virtual time, all times divided by
`--scale`. The figures are the upstream's own count, and the share is that of the time in which the capacity could have been
used up, without the end of the last calls.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import sys
import tempfile
from pathlib import Path
from typing import Any

from headgate.images import ImageSettings, Prompt, generate
from headgate.images.google import ImageModel
from headgate.simulate import upstreams

#: (seconds after the first call, calls at once from then on), and the mean length of a call in seconds.
STEPS = ((0.0, 20), (50.0, 6), (100.0, 14))
CALL_S = 4.0


def work(number: int, count: int, url: str, folder: str, store: str, rule: str, begin: Any) -> None:
    """One process: its part of the images."""
    prompts = [Prompt(f"{number}-{index:04}.png", f"picture {number} {index}") for index in range(count)]

    async def run() -> None:
        model = ImageModel("local", "gemini-2.5-flash-image", url)
        begin.wait()
        await generate(prompts, Path(folder), model, ImageSettings(20, 100_000, rule, store))
        await model.aclose()

    asyncio.run(run())


def ideal_s(images: int) -> float:
    """Seconds in which the capacity lets so many calls be worked on."""
    left = images * CALL_S
    for index, (at, limit) in enumerate(STEPS):
        end = STEPS[index + 1][0] if index + 1 < len(STEPS) else float("inf")
        if left <= limit * (end - at):
            return at + left / limit
        left -= limit * (end - at)
    raise AssertionError("the last step has no end")


def measure(rule: str, images: int, scale: float, processes: int) -> dict[str, float]:
    """One run, by the upstream's books."""
    (_, first), *later = STEPS
    policy = ",".join([f"in_flight={first},slots", *(f"{limit}@{at / scale}s" for at, limit in later)])
    context = multiprocessing.get_context("spawn")
    begin = context.Barrier(processes)
    parts = [images // processes + (index < images % processes) for index in range(processes)]
    with (
        tempfile.TemporaryDirectory() as folder,
        upstreams.start_process("gemini", [policy], delay=CALL_S / scale, size=16) as upstream,
    ):
        store = f"sqlite:///{folder}/gates.db"
        workers = [
            context.Process(target=work, args=(number, part, upstream.url, folder, store, rule, begin))
            for number, part in enumerate(parts)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        books = upstream.books()
        made = len(list(Path(folder).glob("*.png")))
    took = books["seconds"] + CALL_S / scale
    return {
        "made": made,
        "refused": books["refused"],
        "refusals": books["refused"] / (books["accepted"] + books["refused"]),
        "seconds": took,
        "share": ideal_s(images) / scale / took,
        "most_at_once": books["most_at_once"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--scale", type=float, default=5.0, help="all times are divided by this (5)")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--rules", nargs="*", default=["aimd", "probing"])
    options = parser.parse_args()
    for rule in options.rules:
        found = measure(rule, options.images, options.scale, options.processes)
        sys.stdout.write(
            f"{rule}: {found['made']:.0f} images in {found['seconds']:.1f} s, {found['share']:.1%} of the ideal, "
            f"{found['refused']:.0f} refused ({found['refusals']:.2%}), {found['most_at_once']:.0f} at once at most\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
