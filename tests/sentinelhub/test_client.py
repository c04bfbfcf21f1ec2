"""The `sentinelhub` package as it is installed, under a gate, against the local Sentinel Hub and its books."""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sentinelhub import (
    CRS,
    BBox,
    DataCollection,
    DownloadRequest,
    MimeType,
    SentinelHubDownloadClient,
    SentinelHubRequest,
    SHConfig,
)
from sentinelhub.exceptions import DownloadFailedException

from headgate import Bucket, Denied, Gate, InvalidInput
from headgate.sentinelhub import download_client
from headgate.simulate.upstreams import UpstreamThread, start
from tests.sentinelhub.test_units import COMPUTED, TRUE_COLOUR

SIZE = (512, 512)
NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def plain_http(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OAUTHLIB_INSECURE_TRANSPORT", "1")
    SentinelHubDownloadClient.clear_cache()
    yield
    SentinelHubDownloadClient.clear_cache()


def config_of(hub: UpstreamThread) -> SHConfig:
    config = SHConfig(use_defaults=True)
    config.sh_base_url = hub.url
    config.sh_token_url = hub.url + "/auth/realms/main/protocol/openid-connect/token"
    config.sh_client_id, config.sh_client_secret = "me", "hush"
    config.download_sleep_time = 0.01
    return config


def request_of(hub: UpstreamThread, script: str = TRUE_COLOUR, **more: Any) -> SentinelHubRequest:
    """A script as people have it: nothing of Headgate is in it."""
    return SentinelHubRequest(
        evalscript=script,
        input_data=[
            SentinelHubRequest.input_data(
                data_collection=DataCollection.SENTINEL2_L2A.define_from(f"local-{hub.port}", service_url=hub.url),
                time_interval=("2026-06-01", "2026-06-30"),
            )
        ],
        responses=[SentinelHubRequest.output_response("default", MimeType.PNG)],
        bbox=BBox((14.0, 46.0, 14.1, 46.1), CRS.WGS84),
        size=SIZE,
        config=config_of(hub),
        **more,
    )


def gate_of(waiting: Any = "promise", requests: float = 10, per: str = "1s") -> Gate:
    limits = [
        Bucket(requests, per=per, name="requests", slack="50ms"),
        Bucket(100, per=per, name="pu", unit="pu", slack=0),
    ]
    return Gate(f"sentinel-hub-{next(NUMBERS)}", limits, waiting=waiting)  # gates of one name share their state


@pytest.mark.parametrize("waiting", ["promise", "line"])
def test_a_real_script_gets_its_image_with_one_line_added(waiting: Any) -> None:
    with start("sentinel-hub") as hub:
        gate = gate_of(waiting, per="1h")
        request = request_of(hub)
        request.download_client_class = download_client(gate)
        image = request.get_data()[0]
        assert image.shape == (512, 512, 3)
        books = hub.books()
        assert books["units"] == {"requests": 1, "pu": 1}
        assert {limit.name: limit.used for limit in gate.usage().limits} == {
            "requests": pytest.approx(1, abs=0.1),
            "pu": pytest.approx(1, abs=0.1),
        }


def test_many_downloads_at_once_wait_for_their_turn_and_none_is_refused() -> None:
    """Three clients with threads of their own on one account of 10 requests in half a second."""
    with start("sentinel-hub", ["requests=10/500ms", "pu=1000/1s"]) as hub:
        gate = gate_of(requests=10, per="500ms")
        config = config_of(hub)

        def run() -> None:
            requests = [request_of(hub).download_list[0] for _ in range(12)]
            client = download_client(gate)(config=config)
            assert len(client.download(requests, max_threads=6)) == 12

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        books = hub.books()
        assert (books["accepted"], books["refused"]) == (36, 0)
        assert books["tokens_issued"] <= 3


def test_its_own_limiter_is_refused_where_the_gate_is_not() -> None:
    """What the package does by itself, for comparison: each client knows only of its own refusals."""
    with start("sentinel-hub", ["requests=5/300ms"]) as hub, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = config_of(hub)
        client = SentinelHubDownloadClient(config=config)
        client.rate_limit.wait_time = 0.0  # as if each download were another worker's
        client.download([request_of(hub).download_list[0] for _ in range(12)], max_threads=12)
        assert hub.books()["refused"] > 0


def test_a_429_pauses_the_fleet_and_the_request_is_repeated_in_turn() -> None:
    with start("sentinel-hub", ["requests=1/1s"]) as hub, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gate = gate_of(requests=1000)  # the gate believes in more than there is
        request_class = download_client(gate)
        request = request_of(hub)
        request.download_client_class = request_class
        for _ in range(2):
            assert request.get_data()[0].shape == (512, 512, 3)
        books = hub.books()
        assert books["accepted"] == 2
        assert books["refused"] >= 1
        assert gate.usage().paused_for is not None or books["refused"] < 5, "it did not ask again before the delay"


def test_the_answer_settles_what_the_units_were_guessed_to_be() -> None:
    with start("sentinel-hub") as hub:
        gate = Gate(f"hub-{next(NUMBERS)}", [Bucket(100, per="1h", name="pu", unit="pu", slack=0)])
        request = request_of(hub)
        request.download_client_class = download_client(gate, units=lambda request: 40.0)
        request.get_data()
        assert gate.usage()["pu"].used == pytest.approx(1.0, abs=0.01)


def test_units_that_cannot_be_known_are_named_before_anything_is_charged_or_sent(tmp_path: Path) -> None:
    with start("sentinel-hub") as hub:
        gate = gate_of(requests=10, per="1h")
        request = request_of(hub, COMPUTED)
        request.download_client_class = download_client(gate)
        with pytest.raises(InvalidInput, match="bands="):
            request.get_data()
        client = download_client(gate)(config=config_of(hub))
        with pytest.raises(InvalidInput, match="units="):
            client.download([DownloadRequest(url=f"{hub.url}/ogc/wms/x", use_session=True)])
        assert all(limit.used == 0 for limit in gate.usage().limits)
        assert hub.books()["accepted"] == 0
        request.download_client_class = download_client(gate, bands=3, samples=1)
        assert request.get_data()[0].shape == (512, 512, 3)


@pytest.mark.parametrize("wrong", [float("nan"), -1.0, 0.0, "many", None, 1000.0])
def test_units_that_make_no_sense_or_can_never_fit_are_refused_and_charge_nothing(wrong: Any) -> None:
    with start("sentinel-hub") as hub:
        gate = gate_of()
        request = request_of(hub)
        request.download_client_class = download_client(gate, units=lambda request: wrong)
        with pytest.raises((InvalidInput, Denied)):
            request.get_data()
        assert all(limit.used == 0 for limit in gate.usage().limits)
        assert hub.books()["accepted"] == 0


def test_a_failing_service_is_retried_by_the_package_with_a_turn_for_each_try() -> None:
    with start("sentinel-hub") as hub:
        gate = gate_of()
        request = request_of(hub)
        request.download_client_class = download_client(gate)
        hub.inject(status=503, count=2, path="/api/v1/process")
        assert request.get_data()[0].shape == (512, 512, 3)
        hub.inject(status=400, count=1, path="/api/v1/process")
        with pytest.raises(DownloadFailedException):
            request.get_data()


def test_what_is_no_gate_is_named() -> None:
    with pytest.raises(InvalidInput, match="takes a Gate"):
        download_client("http://guard")  # type: ignore[arg-type]
