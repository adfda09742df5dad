import math

import numpy as np
import pytest

from projector.calibrate.runs import Run, Slopes, fit_runs, run_weights, slopes_of, times_s
from projector.config.constants import Changes, Parameter, training_parameters
from projector.config.load import load_job
from projector.errors import ConfigError

WIDE = Parameter(
    "wide", "cluster.device.training_gemm_share.16_bit", 0.9, 5.0, lower=0.5, upper=1.5
)


def job(device="h100", precision="bf16", seq=4096):
    return {
        "model": "llama3_8b",
        "training": {
            "micro_batch_size": 1,
            "global_batch_size": 64,
            "seq_length": seq,
            "precision": precision,
        },
        "cluster": {"device": device, "nodes": 1},
        "parallelism": {"zero_stage": 3},
    }


def seconds(data, **values):
    return float(times_s([Changes((WIDE,)).of(load_job(data), values)])[0])


def test_a_fit_finds_the_constant_that_made_the_times():
    jobs = [job(), job(seq=8192), job(seq=2048)]
    runs = [Run(each, seconds(each, wide=0.7), "lab") for each in jobs]
    found = fit_runs(runs, [WIDE])
    assert found.values["wide"] == pytest.approx(0.7, rel=0.005)
    assert found.shifts["wide"] == pytest.approx(math.log(found.values["wide"] / 0.9) / 5.0)
    assert np.abs(found.after).max() < 0.003 < np.abs(found.before).max()
    assert found.unseen == ()


def test_a_narrow_prior_holds_a_constant():
    narrow = Parameter("wide", WIDE.field, 0.9, 1e-4)
    found = fit_runs([Run(job(), seconds(job(), wide=0.7))], [narrow])
    assert found.values["wide"] == pytest.approx(0.9, rel=1e-3)


def test_bounds_hold():
    bounded = Parameter("wide", WIDE.field, 0.9, 5.0, lower=0.85, upper=1.0)
    assert fit_runs([Run(job(), seconds(job(), wide=0.6))], [bounded]).values["wide"] == 0.85


def test_constants_that_no_run_has_keep_their_values():
    found = fit_runs([Run(job(), seconds(job()))])
    assert set(found.values) == {"hopper_16_bit"}
    assert "blackwell_16_bit" in found.unseen
    assert "hopper_8_bit" in found.unseen
    names = {parameter.name for parameter in training_parameters()}
    assert set(found.unseen) | set(found.values) == names


def test_sources_weigh_the_same_and_equal_configurations_count_once():
    runs = [
        *[Run({}, 1.0, "a", f"row {i}") for i in range(8)],
        *[Run({}, 1.0, "b", "same") for _ in range(3)],
        Run({}, 1.0, "b"),
    ]
    weights = run_weights(runs, source_weight=2.0)
    assert weights[:8] == pytest.approx([0.25] * 8)
    assert weights[8:11] == pytest.approx([1 / 3] * 3)
    assert weights[11] == 1.0


def test_weights_of_nothing_leave_the_prior():
    linear = Slopes((WIDE,), np.array([0.3]), np.array([0.2]), np.array([[-0.5]]))
    assert linear.solve(np.zeros(1)) == pytest.approx([0.0], abs=1e-12)
    assert not linear.seen(np.zeros(1)).any()


def test_a_solution_is_the_least_of_the_loss():
    rng = np.random.default_rng(3)
    parameters = tuple(Parameter(name, "", 1.0, 0.1) for name in "ab")
    linear = Slopes(parameters, np.zeros(2), rng.normal(0, 0.1, 9), rng.normal(0, 1, (9, 2)))
    weights = rng.uniform(0.1, 1.0, 9)

    def loss(point):
        error = linear.residuals(point) / 0.08
        data = 2.0 * weights @ (np.sqrt(1.0 + error**2) - 1.0)
        return data + np.sum((point / 0.1) ** 2)

    best = linear.solve(weights)
    for step in rng.normal(0, 1e-3, (50, 2)):
        assert loss(best + step) >= loss(best)


def test_what_no_run_has_follows_those_that_are_alike():
    a, b = (Parameter(name, "", 1.0, 0.03, alike="all", alike_log_width=0.1) for name in "ab")
    apart = Parameter("c", "", 1.0, 0.03)
    rows = np.array([[-1.0, 0.0, 0.0]])
    linear = Slopes((a, b, apart), np.zeros(3), np.array([0.1]), rows)
    point = linear.solve(np.ones(1), noise=1e-3)
    assert point[0] == pytest.approx(0.1, rel=0.01)
    assert point[1] == pytest.approx(point[0] * 0.1**2 / (0.1**2 + 0.03**2))
    assert point[2] == pytest.approx(0.0, abs=1e-12)


def test_slopes_are_those_of_the_projection():
    linear = slopes_of([Run(job(), 1.0)], [WIDE])
    present = WIDE.of(load_job(job()))
    low, high = seconds(job(), wide=present), seconds(job(), wide=present * 1.01)
    assert linear.log_ratio[0] == pytest.approx(math.log(low))
    assert linear.slopes[0, 0] == pytest.approx(math.log(high / low) / math.log(1.01), abs=0.1)


@pytest.mark.parametrize("measured_s", [0.0, -1.0, math.nan])
def test_measured_times_are_positive(measured_s):
    with pytest.raises(ConfigError, match="not a positive number of seconds"):
        fit_runs([Run(job(), measured_s)])


def test_no_runs():
    with pytest.raises(ConfigError, match="runs: there is none"):
        fit_runs([])
