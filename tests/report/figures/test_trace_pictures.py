"""What pictures and page of a trace show, against answers that can be seen."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from projector.errors import ConfigError
from projector.report.figures.trace import (
    launch_bars,
    overlap_panels,
    phase_bars,
    rank_spread,
)
from projector.trace.activity import BACKWARD, FORWARD, GEMM
from projector.trace.analysis import TraceAnalysis, load_trace
from projector.trace.events import Samples, Trace
from projector.trace.measures.gap import OperationGap
from projector.trace.measures.overlap import OverlapEffect
from synthetic import activities, collective, compute

pytest.importorskip("matplotlib")
from projector.cli.main import run as projector
from projector.cli.trace import plot as command
from projector.report.figures.figure import save_figure, style
from projector.report.figures.trace import (
    DRAWN,
    _zooms,
    gap_figure,
    write_trace_picture,
)

DATA = Path(__file__).parents[2] / "trace" / "data"
MS = 1_000_000


def analysis(*kernels):
    found = TraceAnalysis(Trace(ranks=()))
    found.__dict__["everything"] = activities(*kernels)
    return found


def run(number, *, begin, length, hidden, rank=0):
    """Return one run of an operation, under communication for a part of its length."""
    kernel = compute(
        begin, begin + length, operation="mlp", type=GEMM, iteration=number, rank=rank,
        launch=begin - 2,
    )  # fmt: skip
    if not hidden:
        return [kernel]
    return [kernel, collective(begin, begin + hidden, iteration=number, rank=rank)]


@pytest.fixture
def overlapped():
    kernels = []
    for number, (length, hidden) in enumerate([(100, 0), (120, 60), (150, 150), (110, 0)]):
        kernels += run(number, begin=1000 * number, length=length, hidden=hidden)
    return analysis(*kernels)


def test_bars_of_a_phase_are_medians_over_iterations():
    kernels = []
    for number, length in enumerate([1, 2, 9]):
        begin = 100 * MS * number
        middle = begin + length * MS
        kernels += [
            compute(begin, middle, iteration=number, type=GEMM, phase=FORWARD),
            compute(middle + 5 * MS, middle + 6 * MS, iteration=number, phase=BACKWARD),
            collective(middle, middle + 2 * MS, iteration=number, phase=BACKWARD),
        ]
    bars = phase_bars(analysis(*kernels))
    assert bars.phases == ("forward", "backward")
    assert bars.parts["gemm"] == [2.0, 0.0]
    assert bars.parts["vector"] == [0.0, 1.0]
    # The bubbles before the forward of the first iteration are not known: 0; then 92 and 91 ms.
    assert bars.parts["launch"] == [92.0, 5.0]
    assert bars.communication == {"hidden": [0.0, 0.0], "exposed": [0.0, 2.0]}


def test_a_panel_holds_every_run_of_an_operation(overlapped):
    (panel,) = overlap_panels(overlapped)
    assert (panel.name, panel.phase) == ("mlp", "forward")
    assert panel.overlap.tolist() == [0.0, 0.5, 1.0, 0.0]
    assert panel.duration.tolist() == [1.0, 1.2, 1.5, 1.1]
    assert (panel.d0, panel.d50) == (1.05, 1.5)
    ((rank, curve),) = panel.curves()
    assert rank == 0
    assert curve.duration.tolist() == [1.0, 1.1, 1.2, 1.5]
    assert curve.cumulative.tolist() == pytest.approx([0.0, 0.0, 1 / 3, 1.0])


def test_two_runs_make_no_panel():
    kernels = run(0, begin=0, length=10, hidden=5) + run(1, begin=100, length=10, hidden=0)
    assert overlap_panels(analysis(*kernels)) == []


def test_launch_overhead_is_a_mean_over_runs(overlapped):
    names, (preparation_us, call_us, other_us) = launch_bars(overlapped)
    assert names == ["mlp (forward)"]
    # The first bubble is not known; the others were launched 2 ns before they began.
    assert call_us == pytest.approx([3 * 2e-3 / 4])
    bubbles_ns = (1000 - 100) + (2000 - 1120) + (3000 - 2150)
    assert preparation_us == pytest.approx([(bubbles_ns - 6) * 1e-3 / 4])
    assert other_us == pytest.approx([0.0])


def test_parts_of_a_rank_add_up_to_its_span(overlapped):
    names, parts = rank_spread(overlapped)
    assert names == ["0"]
    assert sum(values[0] for values in parts.values()) == pytest.approx(3110e-6)


def test_bars_that_are_far_longer_get_a_scale_of_their_own():
    assert _zooms(np.array([100.0, 1.0, 2.0, 3.0])) == [100.0, 3.0]
    assert _zooms(np.array([3.0, 1.0, 2.0])) == [3.0]
    assert _zooms(np.array([3.0, 0.0, 0.0])) == [3.0]


@pytest.fixture(scope="module")
def recorded():
    return load_trace(DATA / "mi300x_resnet_ddp8.json.gz")


@pytest.mark.rotated
@pytest.mark.parametrize("kind", [kind for kind in DRAWN if kind not in {"cores", "clocks"}])
def test_every_picture_of_a_real_trace_is_written(tmp_path, recorded, kind):
    path = tmp_path / f"{kind}.svg"
    write_trace_picture(kind, recorded, path)
    assert path.stat().st_size > 10_000


def sampled(what, values, **more):
    time_ps = np.arange(len(values)) * 10**11
    columns = tuple(f"{what} {column}" for column in range(len(values[0])))
    return Samples(
        path="s",
        what=what,
        time_ps=time_ps,
        values=np.array(values, float),
        columns=columns,
        **more,
    )


@pytest.mark.parametrize("mapped", [False, True])
def test_cores_and_clocks_are_drawn_where_they_were_sampled(tmp_path, mapped):
    cores = np.array([0, 1, 0, 1]) if mapped else None
    percent = [[0, 10, 100, 0], [5, 0, 0, 0], [0, 0, 0, 0]]
    samples = (
        sampled("cpu_percent", percent, physical_core=cores),
        sampled("clock_mhz", [[1700.0], [1650.0]]),
        sampled("power_w", [[700.0], [float("nan")]]),
    )
    found = TraceAnalysis(Trace(ranks=(), samples=samples))
    for kind, panels in (("cores", 1 + mapped), ("clocks", 2)):
        write_trace_picture(kind, found, tmp_path / f"{kind}.png")
        with style():
            figure = DRAWN[kind](found)
        titled = [axes for axes in figure.axes if axes.get_ylabel() != "active threads"]
        assert len(titled) == panels
    with style():
        active, minimum = DRAWN["cores"](found).axes[0].lines
    assert active.get_ydata().tolist() == [2, 1, 0]
    assert minimum.get_ydata().tolist() == pytest.approx([1.1, 0.05, 0.0])


@pytest.mark.parametrize("kind", ["cores", "clocks"])
def test_what_was_not_sampled_is_not_drawn(tmp_path, recorded, kind):
    with pytest.raises(ConfigError, match=r"not sampled|were sampled"):
        write_trace_picture(kind, recorded, tmp_path / "x.png")


def test_a_picture_that_would_be_empty_is_refused(tmp_path):
    alone = analysis(compute(0, 10, operation="mlp"))
    with pytest.raises(ConfigError, match="nothing to show"):
        write_trace_picture("overlap", alone, tmp_path / "x.png")
    assert not (tmp_path / "x.png").exists()


FACTORS = {"instruction": 1.25, "utilisation": 1.6, "frequency": 1.1, "rest": 1.0}


def gap(theory_ns=1e6, **more):
    effect = OverlapEffect(d50=None, d0=None, d0_from="none", instances=0, overlapped=0)
    values = {
        "operation": "mlp.up", "phase": "forward", "type": "gemm", "theory_ns": theory_ns,
        "actual_ns": 2.2e6, "ratio": theory_ns and 2.2e6 / theory_ns, "factors": FACTORS,
        "flop": 1e9, "flop_from": "job", "frequency_from": "cycles", "overlap": effect,
    }  # fmt: skip
    return OperationGap(**values | more)


def test_the_waterfall_climbs_from_theory_to_what_was_measured(tmp_path):
    save_figure(tmp_path / "gap.png", lambda: gap_figure([gap(), gap(theory_ns=None)], "Gap"))
    with style():
        (axes,) = gap_figure([gap()], "Gap").axes
    bars = [(bar.get_y(), bar.get_height()) for bar in axes.patches]
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["theory", "instruction", "utilisation", "frequency", "rest", "actual"]
    steps = [(0, 1.0), (1.0, 0.25), (1.25, 0.75), (2.0, 0.2), (2.2, 0.0), (0, 2.2)]
    assert np.ravel(bars) == pytest.approx(np.ravel(steps))


def test_a_gap_without_theory_is_not_drawn(tmp_path, capsys):
    trace, picture = str(DATA / "a100_ddp2.json.gz"), tmp_path / "gap.png"
    assert projector(["trace", "gap", trace, "--plot", str(picture)]) == 2
    assert "nothing to show" in capsys.readouterr().err
    assert not picture.exists()


def test_the_page_holds_all_figures(tmp_path):
    pytest.importorskip("plotly")
    page = tmp_path / "trace.html"
    trace = str(DATA / "mi300x_resnet_ddp8.json.gz")
    found = CliRunner().invoke(
        command, [trace, "--html", str(page), "--out", str(tmp_path), "--json"],
        standalone_mode=False,
    )  # fmt: skip
    assert found.exception is None
    shown = json.loads(found.stdout)
    # Neither cores nor clocks were sampled beside it.
    assert set(shown["left_out"]) == {"cores", "clocks"}
    assert len(shown["output"]) == len(DRAWN) - 2 + 1
    text = page.read_text(encoding="utf-8")
    for title in ("Where an iteration goes", "Duration against overlap", "Launch overhead"):
        assert f"<h2>{title}</h2>" in text


@pytest.mark.parametrize("plot", ["foo=a.png", "cdf=a.txt", "cdf", "cdf="])
def test_a_picture_that_cannot_be_is_refused_before_reading(plot):
    found = CliRunner().invoke(command, ["no such file", "--plot", plot], standalone_mode=False)
    assert isinstance(found.exception, ConfigError)
    assert found.exception.key == "plot"
