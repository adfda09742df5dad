"""What bounds a step, and the map of it."""

import json
from pathlib import Path

import numpy as np
import pytest

import projector as pj
from projector.cli.main import run
from projector.errors import ConfigError
from projector.kernels import attention, gemm
from projector.projection.evaluate import evaluate
from projector.projection.terms import BREAKDOWN
from projector.report.figures.sensitivity import COLOURS, map_figure
from projector.report.terminal.console import render
from projector.report.terminal.sensitivity import map_report
from projector.searches import bottleneck
from projector.searches.bottleneck import CLASSES, bottleneck_map, class_seconds, class_shares

EXAMPLES = Path(__file__).parents[2] / "examples"
HBM = "cluster.device.hbm_peak_tb_per_s"
MATRIX = "cluster.device.matrix_flop_per_clk_per_cu.bf16"
JOB = {
    "model": "llama3.1_8b",
    "parallelism": {"tp": 2},
    "training": {"micro_batch_size": 1, "global_batch_size": 32, "seq_length": 4096},
    "cluster": {"device": "h100", "nodes": 2},
}
DEEP = {**JOB, "parallelism": {"tp": 2, "pp": 4}}


def shares(overrides, job=JOB):
    evaluation = evaluate([pj.load_job(job, overrides)])
    return class_shares(class_seconds(evaluation)[0])


def test_every_term_and_every_limiter_has_a_class():
    assert set(bottleneck.CLASS_OF_TERM) == set(BREAKDOWN)
    assert set(bottleneck.CLASS_OF_GEMM) == set(gemm.BOUNDS)
    assert set(bottleneck.CLASS_OF_ATTENTION) == set(attention.BOUNDS)
    assert set(COLOURS) == set(CLASSES)


@pytest.mark.parametrize(
    "recompute", ["none", "full", {"granularity": "selective", "modules": ["core_attn", "mlp"]}]
)
def test_classes_are_the_step_sorted_anew(recompute):
    names = ("mixtral_8x22b_mi355x.yaml", "llama3.1_8b_fp8_mi325x.yaml")
    jobs = [pj.load_job(EXAMPLES / name, {"training.recompute": recompute}) for name in names]
    evaluation = evaluate([*jobs, pj.load_job(DEEP, {"training.recompute": recompute})])
    seconds = class_seconds(evaluation)
    assert seconds.sum(axis=1) == pytest.approx(evaluation.steps.iteration_s, rel=1e-9)
    kernels_s = bottleneck._ending_ranks(evaluation)
    for row, terms in enumerate(evaluation.steps.breakdown_s):
        # Kernels of the rank that ends the step, microbatch by microbatch, are its compute terms.
        times = evaluation.order(row).microbatches
        mix = times * kernels_s[row].sum(axis=1)
        assert mix == pytest.approx(terms[:3], rel=1e-9)
        assert seconds[row, 2] == pytest.approx(
            sum(t for t, name in zip(terms, BREAKDOWN, strict=True) if name.endswith("_comm"))
        )
        assert seconds[row, 4] == terms[BREAKDOWN.index("pp_bubble")]


@pytest.mark.parametrize(
    ("overrides", "job", "expected"),
    [
        ({}, JOB, "compute"),
        ({HBM: 0.2}, JOB, "memory"),
        ({"cluster.network.nic_gbit_per_s": 1}, JOB, "communication"),
        ({"cluster.software.step_overhead_ms": 5000}, JOB, "latency"),
        ({"training.global_batch_size": 4}, DEEP, "bubble"),
    ],
)
def test_each_class_can_bound(overrides, job, expected):
    found = shares(overrides, job)
    assert max(found, key=found.get) == expected
    assert sum(found.values()) == pytest.approx(1.0)


def test_a_gemm_without_bandwidth_counts_as_memory():
    # The step's GEMMs are its largest term in both, but not for the same reason.
    matrix = {"cluster.software.gemm_share": 0.9}
    slow = {**matrix, HBM: 0.1, "cluster.device.elementwise_efficiency": 1.0}
    evaluation = evaluate([pj.load_job(JOB, matrix), pj.load_job(JOB, slow)])
    gemm_s = evaluation.steps.breakdown_s[:, BREAKDOWN.index("compute_gemm")]
    compute, memory = class_seconds(evaluation)[:, :2].T
    assert compute[0] > gemm_s[0]
    assert compute[1] < gemm_s[1] < memory[1]


