"""Columns of sections."""

import inspect
import re
from operator import itemgetter

import numpy as np
import pytest

from projector.config.training import TrainingConfig
from projector.lower.cluster_columns import ClusterColumns, HostColumns, SoftwareColumns
from projector.lower.columns import Column, KeyColumn, SectionTable
from projector.lower.money import MoneyColumns, PowerColumns
from projector.lower.sections import ModelColumns, ParallelismColumns, RunColumns, TrainingColumns

SECTIONS = [
    TrainingConfig(micro_batch_size=size, global_batch_size=64, seq_length=4096, **more)
    for size, more in enumerate(
        [
            {},
            {"precision": "fp8"},
            {"precision": "mxfp4"},
            {"recompute": "full", "activation_offload_fraction": 0.5},
            {},
        ],
        start=1,
    )
]


COLUMNS = [column for column in vars(TrainingColumns).values() if isinstance(column, Column)]
KEYS = [key for key in vars(TrainingColumns).values() if isinstance(key, KeyColumn)]


@pytest.mark.parametrize("asked", [0, 1, 3])
def test_a_table_that_grows_is_the_table_of_all(asked):
    """Whether its columns were ``asked`` for before."""
    whole, grown = SectionTable(SECTIONS), SectionTable(SECTIONS[:1])
    for count in range(1, len(SECTIONS)):
        if count <= asked:
            for column in COLUMNS:
                grown.column(column)
            for key in KEYS:
                grown.key(key)
        grown.grow(SECTIONS[count : count + 1])
    assert grown.items == whole.items
    for column in COLUMNS:
        assert grown.column(column).dtype == whole.column(column).dtype
        np.testing.assert_array_equal(grown.column(column), whole.column(column))
    for key in KEYS:
        np.testing.assert_array_equal(grown.key(key), whole.key(key))


@pytest.mark.parametrize(
    "columns",
    [
        *(ModelColumns, ParallelismColumns, TrainingColumns, RunColumns, SoftwareColumns),
        *(HostColumns, ClusterColumns, PowerColumns, MoneyColumns),
    ],
)
def test_columns_say_what_they_are(columns):
    """By a field, which says it, or in a comment beside a function that reads more than one."""
    lines = inspect.getsource(columns).splitlines()
    for name, column in vars(columns).items():
        if isinstance(column, Column | KeyColumn):
            assert column.name == name
            at = next(at for at, line in enumerate(lines) if line.startswith(f"    {name} = "))
            comment = lines[at].partition("  # ")[2] or lines[at - 1].partition("    # ")[2]
            if isinstance(column, KeyColumn):
                assert comment.endswith(".")
            else:
                assert bool(column.field) != bool(re.fullmatch(r".+\. \[.+\]", comment))


def test_a_column_is_read_once_and_not_written():
    columns = TrainingColumns(SectionTable(SECTIONS), np.array([0, 1, 1, 3]))
    assert columns.micro_batch.tolist() == [1, 2, 2, 4]
    assert columns.micro_batch is columns.micro_batch
    assert not columns.micro_batch.flags.writeable


def test_a_part_is_read_once_for_all_sections_that_share_it():
    read = []
    letters = Column(np.int64, lambda name: read.append(name) or len(name), itemgetter(0))
    one, three = "one", "three"
    table = SectionTable([(one, 1), (three, 2), (one, 3)])
    assert table.column(letters).tolist() == [3, 5, 3]
    table.grow([(three, 4), ("eleven", 5)])
    assert table.column(letters).tolist() == [3, 5, 3, 5, 6]
    assert read == [one, three, "eleven"]
