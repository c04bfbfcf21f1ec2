"""Settings of the tests in this process: the apps of the example, a database in a folder of its own.

`conftest.py` puts PostgreSQL in its place where there is one. Processes that tests start find the same database by
`EXAMPLE_DATA` and `EXAMPLE_POSTGRES`.
"""

import atexit
import os
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "django_api"
if str(EXAMPLE) not in sys.path:
    sys.path.insert(0, str(EXAMPLE))

_folder = Path(tempfile.mkdtemp(prefix="headgate-django-"))
atexit.register(shutil.rmtree, _folder, ignore_errors=True)
os.environ["EXAMPLE_DATA"] = str(_folder)
from project.settings import *  # noqa: E402, F403

del os.environ["EXAMPLE_DATA"]
DATA = _folder
del LOGGING  # type: ignore[name-defined]  # noqa: F821

ROOT_URLCONF = "tests.contrib.django.urls"
LOGGING_CONFIG = None
HEADGATE_STORE = f"sqlite:///{_folder / 'headgate.db'}"
HEADGATE_TENANTS: dict[str, object] = {}
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
if find_spec("django.tasks") is None:  # Django 6 has them, and runs them at once by default
    TASKS = {"default": {"BACKEND": "django_tasks.backends.immediate.ImmediateBackend"}}
