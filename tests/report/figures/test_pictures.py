"""Figures and pages of sweeps and searches, small and odd ones too."""

import json
import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_sweeps import AXES, BASE, result, row

from projector.cli.main import run
from projector.config.load import load_job
from projector.errors import ConfigError
from projector.projection.api import project_jobs
from projector.projection.results import INT, TEXT
from projector.report import sweep as sweep_page
from projector.report.document import Column, Document, Section, Table
from projector.report.figures import heat_map as heat_map_module
from projector.report.figures import pareto as front_module
from projector.report.figures.figure import _spread
from projector.report.figures.heat_map import (
    cell_text,
    check_fields,
    heat_map_figure,
    heat_maps,
    write_heat_map,
)
from projector.report.figures.pareto import pareto_figure, read_front, write_pareto
from projector.report.figures.pictures import read_pictures
from projector.report.figures.rows import (
    axes_of,
    configuration,
    differing,
    resolve,
    rows_at,
    sample,
    shared,
)
from projector.report.figures.scaling import read_scaling, scaling_figure, write_scaling
from projector.report.pages.page import page
from projector.report.search import write_search_page
from projector.report.sweep import write_sweep_page
from projector.searches.configurations import search
from projector.searches.limits import Limits
from projector.searches.ranking import Configuration
from projector.searches.result import SearchResult
from projector.sweeps.result import SweepResult
from projector.sweeps.table import column_kinds

EXAMPLES = Path(__file__).parents[3] / "examples"


def many(count=300):
    rng = np.random.default_rng(1)
    rows = []
    for _ in range(count):
        peak = float(rng.uniform(5, 300))
        tp, pp, nodes = (int(rng.choice([1, 2, 4])) for _ in range(3))
        rate = float(rng.uniform(50, 60)) * (1.0 + peak / 70.0)
        text = str(rng.choice(["none", "full"]))
        rows.append(row(tp, pp, text, nodes, rate=rate, peak=peak, fits=peak <= 70.0))
    return rows


SWEEPS = {
    "many": result(many()),
    "no row": result(),
    "one row": result([row()]),
    "nothing fits": result([row(peak=200.0, fits=False), row(2, peak=400.0, fits=False)]),
    "one value": result([row(rate=100.0), row(rate=100.0)]),
    "words": result(
        [row(recompute=text) for text in ("$x_1$ \\frac{", '{"modules": ["mlp"]}', "装置\n")]
    ),
    "many values": result([row(tp, tp % 7 + 1, rate=50.0 + tp) for tp in range(1, 301)]),
    "no axis": result([row()], axes={}),
}
WRITERS = {
    "pareto": write_pareto,
    "scaling": write_scaling,
    "heat map": lambda found, path: write_heat_map(found, ["tp", "pp"], path),
    "words": lambda found, path: write_heat_map(found, ["recompute", "gpus"], path, "peak_gib"),
}


@pytest.mark.rotated
@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("name", [name for name in SWEEPS if name != "no axis"])
def test_every_sweep_is_drawn_without_a_warning(name, kind, tmp_path):
    path = tmp_path / "figure.svg"
    WRITERS[kind](SWEEPS[name], path)
    assert ET.fromstring(path.read_bytes()).tag == "{http://www.w3.org/2000/svg}svg"


@pytest.mark.rotated
@pytest.mark.parametrize("suffix", [".png", ".pdf"])
def test_other_forms(suffix, tmp_path):
    path = tmp_path / f"figure{suffix}"
    write_pareto(SWEEPS["many"], path)
    assert path.read_bytes()[:5] in {b"\x89PNG\r", b"%PDF-"}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["pareto", "heat map"])
