"""Energy and cost of the run of a job."""

import math

import pytest

from projector.config.load import load_job
from projector.config.prices import load_prices
from projector.projection.evaluate import evaluate
from projector.projection.money import device_power
from projector.projection.run import project_runs

JOB = {
    "model": "llama3.1_8b",
    "parallelism": {"tp": 2},
    "training": {"micro_batch_size": 1, "global_batch_size": 128, "seq_length": 8192},
    "cluster": {"device": "h100", "nodes": 2},
    "run": {"tokens": 1e11},
}


def run_of(**fields):
    overrides = {f"run.{name.replace('__', '.')}": value for name, value in fields.items()}
    return project_runs(evaluate([load_job(JOB, overrides)])).of(0)


def test_no_price_no_money():
    run = run_of()
    assert run.cost_usd is None
    assert run.bill.usd_per_million_tokens is None
    assert run.energy_mwh > 0.0
    assert not [line for line in run.assumptions if "USD" in line]


def test_rent_counts_whole_devices_over_the_wall_clock():
    run = run_of(cost__usd_per_gpu_hour=2)
    assert run.gpu_hours == pytest.approx(run.days * 24 * 16)
    assert run.cost_usd == pytest.approx(2 * run.gpu_hours)
    assert run.bill.usd_per_million_tokens == pytest.approx(run.cost_usd / 1e5)


def test_spare_nodes_are_paid():
    run = run_of(cost__usd_per_gpu_hour=2, failures__spare_nodes=1)
    assert run.gpu_hours == pytest.approx(run.days * 24 * 24)


def test_energy_by_hand():
    run = run_of(energy__pue=1.0, energy__node_overhead_w_per_gpu=0, failures=False)
    power = device_power(evaluate([load_job(JOB)]))
    busy = run.terms_days["compute"] / run.days
    watts = busy * power.step_w[0] + (1 - busy) * power.idle_w[0]
    assert run.energy_mwh == pytest.approx(watts * run.gpu_hours / 1e6)
    assert run.bill.average_w_per_gpu == pytest.approx(watts)


def test_emissions_follow_the_grid():
    france, stated = run_of(energy__grid="france"), run_of(energy__grid=56)
    assert france.co2_t == stated.co2_t == pytest.approx(france.energy_mwh * 56 / 1e3)


def test_listed_price_is_applied_where_asked_for():
    listed = load_prices().rental_usd_per_gpu_hour["NVIDIA H100 SXM 80GB"]
    run = run_of(cost__prices="listed")
    assert run.bill.usd_per_gpu_hour == listed.value
    assert [line for line in run.assumptions if str(listed.date) in line]


def test_stated_price_goes_before_the_listed_one():
    assert run_of(cost__prices="listed", cost__usd_per_gpu_hour=1).bill.usd_per_gpu_hour == 1.0


def test_device_without_a_listed_price_has_none():
    job = load_job(JOB, {"cluster.device": "h800", "run.cost.prices": "listed"})
    run = project_runs(evaluate([job])).of(0)
    assert run.cost_usd is None
    assert [line for line in run.assumptions if "no listed price" in line]


def test_owned_fleet():
    run = run_of(cost__owned__capex_usd_per_gpu=30000)
    # The power that is projected, with the node and the building, instead of TDP alone.
    assert 1.30 < run.bill.owned_multiplier < 1.45
    hourly = run.bill.owned_multiplier * 30000 / (3 * 8760)
    assert run.cost_usd == pytest.approx(hourly * run.gpu_hours)


def test_owned_fleet_at_tdp_has_the_multiplier_of_the_methodology():
    run = run_of(cost__owned__capex_usd_per_gpu=30000)
    at_tdp = 3 * 8.760 * 0.07 * (run.bill.average_w_per_gpu - 700 * 1.45) / 30000
    assert run.bill.owned_multiplier - at_tdp == pytest.approx(1.357, abs=0.001)


def test_prices_differ_within_a_batch():
    jobs = [load_job(JOB, {"run.cost.usd_per_gpu_hour": price}) for price in (1, 2)]
    runs = project_runs(evaluate([*jobs, load_job(JOB)]))
    cost_usd = runs.column("cost_usd")
    assert cost_usd[1] == 2 * cost_usd[0]
    assert math.isnan(cost_usd[2])
    assert len(set(runs.column("energy_mwh").tolist())) == 1
