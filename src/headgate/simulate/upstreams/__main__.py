"""The process of `start_process`: its argument is JSON. It prints its address, and ends with its standard input."""

from __future__ import annotations

import json
import sys

from . import start


def main(argument: str) -> None:
    given = json.loads(argument)
    settings = given.pop("settings", {})
    with start(**given, **settings) as upstream:
        sys.stdout.write(f"{upstream.url}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
