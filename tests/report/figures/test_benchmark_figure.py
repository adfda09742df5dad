"""The figure of a measured list draws every kind, with and without a model, and nothing at all."""

import pytest

from measure.bench_stand_in import CPU, H100, StandIn, out_of_memory
from projector.measure.bench.cases import clock_cases, collective_cases, copy_cases
from projector.measure.bench.lists import AttentionOptions, GemmOptions, attention_list, gemm_list
from projector.measure.bench.session import begin, settings_of
from projector.report.figures.benchmark import benchmark_figure
from projector.report.figures.figure import save_figure, style
from projector.validate.beside import benchmark_of

LISTS = {
    "gemm": gemm_list(GemmOptions(sizes="512:4096", dtypes="bf16,fp8")),
    "attention": attention_list(AttentionOptions(sizes="1024,4096")),
    "collective": collective_cases(["all_reduce", "all_gather"], [2**14, 2**20, 2**26], 8),
    "memory": copy_cases([2**20, 2**26, 2**30]),
    "clock": clock_cases(["bf16", "fp8"], 2.0),
}


def benchmark(kind, environment=H100, rule=lambda program: None):
    run = StandIn(environment, rule)
    session = begin(
        kind, LISTS[kind], device=None, out=None, overwrite=False, settings=settings_of(), run=run
    )
    session.go()
    return benchmark_of(session)


def titles(figure):
    return [axes.get_title("left") for axes in figure.axes]


@pytest.mark.parametrize("kind", LISTS)
def test_measured_and_modelled_stand_side_by_side(kind):
    with style():
        figure = benchmark_figure(benchmark(kind))
    if kind == "clock":
        assert titles(figure) == ["Rate that is sustained", "Clock that is sustained"]
    else:
        assert titles(figure)[1].startswith("S-curve; the band")
    _, labels = figure.axes[0].get_legend_handles_labels()
    assert any("modelled" in label for label in labels)


@pytest.mark.parametrize("kind", LISTS)
def test_a_processor_without_a_profile_is_drawn_alone(kind):
    with style():
        figure = benchmark_figure(benchmark(kind, CPU))
    _, labels = figure.axes[0].get_legend_handles_labels()
    assert not any("modelled" in label for label in labels)


def test_a_curve_is_sorted():
    with style():
        figure = benchmark_figure(benchmark("gemm"))
    curve = figure.axes[1].lines[1].get_ydata()
    assert list(curve) == sorted(curve)
    assert len(curve) == len(LISTS["gemm"])


@pytest.mark.parametrize("kind", LISTS)
def test_nothing_measured_is_said(tmp_path, kind):
    found = benchmark(kind, rule=lambda program: out_of_memory())
    target = tmp_path / "figure.svg"
    save_figure(target, lambda: benchmark_figure(found))
    assert "nothing was measured" in target.read_text()
