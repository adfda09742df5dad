"""Sobol indices of jobs whose answer is known, and several workloads at once."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from projector.cli.main import run
from projector.errors import ConfigError, UnsupportedError
from projector.report.figures.sensitivity import sobol_figure
from projector.searches import sobol
from projector.searches.sensitivity import sensitivity, shared_sensitivity, workloads_of
from projector.searches.sobol import sobol_indices

HBM = "cluster.device.hbm_peak_tb_per_s"
MATRIX = "cluster.device.matrix_flop_per_clk_per_cu.bf16"
START = "cluster.device.kernel_start_us"
UNUSED = "cluster.device.matrix_flop_per_clk_per_cu.fp8"
OVERHEAD = "cluster.software.step_overhead_ms"
JOB = {
    "model": "llama3.1_8b",
    "parallelism": {"tp": 2},
    "training": {"micro_batch_size": 1, "global_batch_size": 32, "seq_length": 4096},
    "cluster": {"device": "h100", "nodes": 2},
}
SHORT = {**JOB, "training": {**JOB["training"], "seq_length": 256}}
WAITING = {**JOB, "cluster": {**JOB["cluster"], "software": {"step_overhead_ms": 1e9}}}


@pytest.fixture(scope="module")
def one():
    return workloads_of([JOB])


@pytest.fixture(scope="module")
def found(one):
    return sobol_indices(one, samples=64, fields=[HBM, MATRIX, START, UNUSED])


def by_field(indices):
    return {each.field: each for each in indices}


def test_what_changes_nothing_explains_nothing(found):
    index = by_field(found.indices)[UNUSED]
    assert (index.s1, index.st, index.s1_interval, index.st_interval) == (0.0, 0.0, 0.0, 0.0)
    assert found.evaluations == 64 * 6


def test_one_field_alone_explains_everything(one):
    (index,) = sobol_indices(one, samples=128, fields=[MATRIX]).indices
    assert index.s1 == pytest.approx(1.0, abs=0.1)
    assert index.st == pytest.approx(1.0, abs=0.1)


def test_a_step_that_is_all_overhead_depends_on_nothing_else():
    found = sobol_indices(workloads_of([WAITING]), samples=64, fields=[MATRIX, OVERHEAD, HBM])
    first, *others = found.indices
    assert first.field == OVERHEAD
    assert first.st == pytest.approx(1.0, abs=0.15)
    assert all(each.st < 1e-9 for each in others)
    # ln of the factor is uniform between -ln 2 and ln 2.
    assert found.spread == pytest.approx(math.log(2.0) / math.sqrt(3.0), rel=0.05)


def test_a_product_of_powers_has_indices_in_closed_form(one, monkeypatch):
    powers = np.array([1.0, -2.0, 0.5])

    def steps(workload, names, factors):
        assert factors.shape[1] == len(names)
        return np.log(factors) @ powers

    monkeypatch.setattr(sobol, "_log_steps", steps)
    found = by_field(sobol_indices(one, samples=1024, fields=[HBM, MATRIX, START]).indices)
    for field, power in zip((HBM, MATRIX, START), powers, strict=True):
        index, expected = found[field], power**2 / (powers**2).sum()
        # No interactions; the intervals hold the truth.
        assert index.s1 == pytest.approx(expected, abs=max(0.02, index.s1_interval))
        assert index.st == pytest.approx(expected, abs=max(0.02, index.st_interval))


@pytest.mark.thorough
def test_ranks_agree_with_finite_differences():
    fields = [HBM, MATRIX, START, OVERHEAD, UNUSED]
    # Its GEMMs are bound by matrix units all over the range, which L2 does not reach.
    job = {**JOB, "cluster": {**JOB["cluster"], "software": {"gemm_share": 0.8}}}
    slopes = {each.field: each.point_elasticity for each in sensitivity(job, fields=fields).effects}
    found = sobol_indices(workloads_of([job]), samples=64, factor=1.1, fields=fields)
    ranked = sorted(slopes, key=lambda field: -abs(slopes[field]))
    assert [each.field for each in found.indices] == [*ranked, UNUSED]
    # Over a short range the step is a product of powers.
    total = sum(slope**2 for slope in slopes.values())
    for field, slope in slopes.items():
        assert by_field(found.indices)[field].st == pytest.approx(slope**2 / total, rel=0.25)


@pytest.mark.thorough
def test_the_same_seed_is_the_same_result(one, found):
    again = sobol_indices(one, samples=64, fields=[HBM, MATRIX, START, UNUSED])
    assert again == found
    other = sobol_indices(one, samples=64, fields=[HBM, MATRIX, START, UNUSED], seed=0)
    assert other.indices != found.indices
    zero = sobol_indices(one, samples=64, fields=[HBM, MATRIX, START, UNUSED], seed=0)
    assert zero == other


def test_indices_are_shares(found):
    totals = [each.st for each in found.indices]
    assert totals == sorted(totals, reverse=True)
    assert found.indices[0].field == MATRIX
    assert all(each.s1 <= each.st + each.s1_interval + each.st_interval for each in found.indices)


def test_fields_that_move_together_are_one(one):
    tied = f"{HBM}+cluster.device.l2_tb_per_s"
    found = sobol_indices(one, samples=8, fields=[tied, MATRIX])
    assert {each.field for each in found.indices} == {tied, MATRIX}
    job = sensitivity(JOB, fields=[tied], change=1.0)
    both = {HBM: 6.7, "cluster.device.l2_tb_per_s": 13.2}
    from projector.config.load import load_job

    alone = sensitivity(load_job(JOB, both), fields=[HBM])
    assert job.effects[0].high_s == alone.iteration_time_s


@pytest.mark.thorough
def test_the_largest_effects_are_sampled_where_none_are_named(one):
    found = sobol_indices(one, samples=4)
    names = [each.field for each in found.indices]
    assert len(names) == 8
    assert {MATRIX, HBM, "cluster.device.compute_units"} <= set(names)
    assert not set(names) & found.left_out.keys()


@pytest.mark.thorough
def test_a_number_under_two_names_is_sampled_once(one, monkeypatch):
    # It would share its variance with itself.
    found = sobol.shared_sensitivity(one, change=1.0)
    first = found.effects[0]
    twin = replace(first, field="cluster.device.gemm_efficiency.twin")
    both = replace(found, effects=(first, twin, *found.effects[1:]))
    monkeypatch.setattr(sobol, "shared_sensitivity", lambda *_, **__: both)
    chosen, left_out = sobol.sampled_fields(one, 2.0, None)
    assert first.field in chosen
    assert left_out[twin.field] == f"does the same as {first.field}"


@pytest.mark.parametrize(
    ("arguments", "key", "match"),
    [
        ({"fields": ["cluster.device.hbm_peak"]}, "field", "did you mean"),
        ({"fields": ["training.schedule"]}, "field", "with a number above 0"),
        ({"fields": [HBM, HBM]}, "field", "twice"),
        ({"fields": ["cluster.device.hbm_efficiency"]}, "field", "smaller range"),
        ({"fields": []}, "field", "1 to"),
        ({"samples": 100}, "samples", "power of two"),
        ({"samples": 1}, "samples", "power of two"),
        ({"samples": 64.0}, "samples", "power of two"),
        ({"factor": 1.0}, "range", "above 1"),
        ({"factor": 0.5}, "range", "above 1"),
        ({"factor": float("inf")}, "range", "above 1"),
        ({"seed": -1}, "seed", "must be an integer"),
    ],
)
def test_mistakes(one, arguments, key, match):
    with pytest.raises(ConfigError, match=match) as caught:
        sobol_indices(one, **arguments)
    assert caught.value.key == key
    assert caught.value.value is not None
    assert caught.value.allowed is not None


def test_fields_that_only_fail_together_are_named(one):
    # The second is refused only where the first is low as well.
    fields = ["cluster.device.sustained_clock_mhz.bf16", "cluster.device.peak_clock_mhz"]
    with pytest.raises(ConfigError, match="cannot be sampled") as caught:
        sobol_indices(workloads_of([SLOW]), samples=16, factor=1.5, fields=fields)
    assert caught.value.key == "field"


SLOW = {
    **JOB,
    "cluster": {
        "device": {
            "extends": "h100",
            "peak_clock_mhz": 3000.0,
            "sustained_clock_mhz": {"fp32": 900.0, "tf32": 900.0, "fp16": 900.0, "fp8": 900.0,
                                    "bf16": 1800.0},
        },
        "nodes": 2,
    },
}  # fmt: skip


def test_salib_is_asked_for(one, monkeypatch):
    for name in ("SALib", "SALib.sample", "SALib.analyze"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UnsupportedError, match=r"\.\[sensitivity\]") as caught:
        sobol_indices(one)
    assert caught.value.key == "sobol"


def test_salib_is_loaded_only_when_used():
    code = (
        "import sys, projector.searches.sobol, projector.cli.sensitivity; "
        "print(*sorted({'SALib', 'pandas', 'multiprocess'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.fixture(scope="module")
def two():
    return workloads_of([JOB, SHORT], weights=[3, 1], names=["long", "short"])


def test_workloads_share_a_geometric_mean(two):
    fields = [HBM, MATRIX, UNUSED]
    found = shared_sensitivity(two, fields=fields)
    alone = [sensitivity(job, fields=fields) for job in (JOB, SHORT)]
    times = [each.iteration_time_s for each in alone]
    assert found.iteration_time_s == pytest.approx(times[0] ** 0.75 * times[1] ** 0.25)
    assert found.without_effect == (UNUSED,)
    for effect in found.effects:
        slopes = [by_field(each.effects)[effect.field] for each in alone]
        assert effect.by_workload == tuple(each.elasticity for each in slopes)
        assert effect.elasticity == pytest.approx(0.75 * slopes[0].elasticity
                                                  + 0.25 * slopes[1].elasticity)  # fmt: skip
        assert effect.high_s == pytest.approx(slopes[0].high_s ** 0.75 * slopes[1].high_s ** 0.25)
    swings = [each.swing for each in found.effects]
    assert swings == sorted(swings, reverse=True)


@pytest.mark.thorough
def test_a_field_that_one_workload_lacks_counts_as_nothing_there():
    other = {**JOB, "cluster": {"device": "b200", "nodes": 2}}
    found = shared_sensitivity(workloads_of([JOB, other]))
    every = {each.field for each in found.effects} | {*found.without_effect, *found.illegal}
    assert "cluster.device.matrix_flop_per_clk_per_cu.nvfp4" in every
    names = [each.name for each in found.workloads]
    assert names == ["Llama-3.1-8B #1", "Llama-3.1-8B #2"]
    with pytest.raises(ConfigError, match=r"#1: .*nvfp4") as caught:
        shared_sensitivity(found.workloads, fields=["cluster.device.gemm_efficiency.nvfp4"])
    assert caught.value.key == "field"


def test_indices_of_workloads(two):
    found = sobol_indices(two, samples=32, fields=[MATRIX, START])
    for place, job in enumerate((JOB, SHORT)):
        alone = sobol_indices(workloads_of([job]), samples=32, fields=[MATRIX, START])
        assert by_field(found.by_workload[place]) == by_field(alone.indices)
    figure = sobol_figure(found)
    assert [axes.get_title() or axes.get_title("left") for axes in figure.axes] == [
        "geometric mean", "long", "short",
    ]  # fmt: skip
    widths = [bar.get_width() for bar in figure.axes[0].patches]
    assert widths == [each.s1 for each in found.indices] + [each.st for each in found.indices]


@pytest.mark.parametrize(
    ("weights", "match"),
    [([1.0], "1 weights for 2 jobs"), ([1.0, 0.0], "above 0"), ([1.0, math.nan], "above 0")],
)
def test_weights_belong_to_jobs(weights, match):
    with pytest.raises(ConfigError, match=match) as caught:
        workloads_of([JOB, SHORT], weights)
    assert caught.value.key == "weight"


def test_the_command(tmp_path, capsys):
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, job in zip(paths, (JOB, SHORT), strict=True):
        path.write_text(json.dumps(job))
    bars, tornado = tmp_path / "bars.svg", tmp_path / "tornado.svg"
    arguments = [
        "sensitivity", "--config", str(paths[0]), "--field", MATRIX, "--field", START,
        "--sobol", "--samples", "8", "--plot", f"sobol={bars}",
    ]  # fmt: skip
    several = ["--config", str(paths[1]), "--weight", "3", "--weight", "1"]
    drawn = ["--plot", f"tornado={tornado}"]
    assert run([*arguments, *several, *drawn, "--json", "--quiet"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [each["weight"] for each in result["workloads"]] == [0.75, 0.25]
    assert {"effects", "uncertainty", "warnings"} <= result["workloads"][0].keys()
    assert len(result["sobol"]["workloads"]) == 2
    assert result["sobol"]["evaluations"] == 64
    for figure in (bars, tornado):
        assert figure.read_bytes().startswith(b"<?xml")
    assert run([*arguments, *several]) == 0
    out = capsys.readouterr().out
    assert "geometric mean" in out
    assert "8 samples, 64 projections, seed 1" in out
    assert run([*arguments, "--json", "--quiet"]) == 0
    single = json.loads(capsys.readouterr().out)
    assert "workloads" not in single
    assert "workloads" not in single["sobol"]
    assert run([*arguments, "--samples", "9", "--quiet"]) == 2
    assert "power of two" in capsys.readouterr().err
    assert run(["sensitivity", "--config", str(paths[0]), "--plot", f"sobol={bars}"]) == 2
    assert "without --sobol" in capsys.readouterr().err
