"""``projector gemm``."""

import csv
import json
import re
from pathlib import Path

import pytest

import projector
from projector.cli.main import run

SHAPES = str(Path(__file__).parents[2] / "examples" / "gemms_deepseek_v3.csv")


@pytest.fixture
def gemm(capsys):
    def call(*arguments):
        code = run(["gemm", *(str(argument) for argument in arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_a_table_with_what_bounds_each(gemm):
    code, out, err = gemm(8192, 8192, 8192, "--gpu", "h100")
    assert (code, err) == (0, "")
    time_us = projector.gemm_time(8192, 8192, 8192, device="h100") * 1e6
    assert f"{time_us:,.1f}" in out
    assert "compute" in out


def test_an_explanation_names_every_term_and_factor(gemm):
    code, out, _ = gemm("8,192", 8192, 8192, "--gpu", "b200", "--run", "loaded", "--explain")
    assert code == 0
    for text in ("matrix pipe", "epilogues", "memory", "clock below the peak", "padding", "waves"):
        assert text in out
    code, out, _ = gemm(256, 256, 256, "--gpu", "b200", "--model", "ws_persistent", "--explain")
    assert code == 0
    assert "epilogue of the last wave" in out


def test_json_is_one_object(gemm):
    code, out, err = gemm("--csv", SHAPES, "--gpu", "b200", "--dtype", "fp8", "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert {"schema_version", "version", "warnings", "device", "gemms"} <= found.keys()
    assert len(found["gemms"]) == 21
    first = found["gemms"][0]
    assert {"m", "n", "k", "batch", "time_us", "tflops", "bound", "kernel", "clock_mhz", "power_w",
            "terms", "factors"} <= first.keys()  # fmt: skip


def test_layouts_of_narrow_types_pay_for_copies(gemm):
    _, out, _ = gemm(4096, 4096, 4096, "--dtype", "fp8", "--layout", "nn", "--explain")
    assert "transposed copies" in out
    _, out, _ = gemm(4096, 4096, 4096, "--layout", "nn", "--explain")
    assert "transposed copies" not in out


def test_a_picture_appears_whole(gemm, tmp_path):
    target = tmp_path / "gemm.svg"
    code, _, _ = gemm("--csv", SHAPES, "--gpu", "h100", "--plot", target)
    assert code == 0
    assert target.read_text().rstrip().endswith("</svg>")
    code, _, _ = gemm(0, 4, 4, "--plot", tmp_path / "nothing.png")
    assert code == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((1, 2), "three extents"),
        ((), "M N K, or many with --csv"),
        ((1, 2, "three"), "k must be an integer"),
        ((10**20, 1, 1), "m must be an integer from 0 to 2**40, got '100000000000000000000'"),
        ((1, 1, 1, "--batch", 10**20), "batch must be an integer from 0 to 2**40, got 1000000000"),
        ((1, 2, 3, "--gpu", "h1000"), "h1000"),
        ((1, 2, 3, "--dtype", "int4"), "int4"),
        ((1, 2, 3, "--run", "long"), "training, loaded, short"),
        ((1, 2, 3, "--clock-mhz", 9000), "clock_mhz"),
        ((1, 2, 3, "--plot", "picture.bmp"), "not a figure"),
    ],
)
def test_mistakes_are_told_in_one_line(gemm, arguments, text):
    code, out, err = gemm(*arguments)
    assert (code, out) == (2, "")
    assert text in err
    assert len(err.strip().splitlines()) == 1


def test_predictions_beside_what_was_measured(gemm, tmp_path):
    shapes, out, figure = (tmp_path / name for name in ("in.csv", "out.csv", "s.png"))
    shapes.write_text("m,n,k,measured_us\n4096,4096,4096,250\n8192,8192,8192,\n512,512,512,9.5\n")
    options = ("--csv", shapes, "--gpu", "h100", "--out", out, "--plot", figure)
    for model in ("tile", "ws_persistent", "sol"):
        code, shown, _ = gemm(*options, "--model", model, "--json")
        assert code == 0
        assert figure.read_bytes().startswith(b"\x89PNG")
        with out.open(newline="") as file:
            rows = list(csv.DictReader(file))
        found = json.loads(shown)["gemms"]
        assert [float(row["time_us"]) for row in rows] == [each["time_us"] for each in found]
        assert [row["measured_us"] for row in rows] == ["250", "", "9.5"]
        assert "terms.memory_s" in rows[0] or model != "tile"
        assert "explanation" not in rows[0]
    shapes.write_text("m,n,k,measured_us\n4096,4096,4096,0\n")
    code, _, err = gemm(*options)
    assert code == 2
    assert "in.csv:2: measured_us must be a number above 0, got '0'" in err


def test_a_row_may_name_its_library(gemm, tmp_path):
    shapes = tmp_path / "in.csv"
    shapes.write_text(
        "m,n,k,library\n4096,4096,4096,CuTeDSL\n4096,4096,4096,\n512,512,512,cutedsl\n"
    )
    options = ("--gpu", "b200", "--dtype", "fp8", "--json")
    rows = json.loads(gemm("--csv", shapes, *options)[1])["gemms"]
    assert [row["library"] for row in rows] == ["cutedsl", "default", "cutedsl"]
    for row, library in zip(rows, ("cutedsl", "default", "cutedsl"), strict=True):
        extents = [str(row[name]) for name in "mnk"]
        (alone,) = json.loads(gemm(*extents, *options, "--library", library)[1])["gemms"]
        assert row == alone
    assert rows[0]["time_us"] != rows[1]["time_us"]
    assert "library cutedsl and default" in gemm("--csv", shapes, *options[:-1])[1]
    shapes.write_text("m,n,k,library\n4096,4096,4096,\n4096,4096,4096,cublaz\n")
    code, _, err = gemm("--csv", shapes, *options[:-1])
    assert code == 2
    assert re.search(r"in.csv:3: library must be one of default, .*cutedsl.*, got 'cublaz'", err)


def test_the_table_that_is_read_is_not_written(gemm, tmp_path):
    shapes = tmp_path / "in.csv"
    shapes.write_text(text := "m,n,k\n64,64,64\n")
    code, _, err = gemm("--csv", shapes, "--out", tmp_path / "." / "in.csv")
    assert code == 2
    assert "in.csv is the file that is read; name another file" in err
    assert shapes.read_text() == text
