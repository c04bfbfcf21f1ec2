"""Real pictures without a dependency: PNG by zlib and struct."""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache
from hashlib import sha256


def png(width: int, height: int, rows: bytes) -> bytes:
    """An RGB picture as PNG. Each row is one byte for its filter (0) and three for every pixel."""
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows, 6)),
        (b"IEND", b""),
    ]
    chunks = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@lru_cache(maxsize=256)
def painted(prompt: str, size: int) -> bytes:
    """A picture that belongs to a prompt, as PNG: a sky, a ground and three discs, in colours that the prompt decides."""
    seed = sha256(prompt.encode()).digest()
    top, bottom, ground = seed[0:3], seed[3:6], bytes(value // 2 for value in seed[6:9])
    discs = [
        (
            seed[at] * size // 256,
            seed[at + 1] * size // 320,
            size // 12 + seed[at + 2] * size // 1500,
            seed[at + 3 : at + 6],
        )
        for at in (9, 15, 21)
    ]
    horizon = size * (5 + seed[27] % 3) // 8
    rows = bytearray()
    for y in range(size):
        if y < horizon:
            share = y / horizon
            colour = bytes(int(one + (other - one) * share) for one, other in zip(top, bottom, strict=True))
        else:
            colour = ground
        row = bytearray(colour * size)
        for x, centre, radius, paint in discs:
            across = radius * radius - (y - centre) * (y - centre)
            if across > 0:
                half = int(across**0.5)
                left, right = max(0, x - half), min(size, x + half)
                row[3 * left : 3 * right] = paint * (right - left)
        rows += b"\0" + row
    return png(size, size, bytes(rows))
