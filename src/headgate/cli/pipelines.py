"""Which pipeline a command is about: `MODULE:PIPELINE`, imported from the working directory."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click

from headgate.stages import Pipeline

from .app import CONFIG, Failed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def stage_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """The arguments MODULE:PIPELINE and STAGE."""
    with_stage = click.argument("stage")(command)
    return click.argument("pipeline", metavar="MODULE:PIPELINE")(with_stage)


def find_pipeline(reference: str) -> Pipeline:
    """The pipeline of `module:name`. Raises UsageError, saying what is wrong with it."""
    module, separator, name = reference.partition(":")
    if not separator or not module or not name:
        raise click.UsageError(f"{reference!r}: write MODULE:PIPELINE, as in papers:pipeline for papers.py")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(import_module(module), name)
    except (ModuleNotFoundError, ValueError, TypeError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name not in (module, module.partition(".")[0]):
            raise Failed(f"{reference!r}: importing {module!r} failed: {error}", CONFIG) from error
        raise click.UsageError(
            f"{reference!r}: there is no module {module!r} in {os.getcwd()} or on the path"
        ) from None
    except AttributeError:
        raise click.UsageError(f"{reference!r}: module {module!r} has no {name!r}") from None
    except Exception as error:  # of the module's own code
        raise Failed(f"{reference!r}: importing {module!r} failed: {type(error).__name__}: {error}", CONFIG) from error
    if not isinstance(found, Pipeline):
        raise click.UsageError(f"{reference!r} is a {type(found).__name__}, not a Pipeline of headgate.stages")
    return found
