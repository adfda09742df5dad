"""The Gantt chart of a pipeline."""

import dataclasses
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

import projector
from projector.errors import ConfigError
from projector.report.figures import gantt
from projector.report.figures.gantt import corners, gantt_figure, phases, write_gantt
from projector.schedule.order import Order
from projector.schedule.registry import ChosenOrder, Setting
from projector.schedule.replay.run import PipelineRun
from projector.schedule.simulate import pipeline_run

MIXTRAL = Path(__file__).parents[3] / "examples" / "mixtral_8x22b_mi355x.yaml"

RUNS = {
    "1f1b": ("1f1b", 4, 1, 8, 1.0, 1.0, 1.0, 0.1, 4.0),
    "interleaved": ("interleaved", 4, 2, 8, 5e-4, 6e-4, 4e-4, 2e-5),
    "zerobubble": ("zerobubble-h2", 4, 1, 8, 1e-6, 1e-6, 9e-7, 0.0, 5.0),
    "gpipe": ("gpipe", 3, 1, 2),
    "one operation each": ("1f1b", 1, 1, 1),
    "no time": ("1f1b", 2, 1, 2, 0.0, 0.0, 0.0),
    "forward takes no time": ("1f1b", 4, 1, 8, 0.0),
    "dense": ("interleaved", 4, 4, 128),
    "many ranks": ("1f1b", 130, 1, 4),
    "too little memory for anything": ("1f1b", 4, 1, 8, 1.0, 1.0, 1.0, 0.0, 1e-3),
}


def run_of(name):
    return pipeline_run(*RUNS[name])


def boxes_of(figure):
    """Return kind -> corners and colours of the boxes that the chart shows."""
    return {
        each.get_label(): each
        for each in figure.axes[0].collections
        if each.get_label() in ("F", "B", "W")
    }


@pytest.mark.rotated
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_every_run_is_drawn_without_a_warning(tmp_path, name, suffix):
    target = tmp_path / f"gantt{suffix}"
    write_gantt(run_of(name), target, "Model_$x$ on 8 x\nGPU")
    content = target.read_bytes()
    if suffix == ".svg":
        assert ET.fromstring(content).tag == "{http://www.w3.org/2000/svg}svg"
    else:
        assert content.startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zerobubble", "gpipe"])
def test_boxes_are_the_timeline(name):
    run = run_of(name)
    order, timeline = run.order, run.timeline
    found = boxes_of(gantt_figure(run))
    assert found.keys() == {"FBW"[kind] for kind in set(order.kind.tolist())}
    for label, collection in found.items():
        mine = order.kind == "FBW".index(label)
        vertices = np.array([path.vertices[:4] for path in collection.get_paths()])
        assert len(vertices) == mine.sum()
        np.testing.assert_allclose(vertices[:, :, 0].min(axis=1), timeline.start_ps[mine] / 1e12)
        np.testing.assert_allclose(vertices[:, :, 0].max(axis=1), timeline.end_ps[mine] / 1e12)
        np.testing.assert_array_equal(np.floor(vertices[:, :, 1].min(axis=1)), order.rank[mine])
        np.testing.assert_array_equal(np.floor(vertices[:, :, 1].max(axis=1)), order.rank[mine])
        # A chunk has one colour, and no other chunk of the kind has it.
        colours = [tuple(colour) for colour in collection.get_facecolors()]
        pairs = set(zip(order.chunk[mine].tolist(), colours, strict=True))
        assert len(pairs) == len(set(colours)) == order.vpp


def test_corners_fill_their_row():
    run = run_of("1f1b")
    box = corners(run, 0.25, 0.75)
    np.testing.assert_array_equal(box[:, :, 1].min(axis=1), run.order.rank + 0.25)
    np.testing.assert_array_equal(box[:, :, 1].max(axis=1), run.order.rank + 0.75)


def test_numbers_are_the_microbatches():
    run = run_of("1f1b")
    texts = [text for text in gantt_figure(run).axes[0].texts if text.get_text().isdigit()]
    assert len(texts) == len(run.order.kind)
    found = sorted((text.get_position()[0], int(text.get_text())) for text in texts)
    middle_s = (run.timeline.start_ps + run.timeline.end_ps) / 2e12
    expected = sorted(zip(middle_s.tolist(), run.order.microbatch.tolist(), strict=True))
    np.testing.assert_allclose(found, expected)


def test_two_directions_are_two_copies_of_one_chunk():
    order = Order(
        microbatches=1,
        rank_offset=[0, 4, 8],
        kind=[0, 0, 1, 1] * 2,
        chunk=[0, 1, 1, 0, 1, 0, 0, 1],
        microbatch=[0] * 8,
        stage_of=[[0, 3], [1, 2]],
        directions=2,
    )
    durations = np.full((2, 2, 3, 3), 10**9)
    chosen = ChosenOrder(Setting("dualpipe", 2, 1, 2, None), order)
    run = PipelineRun("both", chosen, durations, np.zeros((2, 4), np.int64), np.full((2, 2), 0.5))
    figure = gantt_figure(run)
    assert "VPP 1  ·  2 microbatches" in figure.texts[1].get_text()
    assert "the other copy" in figure.legends[0].get_texts()[0].get_text()
    assert len(boxes_of(figure)["F"].get_paths()) == 4


