"""Values that clients sent, as keys of limits."""

from __future__ import annotations

from hashlib import blake2b

from ..kernel.plan import KEY_ALPHABET


def key_value(value: str, secret: bool = False) -> str:
    """A value that a client sent, as a key. One that is secret, too long or has other characters is hashed."""
    if secret or not 0 < len(value) <= 200 or value.strip(KEY_ALPHABET):
        return f"~{blake2b(value.encode('utf-8', 'surrogateescape'), digest_size=12).hexdigest()}"
    return value
