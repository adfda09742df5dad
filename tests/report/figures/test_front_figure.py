"""The front of speed and memory: its knee, what is within noise, equal rows."""

import numpy as np
import pytest
from made_sweeps import result, row

from projector.report.figures.pareto import (
    MEMORY_WORTH,
    distinct,
    layout_groups,
    pareto_figure,
    read_front,
)
from projector.report.figures.rows import Several, configuration, merged
from projector.report.figures.scaling import read_scaling
from projector.report.sweep import write_sweep_page

FASTEST = row(1, rate=1000.0, peak=60.0)
SHOWN = row(2, rate=993.0, peak=37.0)
SMALLEST = row(8, rate=400.0, peak=20.0)


def front(*rows):
    return read_front(result(rows))


def test_the_knee_is_a_little_slower_with_much_more_memory_free():
    found = front(FASTEST, SHOWN, SMALLEST)
    assert found.rate.tolist() == [1000.0, 993.0, 400.0]
    assert found.knee == 1
    assert found.knee_text == "knee: 0.7 % slower than the fastest, 33 GiB free"


def test_the_knee_gives_up_speed_only_for_enough_memory():
    lost = 0.02
    memory = 70.0 * lost / MEMORY_WORTH
    for freed, knee in ((1.1 * memory, 1), (0.9 * memory, 0)):
        slower = row(2, rate=1000.0 * (1.0 - lost), peak=60.0 - freed)
        assert front(FASTEST, slower).knee == knee
    assert front(FASTEST).knee is None
    assert front().knee is None


def test_the_knee_is_drawn_and_named_among_many():
    rows = [row(tp, rate=1000.0 - 9.0 * tp**1.5, peak=60.0 - 0.5 * tp) for tp in range(1, 60)]
    found = read_front(result(rows))
    assert found.knee in found.chosen(3).tolist()
    figure = pareto_figure(found)
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert found.knee_text in labels
    assert any("(knee)" in text.get_text().replace("\n", " ") for text in figure.axes[1].texts)


def test_layouts_within_noise_are_one_group():
    settings = [{"parallelism.tp": tp, "cluster.nodes": nodes}
                for tp, nodes in ((1, 1), (2, 1), (1, 2), (4, 1))]  # fmt: skip
    groups = layout_groups(np.array([100.0, 99.9, 99.8, 10.0]), settings)
    assert groups[0] == groups[1] == 1
    # More nodes are another cluster, however close the speed is.
    assert groups[2] != 1
    assert groups[3] != 1
    assert layout_groups(np.array([]), []) == ()
    assert layout_groups(np.array([2.0, 1.0]), [{}, {}]) == (1, 2)


def test_the_group_of_the_fastest_is_marked():
    found = front(FASTEST, SHOWN, SMALLEST)
    assert found.groups[:2] == (1, 1)
    labels = pareto_figure(found).axes[0].get_legend_handles_labels()[1]
    assert "2 as fast as the fastest, within noise" in labels


def test_equal_rows_are_named_once_with_what_does_not_matter():
    rows = [row(1, rate=100.0, peak=50.0, nodes=nodes) for nodes in (1, 2)]
    found = front(*rows, row(2, rate=50.0, peak=20.0))
    assert found.rate.tolist() == [100.0, 50.0]
    assert found.equal == (2, 1)
    assert found.settings[0]["cluster.nodes"] == Several((1, 2))
    assert "nodes 1 or 2" in configuration(found.settings[0])


def test_settings_of_equal_rows():
    settings = [{"a.x": value, "a.y": 1} for value in range(5)]
    assert merged(settings[:1]) == settings[0]
    assert str(merged(settings)["a.x"]) == "any of 5"
    assert str(merged(settings[:3])["a.x"]) == "0 or 1 or 2"
    kept, equal = distinct(np.array([1.0, 1.0, 2.0]), np.array([3.0, 3.0, 3.0]))
    assert kept.tolist() == [0, 2]
    assert equal == [[0, 1], [2]]


def test_the_table_of_a_page_has_equal_rows_once(tmp_path):
    rows = [row(1, rate=100.0, peak=50.0, nodes=1), row(2, rate=100.0, peak=50.0, nodes=1)]
    write_sweep_page(result(rows), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Equal rows stand once" in text
    table = text[text.index("<table>") : text.index("</table>")]
    assert table.count("<tr>") == 2
    assert "<td>1 or 2</td>" in table


def test_memory_that_rows_cannot_use_is_left_out_of_the_limits():
    hopeless = {**row(1, peak=500.0, fits=False), "usable_gib": 0.0}
    assert front(FASTEST, hopeless).usable == (70.0, 70.0)


def test_a_list_never_runs_out_of_its_figure():
    rows = [
        row(tp, rate=1000.0 - tp, peak=60.0 - tp, recompute="a setting with a very long name " * 4)
        for tp in range(1, 30)
    ]
    rows = [{**each, "training.recompute": f"{each['training.recompute']}{place}"}
            for place, each in enumerate(rows)]  # fmt: skip
    figure = pareto_figure(read_front(result(rows)))
    figure.draw_without_rendering()
    extents = [text.get_window_extent() for text in figure.axes[1].texts]
    assert min(extent.y0 for extent in extents) >= 0.0
    assert max(extent.x1 for extent in extents) <= figure.bbox.x1
    assert any("no room here" in text.get_text() for text in figure.axes[1].texts)


@pytest.mark.parametrize("rows", [(FASTEST,), (FASTEST, SMALLEST)])
def test_a_made_up_base_has_no_band(rows):
    assert front(*rows).band is None
    low, high = read_scaling(result(rows)).band()
    assert np.isnan(low).all()
    assert np.isnan(high).all()
