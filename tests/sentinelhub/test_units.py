"""Processing units: the published examples exactly, bodies as people send them, and what cannot be known."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import InvalidInput
from headgate.sentinelhub import APIS, processing_units, processing_units_of
from headgate.sentinelhub.evalscript import NotLiteral, setup_of

TRUE_COLOUR = """//VERSION=3
function setup() {
    return {
        input: [{
            bands: ["B02", "B03", "B04"],  // blue, green, red
        }],
        output: { bands: 3 },
    };
}
function evaluatePixel(sample) { return [sample.B04, sample.B03, sample.B02]; }
"""


def body(
    script: str = TRUE_COLOUR, format: str = "image/png", data: list[dict[str, Any]] | None = None, **output: Any
) -> dict[str, Any]:
    return {
        "input": {"bounds": {"bbox": [0, 0, 5120, 2560]}, "data": data or [{"type": "sentinel-2-l2a"}]},
        "output": {"responses": [{"identifier": "default", "format": {"type": format}}], **output},
        "evalscript": script,
    }


def test_the_published_examples_are_exact() -> None:
    radar = processing_units(1024, 1024, 4, bits=32, samples=2, orthorectified=True)
    assert radar == pytest.approx(42.667, abs=0.0005)
    assert radar == 4 * 4 / 3 * 2 * 2 * 2
    small = processing_units(20, 20, 2)
    assert small == pytest.approx(0.0067, abs=0.00005)
    assert small == 0.01 * 2 / 3


def test_one_unit_is_512_by_512_pixels_of_three_bands() -> None:
    assert processing_units(512, 512, 3) == 1.0
    assert processing_units(512, 512, 3, format="application/octet-stream") == 1.4
    assert processing_units(512, 512, 3, local=2, remote=1) == 4.0
    assert processing_units(512, 512, 3, rtc=True, orthorectified=True, speckle_filter=True) == 5.0


@pytest.mark.parametrize(("api", "least"), [("process", 0.005), ("statistical", 0.01), ("batch", 100), ("async", 10)])
def test_every_api_has_a_least_cost(api: str, least: float) -> None:
    assert processing_units(1, 1, 1, api=api) == max(least, 0.01 / 3)
    assert APIS[api].least == least


def test_large_images_are_cheaper_by_batch_and_async() -> None:
    assert processing_units(51_200, 5120, 3, api="batch") == pytest.approx(1000 / 3)
    assert processing_units(51_200, 5120, 3, api="async") == pytest.approx(2000 / 3)


def test_a_body_costs_what_its_parameters_cost() -> None:
    assert processing_units_of(body(width=512, height=512)) == 1.0
    assert processing_units_of(body()) == 0.25  # 256 by 256 where nothing is said
    assert processing_units_of(body(resx=10, resy=10)) == processing_units(512, 256, 3)
    floats = TRUE_COLOUR.replace("bands: 3", "bands: 3, sampleType: 'FLOAT32'")
    assert processing_units_of(body(floats, "image/tiff", width=512, height=512)) == 2.0
    assert processing_units_of(body(floats, "image/tiff", width=512, height=512), bits=16) == 1.0
    masked = TRUE_COLOUR.replace('"B04"]', '"B04", "dataMask"]')
    assert processing_units_of(body(masked, width=512, height=512)) == 1.0
    mask_only = TRUE_COLOUR.replace('"B02", "B03", "B04"', '"dataMask"')
    assert processing_units_of(body(mask_only, width=512, height=512)) == pytest.approx(1 / 3)


def test_the_area_of_a_geometry_is_that_of_its_bounding_box() -> None:
    request = body(resx=10, resy=10)
    ring = [[0, 0], [5120, 0], [5120, 2560], [0, 0]]
    request["input"]["bounds"] = {"geometry": {"type": "Polygon", "coordinates": [ring]}}
    assert processing_units_of(request) == processing_units(512, 256, 3)


def test_radar_is_corrected_and_filtered_by_what_its_body_says() -> None:
    processing = {"orthorectify": True, "backCoeff": "GAMMA0_TERRAIN", "speckleFilter": {"type": "LEE"}}
    data = [{"type": "sentinel-1-grd", "processing": processing}]
    assert processing_units_of(body(data=data, width=512, height=512)) == 5.0
    processing["backCoeff"] = "SIGMA0_ELLIPSOID"
    processing["speckleFilter"] = {"type": "NONE"}
    assert processing_units_of(body(data=data, width=512, height=512)) == 2.0


COMPUTED = TRUE_COLOUR.replace('["B02", "B03", "B04"]', "BANDS")


@pytest.mark.parametrize(
    ("request_body", "says"),
    [
        (body(COMPUTED), r"computed \('BANDS'\).*say bands=…, samples=…$"),
        (body("return [B04]"), r"VERSION=3.*samples="),
        (body("//VERSION=3\nfunction evaluatePixel() {}"), "no function setup"),
        (body(TRUE_COLOUR.replace("output:", 'mosaicking: "ORBIT", output:')), r"mosaicking ORBIT.*samples="),
        (body(data=[{"type": "a"}, {"type": "b"}]), "remote="),
        ({**body(), "evalscript": None}, "no evalscript"),
        (body(TRUE_COLOUR.replace("bands: 3", "bands: 3, sampleType: TYPE"), "image/tiff"), "computed"),
        (body(format="image/tiff") | {"evalscript": TRUE_COLOUR.replace("{ bands: 3 }", '{ id: "x" }')}, "no output"),
    ],
)
def test_what_cannot_be_known_is_an_error_that_names_the_argument(request_body: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        processing_units_of(request_body)


def test_what_cannot_be_known_can_be_said() -> None:
    assert processing_units_of(body(COMPUTED, width=512, height=512), bands=6, samples=1) == 2.0
    assert processing_units_of(body("return [B04]", width=512, height=512), bands=3, samples=2) == 2.0
    fused = body(data=[{"type": "a"}, {"type": "b"}], width=512, height=512)
    assert processing_units_of(fused, remote=1) == 3.0
    statistics = {
        "input": {"bounds": {"bbox": [0, 0, 1, 1]}, "data": [{"type": "sentinel-2-l2a"}]},
        "aggregation": {"evalscript": TRUE_COLOUR, "width": 512, "height": 512},
    }
    assert processing_units_of(statistics, api="statistical", samples=4) == 4.0
    with pytest.raises(InvalidInput, match="samples=N"):
        processing_units_of(statistics, api="statistical")


@pytest.mark.parametrize(
    "wrong",
    [
        *(None, 7, "text", [], {}, {"input": 3}, {"input": {"data": []}, "output": {}}, {"input": {"data": [1]}}),
        body(width=0, height=5),
        body(width="512", height=512),
        body(width=float("nan"), height=512),
        body(resx=10),
        body(resx=10, resy=0),
        body() | {"output": {"responses": []}},
    ],
)
def test_a_body_that_is_none_is_a_clear_error(wrong: Any) -> None:
    with pytest.raises(InvalidInput):
        processing_units_of(wrong, bands=3, samples=1)


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), "512", None, True])
@pytest.mark.parametrize("argument", ["width", "height", "bands", "samples"])
def test_a_number_that_makes_no_sense_is_named(argument: str, wrong: Any) -> None:
    with pytest.raises(InvalidInput, match=argument):
        processing_units(**{"width": 1, "height": 1, "bands": 1, argument: wrong})


@pytest.mark.parametrize(
    "script",
    [
        '//VERSION=3\nfunction setup(){return {input:["B02"],output:{bands:1}}}',
        "//VERSION=3\nconst setup = () => {\n return ({ \"input\": ['B02'], output: { bands: 1, }, });\n}",
        "// VERSION=3\n/* return 1 */ function setup() { // return 5\n return {input: [`B02`], output: {bands: 1}} }",
    ],
)
def test_a_setup_is_read_in_the_forms_that_people_write(script: str) -> None:
    assert setup_of(script) == {"input": ["B02"], "output": {"bands": 1.0}}


@given(st.text(max_size=200))
def test_any_text_is_a_setup_or_a_plain_refusal(text: str) -> None:
    for script in (text, f"//VERSION=3\nfunction setup() {{ return {text}"):
        with contextlib.suppress(NotLiteral):
            assert isinstance(setup_of(script), dict)
