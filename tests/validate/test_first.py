"""First projections: written as cells, read again, found for their rows alone."""

import csv

import pytest

from projector.config.bands import NOTHING, Band
from projector.errors import ConfigError
from projector.validate.first import COLUMNS, RECORD, entries, entry, first_results
from projector.validate.kind import OK, Outcome
from projector.validate.run import Result

BAND = Band(0.9, 1.25, 0.75, 1.5, runs=7, basis="seven runs")
TABLE = "training_throughput"


def result(line=5, predicted=9.87654321, measured=10.0, band=BAND, status=OK):
    ratio = None if predicted is None or measured is None else predicted / measured
    outcome = Outcome(status, predicted, measured, ratio, band=band)
    return Result(
        line=line, rule="", outcome=outcome, model="Llama", device="h100", precision="bf16",
        source="a/b", doubt="", family="dense", origin="a/b of its own",
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """Return a folder of a record with rows of two tables, and of their tables in a folder."""
    (tmp_path / "data").mkdir()
    with (tmp_path / RECORD).open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for table, each in ((TABLE, result()), ("memory", result(6)), (TABLE, result(8))):
            writer.writerow({**entry(table, each), "commit": "abc", "date": "2026-11-27"})
    return tmp_path


def test_an_entry_has_a_cell_for_each_column():
    found = entry(TABLE, result())
    assert tuple(found) == COLUMNS
    assert found == {
        "table": TABLE, "line": "5", "commit": "", "date": "", "source": "a/b of its own",
        "model": "Llama", "gpu": "h100", "projected": "9.87654", "measured": "10",
        "ratio": "0.987654", "low_68": "0.9", "high_68": "1.25", "low_90": "0.75", "high_90": "1.5",
    }  # fmt: skip


def test_what_is_not_known_is_an_empty_cell_and_none_again(tmp_path):
    found = entry(TABLE, result(predicted=None, band=NOTHING))
    assert {found[name] for name in COLUMNS[-4:]} == {""}
    assert found["projected"] == found["ratio"] == ""
    path = tmp_path / RECORD
    path.write_text(",".join(COLUMNS) + "\n" + ",".join(found.values()) + "\n", encoding="utf-8")
    outcome = entries(path, TABLE)[5]
    assert outcome.predicted is outcome.ratio is None
    assert outcome.band.limits(68) is None


def test_entries_are_those_of_one_table_by_line(folder):
    found = entries(folder / RECORD, TABLE)
    assert list(found) == [5, 8]
    assert (found[5].status, found[5].predicted, found[5].measured) == (OK, 9.87654, 10.0)
    assert found[5].band.limits(68) == (0.9, 1.25)
    assert found[5].band.limits(90) == (0.75, 1.5)
    assert list(entries(folder / RECORD, "memory")) == [6]
    assert not entries(folder / RECORD, "serving_measured")


@pytest.mark.parametrize("where", ["table.csv", "data/table.csv"])
def test_rows_have_what_was_said_of_them_first(folder, where):
    now = [result(predicted=12.0), result(6, predicted=12.0), result(8, predicted=12.0)]
    first = first_results(TABLE, str(folder / where), now)
    assert [each.line for each in first] == [5, 8]
    for each in first:
        assert each.outcome.predicted == 9.87654
        assert each.model == "Llama"
    assert now[0].outcome.predicted == 12.0


def test_a_row_with_another_measurement_is_another_row(folder):
    file = str(folder / "data" / "table.csv")
    rows = [result(measured=10.001), result(8, measured=None), result(9)]
    assert not first_results(TABLE, file, rows)
    # Digits that an entry does not keep make no other row.
    assert first_results(TABLE, file, [result(measured=10.0 + 1e-9)])


def test_without_a_record_there_is_no_first_projection(tmp_path):
    assert first_results(TABLE, str(tmp_path / "table.csv"), [result()]) == []


def test_a_file_with_other_columns_is_refused(tmp_path):
    path = tmp_path / RECORD
    for text in ("line,projected\n5,1\n", ""):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match="no record of first projections") as error:
            entries(path, TABLE)
        assert error.value.key == "columns"
        assert error.value.allowed == list(COLUMNS)
