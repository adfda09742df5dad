"""Heat maps over several workloads, tied axes, axes of hardware, and what grey means."""

import colorsys
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from made_sweeps import result, row
from matplotlib import colormaps
from matplotlib.colors import to_rgb

from projector.errors import ConfigError
from projector.projection.results import FLOAT, INT, TEXT
from projector.report.figures.heat_map import (
    NOTHING_FITS,
    SCALE,
    heat_map_figure,
    heat_maps,
    write_heat_map,
)
from projector.report.figures.rows import (
    check_apart,
    tied_fields,
    title_of_sweep,
    untied,
    workload_fields,
)
from projector.report.sweep import write_sweep_page

UNITS, MEMORY = "cluster.device.compute_units", "cluster.device.hbm_peak_tb_per_s"
LINK, PEER = "cluster.device.scale_up_gb_per_s", "cluster.device.scale_up_peer_gb_per_s"
AXES = {"model": TEXT, "training.seq_length": INT, "parallelism.tp": INT, "parallelism.etp": INT,
        UNITS: INT, MEMORY: FLOAT, LINK: FLOAT, PEER: FLOAT}  # fmt: skip
LISTED = [
    {"fields": ["model", "training.seq_length", "parallelism.tp", "parallelism.etp"],
     "points": [["small", 4096, 1, 1], ["small", 8192, 2, 2], ["large", 4096, 2, 2]]},
    {"fields": [UNITS], "points": [[50], [100], [200]]},
    {"fields": [MEMORY], "points": [[1.0], [2.0]]},
    {"fields": [LINK, PEER], "points": [[450.0, 450.0], [900.0, 900.0]]},
]  # fmt: skip
DEVICE = {"name": "Chip", "compute_units": 100, "hbm_peak_tb_per_s": 2.0,
          "scale_up_gb_per_s": 450.0}  # fmt: skip


def chips(large_fits=True, chunk=5):
    """Return a sweep of three workloads over three numbers of a chip."""
    rows = []
    for model, seq, tp, etp in LISTED[0]["points"]:
        for units in (50, 100, 200):
            for memory in (1.0, 2.0):
                for link in (450.0, 900.0):
                    own = 9000.0 if model == "small" else 100.0
                    rate = own * units**0.5 * memory**0.25 * (1.0 + (link > 500.0) / 10.0)
                    fits = model == "small" or (large_fits and units < 200)
                    rows.append(
                        row(tp, rate=rate, fits=fits, **{
                            "model": model, "training.seq_length": seq, "parallelism.etp": etp,
                            UNITS: units, MEMORY: memory, LINK: link, PEER: link,
                        })
                    )  # fmt: skip
    found = result(rows, AXES, chunk=chunk, listed=LISTED)
    base = {"model": {"name": "Small"}, "cluster": {"device": DEVICE}}
    return replace(found, plan=replace(found.plan, space={"base": base, "axes": LISTED}))


@pytest.mark.parametrize("chunk", [1, 5, 100])
def test_each_workload_is_normalised_to_the_base_chip(chunk):
    (found,) = heat_maps(chips(chunk=chunk), [(UNITS, MEMORY, "tokens_per_s_per_gpu")])
    mean, *panels = found.relative()
    assert [panel.name for panel in panels] == [
        "small, 4,096 tokens", "small, 8,192 tokens", "large, 4,096 tokens",
    ]  # fmt: skip
    assert found.reference == (1, 1)
    expected = np.outer([0.5**0.25, 1.0], [0.5**0.5, 1.0, 2.0**0.5])
    for panel in panels[:2]:
        np.testing.assert_allclose(panel.best, expected)
    # The large model does not fit the largest chip, so that the mean says nothing there.
    assert np.isnan(panels[2].best[:, 2]).all()
    np.testing.assert_allclose(mean.best[:, :2], expected[:, :2])
    assert np.isnan(mean.best[:, 2]).all()


def test_a_workload_that_fits_nowhere_takes_no_part_in_the_mean():
    (found,) = heat_maps(chips(large_fits=False), [(UNITS, MEMORY, "tokens_per_s_per_gpu")])
    mean = found.relative()[0]
    assert mean.name == "geometric mean of 2 workloads; 1 fits nowhere"
    assert np.isfinite(mean.best).all()


def test_without_the_base_chip_the_best_cell_of_a_workload_is_one():
    (found,) = heat_maps(chips(), [("parallelism.tp", UNITS, "tokens_per_s_per_gpu")])
    assert found.reference is None
    assert all(np.nanmax(panel.best) == 1.0 for panel in found.relative()[1:])
    assert "1 = best cell of the workload" in found.relative_label


