"""Every figure of the paper on MI250X beside ours; the page that lists them is current."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "validation" / "infinity_fabric.py"


def load():
    spec = importlib.util.spec_from_file_location("infinity_fabric", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAPER = load()
FIGURES = list(PAPER.figures())


@pytest.mark.parametrize("row", FIGURES, ids=[f"{row.what}, {row.unit}" for row in FIGURES])
def test_figure(row):
    # Findings hold as they stand, printed figures within a tenth.
    assert row.holds, f"paper {PAPER.printed(row.low, row.high)}, model {row.model:.4g} {row.unit}"


def test_a_figure_knows_its_distance():
    row = PAPER.Figure("x", "I", "us", 10.0, 20.0, 15.0)
    assert (row.error, row.holds) == (0.0, True)
    assert row._replace(model=9.5).error == pytest.approx(-0.05)
    assert row._replace(model=9.5).holds
    assert not row._replace(model=8.9).holds
    assert not row._replace(model=9.9, is_finding=True).holds
    assert row._replace(model=23.0).error == pytest.approx(0.15)


def test_the_page_is_current():
    # Rerun validation/infinity_fabric.py --write.
    text = PAPER.PAGE.read_text(encoding="utf-8")
    assert PAPER.page(text) == text
