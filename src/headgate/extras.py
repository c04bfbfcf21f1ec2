"""How to get what an extra brings, in words that work wherever Headgate itself was installed from."""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """The command that installs what an extra needs: its requirements themselves, since Headgate may be a checkout."""
    import re
    from importlib import metadata

    try:
        wanted = [
            requirement.partition(";")[0].strip()
            for requirement in metadata.requires("headgate") or ()
            if re.search(rf"extra *== *['\"]{extra}['\"]", requirement)
        ]
    except metadata.PackageNotFoundError:  # run from its sources, without having been installed
        wanted = []
    if not wanted:
        return f"pip install '.[{extra}]' in a checkout of headgate"
    return f"pip install {' '.join(repr(requirement) for requirement in wanted)}"
