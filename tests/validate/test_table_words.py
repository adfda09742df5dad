import csv
import json
import re
from pathlib import Path

import pytest

from projector.cli.main import run
from projector.validate.jobs import JobRow
from projector.validate.kind import KINDS, kind_of
from projector.validate.totals import RESULT_COLUMNS, write_normalised, write_results
from projector.validate.words import columns_of, load_table_words, said

DATA = Path(__file__).parents[2] / "validation" / "data"
GROUPS = load_table_words().groups
COLUMNS = {name: column for group in GROUPS for name, column in group.columns.items()}


def rows_of(path):
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_every_rule_reads_columns_that_there_are():
    for group in GROUPS:
        assert set(group.tables) <= set(KINDS)
        known = {"origin", "vendor", *group.columns}
        for kind in group.tables:
            known |= {*rows_of(DATA / f"{kind}.csv")[0]}
        for column in group.columns.values():
            assert {name for look in column.looks for name in look.of.split()} <= known
    assert len(COLUMNS) == sum(len(group.columns) for group in GROUPS)


@pytest.mark.parametrize("name", COLUMNS)
def test_every_pattern_can_be_compiled_and_has_what_its_value_repeats(name):
    for look in COLUMNS[name].looks:
        re.compile(look.erase)
        for pattern, value in look.find.items():
            groups = re.compile(pattern).groups
            assert all(int(number) <= groups for number in re.findall(r"\\(\d)", value))


@pytest.mark.parametrize("kind", KINDS)
def test_published_tables_say_in_columns_what_they_say_in_words(kind):
    columns = columns_of(kind)
    for row in rows_of(DATA / f"{kind}.csv"):
        words = {name: text for name, text in row.items() if name not in columns}
        assert {name: row[name] for name in columns} == {
            name: said(words, name) for name in columns
        }


def test_a_column_counts_before_words():
    row = {"other_flags": "grad accum 4; cp a2a"}
    assert (said(row, "microbatches"), said(row, "cp_comm_type")) == ("4", "a2a")
    assert said({**row, "microbatches": " 8 "}, "microbatches") == "8"
    # An empty cell says that there is nothing to say.
    assert said({**row, "microbatches": ""}, "microbatches") == ""


def test_every_place_counts_once():
    row = {"recompute": "selective: moe_act + RMSNorm + unknown + layernorm + MLA up-proj"}
    assert said(row, "recompute_modules") == "moe_act,layernorm,mla_up_proj"
    assert said({"recompute": "full"}, "recompute_modules") == ""


@pytest.fixture
def old(tmp_path):
    """A table in words, with a line that is none and a column of its own."""
    kind = "training_throughput"
    columns = [name for name in rows_of(DATA / f"{kind}.csv")[0] if name not in columns_of(kind)]
    rows = [
        row
        for row in rows_of(DATA / f"{kind}.csv")
        if row["micro_batch"] and row["num_layers"] and row["task"] == "pretrain"
    ][:12]
    path = tmp_path / "old.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow([*columns, "mine"])
        writer.writerows([[row[name] for name in columns] + ["x, y"] for row in rows])
        writer.writerow(["too", "short"])
    return path


def outcomes(kind, path, out):
    write_results(kind, path, out)
    return [[row[name] for name in RESULT_COLUMNS] for row in rows_of(out)]


def test_a_normalised_table_has_the_outcomes_of_its_words(old, tmp_path):
    kind, new = "training_throughput", tmp_path / "new.csv"
    written = write_normalised(kind, old, new)
    assert written["rows"] == 13
    assert written["columns"] == list(columns_of(kind))
    assert [row["mine"] for row in rows_of(new)[:-1]] == ["x, y"] * 12
    found = outcomes(kind, new, tmp_path / "a.csv")
    expected = outcomes(kind, old, tmp_path / "b.csv")
    assert found[:-1] == expected[:-1]
    assert "ok" in {row[RESULT_COLUMNS.index("status")] for row in found}
    # The line stays one that cannot be read.
    assert "fields, but the header names" in found[-1][RESULT_COLUMNS.index("status")]
    assert write_normalised(kind, new, tmp_path / "again.csv")["columns"] == []
    assert (tmp_path / "again.csv").read_bytes() == new.read_bytes()


def test_the_words_of_a_normalised_table_are_not_read_again(old, tmp_path):
    kind, new = "training_throughput", tmp_path / "new.csv"
    write_normalised(kind, old, new)
    text = new.read_text(encoding="utf-8")
    rows = rows_of(new)
    mute = tmp_path / "mute.csv"
    with mute.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows({**row, "other_flags": "GA 7; schedule nonsense"} for row in rows[:-1])
    statuses = [row[RESULT_COLUMNS.index("status")] for row in outcomes(kind, mute, tmp_path / "c")]
    assert "ok" in statuses
    assert "unknown schedule 'nonsense'" not in statuses
    assert text == new.read_text(encoding="utf-8")


def test_the_command_writes_a_table_and_projects_nothing(old, tmp_path, capsys):
    out = tmp_path / "new.csv"
    assert (
        run(["validate", "training_throughput", str(old), "--normalise", str(out), "--json"]) == 0
    )
    shown = json.loads(capsys.readouterr().out)
    assert (shown["rows"], shown["out"]) == (13, str(out))
    assert "results" not in shown
    assert run(["validate", "training_throughput", str(old), "--normalise", str(out)]) == 0
    assert (
        f"13 rows, {len(columns_of('training_throughput'))} new columns" in capsys.readouterr().err
    )


def test_kinds_without_words_have_no_columns():
    assert columns_of("moe_measured") == ()
    assert not {"_sharding"} & set(columns_of("memory"))
    assert kind_of("memory").columns


@pytest.mark.parametrize("column", ["microbatches", "recompute_layers", "zero_stage"])
def test_a_column_that_should_hold_a_number_is_named(column):
    row = rows_of(DATA / "training_throughput.csv")[0]
    row |= {column: "several", "global_batch": ""}
    (outcome,) = kind_of("training_throughput").project([row])
    assert outcome.status == f"{column} is 'several', not a number"


def test_columns_of_ones_own_reach_the_job():
    row = rows_of(DATA / "training_throughput.csv")[0] | {"tp": "2", "n_gpus": "128"}
    stated = {
        "etp": "2",
        "moment_dtype": "fp32",
        "grad_reduce_dtype": "fp32",
        "token_drop": "false",
    }
    job = JobRow({**row, **stated, "recipe_grad_reduce_dtype": ""}).job()
    assert job["parallelism"]["etp"] == 2
    assert job["training"]["optimizer"]["moment_dtype"] == "fp32"
    assert job["training"]["gradient_dtype"] == "fp32"
    assert "capacity_factor" not in job["training"]["moe"]


def test_nothing_else_is_asked_of_a_command_that_normalises(old, tmp_path, capsys):
    new, out = tmp_path / "new.csv", tmp_path / "out.csv"
    command = ["validate", "training_throughput", str(old), "--normalise", str(new)]
    assert run([*command, "--out", str(out)]) == 2
    assert "--out has no effect here" in capsys.readouterr().err
    assert not new.exists()


@pytest.mark.parametrize(
    ("place", "why"), [("", "it is a folder"), ("missing/new.csv", "there is no folder missing")]
)
def test_a_place_for_a_table_is_looked_at_first(place, why, old, capsys):
    assert run(["validate", "training_throughput", str(old), "--normalise", place]) == 2
    assert why in capsys.readouterr().err
