import csv
import json

import pytest

from projector.cli.main import run
from projector.validate.run import validate
from projector.validate.totals import summary

COLUMNS = (
    "model,gpu,n_gpus,precision,seq_len,micro_batch,global_batch,tp,pp,vpp,cp,ep,task,"
    "tokens_per_s_per_gpu,step_time_s,source,doubt,other_flags"
)
GOOD = "Llama-3.1-8B,H100,8,BF16,4096,1,64,1,1,,1,1,pretrain,9000,,NVIDIA a,,"
LINES = (
    GOOD,
    "Mixtral-8x7B,B200,8,FP8,4096,1,64,1,1,,1,8,pretrain,,3.5,NVIDIA b,half of another row,",
    "Llama-3.1-8B,H100,8,BF16,4096,,64,1,1,,1,1,pretrain,9000,,NVIDIA a,,",
    "No such model,H100,8,BF16,4096,1,64,1,1,,1,1,pretrain,9000,,c,,",
    "Llama-3.1-8B,H100,eight,BF16,4096,1,64,1,1,,1,1,pretrain,9000,,c,,",
    "too,few,fields",
)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "in.csv"
    path.write_text("\n".join([COLUMNS, *LINES, ""]), encoding="utf-8")
    return path


@pytest.fixture
def projector_run(capsys):
    def call(*arguments):
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_the_report_says_where_a_row_failed_first(table, projector_run):
    _, out, _ = projector_run("validate", "training_throughput", table, "--quiet")
    assert "line 5: unknown model 'No such model'" in out
    assert "line 7: 3 fields, but the header names 18 columns" in out


def test_json(table, projector_run):
    code, out, _ = projector_run("validate", "training_throughput", table, "--json", "--quiet")
    found = json.loads(out)
    assert code == 0
    assert (found["total_rows"], found["rows"], found["projected"]) == (6, 5, 2)
    keys = {"median_ape", "p90_ape", "mean_ape", "geomean_ratio", "group_mean_ape", "groups"}
    assert keys <= found.keys()
    assert found["group_mean_ape"] is None
    assert found["without_doubt"]["projected"] == 1
    assert (found["dense"]["projected"], found["moe"]["projected"]) == (1, 1)
    assert found["groups"]["source"]["NVIDIA"]["projected"] == 2
    results = found["results"]
    assert [each["line"] for each in results] == [2, 3, 4, 5, 6, 7]
    assert [each["status"] for each in results] == [
        "ok",
        "ok",
        "not eligible: no micro-batch",
        "unknown model 'No such model'",
        "n_gpus is 'eight', not a number",
        "3 fields, but the header names 18 columns",
    ]
    assert results[0]["ratio"] > 0
    assert results[3]["ratio"] is None


def test_groups_by_columns_of_the_table(table, projector_run):
    arguments = "validate", "training_throughput", table, "--by", "gpu, source,doubt"
    _, out, _ = projector_run(*arguments, "--json", "--quiet")
    groups = json.loads(out)["groups"]["by"]
    assert {name: each["rows"] for name, each in groups.items()} == {
        "H100, c, certain": 2,
        "B200, NVIDIA, doubtful": 1,
        "H100, NVIDIA, certain": 1,
        "few, -, certain": 1,
    }
    _, out, _ = projector_run(*arguments, "--quiet")
    assert "By the columns named" in out
    assert "B200, NVIDIA, doubtful" in out


def test_a_column_that_the_table_lacks(table, projector_run):
    code, _, err = projector_run("validate", "training_throughput", table, "--by", "colour")
    assert code == 2
    assert "has no column 'colour' to group by" in err


def test_out_has_one_row_for_each_row(table, projector_run, tmp_path):
    target = tmp_path / "out.csv"
    target.write_text("old", encoding="utf-8")
    code, _, err = projector_run("validate", "training_throughput", table, "--out", target)
    assert (code, err) == (0, "")
    with target.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == len(LINES)
    assert rows[0]["model"] == "Llama-3.1-8B"
    assert float(rows[0]["predicted"]) / float(rows[0]["measured"]) == pytest.approx(
        1 / float(rows[0]["ratio"])
    )
    assert rows[0]["mark"] == "rule"
    assert rows[2]["rule"] == "no micro-batch"
    assert rows[5]["model"] == "too"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "out.csv"]


@pytest.mark.parametrize("option", ["--out", "--normalise"])
def test_the_table_that_is_read_is_not_overwritten(option, table, projector_run):
    code, _, err = projector_run("validate", "training_throughput", table, option, table)
    assert code == 2
    assert "in.csv is the file that is read; name another file" in err
    assert table.read_text(encoding="utf-8").startswith(COLUMNS)


def test_report_names_everything(table, projector_run):
    code, out, _ = projector_run("validate", "training_throughput", table)
    assert code == 0
    for text in ("all rows", "By device", "By source", "no micro-batch", "Worst rows", "Mixtral"):
        assert text in out


def test_a_table_of_bad_rows_is_a_report_too(projector_run, tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text(f"{COLUMNS}\n{LINES[3]}\n", encoding="utf-8")
    code, out, _ = projector_run("validate", "training_throughput", path)
    assert code == 0
    assert "No row could be projected" in out
    path.write_text(f"{COLUMNS}\n", encoding="utf-8")
    code, out, _ = projector_run("validate", "training_throughput", path, "--json", "--quiet")
    assert code == 0
    assert json.loads(out)["median_ape"] is None


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("nonsense", "in.csv", "unknown kind of table 'nonsense'"),
        ("memory", "in.csv", "no column 'component'"),
        ("memory", "missing.csv", "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read(table, projector_run, tmp_path, kind, name, message):
    target = tmp_path / "out.csv"
    code, _, err = projector_run("validate", kind, table.parent / name, "--out", target)
    assert code == 2
    assert message in err
    assert not target.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_a_place_that_cannot_be_written(table, projector_run, tmp_path):
    target = tmp_path / "nowhere" / "out.csv"
    code, _, err = projector_run("validate", "training_throughput", table, "--out", target)
    assert code == 2
    assert "cannot be written" in err


def test_a_long_table_is_complete(tmp_path):
    # What took the square of its length would take hours.
    path = tmp_path / "long.csv"
    count = 100_000
    path.write_text("\n".join([COLUMNS, *(LINES * (count // len(LINES) + 1))[:count], ""]))
    found = summary(validate("training_throughput", path))
    assert found["total_rows"] == count
    assert found["projected"] == sum(line in LINES[:2] for line in (LINES * 16667)[:count])


@pytest.mark.parametrize("width", [80, 100, 120])
def test_names_and_headings_of_groups_are_whole_at_every_width(
    width, table, projector_run, monkeypatch
):
    monkeypatch.setenv("COLUMNS", str(width))
    _, out, _ = projector_run("validate", "training_throughput", table, "--quiet")
    lines = [line.strip() for line in out.splitlines()]
    assert all(len(line) <= width for line in out.splitlines())
    for name in ("without doubtful rows", "Mixtral-8x7B", "h100"):
        assert any(name in line for line in lines), name
    assert any(line.split()[:4] == ["projected", "median", "/", "p90"] for line in lines)
    assert any("doubt: half of another row" in line for line in lines)