def test_a_figure_is_the_same_each_time(kind, tmp_path):
    paths = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for path in paths:
        WRITERS[kind](SWEEPS["many"], path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize("few", [10, 10_000])
def test_the_cloud_counts_every_row_once(monkeypatch, few):
    monkeypatch.setattr(front_module, "FEW", few)
    found = read_front(SWEEPS["many"])
    cloud = found.cloud
    if cloud.counts is None:
        drawn = sum(len(each[0]) for each in cloud.points)
    else:
        drawn = sum(cells.sum() for cells in cloud.counts) + cloud.outside
    assert drawn == cloud.rows == 300
    assert cloud.fit + cloud.at_risk == sum(each["fits"] for each in many())
    assert (cloud.fit, cloud.at_risk) == (SWEEPS["many"].fit, SWEEPS["many"].at_risk)
    assert 0 < cloud.at_risk < sum(each["verdict"] == "at_risk" for each in many())
    assert found.usable == (70.0, 70.0)
    assert pareto_figure(found)


def test_the_front_is_that_of_the_sweep_and_its_ends_are_named():
    found = read_front(SWEEPS["many"])
    expected = SWEEPS["many"].pareto()
    assert found.rate.tolist() == expected["tokens_per_s_per_gpu"].to_pylist()
    named = found.chosen(3).tolist()
    assert len(named) == 3
    assert {0, len(found.rate) - 1} < set(named)
    texts, same = found.names(np.array(named))
    assert len(set(texts)) == 3
    assert isinstance(same, str)


def test_a_heat_map_takes_the_best_that_fits():
    rows = [
        row(1, 1, rate=10.0), row(1, 1, rate=30.0), row(1, 1, rate=99.0, fits=False),
        row(2, 1, rate=5.0, fits=False), row(4, 2, rate=7.0),
    ]  # fmt: skip
    for chunk in (1, 2, 7):
        found = result(rows, chunk=chunk)
        (rate, time) = heat_maps(
            found,
            [("parallelism.tp", "parallelism.pp", name)
             for name in ("tokens_per_s_per_gpu", "iteration_time_ms")],
        )  # fmt: skip
        assert rate.values == ((1, 2, 4), (1, 2))
        np.testing.assert_array_equal(rate.best, [[30.0, np.nan, np.nan], [np.nan, np.nan, 7.0]])
        np.testing.assert_array_equal(rate.rows, [[3, 1, 0], [0, 0, 1]])
        assert time.best[0, 0] == 1e5 / 30.0
        assert (rate.label, time.label) == (
            "speed, tokens/s/GPU: largest that fits",
            "time of a step, ms: least that fits",
        )
    assert rate.over == ("training.recompute", "cluster.nodes")


def test_empty_cells_are_told_apart_and_hold_no_number():
    rows = [row(1, 1, rate=3.0), row(2, 1, fits=False), row(4, 2, rate=7.0)]
    (found,) = heat_maps(result(rows), [("parallelism.tp", "parallelism.pp", "mfu")])
    figure = heat_map_figure(found, "title")
    texts = [each.get_text() for each in figure.axes[0].texts]
    assert texts == ["0.003", "0.007"]
    (legend,) = figure.legends
    said = [each.get_text() for each in legend.get_texts()]
    assert said == ["best of all", "nothing fits", "no legal job"]


def test_a_heat_map_without_bound_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(heat_map_module, "MOST_CELLS", 8)
    pair = ("parallelism.tp", "parallelism.pp", "mfu")
    assert heat_maps(SWEEPS["many"], [pair]) == [None]
    with pytest.raises(ConfigError, match="pairs of values"):
        write_heat_map(SWEEPS["many"], ["tp", "pp"], tmp_path / "a.png")
    write_sweep_page(SWEEPS["many"], tmp_path / "a.html")
    own, _ = check_page(tmp_path / "a.html")
    assert "3 pairs have too many values" in own


def test_values_without_any_job_are_shown_as_well():
    found = result([row(1, 1, rate=3.0)])
    axis = {"fields": ["parallelism.tp", "training.recompute"],
            "points": [[3, "none"], [1, {"modules": ["mlp"]}], [None, "full"]]}  # fmt: skip
    plan = replace(found.plan, space={"base": BASE, "axes": [axis]})
    (tiles,) = heat_maps(
        replace(found, plan=plan), [("parallelism.tp", "training.recompute", "mfu")]
    )
    assert tiles.values == ((1, 3), ("none", '{"modules": ["mlp"]}', "full"))
    assert tiles.rows.tolist() == [[1, 0], [0, 0], [0, 0]]


def test_axes_are_sorted_and_what_is_missing_comes_last():
    axes = {"parallelism.vpp": INT, "training.recompute": TEXT}
    rows = [
        {**row(), "parallelism.vpp": vpp, "training.recompute": text}
        for vpp, text in ((4, "none"), (None, "full"), (1, None))
    ]
    (found,) = heat_maps(result(rows, axes), [("parallelism.vpp", "training.recompute", "mfu")])
    assert found.values == ((1, 4, None), ("none", "full", None))


@pytest.mark.parametrize(
    ("fields", "column", "words"),
    [
        (["tp"], "mfu", "two axes"),
        (["tp", "tp"], "mfu", "twice"),
        (["tp", "dp", "pp"], "mfu", "two axes"),
        (["tp", "ep"], "mfu", "'ep' is not available; there are parallelism.tp"),
        (["tp", "pp"], "schedule", "'schedule' is not available"),
        (["tp", "pp"], "speed", "'speed' is not available"),
    ],
)
def test_axes_and_columns_that_are_not_there(fields, column, words):
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        check_fields(fields, column, column_kinds(AXES))
    assert caught.value.key == "plot"
    assert caught.value.allowed


def test_names_are_resolved_by_their_last_part():
    known = ["a.x", "b.x", "a.y"]
    assert resolve("y", known, key="plot") == "a.y"
    assert resolve("b.x", known, key="plot") == "b.x"
    with pytest.raises(ConfigError, match=r"may be a\.x or b\.x"):
        resolve("x", known, key="plot")


def test_scaling_takes_the_fastest_of_each_number():
    rows = [
        row(1, nodes=1, rate=100.0), row(2, nodes=1, rate=90.0), row(4, nodes=4, rate=80.0),
        row(8, nodes=2, rate=500.0, fits=False), row(1, nodes=4, rate=70.0),
    ]  # fmt: skip
    for chunk in (1, 3):
        found = read_scaling(result(rows, chunk=chunk))
        assert found.gpus.tolist() == [8, 16, 32]
        np.testing.assert_array_equal(found.rate, [100.0, np.nan, 80.0])
        np.testing.assert_array_equal(found.total, [800.0, np.nan, 2560.0])
        np.testing.assert_array_equal(found.efficiency, [1.0, np.nan, 0.8])
        assert [each and each["parallelism.tp"] for each in found.settings] == [1, None, 4]
        assert "cluster.nodes" not in found.settings[0]
    said = [each.get_text() for each in scaling_figure(found).axes[2].texts]
    assert any("Nothing fits on 16 GPUs" in text for text in said)


def test_settings_are_short_and_told_once():
    first = {"parallelism.tp": 2, "training.micro_batch_size": 4, "training.recompute": "none",
             "cluster.nodes": 1, "training.cuda_graphs": False, "training.seq_length": 8192,
             "parallelism.zero_stage": 3, "cluster.device": "h100"}  # fmt: skip
    assert configuration(first) == (
        "TP2, ZeRO 3, MBS4, no recompute, 1 node, no cuda_graphs, seq8,192, device h100"
    )
    second = {**first, "parallelism.tp": 8}
    assert differing([first, second]) == [{"parallelism.tp": 2}, {"parallelism.tp": 8}]
    assert "parallelism.tp" not in shared([first, second])
    assert differing([first]) == [first]


def test_numbers_keep_off_points_and_each_other():
    anchor = np.array([[100.0, 100.0]] * 3 + [[112.0, 100.0], [101.0, 93.0]])
    clear = np.array([5.0, 12.0, 3.0, 6.0, 4.0])
    place = _spread(anchor, clear, np.array([0.0, 0.0, 400.0, 300.0]))
    apart = np.abs(place[:, None] - place[None])
    free = (apart[:, :, 0] > 18.0) | (apart[:, :, 1] > 14.0)
    assert (free | np.eye(5, dtype=bool)).all()
    away = np.hypot(*(place[:, None] - anchor[None]).transpose(2, 0, 1))
    assert (away > clear[None] + 3.0).all()


def test_cells_say_what_tells_them_apart():
    assert [cell_text(value) for value in (1052.6, 1040.2, 0.4512, 3.0, 250_000.0)] == [
        "1,053", "1,040", "0.451", "3", "250k",
    ]  # fmt: skip


def test_a_sample_is_spread_and_always_the_same():
    assert sample(5, 10).tolist() == [0, 1, 2, 3, 4]
    found = sample(100_000, 500)
    assert (found == sample(100_000, 500)).all()
    assert (np.diff(found) > 0).all()
    assert len(found) == 500
    # Rows of every remainder, whatever axis varies fastest.
    assert len(set((found % 7).tolist())) == 7
    rows = dict(rows_at(SWEEPS["many"], ["peak_gib"], np.array([0, 7, 8, 299])))
    assert list(rows) == [0, 7, 8, 299]
    assert rows[8]["peak_gib"] == many()[8]["peak_gib"]


def figures_of(path):
    text = path.read_text(encoding="utf-8")
    match = re.search(
        r'<script id="figures" type="application/json">(.*?)</script>', text, re.DOTALL
    )
    return text, json.loads(match[1], parse_constant=pytest.fail)


def check_page(path):
    """The page has one plotly.js, asks for nothing, and Plotly knows all that its figures say."""
    from plotly.graph_objects import Figure
    from plotly.offline import get_plotlyjs

    text, slots = figures_of(path)
    assert text.count(get_plotlyjs()) == 1
    own = text.replace(get_plotlyjs(), "")
    assert not re.search(r"https?://|\bsrc=|<link|@import|url\(", own)
    assert "default-src 'none'" in own
    for slot in slots:
        for figure in slot:
            Figure(figure)
    return own, slots


@pytest.mark.rotated
@pytest.mark.parametrize("name", SWEEPS)
def test_every_sweep_has_a_page(name, tmp_path):
    path = tmp_path / "page.html"
    write_sweep_page(SWEEPS[name], path)
    own, slots = check_page(path)
    assert "Speed against memory" in own
    assert ("Scaling" in own) == (name == "many")
    assert len(slots) == {"many": 3, "words": 1, "many values": 2}.get(name, 1)


def test_the_page_has_what_was_found(tmp_path):
    path = tmp_path / "page.html"
    found = result(many(), points=320, infeasible={"parallelism.tp: <N>": 20})
    write_sweep_page(found, path)
    own, (pareto, heat, scaling) = check_page(path)
    assert "300 jobs of 320 points" in own
    assert "parallelism.tp: &lt;N&gt;" in own
    best = found.best(1)[0]
    assert f'data-value="{best["tokens_per_s_per_gpu"]!r}"' in own
    names = [each["name"] for each in pareto[0]["data"]]
    assert names[:4] == ["does not fit", "at risk", "fits", "front"]
    assert [name for name in names[4:] if name.startswith("knee")] == names[-1:]
    assert len(pareto[0]["data"][3]["x"]) == len(found.pareto())
    assert len(heat) == 6
    cells = np.array(heat[0]["data"][1]["z"], float)
    assert np.nanmax(cells) == pytest.approx(best["tokens_per_s_per_gpu"], rel=1e-6)
    assert len(scaling[0]["data"]) == 3


def test_a_large_sweep_is_thinned_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep_page, "SAMPLE", 40)
    path = tmp_path / "page.html"
    write_sweep_page(SWEEPS["many"], path)
    own, slots = check_page(path)
    assert "Of all 300 rows a sample of 40 is drawn" in own
    traces = {each["name"]: len(each["x"]) for each in slots[0][0]["data"]}
    assert traces["front"] == len(SWEEPS["many"].pareto())
    assert sum(traces.get(name, 0) for name in ("does not fit", "at risk", "fits")) <= 40


