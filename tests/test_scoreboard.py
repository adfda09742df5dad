"""The recorded totals of every shipped table: a change in accuracy is always seen."""

import json
from pathlib import Path

import pytest

from projector.validate.kind import KINDS
from projector.validate.run import validate
from projector.validate.totals import summary

VALIDATION = Path(__file__).resolve().parents[1] / "validation"
RECORDED = json.loads((VALIDATION / "totals.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_totals_are_current(kind):
    found = summary(validate(kind, VALIDATION / "data" / f"{kind}.csv"))
    # Run validation/scoreboard.py --record and explain the change in the CHANGELOG.
    for name, value in RECORDED[kind].items():
        if isinstance(value, float):
            assert found[name] == pytest.approx(value, abs=1e-3), name
        else:
            assert found[name] == value, name


def test_coverage():
    # Rows of schedules that are still to come count against it.
    share = {kind: totals["projected"] / totals["rows"] for kind, totals in RECORDED.items()}
    assert min(share.values()) > 0.94
    assert RECORDED["param_counts"]["median_ape"] == 0.0
    assert RECORDED["param_counts"]["p90_ape"] == 0.0
