"""Images by the hundred: prompts from a file, google-genai under a gate, a contact sheet at the end.

`headgate images` is this at the command line. The gate has one adaptive limit of calls in flight and one of calls per
minute, asked together, so that no slot is taken while a call waits for its minute.
"""

from __future__ import annotations

from .prompts import Prompt, read_prompts
from .run import ImageRun, ImageSettings, generate

__all__ = ["ImageRun", "ImageSettings", "Prompt", "generate", "read_prompts"]
