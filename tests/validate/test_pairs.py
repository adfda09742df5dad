"""Pairs of published runs."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from projector.config.load import load_job

VALIDATION = Path(__file__).resolve().parents[2] / "validation"
sys.path.insert(0, str(VALIDATION))
from run_pairs import (  # noqa: E402
    ONE,
    Pair,
    Run,
    bands,
    coverage,
    find_pairs,
    read_runs,
    spread_of,
    spreads,
)

sys.path.remove(str(VALIDATION))

ROW = {
    "model": "Llama-3.1-8B", "gpu": "H100", "n_gpus": "16", "precision": "BF16",
    "seq_len": "4096", "micro_batch": "1", "global_batch": "128", "tp": "2", "pp": "1",
    "recompute": "none", "task": "pretrain", "step_time_s": "2.5", "source": "Somebody doc.md",
}  # fmt: skip

TRAINING = {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 4096}
JOB = load_job({"model": "llama3.1_8b", "training": TRAINING, "cluster": {"device": "h100"}})


def rows(*changes):
    return [{**ROW, **change} for change in changes]


def made(source, errors, setting="tp", group=0):
    """Return one pair for each error, every two runs a group of their own."""
    pairs = []
    for number, error in enumerate(errors):
        name = (source, str(group + number))
        first = Run(2 * number, source, name, JOB, 1.0, 1.0)
        second = Run(2 * number + 1, source, name, JOB, 1.0, math.exp(error))
        pairs.append(Pair(first, second, (setting,)))
    return pairs


def test_pairs_of_one_document():
    runs = read_runs(
        rows(
            {},
            {"tp": "4", "step_time_s": "3"},
            {"tp": "4", "source": "Somebody other.md"},
            {"tp": "4", "gpu": "H200"},
            {"tp": "4", "doubt": "printed twice"},
            {"micro_batch": ""},
            {"model": "no such model"},
        )
    )
    assert [run.line for run in runs] == [0, 1, 2, 3]
    (pair,) = find_pairs(runs)
    assert (pair.name, pair.first.line, pair.second.line) == ("tp", 0, 1)


def test_error_is_that_of_the_ratio():
    first, second = read_runs(rows({}, {"tp": "4", "step_time_s": "3"}))
    (pair,) = find_pairs([first, second])
    projected, measured = second.predicted_s / first.predicted_s, 3.0 / 2.5
    assert math.exp(pair.log_error) == pytest.approx(projected / measured)


def test_equal_runs_are_no_pair():
    assert find_pairs(read_runs(rows({}, {"step_time_s": "3"}))) == []


def test_another_release_is_another_group():
    releases = [{"other_flags": f"{name} NeMo Container"} for name in ("26.02", "26.04")]
    assert find_pairs(read_runs(rows(releases[0], {**releases[1], "tp": "4"}))) == []


def test_sources_weigh_the_same():
    many, few = made("many", [0.01] * 100), made("few", [0.2] * 40)
    spread = spread_of(many + few)
    assert (spread.pairs, spread.sources, spread.differences) == (140, 2, 140)
    assert spread.median == pytest.approx(math.expm1(0.01))
    assert spread.relative_68 == pytest.approx(math.expm1(0.2))


def test_series_counts_its_steps_once():
    runs = [Run(i, "one", ("one",), JOB, 1.0, 1.0 + 0.01 * i) for i in range(5)]
    pairs = [Pair(a, b, ("gpus",)) for i, a in enumerate(runs) for b in runs[i + 1 :]]
    spread = spread_of(pairs)
    assert (spread.pairs, spread.differences) == (10, 4)


def test_settings_with_few_pairs_have_no_band():
    pairs = made("one", [0.1] * 30, "tp") + made("two", [0.1] * 5, "pp")
    assert set(spreads(pairs)) == {"tp", "pp", ONE}
    assert set(bands(pairs)) == {"tp", ONE}
    assert set(bands(pairs + made("two", [0.1] * 5, "tp", 50))) == {"tp", ONE}


def test_settings_with_some_pairs_are_never_narrower_than_these():
    pairs = made("one", [0.01] * 50, "gpus") + made("two", [0.2] * 10, "tp", 100)
    found = bands(pairs)
    assert found["tp"].relative_68 == pytest.approx(math.expm1(0.2))
    narrow = made("one", [0.2] * 50, "gpus") + made("two", [0.01] * 10, "tp", 100)
    assert bands(narrow)["tp"].relative_68 == bands(narrow)[ONE].relative_68


def test_coverage_leaves_the_source_out():
    pairs = made("one", [0.1] * 30) + made("two", [0.2] * 30)
    assert coverage(pairs)["tp"] == (0.5, 0.5)
    assert coverage(made("one", [0.1] * 30)) == {}


def test_direction_counts_changes_that_people_decide_by():
    faster, slower, alike = read_runs(
        rows(
            {},
            {"micro_batch": "2", "step_time_s": "3"},
            {"micro_batch": "4", "step_time_s": "2.7"},
        )
    )
    for wrong, right in ((slower, 0), (faster, 1)):
        predicted = wrong.predicted_s * 0.5 if wrong is slower else faster.predicted_s * 0.5
        changed = replace(wrong, predicted_s=predicted)
        runs = [changed, slower] if wrong is faster else [faster, changed]
        found = spread_of(find_pairs(runs))
        assert (found.decided, found.right) == (1, right)
    assert spread_of(find_pairs([faster, alike])).decided == 0
