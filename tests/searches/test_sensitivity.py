"""One number of the hardware at a time."""

import json
import math

import pytest

import projector as pj
from projector.cli.main import run
from projector.errors import ConfigError
from projector.report.figures.sensitivity import tornado_figure
from projector.searches.sensitivity import sensitivity

JOB = {
    "model": "llama3.1_8b",
    "parallelism": {"tp": 2},
    "training": {"micro_batch_size": 1, "global_batch_size": 32, "seq_length": 4096},
    "cluster": {"device": "h100", "nodes": 2},
}


@pytest.fixture(scope="module")
def found():
    return sensitivity(JOB)


def test_effects_are_finite_differences(found):
    base = pj.project_performance(JOB).iteration_time_s
    assert found.iteration_time_s == base
    for each in found.effects[:12]:
        low, high = (
            pj.project_performance(pj.load_job(JOB, dict.fromkeys(each.field.split("+"), v)))
            for v in map(round if whole(each) else float, (each.low, each.high))
        )
        assert (each.low_s, each.high_s) == (low.iteration_time_s, high.iteration_time_s)
        slope = math.log(high.iteration_time_s / low.iteration_time_s)
        assert each.elasticity == pytest.approx(slope / math.log(each.high / each.low))
        assert each.low_peak_bytes == low.memory.peak_bytes


def whole(each):
    return each.field.endswith("compute_units")


def test_the_largest_effect_stands_first(found):
    swings = [each.swing for each in found.effects]
    assert swings == sorted(swings, reverse=True)
    names = {each.field for each in found.effects}
    assert not names & set(found.without_effect)
    assert not names & found.illegal.keys()
    # A compute-bound job waits for its compute units and their matrix rate, and nothing for FP8.
    assert found.effects[0].field == "cluster.device.compute_units"
    assert "bf16" in found.effects[1].field
    assert any("fp8" in field for field in found.without_effect)
    assert -1.05 < found.effects[0].elasticity < -0.5


def test_named_fields_in_any_section():
    found = sensitivity(JOB, change=1.0, fields=["training.seq_length", "cluster.device.hbm_gib"])
    # Twice and half the tokens.
    assert found.effects[0].field == "training.seq_length"
    assert found.effects[0].elasticity > 0.5
    assert (found.effects[0].low, found.effects[0].high) == (2048, 8192)


@pytest.mark.parametrize(
    ("arguments", "key", "match"),
    [
        ({"change": 0.0}, "change", "above 0"),
        ({"change": float("nan")}, "change", "above 0"),
        ({"fields": ["cluster.device.hbm_peak"]}, "field", "did you mean"),
        ({"fields": ["training.schedule"]}, "field", "with a number above 0"),
    ],
)
def test_mistakes(arguments, key, match):
    with pytest.raises(ConfigError, match=match) as caught:
        sensitivity(JOB, **arguments)
    assert caught.value.key == key


def test_the_bars_are_the_effects(found):
    figure = tornado_figure(found, 6)
    (axes,) = figure.axes
    assert len(axes.get_yticklabels()) == 6
    widths = sorted(round(bar.get_width(), 9) for bar in axes.patches)
    expected = sorted(
        round(100.0 * (seconds / each.base_s - 1.0), 9)
        for each in found.effects[:6]
        for seconds in (each.low_s, each.high_s)
        if seconds != each.base_s
    )
    assert widths == expected


@pytest.mark.thorough
def test_the_command(tmp_path, capsys):
    path, figure = tmp_path / "job.json", tmp_path / "tornado.svg"
    path.write_text(json.dumps(JOB))
    arguments = ["sensitivity", "--config", str(path), "--top", "3", "--plot", str(figure)]
    assert run(arguments) == 0
    out, err = capsys.readouterr()
    assert "smaller effects" in out
    assert err.endswith(f"wrote {figure}\n")
    assert figure.read_bytes().startswith(b"<?xml")
    assert run([*arguments, "--json", "--quiet"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {"effects", "without_effect", "infeasible", "iteration_time_ms"} <= result.keys()
    assert run([*arguments[:3], "--plot", "tornado.gif"]) == 2


def test_the_slope_at_the_point_is_a_central_difference(found):
    for each in found.effects[:8]:
        if whole(each):
            continue
        below, above = (
            pj.project_performance(pj.load_job(JOB, dict.fromkeys(each.field.split("+"), v)))
            for v in (each.value / 1.001, each.value * 1.001)
        )
        slope = math.log(above.iteration_time_s / below.iteration_time_s) / math.log(1.001**2)
        assert each.point_elasticity == pytest.approx(slope, rel=1e-6)
    assert found.step == 0.001
    assert sum(found.bound_shares.values()) == pytest.approx(1.0)


def test_a_step_that_jumps_is_marked(found):
    effects = {each.field: each for each in found.effects}
    units = effects["cluster.device.compute_units"]
    # One unit more or less starts nearly the same waves; ten percent do not.
    assert (units.near.below, units.near.above) == (131.0, 133.0)
    assert units.uneven
    assert abs(units.point_elasticity) < 0.7 * abs(units.elasticity)
    smooth = effects["cluster.device.hbm_peak_tb_per_s"]
    assert not smooth.uneven
    assert smooth.point_elasticity == pytest.approx(smooth.elasticity, rel=0.05)


def test_a_step_too_small_for_a_job_has_no_slope():
    found = sensitivity(JOB, change=1.0, fields=["training.global_batch_size"])
    (effect,) = found.effects
    assert effect.point_elasticity is None
    assert not effect.uneven
    assert effect.elasticity > 0.5
    unmoved = sensitivity(JOB, fields=["cluster.nodes"])
    assert "whole number" in unmoved.illegal["cluster.nodes"]


def test_a_link_and_its_share_for_one_peer_move_together(found):
    tied = "cluster.device.scale_up_gb_per_s+cluster.device.scale_up_peer_gb_per_s"
    assert "cluster.device.scale_up_gb_per_s" in found.illegal
    effect = next(each for each in found.effects if each.field == tied)
    assert effect.elasticity < -0.01