def test_only_the_columns_that_a_figure_needs_are_read(monkeypatch):
    asked = []
    tables = SweepResult.tables

    def spy(self, columns=None):
        asked.append(columns)
        return tables(self, columns)

    monkeypatch.setattr(SweepResult, "tables", spy)
    heat_maps(SWEEPS["many"], [("parallelism.tp", "gpus", "mfu")])
    read_scaling(SWEEPS["many"])
    assert all(columns is not None for columns in asked)
    assert set(asked[0]) == {"fits", "verdict", "parallelism.tp", "gpus", "mfu"}


def test_nothing_in_a_page_is_taken_for_markup():
    table = Table([Column("<b>", ["</script><i>", 1.5], digits=2)])
    figure = {"data": [], "layout": {"title": {"text": "</script>"}}}
    section = Section("<h>", table=table, figures=[("<o>", lambda: figure)] * 2)
    text = page(Document("<t>", "&", [section]))
    own = text[text.rindex("<body>") :]
    for each in ("<b>", "<i>", "<t>", "<h>", "<o>"):
        assert each not in own
    assert own.count("</script>") == 2
    assert 'data-value="1.5">1.50<' in own


def searched(count):
    """Return a search whose configurations are made up."""
    job = search("examples/llama3.1_8b_fp8_mi325x.yaml", top=1,
                 limits=Limits(recompute=("none",), micro_batch_sizes=(1,))).job  # fmt: skip
    found = tuple(
        Configuration({"parallelism.tp": place + 1, "parallelism.etp": None}, 1.0 + place,
                      2**30 * (50.0 - place % 13), 2**30 * 10.0, 2**30 * 34.0, 2**30 * 51.0, "fits",
                      1.0 + place)
        for place in range(count)
    )  # fmt: skip
    return SearchResult(
        job, Limits(), (), found[:2], found, count, 0, 3, {"parallelism.tp": 4}, 0.1
    )


