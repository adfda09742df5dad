"""Several runs side by side: what is compared, and what is drawn of it."""

import html
import json
from html.parser import HTMLParser

import numpy as np
import pytest

from projector.cli.main import run as command
from projector.cli.trace import _apart
from projector.errors import ConfigError
from projector.report.document import Media
from projector.report.pages.page import write_page
from projector.report.pages.trace import trace_document
from projector.report.trace_runs import MOST_RUNS, Run, Runs, runs_document, runs_picture
from projector.trace.analysis import load_trace
from synthetic import Host, collective, compute, kineto, step, write


def trace_of(tmp_path, name, *, factor):
    """Two steps; compute takes ``factor`` microseconds, communication covers a part of it."""
    lines = []
    for number in range(2):
        zero = 20_000 * number
        for place in range(3):
            start = zero + 1000 + 4000 * place
            lines.append(compute(start, start + 1000 * factor, launch=start - 500, name="gemm_a"))
        lines.append(collective(zero + 1500, zero + 2500, launch=zero + 600))
        lines.append(step(number, zero, zero + 19_000))
    return write(tmp_path / f"{name}.json", kineto(*lines))


@pytest.fixture
def paths(tmp_path):
    return [trace_of(tmp_path, f"x{factor}", factor=factor) for factor in (1, 2, 3)]


@pytest.fixture
def found(paths):
    return Runs(tuple(Run.of(path.stem, load_trace(path)) for path in paths))


def test_bars_are_over_the_first_run(found):
    first, second, third = found.runs
    one, two, three = (run.parts_ms["vector"] + run.parts_ms["gemm"] for run in found.runs)
    assert (two / one, three / one) == (pytest.approx(2.0), pytest.approx(3.0))
    sums = np.zeros(3)
    for phase in found.phases:
        parts, _ = found.bars(phase)
        sums += np.sum([*parts.values()], axis=0)
    assert sums[0] == pytest.approx(1.0)
    whole = [sum(run.parts_ms.values()) for run in (first, second, third)]
    assert sums == pytest.approx(np.array(whole) / whole[0])


def test_communication_is_hidden_or_exposed(found):
    # It runs for 1 us, from half a microsecond into a kernel of 1, 2 or 3 us.
    hidden = [run.communication_ms["hidden"] for run in found.runs]
    exposed = [run.communication_ms["exposed"] for run in found.runs]
    assert hidden == pytest.approx([5e-4, 1e-3, 1e-3])
    assert exposed == pytest.approx([5e-4, 0.0, 0.0], abs=1e-12)


def test_terminal_page_and_json_tell_the_same(found):
    sections = runs_document(found).sections
    columns = {column.name: column for column in sections[0].table.seen(Media.PAGE)}
    told = json.loads(json.dumps(found.to_dict()))["runs"]
    assert columns["run"].values == [run["name"] for run in told] == ["x1", "x2", "x3"]
    assert columns["iteration ms"].values == [run["iteration_ms"]["median"] for run in told]
    assert {len(section.table.columns[0].values) for section in sections if section.table} >= {3}
    for section in sections:
        for _, make in section.figures:
            assert make()["data"]
    kinds = {(row["run"], row["phase"], row["type"]) for row in found.rows}
    assert len(kinds) == len(found.rows)


def test_a_picture_has_a_panel_for_each_comparison(found):
    picture = runs_picture(found)
    titles = [axes.get_title(loc="left") or axes.get_title() for axes in picture.axes]
    assert len([title for title in titles if title]) >= len(found.phases)


def test_the_command_draws_three_runs(paths, tmp_path, capsys):
    picture, page = tmp_path / "runs.svg", tmp_path / "runs.html"
    named = [f"case={paths[0]}", *map(str, paths[1:])]
    arguments = ["trace", "compare", *named, "--plot", str(picture), "--html", str(page), "--json"]
    assert command(arguments) == 0
    told = json.loads(capsys.readouterr().out)
    assert [run["name"] for run in told["runs"]] == ["case", "x2", "x3"]
    assert picture.stat().st_size > 0
    assert "Breakdown by phase" in page.read_text()
    assert command(["trace", "compare", *named]) == 0
    assert "over the first" in capsys.readouterr().out


class Tags(HTMLParser):
    """Whether each tag is closed where it has to be, and what the page holds."""

    def __init__(self):
        super().__init__()
        self.open, self.faults, self.ids, self.texts = [], [], [], []
        self.scripts = []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids += [given["id"]] if "id" in given else []
        if tag not in ("meta", "br"):
            self.open.append(tag)
        if tag == "script":
            self.scripts.append(given.get("type", ""))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append((tag, self.getpos()))

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.figures = data if self.scripts[-1] == "application/json" else getattr(
                self, "figures", "")  # fmt: skip
        elif data.strip():
            self.texts.append(data)


NAMES = ("1", 'tp <b>2</b> & "4"', "2026-11-27")
"""What Plotly would take for a number, for tags and for a date."""


