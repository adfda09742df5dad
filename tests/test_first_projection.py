"""First projections: no row is looked at before it has one, and none is ever rewritten."""

import csv
import importlib.util
from pathlib import Path

import pytest

from projector.validate.words import columns_of

VALIDATION = Path(__file__).resolve().parents[1] / "validation"


@pytest.fixture(scope="module")
def script():
    path = VALIDATION / "first_projection.py"
    spec = importlib.util.spec_from_file_location("first_projection", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def entries():
    with (VALIDATION / "first_projection.csv").open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("kind", ["training_throughput", "memory", "serving_measured"])
def test_every_new_row_that_can_be_projected_has_one(script, kind):
    # Run validation/first_projection.py on the commit that reads it, before anything is fitted.
    assert [entry["line"] for entry in script.missing(kind)] == []


def test_a_row_enters_once(entries):
    keys = [(entry["table"], entry["line"]) for entry in entries]
    assert len(keys) == len({*keys})
    assert len(entries) >= 225


def test_entries_are_of_the_rows_that_they_name(entries):
    tables = {}
    for entry in entries:
        table = entry["table"]
        if table not in tables:
            with (VALIDATION / "data" / f"{table}.csv").open(encoding="utf-8") as stream:
                tables[table] = list(csv.DictReader(stream))
        row = tables[table][int(entry["line"]) - 2]
        assert (row["model"], row["gpu"]) == (entry["model"], entry["gpu"])
        low, high = float(entry["low_68"]), float(entry["high_68"])
        assert low <= 1.0 <= high
        assert float(entry["ratio"]) > 0.0


def test_rows_of_a_file_are_appended_once_and_with_what_their_words_say(
    script, tmp_path, monkeypatch
):
    with (VALIDATION / "data" / "training_throughput.csv").open(encoding="utf-8") as stream:
        reader = csv.DictReader(stream)
        columns, rows = reader.fieldnames, list(reader)[-3:]
    monkeypatch.setattr(script, "DATA", tmp_path)
    table = tmp_path / "training_throughput.csv"
    write(table, columns, rows)
    # In the form in which tables are published: words, and no columns for them.
    words = columns_of("training_throughput")
    plain = [name for name in columns if name not in words]
    new = {**rows[0], "micro_batch": "77", "other_flags": "alltoall dispatcher; ETP4"}
    published = tmp_path / "published.csv"
    write(published, plain, [{name: row[name] for name in plain} for row in (*rows, new)])
    for _ in range(2):
        script.append("training_throughput", published)
        with table.open(encoding="utf-8") as stream:
            found = list(csv.DictReader(stream))
        assert found[:-1] == rows
        assert (found[-1]["micro_batch"], found[-1]["etp"]) == ("77", "4")


def write(path, columns, rows):
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
