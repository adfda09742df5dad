"""Results as tables: for pandas, as CSV, and in notebooks."""

import csv
import os

import pandas as pd
import pytest

import projector as pj
from projector.cli.main import run
from projector.frames import Frame

JOB = "examples/llama3.1_8b_fp8_mi325x.yaml"
SPACE = {"base": JOB, "axes": {"parallelism.tp": [1, 2, 4, 8], "parallelism.pp": [1, 3]}}

MAKERS = {
    "job": lambda: pj.load_job(JOB),
    "search": lambda: pj.search(JOB, top=2),
    "plan": lambda: pj.project_plan(
        "llama3.1_8b", 1e12, devices=["h100"], gpus=[64], fidelity="first-order"
    ),
    "serving": lambda: pj.search_serving("llama3.1_8b", "h100", gpus=[1], output=64),
    "sweep": lambda: pj.sweep(SPACE),
}


@pytest.fixture(scope="module", autouse=True)
def at_root():
    with pytest.MonkeyPatch.context() as patch:
        from pathlib import Path

        patch.chdir(Path(__file__).parents[1])
        yield


@pytest.fixture(scope="module", params=MAKERS)
def result(request, at_root):
    return MAKERS[request.param]()


def test_a_result_is_a_data_frame_csv_and_html(result, tmp_path):
    frame = result.to_pandas()
    assert len(frame) >= 1
    assert not any(name.startswith("overrides.") for name in frame)
    path = tmp_path / "rows.csv"
    result.to_csv(path)
    again = pd.read_csv(path)
    assert list(again) == list(frame)
    assert len(again) == len(frame)
    for name in frame.select_dtypes("number"):
        pd.testing.assert_series_equal(frame[name], again[name], check_dtype=False)
    html = result._repr_html_()
    assert html.startswith("<table")
    assert html.count("<tr>") == min(len(frame), 20) + 1


class Made(Frame):
    def __init__(self, *rows):
        self.records = list(rows)

    records = None


def test_columns_have_one_type_and_rows_may_lack_some():
    made = Made({"a": 1, "b": {"c": "x"}}, {"a": 2.5, "d": [1, 2]}, {"a": None, "b": {"c": 7}})
    assert made.to_arrow().to_pylist() == [
        {"a": 1.0, "b.c": "x", "d": None},
        {"a": 2.5, "b.c": None, "d": "[1, 2]"},
        {"a": None, "b.c": "7", "d": None},
    ]


@pytest.mark.parametrize("command", ["search", "sweep", "plan"])
def test_commands_write_csv(command, tmp_path, capsys):
    path, space = tmp_path / "rows.csv", tmp_path / "space.yaml"
    space.write_text(
        "base: {model: llama3.1_8b, cluster: {device: h100},\n"
        "  training: {micro_batch_size: 1, global_batch_size: 64, seq_length: 4096}}\n"
        "axes: {parallelism.tp: [1, 2, 4]}\n"
    )
    lines = {
        "search": ["--config", JOB, "--top", "1"],
        "sweep": [str(space)],
        "plan": ["--model", "llama3.1_8b", "--tokens", "1T", "--device", "h100", "--gpus", "64",
                 "--fidelity", "first-order"],
    }  # fmt: skip
    assert run([command, *lines[command], "--csv", str(path)]) in {0, 3}
    assert f"wrote {path}" in capsys.readouterr().err
    with path.open(newline="") as file:
        assert len(list(csv.reader(file))) >= 2
    assert run([command, *lines[command], "--csv", str(tmp_path / "no" / "rows.csv")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_a_device_or_a_pipe_is_not_replaced(tmp_path, capsys):
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    for command in (["search", "--config", JOB, "--csv"], ["gemm", "64", "64", "64", "--out"]):
        assert run([*command, str(pipe)]) == 2
        assert "is a pipe, not a file" in capsys.readouterr().err
    with pytest.raises(pj.ProjectorError, match="is a pipe"):
        Made({"a": 1}).to_csv(pipe)
    assert pipe.is_fifo()


def test_a_stream_is_not_replaced(tmp_path, capsys):
    """``/dev/stdout`` is a link, and one for all who are on the machine."""
    stream = tmp_path / "stdout"
    stream.symlink_to("/proc/self/fd/1")
    with (tmp_path / "kept").open("w") as kept:
        before = os.dup(1)
        os.dup2(kept.fileno(), 1)
        try:
            code = run(["gemm", "64", "64", "64", "--quiet", "--out", str(stream)])
            with pytest.raises(pj.ProjectorError, match="is a stream"):
                Made({"a": 1}).to_csv(stream)
        finally:
            os.dup2(before, 1)
            os.close(before)
    assert code == 2
    assert "is a stream, not a file" in capsys.readouterr().err
    assert stream.is_symlink()


def test_records_are_the_rows_of_the_table(result):
    assert len(result.records) == result.to_arrow().num_rows > 0
