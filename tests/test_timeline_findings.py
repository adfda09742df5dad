"""What timelines show of the cases that Chopper (Kurzynski, Aga, Wu) measured."""

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[1] / "validation" / "timeline_findings.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("timeline_findings", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def found(script, tmp_path_factory):
    folder = tmp_path_factory.mktemp("findings")
    return {name: script.finding(name, 2, folder) for name in script.CASES}


def test_the_breakdown_comes_back(found):
    assert all(case.returned for case in found.values())


def test_smaller_batches_and_shorter_sequences_overlap_more(found):
    for less, more in (("b1s4", "b2s4"), ("b2s4", "b4s4"), ("b1s8", "b2s8"), ("b1s4", "b1s8")):
        assert found[less].overlap > found[more].overlap
        assert found[less].attention_overlap >= found[more].attention_overlap
    assert found["b1s4"].attention_overlap > 0.99


def test_the_share_of_launches_falls_with_batch_and_sequence(found):
    for less, more in (("b1s4", "b2s4"), ("b2s4", "b4s4"), ("b1s8", "b2s8"), ("b1s4", "b1s8")):
        assert found[less].launch > found[more].launch
        assert found[less].term_launch > found[more].term_launch
        for phase in ("forward", "backward"):
            assert found[less].launch_of[phase] > found[more].launch_of[phase]


def test_batch_one_is_slower_per_token(found):
    for one, two in (("b1s4", "b2s4"), ("b1s8", "b2s8")):
        assert found[one].tokens_per_s_per_gpu < found[two].tokens_per_s_per_gpu


def test_the_page_has_the_table(script, found):
    # Rerun validation/timeline_findings.py --record and explain the change in the CHANGELOG.
    recorded = (PATH.parents[1] / "docs" / "timeline_export.md").read_text(encoding="utf-8")
    for line in script.lines(list(found.values()))[2:]:
        assert line in recorded
