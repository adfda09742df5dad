"""Tables of shapes: whatever `gemm --csv` reads, `attention --csv` reads, and refuses, alike."""

import pytest

from projector.cli.main import run
from projector.config.formats import shape_table
from projector.config.formats.shape_table import read_extent, shape_rows
from projector.errors import ConfigError
from projector.report.terminal.single import read_shapes
from projector.single.gemm import list_gemms

OPTIONS = {"gpu": "h100", "head_dim": 64, "kv_heads": None, "v_head_dim": None, "window": 0}


def gemms(path):
    return [(each.m, each.n, each.k) for each in list_gemms((), str(path)).reports]


def attentions(path):
    found = read_shapes((), str(path), OPTIONS)
    columns = (found[name].tolist() for name in ("batch", "heads", "seq_q"))
    return list(zip(*columns, strict=True))


READERS = {"m,n,k": gemms, "batch,heads,seq": attentions}


@pytest.fixture(params=READERS)
def table(request, tmp_path):
    """Return a function that reads a text whose columns are called a, b and c."""

    def read(text):
        path = tmp_path / "shapes.csv"
        for short, name in zip("abc", request.param.split(","), strict=True):
            text = text.replace(f"<{short}>", name).replace(f"<{short.upper()}>", name.upper())
        path.write_bytes(text.encode())
        return READERS[request.param](path)

    return read


@pytest.mark.parametrize(
    "text",
    [
        "<a>,<b>,<c>\n8,16,1024\n",
        "\ufeff<A>,<B>,<C>\r\n8,16,1024\r\n",
        " <A> , note ,<c>, <B>\n8,any,1024,16\n",
        '<a>,<b>,<c>\n8,16,"1,024"\n',
        "<a>,<b>,<c>\n8, 16 ,1_024\n",
        "<a>,<b>,<c>\n8.0,16.0,1024.0\n",
        "<a>,<b>,<c>\n\n8,16,1024\n,,\n\n",
        "<a>,<b>,<c>,,\n8,16,1024,,\n",
        "<a>,<b>,<c>,note\n8,16,1024\n",
        "<a>,<b>,<c>\n08,16,00001024",
    ],
)
def test_people_write_tables_in_many_ways(table, text):
    assert table(text) == [(8, 16, 1024)]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("<a>,<b>,<c>\n8,16,64\n8,16,1,024\n", r"shapes\.csv:3: 4 fields, .* names 3 columns"),
        ("<a>,<b>,<c>\n8,16,64,\n", r"shapes\.csv:2: 4 fields"),
        ("<a>,<b>,<A>,<c>\n8,16,8,64\n", r"shapes\.csv:1: columns 1 and 3 are both named"),
        ("<a>,<b>,<c>,note,Note\n", "columns 4 and 5 are both named 'note'"),
        ("<a>,<b>\n8,16\n", "lacks the columns"),
        ("", "lacks the columns"),
        ("<a>,<b>,<c>\n,,\n", "has no shapes"),
        ("<a>,<b>,<c>\n8,16\n", r"shapes\.csv:2: .* must be an integer from 0 to 2\*\*40, got ''"),
        ('<a>,<b>,<c>\n8,16,"1,5"\n', r":2: .* got '1,5'"),
        ("<a>,<b>,<c>\n8,16,1.5\n", r":2: .* got '1\.5'"),
        ("<a>,<b>,<c>\n8,16,-64\n", r":2: .* got '-64'"),
        ("<a>,<b>,<c>\n8,16,99999999999999999999\n", r":2: .* got '99999999999999999999'"),
        (f"<a>,<b>,<c>\n8,16,{'0' * 5000}1\n", r":2: .* got '0{40}\.\.\.'"),
        ("<a>,<b>,<c>\n8,16,\N{ARABIC-INDIC DIGIT TWO}\n", ":2: .* must be an integer"),
    ],
)
def test_what_is_no_table_names_its_line_or_column(table, text, match):
    with pytest.raises(ConfigError, match=match) as error:
        table(text)
    assert error.value.allowed


def test_a_table_is_utf8_and_no_longer_than_a_list(tmp_path, monkeypatch):
    path = tmp_path / "shapes.csv"
    path.write_bytes("m,n,k,Größe\n1,2,3,4\n".encode("latin-1"))
    with pytest.raises(ConfigError, match="cannot be read") as error:
        list(shape_rows(path, ("m",), ()))
    assert error.value.key == "csv"
    assert shape_table.MAX_SHAPES == 1_000_000
    monkeypatch.setattr(shape_table, "MAX_SHAPES", 1000)
    path.write_text("m\n" + "1\n" * 1001)
    with pytest.raises(ConfigError, match=r":1002: .* at most 1,000 shapes"):
        list(shape_rows(path, ("m",), ()))


@pytest.mark.parametrize(("text", "value"), [("1,099,511,627,776", 1 << 40), ("0", 0), (" 7 ", 7)])
def test_extents_are_read_from_text(text, value):
    assert read_extent("m", text) == value


def test_extents_of_both_commands_may_have_commas(capsys):
    assert run(["gemm", "1,024", "64", "64", "--quiet"]) == 0
    assert run(["attention", "1", "8", "1,024", "--quiet"]) == 0
    assert capsys.readouterr().out.count("1,024") == 3
    assert run(["attention", "1", "8", "many", "--quiet"]) == 2
    assert "seq must be an integer from 0 to 2**40, got 'many'" in capsys.readouterr().err


def test_a_quote_that_is_never_closed_loses_no_rows(table):
    with pytest.raises(ConfigError, match="cannot be read"):
        table('<a>,<b>,<c>,note\n8,16,1024,"oops\n8,16,2048,x\n')
