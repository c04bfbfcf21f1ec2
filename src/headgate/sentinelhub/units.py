"""PURE. Processing units by the published formula, from parameters or from the body of a request.

The formula is https://docs.sentinel-hub.com/api/latest/api/overview/processing-unit/. What a body does not say (the bands
of an evalscript that computes its setup, the acquisitions in a mosaic of orbits) is an argument, and an error without it.
"""

from __future__ import annotations

from math import isfinite
from typing import NamedTuple

from ..errors import InvalidInput
from .evalscript import NotLiteral, setup_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

TILE = 512 * 512
"""Pixels of one unit."""

LEAST_TILES = 0.01
"""What a smaller image is counted as."""

LARGE = 10_000
"""Pixels from which Batch and Async are cheaper."""


class Api(NamedTuple):
    """How an API counts: the least that a request costs, and its factor for images of `LARGE` pixels and more."""

    least: float
    factor: float


#: API → how it counts.
APIS: dict[str, Api] = {
    "process": Api(0.005, 1.0),
    "ogc": Api(0.005, 1.0),
    "statistical": Api(0.01, 1.0),
    "batch": Api(100.0, 1 / 3),
    "async": Api(10.0, 2 / 3),
}

#: `sampleType` of an evalscript's output → bits.
SAMPLE_BITS = {"AUTO": 8, "INT8": 8, "UINT8": 8, "INT16": 16, "UINT16": 16, "FLOAT32": 32}
#: The size of an image whose request does not say one.
USUAL_SIZE = 256


def processing_units(
    width: float,
    height: float,
    bands: float,
    *,
    samples: float = 1,
    bits: int = 16,
    format: str = "image/tiff",
    local: int = 1,
    remote: int = 0,
    orthorectified: bool = False,
    rtc: bool = False,
    speckle_filter: bool = False,
    api: str = "process",
) -> float:
    """What a request costs, in processing units.

    `width` and `height` are pixels, `bands` are those that are read (`dataMask` is free, unless it is the only one),
    `samples` are acquisitions per pixel, `bits` and `format` (a MIME type) are those of the output, `local` and
    `remote` the collections that are fused. `rtc` is terrain correction, which includes orthorectification. Anything that
    is not a positive, finite number is `InvalidInput`. For a request body take `processing_units_of`.
    """
    for name, value in (("width", width), ("height", height), ("bands", bands), ("samples", samples)):
        _check_number(name, value)
    if isinstance(local, bool) or isinstance(remote, bool) or min(local, remote) < 0 or local + remote < 1:
        raise InvalidInput(f"local and remote are numbers of collections, one at least, not {local!r} and {remote!r}")
    if bits not in (8, 16, 32):
        raise InvalidInput(f"bits is 8, 16 or 32, not {bits!r}")
    if api not in APIS:
        raise InvalidInput(f"there is no API {api!r}; there are {', '.join(APIS)}")
    units = max(width * height / TILE, LEAST_TILES) * bands / 3 * samples * _format_factor(format, bits)
    units *= local + 2 * remote
    units *= 2.5 if rtc else 2 if orthorectified else 1
    units *= 2 if speckle_filter else 1
    if width * height >= LARGE:
        units *= APIS[api].factor
    if not isfinite(units):
        raise InvalidInput("that is more processing units than can be counted")
    return max(units, APIS[api].least)


