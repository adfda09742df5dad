"""The figure of a validated table."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from projector.cli.main import run
from projector.errors import ConfigError
from projector.report.figures import measurements as plots
from projector.report.figures.figure import save_figure, short_number
from projector.report.figures.measurements import measurements_figure
from projector.validate.kind import OK, Outcome, failed
from projector.validate.run import Result, Validation

PNG = b"\x89PNG\r\n\x1a\n"

TABLE = """\
model,gpu,n_gpus,precision,seq_len,micro_batch,global_batch,tp,pp,vpp,cp,ep,task,\
tokens_per_s_per_gpu,step_time_s,source,doubt,other_flags
Llama-3.1-8B,H100,8,BF16,4096,1,64,1,1,,1,1,pretrain,9000,,NVIDIA a,,
Mixtral-8x7B,B200,8,FP8,4096,1,64,1,1,,1,8,pretrain,,3.5,NVIDIA b,,
Llama-3.1-8B,H100,8,BF16,4096,,64,1,1,,1,1,pretrain,9000,,NVIDIA a,,
"""


def result(line, outcome, *, device="H100", model="a", rule=""):
    return Result(line, rule, outcome, model, device, "BF16", "source", "", "")


def timed(predicted, measured):
    return Outcome(OK, predicted, measured, predicted / measured)


def table_of(*results, kind="gemm_measured", path="folder/rows.csv"):
    return Validation(kind, path, (), tuple(results), True)


MANY = [
    result(i, timed(10.0 ** (i % 7), 1.3 * 10.0 ** (i % 7)), device=f"D{i % 17} {'x' * (i % 40)}")
    for i in range(200)
]
TABLES = {
    "one row": [result(2, timed(1.0, 1.0))],
    "no row": [result(2, failed("unknown model"))],
    "empty": [],
    "exact": [result(i, timed(float(i), float(i))) for i in range(1, 9)],
    "many groups": MANY,
    "far apart": [result(2, timed(1e-9, 1e6)), result(3, timed(1e12, 1e-3))],
    "odd names": [
        result(2, timed(1.0, 2.0), device="_$x$ \\frac{"),
        result(3, timed(1.0, 2.0), device="$"),
        result(4, timed(1.0, 2.0), device="two\nlines \x00 装置"),
        result(5, timed(1.0, 2.0), device=""),
    ],
    "not for log axes": [
        result(2, timed(0.0, 2.0)),
        result(3, timed(3.0, 2.0)),
        result(4, Outcome(OK, float("inf"), 1.0, float("inf"))),
    ],
    "models": [result(i, timed(1.0, 1.1), device="", model=f"m{i}") for i in range(4)],
}


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(TABLE, encoding="utf-8")
    return path


@pytest.mark.parametrize("suffix", [".png", ".svg", ".PNG"])
def test_the_command_draws(rows, tmp_path, capsys, suffix):
    figure = tmp_path / f"figure{suffix}"
    figure.write_text("old")
    arguments = ["validate", "training_throughput", str(rows), "--plot", str(figure), "--json"]
    assert run([*arguments, "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["projected"] == 2
    content = figure.read_bytes()
    if suffix == ".svg":
        assert ET.fromstring(content).tag == "{http://www.w3.org/2000/svg}svg"
    else:
        assert content.startswith(PNG)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([figure.name, rows.name])


@pytest.mark.rotated
@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_every_table_is_drawn_without_a_warning(tmp_path, name, suffix):
    figure = tmp_path / f"figure{suffix}"
    save_figure(figure, lambda: measurements_figure(table_of(*TABLES[name])))
    assert figure.stat().st_size > 2_000


@pytest.mark.thorough
def test_the_figure_is_the_same_each_time(tmp_path):
    contents = []
    for name in ("a.svg", "b.svg"):
        save_figure(tmp_path / name, lambda: measurements_figure(table_of(*MANY)))
        contents.append((tmp_path / name).read_bytes())
    assert contents[0] == contents[1]


def test_rates_are_told_from_times():
    rate = Outcome(OK, 9_000.0, 10_000.0, 10.0 / 9.0)
    points = plots._points(table_of(result(2, timed(9.0, 10.0)), result(3, rate)))
    assert points.rated().tolist() == [False, True]


def test_groups_are_coloured_largest_first():
    devices = ["B"] * 3 + ["A"] + ["C"] * 2 + [""]
    results = [result(i, timed(1.0, 2.0), device=name) for i, name in enumerate(devices)]
    points = plots._points(table_of(*results))
    assert points.names == ("B", "C", "A", "not stated")
    assert points.group.tolist() == [0, 0, 0, 2, 1, 1, 3]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (0.9284, "0.928"),
        (999.9, "1k"),
        (12_000.0, "12k"),
        (2e9, "2G"),
        (1e-4, "0.0001"),
    ],
)
def test_short_numbers(value, text):
    assert short_number(value) == text


@pytest.mark.parametrize("name", ["figure.jpg", "figure", "png"])
def test_another_suffix_is_refused_before_anything_is_projected(rows, tmp_path, capsys, name):
    out = tmp_path / "out.csv"
    arguments = ["validate", "training_throughput", str(rows), "--out", str(out)]
    assert run([*arguments, "--plot", str(tmp_path / name)]) == 2
    err = capsys.readouterr().err
    assert name in err
    assert ".png, .svg or .pdf" in err
    assert not out.exists()


@pytest.mark.parametrize("name", ["nowhere/figure.png", "folder.png"])
def test_a_place_that_cannot_be_written(rows, tmp_path, capsys, name):
    (tmp_path / "folder.png").mkdir()
    figure = tmp_path / name
    assert run(["validate", "training_throughput", str(rows), "--plot", str(figure)]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def refuse(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(plots.Path, "replace", refuse)
    with pytest.raises(ConfigError, match="No space left"):
        save_figure(tmp_path / "figure.png", lambda: measurements_figure(table_of()))
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib(rows, tmp_path, capsys, monkeypatch):
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    figure = tmp_path / "figure.png"
    assert run(["validate", "training_throughput", str(rows), "--plot", str(figure)]) == 2
    assert "pip install '.[plot]'" in capsys.readouterr().err
    assert not figure.exists()


def test_drawing_leaves_the_settings_alone(tmp_path):
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    save_figure(tmp_path / "figure.png", lambda: measurements_figure(table_of(*MANY)))
    assert dict(mpl.rcParams) == before


@pytest.mark.thorough
def test_matplotlib_is_loaded_for_a_figure_only(rows, tmp_path):
    code = f"""
import sys
import projector, projector.report.figures.measurements
from projector.cli.main import run
call = ["validate", "training_throughput", {str(rows)!r}, "--quiet"]
assert run(call) == 0
assert "matplotlib" not in sys.modules
assert run([*call, "--plot", {str(tmp_path / "figure.svg")!r}]) == 0
assert "matplotlib" in sys.modules
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=300)