def test_less_is_better_is_normalised_too():
    (found,) = heat_maps(chips(), [(UNITS, MEMORY, "iteration_time_ms")])
    np.testing.assert_allclose(found.relative()[1].best[1], [2.0**0.5, 1.0, 0.5**0.5])


def test_the_figure_has_a_panel_for_each_workload_and_their_mean():
    (found,) = heat_maps(chips(), [(UNITS, MEMORY, "tokens_per_s_per_gpu")])
    figure = heat_map_figure(found, "title")
    titles = [axes.get_title() or axes.get_title(loc="left") for axes in figure.axes[:4]]
    assert titles[0] == "geometric mean of 3 workloads"
    assert titles[1:] == [panel.name for panel in found.workloads]
    assert [each.get_text() for each in figure.axes[3].get_xticklabels()] == [
        "0.5\u00d7", "1\u00d7", "2\u00d7",
    ]  # fmt: skip
    assert figure.axes[3].get_xlabel() == "compute units (1\u00d7 = 100)"


def test_one_workload_keeps_its_unit():
    rows = [row(tp, rate=100.0 * tp) for tp in (1, 2)]
    (found,) = heat_maps(result(rows), [("parallelism.tp", "parallelism.pp", "mfu")])
    assert found.workloads == ()
    assert found.best.tolist() == [[0.1, 0.2]]


def test_workloads_are_models_and_sequence_lengths():
    plan = chips().plan
    assert workload_fields(plan, list(AXES)) == ["model", "training.seq_length"]
    assert (
        workload_fields(replace(plan, space={**plan.space, "best_of": ["model"]}), ["model"]) == []
    )
    single = {"axes": [{"fields": ["model"], "points": [["small"]]}]}
    assert workload_fields(replace(plan, space=single), ["model"]) == []


def test_fields_that_move_together_are_tied():
    plan = chips().plan
    tied = tied_fields(plan)
    assert tied[LINK] == (PEER,)
    assert tied["parallelism.tp"] == ("parallelism.etp",)
    assert "model" not in tied
    assert untied(plan, list(AXES)) == [
        "model", "training.seq_length", "parallelism.tp", UNITS, MEMORY, LINK,
    ]  # fmt: skip


def test_a_map_of_tied_axes_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="are tied") as caught:
        write_heat_map(chips(), [LINK, PEER], tmp_path / "a.png")
    assert caught.value.key == "plot"
    check_apart(chips().plan, LINK, UNITS, "plot")


def test_tied_axes_are_named_once():
    (found,) = heat_maps(chips(), [(LINK, UNITS, "mfu")])
    assert found.names[0] == "scale-up bandwidth = scale-up to one peer"
    assert found.over == ("parallelism.tp = parallelism.etp", MEMORY)


def test_the_page_offers_hardware_first_and_tied_axes_once(tmp_path):
    path = tmp_path / "page.html"
    write_sweep_page(chips(), path)
    text = path.read_text(encoding="utf-8")
    workloads = [panel.name for panel in heat_maps(chips(), [(UNITS, MEMORY, "mfu")])[0].workloads]
    offered = re.findall(r'<option value="\d+">(.*?)</option>', text)
    assert offered[: len(workloads)] == workloads
    offered = offered[len(workloads) :]
    assert offered[0] == "compute units and memory bandwidth"
    assert len(offered) == 6
    assert not any("model" in name or "sequence" in name for name in offered)
    assert sum("scale-up" in name for name in offered) == 3
    assert "They are of 3 workloads" in text
    slots = json.loads(
        re.search(r'<script id="figures" type="application/json">(.*?)</script>', text)[1]
    )
    annotations = [each["text"] for each in slots[1][0]["layout"]["annotations"]]
    assert annotations[0] == "geometric mean of 3 workloads"


def test_titles_name_models_also_where_they_are_an_axis():
    assert title_of_sweep(chips()) == "small and large on variants of Chip"
    assert title_of_sweep(result([row()])) == "Small on Chip"


def test_no_colour_of_the_scale_is_the_grey_of_what_does_not_fit():
    grey = to_rgb(NOTHING_FITS)
    assert max(grey) - min(grey) < 0.01
    shades = colormaps[SCALE](np.linspace(0.0, 1.0, 256))[:, :3]
    saturation = [colorsys.rgb_to_hsv(*shade)[1] for shade in shades]
    assert min(saturation) > 0.4
    assert np.abs(shades - grey).max(axis=1).min() > 0.2