@pytest.mark.parametrize("count", [0, 1, 40])
def test_a_search_has_a_figure_and_a_page(count, tmp_path, monkeypatch):
    monkeypatch.chdir(EXAMPLES.parent)
    found = searched(count)
    write_pareto(found, tmp_path / "front.svg")
    write_search_page(found, tmp_path / "page.html")
    own, slots = check_page(tmp_path / "page.html")
    assert ("Nothing fits" in own) == (count == 0)
    assert "Cannot exist" in own
    assert len(slots) == 1
    # Heads and the row of what cannot exist; a head and rows of what is ranked.
    assert own.count("<tr>") == 2 + (1 + count if count else 0)


def test_real_searches_show_what_is_known_of_the_best(tmp_path, monkeypatch):
    monkeypatch.chdir(EXAMPLES.parent)
    found = search("examples/llama3.1_8b_fp8_mi325x.yaml", top=2,
                   limits=Limits(recompute=("none",), micro_batch_sizes=(1, 2)))  # fmt: skip
    write_search_page(found, tmp_path / "page.html")
    own, _ = check_page(tmp_path / "page.html")
    assert f'data-value="{100.0 * found.best[0].mfu!r}"' in own
    table = own[own.index("<tbody>") : own.index("</tbody>")]
    rows = [re.findall(r"<td.*?</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", table)]
    heads = re.findall(r"<th>(.*?)</th>", own[: own.index("<tbody>")])
    (last,) = project_jobs([load_job(found.job, found.configurations[-1].overrides)])
    mfus = [float(re.search(r'data-value="(.*?)"', row[heads.index("MFU %")])[1]) for row in rows]
    assert len(mfus) > 2
    rates = [float(re.search(r'data-value="(.*?)"', row[heads.index("tokens/s/GPU")])[1])
             for row in rows]  # fmt: skip
    np.testing.assert_allclose(np.divide(mfus, rates), mfus[0] / rates[0])
    if len(found.configurations) <= 300:
        assert 100.0 * last.mfu == pytest.approx(min(mfus))
    front = read_front(found)
    assert front.rate[0] == pytest.approx(found.best[0].tokens_per_s_per_gpu)


