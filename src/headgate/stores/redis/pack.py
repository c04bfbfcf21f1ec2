"""What the script on a Redis server is given: as much of MessagePack as that needs, and the offsets of time zones."""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Zones are sent so many seconds at a time (4 years), with two days more at both ends for what clocks show.
CHUNK = 2**27
MARGIN = 2 * 86_400

_pack_double = Struct(">Bd").pack
_pack_long = Struct(">BQ").pack
_pack_short = Struct(">BH").pack
_pack_word = Struct(">BI").pack
_pack_negative = Struct(">Bq").pack


def pack(value: Any) -> bytes:
    """One value: a string, a number, True, False, None (as False), or a list or tuple of those."""
    kind = value.__class__
    if kind is str:
        raw: bytes = value.encode()
        size = len(raw)
        if size < 32:
            return bytes((0xA0 | size,)) + raw
        return (_pack_short(0xDA, size) if size < 65536 else _pack_word(0xDB, size)) + raw
    if value is None or value is False:
        return b"\xc2"
    if value is True:
        return b"\xc3"
    if kind is int:
        if 0 <= value < 128:
            return bytes((value,))
        if -(2**53) <= value <= 2**53:
            return _pack_long(0xCF, value) if value > 0 else _pack_negative(0xD3, value)
        return _pack_double(0xCB, value)
    if kind is float:
        return _pack_double(0xCB, value)
    if kind is bytes:  # already packed
        return value  # type: ignore[no-any-return]
    return _list(len(value)) + b"".join(map(pack, value))


def _list(size: int) -> bytes:
    if size < 16:
        return bytes((0x90 | size,))
    return _pack_short(0xDC, size) if size < 65536 else _pack_word(0xDD, size)


def inside(raw: bytes) -> bytes:
    """Packed bytes as a string inside MessagePack: the script stores and compares them so."""
    size = len(raw)
    if size < 32:
        return bytes((0xA0 | size,)) + raw
    return (_pack_short(0xDA, size) if size < 65536 else _pack_word(0xDB, size)) + raw


@lru_cache(64)
def offsets(zone: str, chunk: int) -> bytes:
    """Seconds that a zone is ahead of UTC during a chunk of time: at its start, then each change and the offset since."""
    from datetime import datetime
    from zoneinfo import ZoneInfo

    info = ZoneInfo(zone)

    def offset(second: int) -> int:
        ahead = datetime.fromtimestamp(second, info).utcoffset()
        assert ahead is not None
        return round(ahead.total_seconds())

    at, end = chunk * CHUNK - MARGIN, (chunk + 1) * CHUNK + MARGIN
    known = offset(at)
    table = [known]
    while at < end:
        later = at + 43_200
        if (then := offset(later)) != known:
            low, high = at, later
            while high - low > 1:
                middle = (low + high) // 2
                if offset(middle) == known:
                    low = middle
                else:
                    high = middle
            table += (high, then)
            known = then
        at = later
    return pack(table)
