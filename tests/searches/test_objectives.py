"""Searches for the least cost, energy or emissions of a run."""

import json
from itertools import pairwise

import pytest

from projector.cli.main import run
from projector.config.load import load_job
from projector.errors import ConfigError
from projector.projection.evaluate import evaluate
from projector.projection.run import project_runs
from projector.searches.configurations import search
from projector.searches.limits import Limits

JOB = {
    "model": "llama3.2_1b",
    "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 2048},
    "cluster": {"device": "h100", "nodes": 1},
    "run": {"tokens": 1e11, "cost": {"usd_per_gpu_hour": 2.0}, "energy": {"grid": 100}},
}
FEW = Limits(recompute=("none",), micro_batch_sizes=(1, 2), zero_stages=(1,))


def found(objective, **overrides):
    changed = {name.replace("__", "."): value for name, value in overrides.items()}
    return search(load_job(JOB, changed), top=3, limits=FEW, objective=objective)


@pytest.mark.parametrize(
    ("objective", "key"), [("cost", "cost_usd"), ("energy", "energy_mwh"), ("co2", "co2_t")]
)
def test_ranked_by_the_objective(objective, key):
    result = found(objective)
    values = [each.value for each in result.configurations]
    assert values == sorted(values)
    jobs = [load_job(result.job, each.overrides) for each in result.configurations]
    expected = project_runs(evaluate(jobs)).column(key)
    assert values == expected.tolist()
    shown = result.to_dict()
    assert shown["objective"] == objective
    assert shown["best"][0][key] == shown["best"][0]["run"][key] == values[0]


def test_front_is_of_the_objective_and_memory():
    front = found("energy").pareto
    assert len(front) > 1
    assert all(a.value <= b.value for a, b in pairwise(front))
    assert all(a.peak_bytes > b.peak_bytes for a, b in pairwise(front))


def test_time_needs_no_run_and_says_nothing_of_objectives():
    result = found("time", run__tokens=None)
    assert [each.value for each in result.configurations] == [
        each.iteration_time_s for each in result.configurations
    ]
    assert "objective" not in result.to_dict()
    assert result.speed_front == result.pareto


def test_speed_front_stays_that_of_time():
    assert [c.overrides for c in found("energy").speed_front] == [
        c.overrides for c in found("time").pareto
    ]


@pytest.mark.parametrize(
    ("objective", "overrides", "key"),
    [
        ("money", {}, "objective"),
        ("energy", {"run__tokens": None}, "run.tokens"),
        ("cost", {"run__cost__usd_per_gpu_hour": None}, "run.cost.usd_per_gpu_hour"),
        (
            "cost",
            {
                "run__cost__usd_per_gpu_hour": None,
                "run__cost__prices": "listed",
                "cluster__device": "h800",
            },
            "run.cost.usd_per_gpu_hour",
        ),
    ],
)
def test_what_is_missing_is_named(objective, overrides, key):
    with pytest.raises(ConfigError) as caught:
        found(objective, **overrides)
    assert caught.value.key == key


def test_runs_that_never_end_say_so():
    with pytest.raises(ConfigError, match="never ends"):
        found("energy", run__failures__gpu_mtbf_hours=0.001)


def run_cli(*args):
    job = ["--config", "examples/llama3.1_8b_fp8_mi325x.yaml", "--recompute", "none", "--top", "2"]
    return run(["search", *job, *args])


def test_command_line(capsys):
    assert run_cli("--objective", "energy", "run.tokens=1e12") == 0
    shown = capsys.readouterr().out
    assert "Least energy" in shown
    assert "Energy against memory" in shown


def test_command_line_without_a_price(capsys):
    assert run_cli("--objective", "cost", "run.tokens=1e12", "--json") == 2
    assert json.loads(capsys.readouterr().out)["key"] == "run.cost.usd_per_gpu_hour"


def test_page(tmp_path):
    page = tmp_path / "page.html"
    assert run_cli("--objective", "co2", "run.tokens=1e12", "--html", str(page)) == 0
    assert "t CO2" in page.read_text()
