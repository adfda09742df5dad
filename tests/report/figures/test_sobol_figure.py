"""Sobol bars are never clipped, and few samples are said."""

from dataclasses import replace

import pytest

from projector.config.load import load_job
from projector.report.figures.sensitivity import limits, sobol_figure
from projector.searches.sensitivity import workloads_of
from projector.searches.sobol import SobolIndex, SobolIndices

FIELD = "cluster.device.hbm_peak_tb_per_s"


def made(*panels, samples=32):
    """Return indices of two workloads; each panel has the interval of its only field."""
    jobs = [
        load_job(
            {"model": model, "cluster": {"device": "h100", "nodes": 1},
             "training": {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 4096}}
        )
        for model in ("llama3.1_8b", "llama3.2_1b")
    ]  # fmt: skip
    indices = [(SobolIndex(FIELD, 0.5, interval, 0.9, interval),) for interval in panels]
    return SobolIndices(
        workloads=tuple(workloads_of(jobs)), factor=2.0, samples=samples, seed=1, evaluations=96,
        spread=0.3, indices=indices[0], by_workload=tuple(indices[1:]), left_out={},
    )  # fmt: skip


@pytest.mark.parametrize("wide", [0, 1, 2])
def test_every_panel_shows_all_bars_with_their_intervals(wide):
    intervals = [0.05, 0.05, 0.05]
    intervals[wide] = 0.6
    found = made(*intervals)
    low, high = limits(found)
    assert low < 0.5 - 0.6
    assert high > 0.9 + 0.6
    for axes in sobol_figure(found).axes:
        assert axes.get_xlim() == pytest.approx((low, high))


def test_few_samples_are_said():
    text = sobol_figure(made(0.4, 0.1, 0.1)).get_suptitle()
    assert "Few samples: intervals reach ±0.40" in text
    assert "32 samples" in text
    many = replace(made(0.03, 0.02, 0.02), samples=4096)
    assert "Few" not in sobol_figure(many).get_suptitle()


def test_fields_and_models_are_in_words():
    figure = sobol_figure(made(0.1, 0.1, 0.1))
    assert "Llama-3.1-8B and Llama-3.2-1B on NVIDIA H100" in figure.get_suptitle()
    (label,) = (text.get_text() for text in figure.axes[0].get_yticklabels())
    assert label == "memory bandwidth, TB/s"
