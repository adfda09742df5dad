"""Which row of a job takes which time of a record, by hand."""

import numpy as np
import pytest

from projector import load_job
from projector.config.job import Job
from projector.errors import ConfigError
from projector.measure.keys import keys_of
from projector.measure.restore import TP_RULES, Restoration
from projector.operations.cost import ANALYTIC, MEASURED, SCALED, MeasuredRows
from projector.projection.evaluate import Evaluation, evaluate


def evaluation(**fixed: object) -> Evaluation:
    """Evaluate a small job of experts whose exchange crosses nodes."""
    job: Job = load_job(
        {
            "model": "mixtral_8x7b",
            "parallelism": {"ep": 2},
            "training": {"micro_batch_size": 1, "global_batch_size": 16, "seq_length": 2048},
            "cluster": {"device": "h100", "nodes": 1},
        },
        {"training.elementwise": "eager", **fixed},
    )
    return evaluate([job])


BENCHMARK = evaluation(**{"model.moe.num_experts": 2})
"""Two experts on two ranks: one each, as in the target of eight ranks."""

TARGET = evaluation(**{"parallelism.ep": 8})


def restored(seconds: dict[tuple[str, str], float], rule: str = "ratio") -> MeasuredRows:
    """Restore the target from the times of some operations, by label and phase."""
    table = BENCHMARK.table
    keys = keys_of(table, np.arange(len(table)))
    times = {
        key: seconds[key.label, key.phase] for key in keys if (key.label, key.phase) in seconds
    }
    assert len(times) == len(seconds)
    restoration = Restoration.of_rows(
        table, BENCHMARK.workloads, BENCHMARK.rows.time_s, times, rule
    )
    return restoration.rows(TARGET.table, TARGET.workloads, TARGET.rows.time_s)


def row_of(target: Evaluation, label: str, phase: int) -> int:
    table = target.table
    (rows,) = np.nonzero((table.label == table.labels.index(label)) & (table.phase == phase))
    return int(rows[0])


def test_the_same_kernel_takes_what_was_measured() -> None:
    rows = restored({("attention.qkv", "forward"): 1e-3})
    row = row_of(TARGET, "attention.qkv", 0)
    assert rows.time_s[row] == 1e-3
    assert rows.origin[row] == MEASURED
    others = np.arange(len(rows.origin)) != row
    assert np.all(rows.origin[others] == ANALYTIC)
    np.testing.assert_array_equal(rows.time_s[others], TARGET.rows.time_s[others])


def test_the_same_operation_at_other_extents_is_scaled_by_the_model() -> None:
    rows = restored({("moe.router", "forward"): 1e-3})
    row, other = row_of(TARGET, "moe.router", 0), row_of(BENCHMARK, "moe.router", 0)
    share = TARGET.rows.time_s[row] / BENCHMARK.rows.time_s[other]
    assert rows.time_s[row] == pytest.approx(1e-3 * share)
    assert rows.origin[row] == SCALED


@pytest.mark.parametrize("rule", TP_RULES)
def test_an_exchange_keeps_the_modelled_difference_to_the_measured_one(rule: str) -> None:
    row, other = row_of(TARGET, "moe.dispatch", 0), row_of(BENCHMARK, "moe.dispatch", 0)
    more_s = TARGET.rows.time_s[row] - BENCHMARK.rows.time_s[other]
    rows = restored({("moe.dispatch", "forward"): 5e-3}, rule)
    assert rows.time_s[row] == pytest.approx(5e-3 + more_s)
    assert rows.origin[row] == SCALED


def test_an_exchange_never_takes_less_than_no_time() -> None:
    table = BENCHMARK.table
    keys = keys_of(table, np.arange(len(table)))
    times = {key: 1e-6 for key in keys if key.label == "moe.dispatch"}
    slow = BENCHMARK.rows.time_s * 100.0  # As if the model were far too slow at the benchmark.
    restoration = Restoration.of_rows(table, BENCHMARK.workloads, slow, times)
    rows = restoration.rows(TARGET.table, TARGET.workloads, TARGET.rows.time_s)
    assert rows.time_s[row_of(TARGET, "moe.dispatch", 0)] == 0.0
    assert np.all(rows.time_s >= 0.0)


def test_nothing_measured_is_nothing_restored() -> None:
    rows = restored({})
    np.testing.assert_array_equal(rows.time_s, TARGET.rows.time_s)
    assert not rows.origin.any()
    assert not rows.layer_origin.any()
    assert not rows.extra_s.any()


def test_a_rule_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="tp_rule is ratio or linear, got 'cubic'"):
        restored({}, "cubic")