SPACE = """\
base:
  model: llama3.2_1b
  training: {micro_batch_size: 1, global_batch_size: 16, seq_length: 1024}
  cluster: {device: h100, nodes: 1}
axes:
  cluster.nodes: [1, 2]
  parallelism.tp: [1, 2]
"""


@pytest.fixture
def space(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text(SPACE)
    return path


def command(*arguments):
    return run([str(each) for each in arguments])


def test_the_command_draws_also_a_finished_sweep(space, tmp_path, capsys):
    out, front, tiles, html = (tmp_path / name for name in ("o", "f.png", "h.svg", "p.html"))
    call = ["sweep", space, "--out", out, "--workers", 1, "--json"]
    assert command(*call) == 0
    capsys.readouterr()
    drawn = ["--plot", f"pareto={front}", "--plot", f"heatmap:tp,nodes,mfu={tiles}"]
    assert command(*call, *drawn, "--html", html) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["rate_per_s"] is None
    assert captured.err.split("wrote ")[1:] == [f"{each}\n" for each in (front, tiles, html)]
    assert all(each.stat().st_size > 2_000 for each in (front, tiles, html))


@pytest.mark.parametrize(
    ("options", "key", "words"),
    [
        (["--plot", "pareto"], "plot", "pareto=FIGURE"),
        (["--plot", "cloud=a.png"], "plot", "heatmap:AXIS,AXIS[,COLUMN]=FIGURE"),
        (["--plot", "roofline=a.png"], "plot", "scaling=FIGURE"),
        (["--plot", "pareto=a.gif"], "plot", ".png, .svg or .pdf"),
        (["--plot", "pareto=nowhere/a.png"], "plot", "cannot be written"),
        (["--plot", "pareto:tp=a.png"], "plot", "one of"),
        (["--plot", "heatmap=a.png"], "plot", "one of"),
        (["--plot", "heatmap:tp=a.png"], "plot", "two axes"),
        (["--plot", "heatmap:tp,ep=a.png"], "plot", "'ep' is not available"),
        (["--plot", "heatmap:tp,nodes,speed=a.png"], "plot", "'speed' is not available"),
        (["--plot", "pareto=a.png", "--plot", "scaling=a.png"], "plot", "cannot both"),
        (["--html", "a.png"], "html", ".html or .htm"),
        (["--html", "nowhere/a.html"], "html", "cannot be written"),
        (["--dry-run", "--html", "a.html"], "dry_run", "need the rows"),
    ],
)
def test_a_mistake_is_told_before_anything_is_computed(
    space, tmp_path, capsys, monkeypatch, options, key, words
):
    monkeypatch.chdir(tmp_path)
    assert command("sweep", space, "--out", "o", "--json", *options) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert json.loads(captured.out)["key"] == key
    assert not (tmp_path / "o").exists()


def test_search_has_its_own_kinds(tmp_path, capsys):
    job = ["search", "--config", EXAMPLES / "llama3.1_8b_fp8_mi325x.yaml"]
    assert command(*job, "--plot", f"scaling={tmp_path / 'a.png'}") == 2
    assert "pareto=FIGURE" in capsys.readouterr().err
    narrow = ["--recompute", "none", "--top", 1, "--quiet"]
    html, figure = tmp_path / "a.html", tmp_path / "a.svg"
    assert command(*job, *narrow, "--html", html, "--plot", f"pareto={figure}") == 0
    assert capsys.readouterr().err == ""
    check_page(html)
    assert figure.stat().st_size > 2_000


@pytest.mark.parametrize("module", ["plotly", "matplotlib"])
def test_what_is_not_installed_is_named(space, tmp_path, capsys, monkeypatch, module):
    for name in (module, f"{module}.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    options = {"plotly": ["--html", tmp_path / "a.html"],
               "matplotlib": ["--plot", f"pareto={tmp_path / 'a.png'}"]}  # fmt: skip
    extra = {"plotly": ".[html]", "matplotlib": ".[plot]"}
    assert command("sweep", space, *options[module]) == 2
    assert extra[module] in capsys.readouterr().err


def test_axes_are_the_columns_before_the_results():
    assert axes_of(column_kinds(AXES)) == tuple(AXES)
    assert axes_of(column_kinds({})) == ()


def test_pictures_are_read_in_order():
    found = read_pictures(["pareto=a=b.png", "heatmap:x, y,z=c.svg"], ("pareto", "heatmap"))
    assert [(each.kind, each.path, each.fields, each.column) for each in found] == [
        ("pareto", "a=b.png", (), "tokens_per_s_per_gpu"),
        ("heatmap", "c.svg", ("x", "y"), "z"),
    ]
