"""The schedules beside those of Primus' pipeline simulator."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location(
    "peers_pipeline", ROOT / "validation" / "peers_pipeline.py"
)
peers = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(peers)

SAME = {"basic_1f1b": "1f1b", "interleaved_1f1b": "interleaved", "zerobubble": "zerobubble"}


@pytest.fixture(scope="module")
def found():
    return peers.compare_all()


@pytest.mark.thorough
def test_hardly_a_row_is_above(found):
    assert len(found) == len(peers.read()) == 192
    assert max(each.ratio for each in found) < 1.02
    assert sum(not each.above for each in found) >= 188


def test_the_page_shows_the_comparison(found):
    # Run validation/peers_pipeline.py --record.
    page = (ROOT / "docs" / "schedules.md").read_text(encoding="utf-8")
    assert "\n".join(peers.lines(found)) in page


@pytest.mark.parametrize("algorithm", SAME)
def test_the_same_order_takes_the_same_time(algorithm):
    rows = [row for row in peers.read() if row.algorithm == algorithm]
    assert len(rows) >= 14
    for row in rows:
        run = peers.run(SAME[algorithm], row)
        assert run.makespan_s == pytest.approx(row.time, rel=1e-9), row
        assert max(run.peak_in_flight) / row.vpp == row.memory, row
