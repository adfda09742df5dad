"""Every row of the methodology, computed anew and compared with the table of the page."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load_script():
    path = ROOT / "validation" / "methodology.py"
    spec = importlib.util.spec_from_file_location("methodology", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPT = load_script()
FACTS = SCRIPT.read()
ROWS = {row["id"]: row for row in FACTS["rows"]}
CATEGORIES = [
    "Parameter counts", "Training memory", "Activation memory", "KV cache", "Ridge points",
    "Decode throughput", "Time to train", "Pipeline bubble", "Crossing of the NVLink domain",
    "Bottleneck",
]  # fmt: skip
FAILS = {
    "parameters_8b", "parameters_70b", "states_70b_18", "checkpointed_1k", "checkpointed_8k",
    "checkpointed_32k", "gpt3_days",
}  # fmt: skip


@pytest.fixture(scope="module")
def computed():
    return {name: SCRIPT.compute(row) for name, row in ROWS.items()}


def test_all_categories_are_there():
    assert list(dict.fromkeys(row["category"] for row in ROWS.values())) == CATEGORIES
    assert len(ROWS) == len(FACTS["rows"]) == 24
    assert {row["source"] for row in ROWS.values()} == set(FACTS["sources"])


@pytest.mark.parametrize("name", ROWS)
def test_rows_hold_where_the_page_says_so(name, computed):
    # A row that starts or ceases to hold changes what the page says below its table.
    assert SCRIPT.holds(ROWS[name], computed[name].first_order) == (name not in FAILS)


def test_the_page_is_current(computed):
    page = SCRIPT.PAGE.read_text(encoding="utf-8")
    written = page.split(SCRIPT.BEGIN)[1].split(SCRIPT.END)[0]
    found = SCRIPT.table(computed)
    # Run validation/methodology.py --record, and say in the CHANGELOG why a value moved.
    assert written.strip().splitlines() == found.splitlines()


def test_a_row_off_by_more_than_its_tolerance_does_not_hold():
    row = {**ROWS["cache_70b"], "tolerance": 0.05}
    assert SCRIPT.holds(row, 43 * 1.04)
    assert not SCRIPT.holds(row, 43 * 1.06)
    assert not SCRIPT.holds(ROWS["bound_decode"], "compute")
