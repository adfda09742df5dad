import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

import projector.report.terminal as terminal
from projector.report.terminal.console import NARROWEST, WIDEST, render
from projector.report.terminal.grid import (
    LEAST_KEY,
    Entries,
    Grid,
    Pasted,
    assignments,
    bar,
    entries,
)

WIDTHS = range(NARROWEST, WIDEST + 1)

word = st.text("abcdefgh_.", min_size=1, max_size=30)
number = st.floats(-1e9, 1e9).map(lambda value: f"{value:,.2f}")
sentence = st.lists(st.text("abcdef", min_size=1, max_size=12), max_size=12).map(" ".join)
CELLS = {"": number, "=": word, "<": sentence, "|": st.just(bar(0.5))}


@st.composite
def tables(draw):
    kinds = draw(st.lists(st.sampled_from(sorted(CELLS)), min_size=1, max_size=12))
    heads = [f"{kind}{draw(st.text('xyz ', max_size=14)).strip()}" for kind in kinds]
    rows = draw(st.lists(st.tuples(*(CELLS[kind] for kind in kinds)), min_size=1, max_size=5))
    table = Grid(*heads, gap=draw(st.integers(1, 2)))
    for row in rows:
        table.add_row(*row)
    return table


@given(table=tables(), width=st.sampled_from(WIDTHS))
def test_no_number_and_no_head_is_ever_cut(table, width):
    lines = render(table, width=width).splitlines()
    assert max(map(len, lines), default=0) <= width
    text = "\n".join(lines)
    assert "…" not in text
    for column in table.columns:
        if column.kind == "bar":
            continue
        assert column.head in text
        for cell in column.cells:
            if column.kind == "number":
                assert cell in text.split()
            # Longer words may be folded, where they are wider than what is left for them.
            assert all(part in text for part in str(cell).split() if len(part) <= LEAST_KEY)


@given(table=tables(), width=st.sampled_from(WIDTHS))
def test_numbers_of_a_row_stay_in_its_order(table, width):
    text = render(table, width=width)
    for column in table.columns:
        if column.kind == "number" and len(set(column.cells)) == len(column.cells) > 1:
            places = [re.search(rf"(?<!\S){re.escape(cell)}(?!\S)", text) for cell in column.cells]
            assert all(places)


def wide_table(names):
    table = Grid("=stage", *(f"column {number}" for number in range(12)), "|")
    for row, name in enumerate(names):
        table.add_row(name, *(f"{row}{number:03}.25" for number in range(12)), bar(1.0))
    return table


def test_a_narrow_table_stands_below_itself_and_names_its_rows_again():
    text = render(wide_table(["first", "second"]), width=60)
    blocks = text.strip("\n").split("\n\n")
    assert len(blocks) > 1
    for block in blocks:
        head, first, second = block.splitlines()
        assert head.startswith("stage")
        assert first.split()[0] == "first"
        assert second.split()[0] == "second"
        assert len(head.split("column")) == len(first.split())


def test_rows_that_nothing_tells_apart_are_numbered():
    blocks = render(wide_table(["same", "same"]), width=60).strip("\n").split("\n\n")
    for block in blocks:
        assert [line.split()[0] for line in block.splitlines()] == ["row", "1", "2"]
    assert "same" in blocks[0]


def test_bars_give_way_before_columns_do():
    table = Grid("=term", "ms", "<what it is", "|")
    table.add_row("a" * 20, "12,345.6", "a description of this term", bar(1.0))
    assert "█" in render(table, width=100)
    narrow = render(table, width=50)
    assert "█" not in narrow
    assert "\n\n" not in narrow


def test_every_table_of_a_report_follows_the_width():
    # A table of the library cuts what has no room, or squeezes it letter by letter.
    for path in Path(terminal.__file__).parent.glob("*.py"):
        if path.name != "grid.py":
            assert "rich.table" not in path.read_text(encoding="utf-8"), path.name


@pytest.mark.parametrize("width", [40, 60, 80])
def test_entries_are_not_broken_within(width):
    texts = [f"name {'x' * size} %" for size in range(1, 20)]
    found = render(entries(texts), width=width)
    assert max(map(len, found.splitlines())) <= width
    lines = [re.split(r"  +", line) for line in found.splitlines()]
    assert [each for line in lines for each in line] == texts
    assert render(Entries((Text("alone"),)), width=width) == "alone\n"


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_what_is_pasted_is_one_line(width):
    text = assignments({f"parallelism.some_field_{number}": number for number in range(12)})
    assert render(Pasted(text), width=width) == f"  {text}\n"


def test_overrides_are_quoted_for_a_shell():
    import shlex

    given = {
        "training.recompute.modules": ["mlp", "moe_act"],
        "parallelism.fsdp": False,
        "parallelism.dp": None,
        "cluster.device": "my chips/x.yaml",
    }
    text = assignments(given)
    assert shlex.split(text) == [
        "training.recompute.modules=[mlp,moe_act]",
        "parallelism.fsdp=false",
        "parallelism.dp=null",
        "cluster.device=my chips/x.yaml",
    ]
    assert "'training.recompute.modules=[mlp,moe_act]'" in text
