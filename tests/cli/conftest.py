"""Gates of a configuration in the working directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate.stores import open_store
from tests.support.command_line import CONFIG


@pytest.fixture
def gates(tmp_path: Path) -> Any:
    """The gates of a configuration in the working directory, on a store of their own."""
    (tmp_path / "headgate.toml").write_text(CONFIG.format(folder=tmp_path))
    loaded = headgate.load()
    yield loaded
    open_store(loaded.config.store).close()