@pytest.fixture
def odd(tmp_path, paths):
    """The page of runs whose names mean something to a browser."""
    page = tmp_path / "odd.html"
    named = [f"{name}={path}" for name, path in zip(NAMES, paths, strict=True)]
    assert command(["trace", "compare", *named, "--html", str(page), "--quiet"]) == 0
    return page.read_text(encoding="utf-8")


def test_the_page_is_sound(odd):
    tags = Tags()
    tags.feed(odd)
    tags.close()
    assert tags.faults == []
    assert tags.open == []
    assert len(set(tags.ids)) == len(tags.ids)
    for name in NAMES:
        assert name in tags.texts
    graph = pytest.importorskip("plotly.graph_objects")
    slots = json.loads(tags.figures)
    assert len(slots) == sum(each.startswith("figure-") for each in tags.ids) > 0
    for figure in [figure for slot in slots for figure in slot]:
        # Plotly itself refuses what it does not know.
        graph.Figure(figure)


def test_names_of_runs_are_letters_to_plotly(odd):
    tags = Tags()
    tags.feed(odd)
    for figure in [figure for slot in json.loads(tags.figures) for figure in slot]:
        names = [trace["name"] for trace in figure["data"]]
        by_run = figure["layout"]["xaxis"].get("type") == "category"
        for each in (trace["x"] for trace in figure["data"]) if by_run else [names]:
            assert [html.unescape(name) for name in each] == list(NAMES)
            assert "<b>" not in json.dumps(each)
        assert "<b>" not in figure["layout"]["yaxis"]["title"]["text"]


def test_what_no_run_has_is_in_no_table(found, capsys):
    names = [column.name for column in runs_document(found).sections[0].table.columns]
    assert "attention ms" not in names
    assert "vector ms" in names or "gemm ms" in names
    picture = runs_picture(found)
    legends = [axes.get_legend() for axes in picture.axes if axes.get_legend()]
    assert not any(text.get_text() == "attention" for each in legends for text in each.get_texts())


def test_names_of_operations_are_letters_to_plotly(tmp_path):
    around = Host(name="op<i>x</i>", start=400, end=700)
    kernels = compute(1000, 2000, launch=500), compute(3000, 4000, launch=600)
    path = write(tmp_path / "t.json", kineto(around, *kernels))
    page = tmp_path / "t.html"
    write_page(page, trace_document(load_trace(path)))
    tags = Tags()
    tags.feed(page.read_text(encoding="utf-8"))
    assert "op&lt;i&gt;x&lt;/i&gt; (forward)" in tags.figures
    assert tags.faults == []


def test_names_of_runs_are_distinct():
    assert _apart(["a", "b"]) == ["a", "b"]
    assert _apart(["b", "b"]) == ["b 1", "b 2"]
    assert len(set(_apart(["b", "b", "b 1", "b 2"]))) == 4


@pytest.mark.parametrize("width", [60, 80])
def test_long_names_of_runs_are_folded(paths, capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    long = "run_" + "".join(f"{number}_of_a_long_name_" for number in range(8)) + "end"
    named = [f"{long}={paths[0]}", *map(str, paths[1:])]
    assert command(["trace", "compare", *named, "--quiet"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= width
    letters = "".join(out.split())
    assert long[:8] in letters
    assert long[-8:] in letters
    assert "..." not in out
    # The operations keep a column that can be read beside the name of the run.
    assert not [line for line in out.splitlines() if line.strip() in ("_a", "gemm", "gemm_")]


def test_two_runs_are_explained_and_may_be_drawn(paths, tmp_path, capsys):
    picture = tmp_path / "two.svg"
    assert command(["trace", "compare", *map(str, paths[:2]), "--plot", str(picture)]) == 0
    assert "because" in capsys.readouterr().out
    assert picture.stat().st_size > 0


def test_what_cannot_be_compared_is_refused(found, paths, tmp_path, capsys):
    with pytest.raises(ConfigError, match=f"from 2 to {MOST_RUNS} runs"):
        Runs(found.runs[:1])
    empty = Run.of("x9", load_trace(paths[0]).select(phases=["optimizer"]))
    with pytest.raises(ConfigError, match="nothing of x9 is left"):
        Runs((found.runs[0], empty))
    job = "examples/llama3.1_8b_fp8_mi325x.yaml"
    for arguments, text in (
        ([paths[0]], "1 is named"),
        ([paths[0]] * 11, "11 are named"),
        ([paths[0], "--config", job, "--plot", tmp_path / "a.svg"], "plot: it is written of runs"),
        ([*paths[:2], "--plot", tmp_path / "a.bmp"], "a.bmp"),
        ([*paths[:2], "--tables", tmp_path], "tables: it is written of a run with its job"),
    ):
        assert command(["trace", "compare", *map(str, arguments)]) == 2
        assert text in capsys.readouterr().err
    assert not list(tmp_path.glob("a.*"))
