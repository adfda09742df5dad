"""Fronts, tables and scaling of several workloads: each by itself."""

import json
import re
from dataclasses import replace

import pytest
from made_sweeps import result, row

from projector.projection.results import INT, TEXT
from projector.report.figures.pareto import read_fronts, workloads_figure, write_pareto
from projector.report.figures.rows import tied_fields, workloads_of
from projector.report.figures.scaling import read_scaling
from projector.report.sweep import write_sweep_page

AXES = {"model": TEXT, "parallelism.tp": INT, "cluster.nodes": INT}
LISTED = [
    {"fields": ["model"], "points": [["small"], ["large"]]},
    {"fields": ["parallelism.tp"], "points": [[1], [2]]},
    {"fields": ["cluster.nodes"], "points": [[1], [2]]},
]


def two_models(chunk=3):
    """Return a sweep in which every row of the small model is faster than any of the large."""
    rows = [
        row(tp, nodes=nodes, rate=own / tp + nodes, peak=60.0 / tp, model=model)
        for model, own in (("small", 9000.0), ("large", 100.0))
        for tp in (1, 2)
        for nodes in (1, 2)
    ]
    return result(rows, AXES, chunk=chunk, listed=LISTED)


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_each_workload_has_its_rows(chunk):
    found = workloads_of(two_models(chunk))
    assert [name for name, _ in found] == ["small", "large"]
    for name, each in found:
        assert each.rows == 4
        assert sum(len(table) for table in each.tables()) == 4
        assert {
            text for table in each.tables(["model"]) for text in table["model"].to_pylist()
        } == {name}
        assert len(each.pareto()) == 2
        assert [best["model"] for best in each.best(2)] == [name, name]


def test_one_workload_is_the_sweep():
    found = result([row()])
    assert workloads_of(found) == [("", found)]
    assert workloads_of(result())[0][0] == ""


def test_every_workload_has_a_front_of_its_own(tmp_path):
    fronts = read_fronts(two_models())
    assert [front.rate.max() for _, front in fronts] == [9002.0, 102.0]
    figure = workloads_figure(fronts, "title")
    titles = [axes.get_title() or axes.get_title(loc="left") for axes in figure.axes]
    assert [title.splitlines()[0] for title in titles] == ["small", "large"]
    assert all("knee" in title for title in titles)
    write_pareto(two_models(), tmp_path / "front.png")
    assert (tmp_path / "front.png").stat().st_size > 5_000


def test_scaling_is_that_of_one_workload():
    rates = [read_scaling(each).rate.tolist() for _, each in workloads_of(two_models())]
    assert rates == [[9001.0, 9002.0], [101.0, 102.0]]


def test_a_page_shows_as_many_rows_of_each_workload(tmp_path):
    write_sweep_page(two_models(), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    table = text[text.index("<tbody>") : text.index("</tbody>")]
    assert table.count("<td>small</td>") == table.count("<td>large</td>") == 4
    offered = re.findall(r'<option value="\d+">(.*?)</option>', text)
    assert offered.count("small") == offered.count("large") == 2
    slots = json.loads(
        re.search(r'<script id="figures" type="application/json">(.*?)</script>', text)[1]
    )
    fastest = [max(figure["data"][-1]["y"]) for figure in slots[0]]
    assert len(fastest) == 2


@pytest.mark.parametrize(
    ("text", "tied"), [("tp * 2", True), ("parallelism.tp", True), ("1 + 0 * tp", False),
                       ("tp * nodes", False)]
)  # fmt: skip
def test_a_computed_field_is_tied_to_the_one_it_follows(text, tied):
    plan = two_models().plan
    plan = replace(plan, space={**plan.space, "derived": {"parallelism.etp": text}})
    found = tied_fields(plan)
    assert found.get("parallelism.etp") == (("parallelism.tp",) if tied else None)
    assert found.get("parallelism.tp") == (("parallelism.etp",) if tied else None)