def processing_units_of(
    body: Mapping[str, Any],
    *,
    api: str = "process",
    bands: float | None = None,
    samples: float | None = None,
    bits: int | None = None,
    remote: int | None = None,
) -> float:
    """What a request costs by its body: of the Process API, and of the `statistical` and `async` ones.

    Bands, bits and mosaicking are read from the evalscript where its `setup()` returns a literal; otherwise, and for
    collections that are fused, the arguments say them. What is needed and not known is `InvalidInput`, which names it.
    """
    if api == "batch":
        raise InvalidInput(
            "the body of a batch does not say how many pixels it will make: take processing_units(width, height, "
            'bands, api="batch") for its area'
        )
    if api not in APIS:
        raise InvalidInput(f"there is no API {api!r}; there are {', '.join(APIS)}")
    request = _object(body, "the request")
    given = _object(request.get("input"), "input")
    place = "aggregation" if api == "statistical" else "output"
    output = _object(request.get(place, {} if place == "output" else None), place)
    width, height = size_of(given, output)
    missing = [name for name, value in (("bands", bands), ("samples", samples)) if value is None]
    missing += ["bits"] if bits is None and "image/tiff" in str(output.get("responses")) else []
    script = Script(output.get("evalscript") if api == "statistical" else request.get("evalscript"), missing)
    data = given.get("data")
    if not isinstance(data, list) or not data:
        raise InvalidInput("input.data is a list with a collection at least")
    if len(data) > 1 and remote is None:
        raise InvalidInput(
            f"{len(data)} collections are fused, and a body does not say which of them are kept in another deployment: "
            "say how many with remote=0 or more"
        )
    if samples is None:
        samples = script.samples(api)
    return processing_units(
        width,
        height,
        script.bands() if bands is None else bands,
        samples=samples,
        **_output_of(output, script, bits, api),
        local=len(data) - (remote or 0),
        remote=remote or 0,
        **_sentinel1([_object(one, "an entry of input.data") for one in data]),
        api=api,
    )


class Script:
    """What an evalscript says of itself, read when it is asked for."""

    def __init__(self, text: Any, missing: list[str]) -> None:
        self._text = text
        #: The arguments that would have to be said if it could not be read.
        self._arguments = ", ".join(f"{name}=…" for name in missing)
        self._setup: dict[str, Any] | None = None

    def _read(self) -> dict[str, Any]:
        if self._setup is None:
            if not isinstance(self._text, str) or not self._text.strip():
                raise InvalidInput(f"the body has no evalscript, which would say what it reads: say {self._arguments}")
            try:
                self._setup = setup_of(self._text)
            except NotLiteral as error:
                raise InvalidInput(
                    f"the evalscript does not say what it reads ({error}): say {self._arguments}"
                ) from None
        return self._setup

    def bands(self) -> int:
        """How many bands are read; `dataMask` counts where it is the only one."""
        given = self._read().get("input")
        entries = given if isinstance(given, list) else [given]
        names: list[Any] = []
        for entry in entries:
            found = entry.get("bands") if isinstance(entry, dict) else [entry]
            names += found if isinstance(found, list) else [found]
        if not names or not all(isinstance(name, str) for name in names):
            raise InvalidInput("the evalscript does not say which bands it reads: say bands=…")
        return len([name for name in names if name != "dataMask"]) or 1

    def samples(self, api: str) -> int:
        """How many acquisitions each pixel has: 1 in a simple mosaic."""
        if api == "statistical":
            raise InvalidInput("how many acquisitions the intervals hold cannot be known: say samples=N")
        mosaicking = self._read().get("mosaicking", "SIMPLE")
        if mosaicking != "SIMPLE":
            raise InvalidInput(f"how many acquisitions mosaicking {mosaicking} finds cannot be known: say samples=N")
        return 1

    def bits(self, identifier: str) -> int:
        """The bits of an output."""
        outputs = self._read().get("output")
        found = outputs if isinstance(outputs, list) else [outputs]
        for output in found:
            if isinstance(output, dict) and output.get("id", "default") == identifier:
                kind = output.get("sampleType", "AUTO")
                if kind in SAMPLE_BITS:
                    return SAMPLE_BITS[kind]
                raise InvalidInput(
                    f"the sample type {kind!r} of output {identifier!r} is not known: say bits=8, 16 or 32"
                )
        raise InvalidInput(f"the evalscript has no output {identifier!r}: say bits=8, 16 or 32")


def size_of(given: Mapping[str, Any], output: Mapping[str, Any]) -> tuple[float, float]:
    """Width and height in pixels, from a size, or from a resolution and the bounds."""
    named = [name for name in ("width", "height", "resx", "resy") if output.get(name) is not None]
    if "resx" in named or "resy" in named:
        if named != ["resx", "resy"]:
            raise InvalidInput(f"a size is width and height, or resx and resy, not {', '.join(named)}")
        left, bottom, right, top = _bounds(_object(given.get("bounds"), "input.bounds"))
        for name in ("resx", "resy"):
            _check_number(name, output[name])
        return max(1, round((right - left) / output["resx"])), max(1, round((top - bottom) / output["resy"]))
    width, height = output.get("width", USUAL_SIZE), output.get("height", USUAL_SIZE)
    _check_number("width", width)
    _check_number("height", height)
    return width, height


