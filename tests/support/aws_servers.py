"""SQS, S3, SSM, CloudWatch and Secrets Manager on this machine: ministack, in a folder and a process of its own.

It is fetched from PyPI when a test first asks for it, since it pins a botocore of its own and could not be installed beside
boto3. For DynamoDB see `dynamo_servers`: what decides is tested against AWS's own server there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.dynamo_servers import CREDENTIALS, LOOPBACK, NoServer, free_port

PACKAGE = "ministack==1.5.33"
#: Seconds until it must have started: it loads for a while on a busy machine.
STARTING = 120.0


def folder() -> Path:
    """Where the emulator is, fetched where it is not there. Raises NoServer."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headgate"
    home = base / PACKAGE
    if not home.exists():
        base.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=base) as new:
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", f"{new}/out", PACKAGE]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise NoServer(f"no AWS emulator: `pip install {PACKAGE}` failed: {done.stderr.strip()[-300:]}")
            with suppress(OSError):  # another process was faster
                (Path(new) / "out").rename(home)
    return home


class AwsServer:
    """An emulator of one's own, in memory, on a free port: what is stopped has lost everything."""

    def __init__(self, services: str = "sqs,s3,ssm,cloudwatch,secretsmanager") -> None:
        self.services = services
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def start(self) -> None:
        code = "import sys; from ministack.app import main; sys.exit(main())"
        settings = {
            "PYTHONPATH": str(folder()),
            "SERVICES": self.services,
            "GATEWAY_PORT": str(self.port),
            "BIND_HOST": LOOPBACK,
        }
        with tempfile.TemporaryDirectory() as somewhere:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                env={**os.environ, **settings},
                cwd=somewhere,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            end = time.monotonic() + STARTING
            while True:
                with suppress(OSError), urllib.request.urlopen(f"{self.endpoint}/_ministack/health", timeout=5):
                    return
                if self.process.poll() is not None or time.monotonic() > end:
                    self.stop()
                    raise NoServer(f"{PACKAGE} did not start")
                time.sleep(0.05)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def client(self, service: str) -> Any:
        """A boto3 client of it."""
        import boto3

        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name=CREDENTIALS["AWS_REGION"],
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        )


@contextmanager
def aws_server(services: str = "sqs,s3,ssm,cloudwatch,secretsmanager") -> Iterator[AwsServer]:
    """For tests: where there is none to be had, the test is skipped with the reason; in CI it fails."""
    server = AwsServer(services)
    try:
        server.start()
    except NoServer as missing:
        if os.environ.get("CI"):
            raise
        import pytest

        pytest.skip(str(missing))
    try:
        yield server
    finally:
        server.stop()
