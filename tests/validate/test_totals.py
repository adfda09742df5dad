import math
from dataclasses import asdict, replace

import pytest

from projector.validate.kind import OK, Outcome, failed
from projector.validate.run import Result, Validation
from projector.validate.totals import (
    SMALLEST_GROUP,
    _verdicts,
    group_mean_ape,
    summary,
    totals,
)


def result(
    ratio, *, device="h100", precision="bf16", source="s", doubt="", family="dense",
    as_named=None, group="",
):  # fmt: skip
    outcome = failed("broken")
    if ratio is not None:
        outcome = Outcome(OK, ratio, 1.0, ratio, as_named=as_named)
    return Result(2, "", outcome, "m", device, precision, source, doubt, family, group)


LEFT_OUT = Result(9, "not a measurement", Outcome("x"), "m", "h100", "bf16", "s", "", "dense")


def test_totals_by_hand():
    found = totals([result(ratio) for ratio in (0.8, 1.1, 1.0, 1.5)] + [result(None), LEFT_OUT])
    assert (found.total_rows, found.rows, found.projected) == (6, 5, 4)
    # Errors 0, 0.1, 0.2, 0.5: the 90th percentile lies 0.7 of the way from 0.2 to 0.5.
    assert found.median_ape == pytest.approx(0.15)
    assert found.p90_ape == pytest.approx(0.2 + 0.7 * 0.3)
    assert found.mean_ape == pytest.approx(0.2)
    assert found.geomean_ratio == pytest.approx((0.8 * 1.1 * 1.5) ** 0.25)


def test_nothing_projected_has_no_errors():
    found = totals([result(None), LEFT_OUT])
    assert asdict(found) == {
        "total_rows": 2,
        "rows": 1,
        "projected": 0,
        "median_ape": None,
        "p90_ape": None,
        "mean_ape": None,
        "geomean_ratio": None,
        "coverage_68": None,
        "coverage_90": None,
        "left_out": None,
    }


def test_group_mean_counts_only_groups_of_five():
    large = [result(1.0 + 0.1 * n) for n in range(SMALLEST_GROUP)]
    other = [result(0.5, device="b200")] * SMALLEST_GROUP
    small = [result(9.0, source="t")] * (SMALLEST_GROUP - 1)
    found = group_mean_ape(large + other + small, has_precision=True)
    assert found == pytest.approx((0.2 + 0.5) / 2)
    assert group_mean_ape(small, has_precision=True) is None


def test_precision_splits_groups_only_where_the_table_has_one():
    rows = [result(1.1, precision=name) for name in "abcde"]
    assert group_mean_ape(rows, has_precision=True) is None
    assert group_mean_ape(rows, has_precision=False) == pytest.approx(0.1)


def test_summary_gives_doubt_families_and_groups():
    rows = (
        result(1.1),
        result(3.0, doubt="contradicts itself"),
        result(1.3, family="moe", device="b200"),
        result(None),
        LEFT_OUT,
    )
    found = summary(Validation("training_throughput", "f.csv", ("gpu",), rows, True))
    assert found["rows"] == 4
    assert found["projected"] == 3
    assert found["without_doubt"]["rows"] == 3
    assert found["without_doubt"]["mean_ape"] == pytest.approx(0.2)
    assert found["moe"]["median_ape"] == pytest.approx(0.3)
    assert found["dense"]["projected"] == 2
    assert list(found["groups"]["device"]) == ["h100", "b200"]
    assert found["groups"]["device"]["b200"]["projected"] == 1
    assert found["groups"]["mark"] == {"row": asdict(totals(rows[:3]))}
    assert found["not_eligible"] == {"not a measurement": 1}
    assert found["failures"] == {"broken": 1}
    assert math.isfinite(found["geomean_ratio"])


def test_kernels_of_tuners_are_scored_as_chosen_and_as_named():
    rows = (
        result(0.8, as_named=0.9, group="a"),
        result(1.4, as_named=1.0, group="b"),
        result(3.0, group="b"),
    )
    found = summary(Validation("gemm_measured", "f.csv", ("gpu",), rows, True))
    assert (found["tuned"]["rows"], found["tuned_as_named"]["rows"]) == (2, 2)
    assert found["tuned"]["median_ape"] == pytest.approx(0.3)
    assert found["tuned_as_named"]["median_ape"] == pytest.approx(0.05)
    # The whole table counts the choice.
    assert found["median_ape"] == pytest.approx(0.4)
    groups = found["groups"]["by"]
    assert list(groups) == ["b", "a", "a, as named", "b, as named"]
    assert groups["b, as named"]["median_ape"] == 0.0
    assert found["groups"]["device"]["h100"]["rows"] == 3


def test_without_a_tuner_or_columns_to_group_by():
    found = summary(Validation("memory", "f.csv", ("gpu",), (result(1.1),), True))
    assert found["groups"]["by"] == {}
    assert "tuned" not in found


def test_verdicts_of_measured_memory_are_counted():
    def ran(verdict, of_limit, other=None):
        left_out = None if other is None else Outcome(OK, 9.0, 10.0, 0.9, verdict=other)
        outcome = Outcome(OK, 9.0, 10.0, 0.9, verdict=verdict, of_limit=of_limit, left_out=left_out)
        return replace(result(0.9), outcome=outcome)

    rows = [ran("fits", 0.5), ran("fits", 0.98, "does_not_fit"), ran("at_risk", 0.97)]
    found = _verdicts(rows)["verdicts"]
    assert found["in_sample"] == {
        "fits": 2, "at_risk": 1, "does_not_fit": 0,
        "close_to_limit": 2, "close_to_limit_and_fits": 1,
    }  # fmt: skip
    assert found["left_out"]["does_not_fit"] == 1
    assert _verdicts([]) == {}
