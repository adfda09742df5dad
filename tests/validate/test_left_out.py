"""Rows beside constants and bands that have not seen their source."""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from projector.cli.main import run
from projector.config.bands import SHARES, Band
from projector.validate.kind import OK, Outcome
from projector.validate.run import DEVICE, Result, validate, without
from projector.validate.totals import over_sources, totals

VALIDATION = Path(__file__).resolve().parents[2] / "validation"
sys.path.insert(0, str(VALIDATION))
from conformal import (  # noqa: E402
    Method,
    Residual,
    residuals_of,
    tables_of,
    tables_without,
    unseen_factors,
)

sys.path.remove(str(VALIDATION))

TABLE = VALIDATION / "data" / "training_throughput.csv"
BAND = Band(0.9, 1.2, 0.8, 1.5, 10, "rows")


def outcome(ratio, *, is_rate=False, left_out=None):
    return Outcome(OK, 10.0, 10.0 / ratio, ratio, is_rate=is_rate, band=BAND, left_out=left_out)


def result(ratio, origin="a", left_out=None, doubt=""):
    other = None if left_out is None else outcome(left_out)
    own = outcome(ratio, left_out=other)
    texts = "m", "h100", "bf16", origin, doubt, "dense"
    return Result(2, "", own, *texts, origin=origin)


def test_bands_are_in_the_unit_of_the_row():
    assert outcome(1.0).limits(68) == pytest.approx((9.0, 12.0))
    # 1.2 times the time is a rate of 1 / 1.2.
    assert outcome(1.0, is_rate=True).limits(68) == pytest.approx((10.0 / 1.2, 10.0 / 0.9))
    assert Outcome(OK, 1.0, 1.0, 1.0).limits(68) is None


@pytest.mark.parametrize(
    ("ratio", "held"), [(1.0, True), (1 / 1.19, True), (1 / 1.21, False), (1 / 0.89, False)]
)
def test_a_row_is_held_where_measured_over_projected_is_within(ratio, held):
    assert outcome(ratio).covered(68) is held
    # The same in rates: the ratio is that of times in both.
    assert outcome(ratio, is_rate=True).covered(68) is held


def test_totals_stand_beside_those_of_sources_left_out():
    found = totals([result(1.1, "a", 1.3), result(1.0, "b", 0.9), result(0.5, "c")])
    assert found.median_ape == pytest.approx(0.1)
    assert found.coverage_68 == pytest.approx(2 / 3)
    assert found.left_out["projected"] == 2
    assert found.left_out["median_ape"] == pytest.approx(0.2)
    assert found.left_out["coverage_90"] == 0.5


def test_sources_weigh_the_same_over_sources():
    rows = [result(1.1, "a")] * 9 + [result(1.5, "b", 1.7)]
    found = over_sources(rows)
    assert (found.sources, found.worst) == (2, "b")
    assert found.mean_of_medians == pytest.approx(0.3)
    assert over_sources(rows, left_out=True).worst_median_ape == pytest.approx(0.7)
    assert over_sources([]) is None


def test_residuals_are_those_of_sources_left_out_without_doubtful_rows():
    found = residuals_of([result(1.1, "a", 1.3), result(2.0, "b", doubt="odd"), result(0.9, "c")])
    assert [each.error for each in found] == pytest.approx([-np.log(1.3), -np.log(0.9)])
    assert {each.device for each in found} == {"NVIDIA H100 SXM 80GB"}
    assert residuals_of([result(1.1)], by_device=True)[0].source == "a, NVIDIA H100 SXM 80GB"


def residuals(sources, scale=0.05):
    generator = np.random.default_rng(1)
    return [
        Residual(f"s{i}", ("narrow", "all"), float(error), f"d{i}")
        for i in range(sources)
        for error in scale * generator.standard_normal(5)
    ]


def test_tables_hold_both_bands_of_every_class_and_widen_them():
    method = Method(2.0)
    usual, wide = (tables_of(residuals(8), method, factor)["narrow"] for factor in (1.0, 2.0))
    assert usual["low_90"] <= usual["low_68"] <= 1.0 <= usual["high_68"] <= usual["high_90"]
    assert wide["high_68"] == pytest.approx(usual["high_68"] ** 2, abs=2e-3)
    assert (usual["runs"], usual["sources"]) == (40, 8)


def test_tables_without_a_source_know_neither_its_rows_nor_its_device():
    found = tables_without(residuals(4), Method(2.0), {"factor_68": 1.2, "factor_90": 1.3})
    assert set(found) == {"s0", "s1", "s2", "s3"}
    assert found["s0"]["all"]["runs"] == 15
    assert found["s0"]["unseen"]["devices"] == ["d1", "d2", "d3"]


def test_devices_that_are_far_off_need_wider_bands():
    method = Method(2.0)
    near = unseen_factors(residuals(8), method, 1.0)
    far = residuals(8) + [Residual("far", ("narrow", "all"), 0.5)] * 5
    assert unseen_factors(far, method, 1.0)["factor_90"] > near["factor_90"]
    assert min(unseen_factors(residuals(8), method, 1.5).values()) >= 1.5


def test_constants_are_known_without_a_source_or_a_device():
    llm_foundry = without("time", "mosaicml/llm-foundry")
    assert llm_foundry.values
    assert all(isinstance(value, float) for value in llm_foundry.values.values())
    assert without("time", "h100", DEVICE) is not None
    assert without("time", "nobody") is None
    assert without("gemm", "mosaicml/llm-foundry") is None


@pytest.fixture(scope="module")
def few_rows(tmp_path_factory):
    """One row of a source that constants were fitted to, and one of an unknown source."""
    with TABLE.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        row = next(row for row in reader if row["source"].startswith("mosaicml/llm-foundry"))
    path = tmp_path_factory.mktemp("rows") / "few.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, reader.fieldnames)
        writer.writeheader()
        writer.writerows([row, {**row, "source": "ours"}])
    return path


def test_rows_of_a_known_source_are_projected_without_it(few_rows):
    known, own = validate("training_throughput", few_rows).results
    assert own.outcome.left_out is None
    assert known.outcome.left_out.ratio != known.outcome.ratio
    assert known.outcome.left_out.band != known.outcome.band


def test_json_has_bands_of_rows_and_shares_that_they_hold(few_rows, capsys):
    assert run(["validate", "training_throughput", str(few_rows), "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"coverage_68", "coverage_90", "left_out", "over_sources"} <= found.keys()
    assert found["left_out"]["projected"] == 1
    for row in found["results"]:
        assert row["low_90"] < row["low_68"] < row["predicted"] < row["high_68"] < row["high_90"]
    assert [row["left_out"] is None for row in found["results"]] == [False, True]
    assert set(found["groups"]["vendor"]) == {"nvidia"}
    assert SHARES == (68, 90)