def _bounds(bounds: Mapping[str, Any]) -> tuple[float, float, float, float]:
    box = bounds.get("bbox")
    if box is None:
        points = list(_points(_object(bounds.get("geometry"), "input.bounds.geometry").get("coordinates")))
        if not points:
            raise InvalidInput("input.bounds has neither a bbox nor a geometry with coordinates")
        xs, ys = [x for x, _ in points], [y for _, y in points]
        box = [min(xs), min(ys), max(xs), max(ys)]
    if not isinstance(box, list | tuple) or len(box) != 4 or not all(_is_number(edge) for edge in box):
        raise InvalidInput(f"input.bounds.bbox is four numbers, not {box!r}")
    left, bottom, right, top = box
    if right <= left or top <= bottom:
        raise InvalidInput(f"input.bounds.bbox is [left, bottom, right, top], and has no area: {box!r}")
    return left, bottom, right, top


def _points(value: Any, depth: int = 0) -> list[tuple[float, float]]:
    if not isinstance(value, list | tuple) or depth > 5:
        return []
    if len(value) >= 2 and all(_is_number(one) for one in value):
        return [(value[0], value[1])]
    return [point for one in value for point in _points(one, depth + 1)]


def _output_of(output: Mapping[str, Any], script: Script, bits: int | None, api: str) -> dict[str, Any]:
    """Format and bits. Where several outputs have different ones the formula does not say what it costs."""
    if api == "statistical":
        return {"format": "application/json", "bits": 8}
    responses = output.get("responses")
    if responses is None:
        responses = [{"identifier": "default", "format": {"type": "image/jpeg"}}]
    if not isinstance(responses, list) or not responses:
        raise InvalidInput("output.responses is a list with a response at least")
    found: dict[tuple[float, str, int], None] = {}
    for response in responses:
        told = _object(response, "an entry of output.responses")
        kind = _object(told.get("format", {}), "the format of a response").get("type", "image/jpeg")
        if kind == "application/json" and len(responses) > 1:
            continue  # the metadata beside an image
        size = bits
        if size is None:
            size = script.bits(str(told.get("identifier", "default"))) if kind == "image/tiff" else 8
        found[_format_factor(kind, size), kind, size] = None
    if len({factor for factor, _, _ in found}) > 1:
        raise InvalidInput(
            f"the outputs have different formats ({', '.join(kind for _, kind, _ in found)}): say bits=N"
        )
    _, kind, size = next(iter(found), (1.0, "application/json", 8))
    return {"format": kind, "bits": size}


def _format_factor(format: str, bits: int) -> float:
    if format == "application/octet-stream":
        return 1.4
    if bits == 32 and format != "image/tiff":
        raise InvalidInput(f"32 bits are a TIFF or an octet stream, not {format}")
    return 2.0 if bits == 32 else 1.0


def _sentinel1(data: list[dict[str, Any]]) -> dict[str, Any]:
    found = {"orthorectified": False, "rtc": False, "speckle_filter": False}
    for entry in data:
        processing = _object(entry.get("processing") or {}, "processing of an entry of input.data")
        if str(processing.get("orthorectify", "")).lower() == "true":
            found["orthorectified"] = True
        if processing.get("backCoeff") == "GAMMA0_TERRAIN":
            found["rtc"] = True
        speckle = _object(processing.get("speckleFilter") or {}, "speckleFilter of an entry of input.data")
        if speckle.get("type", "NONE") != "NONE":
            found["speckle_filter"] = True
    return found


def _object(value: Any, what: str) -> dict[str, Any]:
    if not hasattr(value, "items"):
        raise InvalidInput(f"{what} is an object of a Process API request, not {str(value)[:80]!r}")
    return dict(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _check_number(name: str, value: Any) -> None:
    if not _is_number(value) or value <= 0:
        raise InvalidInput(f"{name} is a number above nought, not {value!r}")
