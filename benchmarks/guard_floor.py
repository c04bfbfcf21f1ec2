"""The floor under the guard: a bare ASGI application that reads a JSON body and answers with one, on the same server.

`python -m benchmarks.guard_floor` serves it on a free port, prints the address, and ends with its standard input.
"""

import json
import sys
import threading
from typing import Any

import uvicorn

from headgate.service.server import listening

HEADERS = [(b"content-type", b"application/json")]


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    message = await receive()
    asked = json.loads(message["body"])
    body = json.dumps({"id": "1cdb134f4fed-0", "granted": True, "holder": asked.get("holder")}).encode()
    headers = [*HEADERS, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    connection = listening("127.0.0.1", 0)
    config = uvicorn.Config(
        app, http="httptools", ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
        date_header=False, backlog=4096,
    )  # fmt: skip
    server = uvicorn.Server(config)

    def end() -> None:
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=end, daemon=True).start()
    sys.stdout.write(f"http://127.0.0.1:{connection.getsockname()[1]}\n")
    sys.stdout.flush()
    server.run(sockets=[connection])


if __name__ == "__main__":
    main()
