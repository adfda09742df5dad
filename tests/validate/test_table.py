import os

import pytest

from projector.errors import ConfigError
from projector.validate.run import Table


def written(tmp_path, text):
    path = tmp_path / "table.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_rows_come_in_order_with_their_line_numbers(tmp_path):
    table = Table(written(tmp_path, 'a,b\n1,"two\nlines"\n\n3,4\n'), ["a"], "demo")
    lines = list(table)
    assert [(line.number, line.row, line.error) for line in lines] == [
        (3, {"a": "1", "b": "two\nlines"}, ""),
        (5, {"a": "3", "b": "4"}, ""),
    ]
    assert [line.row for line in table] == [line.row for line in lines]


def test_byte_order_mark_and_bad_bytes_are_read(tmp_path):
    path = written(tmp_path, b"\xef\xbb\xbfa,b\n1,\xff\n")
    assert [line.row["a"] for line in Table(path, ["a"], "demo")] == ["1"]


@pytest.mark.parametrize(("row", "found"), [("1", 1), ("1,2,3", 3)])
def test_wrong_number_of_fields_is_an_error_of_the_row(tmp_path, row, found):
    lines = list(Table(written(tmp_path, f"a,b\n{row}\n5,6\n"), ["a"], "demo"))
    assert lines[0].error == f"{found} fields, but the header names 2 columns"
    assert set(lines[0].row) == {"a", "b"}
    assert lines[1].error == ""


def test_a_monstrous_field_is_an_error_of_the_row(tmp_path):
    lines = list(Table(written(tmp_path, f"a,b\n{'x' * 200_000},1\n2,3\n"), ["a"], "demo"))
    assert "unreadable" in lines[0].error
    assert lines[-1].row == {"a": "2", "b": "3"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a,b\n", "no column 'c'; a demo table needs a, c"),
        ("a,c,a\n", "names the column 'a' twice"),
    ],
)
def test_a_file_that_is_no_such_table(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        Table(written(tmp_path, text), ["a", "c"], "demo")


def test_a_pipe_is_read_as_a_file_is(tmp_path):
    text = '\ufeffa,b\n1,"two\nlines"\n3,4\n'
    reader, writer = os.pipe()
    try:
        os.write(writer, text.encode())
        os.close(writer)
        piped = Table(f"/dev/fd/{reader}", ["a"], "demo")
        lines = list(piped)
    finally:
        os.close(reader)
    assert lines == list(Table(written(tmp_path, text), ["a"], "demo"))
    assert list(piped) == lines


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        Table(tmp_path / "missing.csv", ["a"], "demo")
    with pytest.raises(ConfigError, match="is a directory, not a file"):
        Table(tmp_path, ["a"], "demo")