@pytest.fixture(scope="module")
def found():
    return bottleneck_map(JOB, [HBM, MATRIX], factor=8.0, points=5)


def test_cells_are_projections(found):
    assert (found.x.field, found.y.field) == (HBM, MATRIX)
    assert found.x.values == pytest.approx([3.35 * 8.0**power for power in (-1, -0.5, 0, 0.5, 1)])
    assert (found.x.values[2], found.y.values[2]) == (3.35, 4096.0)
    for y, x in ((0, 0), (2, 2), (1, 4)):
        job = pj.load_job(JOB, {HBM: found.x.values[x], MATRIX: found.y.values[y]})
        cell = found.cells[y][x]
        assert cell.iteration_time_s == pj.project_performance(job).iteration_time_s
        assert cell.shares == class_shares(class_seconds(evaluate([job]))[0])
    assert not found.infeasible


def test_bandwidth_and_rate_change_what_bounds(found):
    assert found.cells[0][4].bound == "compute"
    assert found.cells[4][0].bound == "memory"
    by_rate = [row[2].shares["compute"] for row in found.cells]
    assert by_rate == sorted(by_rate, reverse=True)


def test_whole_numbers_double_and_what_is_no_job_stays_empty():
    found = bottleneck_map(
        JOB, ["parallelism.tp", "training.global_batch_size"], factor=8.0, points=5
    )
    assert found.x.values == (1.0, 2.0, 4.0, 8.0, 16.0)
    assert found.y.values == (4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
    # Four sequences feed neither 16 data-parallel ranks nor 8, eight do not feed 16.
    empty = [
        (y, x) for y, row in enumerate(found.cells) for x, cell in enumerate(row) if cell is None
    ]
    assert empty == [(0, 0), (0, 1), (1, 0)]
    assert sum(found.infeasible.values()) == 3
    text = json.dumps(found.to_dict(), allow_nan=False)
    assert json.loads(text)["bound"][0][0] is None
    assert "no job" in render(*map_report(found))


@pytest.mark.parametrize("fields", [[HBM, MATRIX], ["parallelism.tp", HBM]])
def test_the_picture(fields):
    found = bottleneck_map(JOB, fields, factor=8.0, points=11)
    figure = map_figure([found, found])
    assert len(figure.axes) == 2
    names = {text.get_text() for text in figure.legends[0].get_texts()}
    bounds = {f"{cell.bound}-bound" for row in found.cells for cell in row if cell}
    assert bounds <= names <= {*bounds, "job", "no job"}
    (image,) = figure.axes[0].images
    drawn = np.asarray(image.get_array())
    assert drawn.shape == (len(found.y.values), len(found.x.values))


@pytest.mark.parametrize(
    ("arguments", "key", "match"),
    [
        ({"fields": [HBM, "cluster.device.nothing"]}, "field", "with a number above 0"),
        ({"fields": [HBM, "training.schedule"]}, "field", "with a number above 0"),
        ({"fields": [HBM]}, "map", "two fields"),
        ({"fields": [HBM, HBM]}, "field", "twice"),
        ({"fields": [HBM, MATRIX], "factor": 1.0}, "range", "above 1"),
        ({"fields": [HBM, MATRIX], "points": 4}, "points", "odd"),
    ],
)
def test_mistakes(arguments, key, match):
    with pytest.raises(ConfigError, match=match) as caught:
        bottleneck_map(JOB, **arguments)
    assert caught.value.key == key
    assert caught.value.value is not None
    assert caught.value.allowed is not None


def test_the_command(tmp_path, capsys):
    path, figure = tmp_path / "job.json", tmp_path / "map.png"
    path.write_text(json.dumps(JOB))
    arguments = ["sensitivity", "--config", str(path), "--field", HBM, "--range", "2"]
    asked = ["--map", f"{HBM},training.seq_length", "--plot", f"map={figure}"]
    assert run([*arguments, *asked, "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)["map"]
    assert found["y"]["values"] == [2048, 4096, 8192]
    assert figure.read_bytes().startswith(b"\x89PNG")
    for wrong in (["--plot", f"map={figure}"], ["--map", HBM], ["--map", f"{HBM},{HBM}"]):
        assert run([*arguments, *wrong]) == 2
        assert wrong[0].removeprefix("--") in capsys.readouterr().err