def test_the_peak_says_where_it_is():
    for name, where in (("1f1b", "on rank 0"), ("gpipe", "on every rank")):
        assert where in gantt_figure(run_of(name)).texts[1].get_text()


def test_rank_0_is_on_top():
    low, high = gantt_figure(run_of("1f1b")).axes[0].get_ylim()
    assert low > high


def test_phases():
    # F = 1, B = 2, no latency: rank 3 begins its first B at 4 and ends its last F at 4 + 7 * 3.
    assert phases(pipeline_run("1f1b", 4, 1, 8)) == (4.0, 25.0)
    # All forwards first: nothing is steady.
    assert phases(pipeline_run("gpipe", 4, 1, 8)) == (11.0, 11.0)


def test_shares_of_many_operations_add_up_to_the_work():
    run = run_of("dense")
    assert not boxes_of(gantt_figure(run))
    edges_s = np.linspace(0.0, run.makespan_s, 98)
    for rank in range(run.order.pp):
        share, colour = gantt._shares(run, rank, edges_s)
        assert share.shape == (2 * run.order.vpp, 97)
        assert colour.shape == (2 * run.order.vpp, 4)
        assert share.min() >= 0.0
        assert share.sum(axis=0).max() <= 1.0 + 1e-12
        busy_s = run.timeline.summary.rank_busy_ps[0, rank] / 1e12
        assert (share * np.diff(edges_s)).sum() == pytest.approx(busy_s, rel=1e-12)


def test_thinned_memory_keeps_its_peaks():
    time_ps, held = np.array([0.0, 10.0, 11.0, 50.0, 100.0]), np.array([1.0, 9.0, 2.0, 3.0, 3.0])
    edges, most = gantt._thinned(time_ps, held, 4)
    assert edges.tolist() == [0.0, 25.0, 50.0, 75.0, 100.0]
    assert most.tolist() == [9.0, 2.0, 3.0, 3.0, 3.0]


def test_a_job_shows_what_is_always_held_and_its_limit():
    run = projector.project_performance(MIXTRAL).pipeline
    figure = gantt_figure(run, "a job")
    texts = [text.get_text() for text in figure.texts]
    assert texts[0] == "a job"
    assert "at risk in 276 GiB" in texts[1]
    peaks = figure.axes[2]
    assert {text.get_text() for text in peaks.texts} >= {"234.9", "limit 276"}
    bars = np.array([[bar.get_x(), bar.get_width()] for bar in peaks.patches])
    held, always = bars[: run.order.pp], bars[run.order.pp :]
    np.testing.assert_allclose(always[:, 1], run.static_bytes / 2**30)
    np.testing.assert_allclose(held.sum(axis=1), run.peak_bytes / 2**30)
    small = dataclasses.replace(run, limit_bytes=2.0**37, memory_band=None)
    assert "does not fit in 128 GiB" in gantt_figure(small).texts[1].get_text()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["1f1b", "dense"])
def test_the_figure_is_the_same_each_time(tmp_path, name):
    contents = []
    for target in (tmp_path / "a.svg", tmp_path / "b.svg"):
        write_gantt(run_of(name), target)
        contents.append(target.read_bytes())
    assert contents[0] == contents[1]


@pytest.mark.thorough
def test_no_text_overlaps_another():
    for name in ("1f1b", "interleaved", "zerobubble", "many ranks", "gpipe"):
        figure = gantt_figure(run_of(name))
        figure.canvas.draw()
        renderer = figure.canvas.get_renderer()
        chart, band, peaks = figure.axes
        shown = [*figure.texts, *figure.legends[0].get_texts()]
        shown += [*chart.texts, *band.texts, *peaks.texts, *chart.get_yticklabels()]
        boxes = [
            (text.get_text(), text.get_window_extent(renderer))
            for text in shown
            if text.get_text() and text.get_visible()
        ]
        for index, (text, box) in enumerate(boxes):
            assert box.x0 >= 0.0, text
            assert box.x1 <= figure.bbox.width, text
            for other, second in boxes[index + 1 :]:
                # Heights of text include room that its letters leave.
                apart = (
                    box.x1 <= second.x0
                    or second.x1 <= box.x0
                    or box.y1 <= second.y0 + 2.0
                    or second.y1 <= box.y0 + 2.0
                )
                assert apart, (name, text, other)


def test_a_place_that_cannot_be_written(tmp_path):
    for target in (tmp_path / "nowhere" / "a.png", tmp_path / "a.gif"):
        with pytest.raises(ConfigError) as raised:
            write_gantt(run_of("gpipe"), target)
        assert raised.value.key == "plot"
    assert list(tmp_path.iterdir()) == []


def test_drawing_leaves_the_settings_alone(tmp_path):
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    write_gantt(run_of("1f1b"), tmp_path / "figure.png")
    assert dict(mpl.rcParams) == before


@pytest.mark.thorough
def test_matplotlib_is_loaded_for_a_figure_only(tmp_path):
    code = f"""
import sys
import projector.report.figures.gantt
from projector.cli.main import run
call = ["schedule", "--pp", "2", "--microbatches", "4", "--quiet"]
assert run(call) == 0
assert "matplotlib" not in sys.modules
assert run([*call, "--plot", {str(tmp_path / "figure.svg")!r}]) == 0
assert "matplotlib" in sys.modules
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=300)
