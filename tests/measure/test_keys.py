"""Keys of operations: one for each kernel, and the same after JSON."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from tests.projection.jobs import jobs

from projector.kernels import moe_exchange
from projector.kernels.collective_algorithms import OPERATIONS
from projector.measure.keys import EXCHANGES, KINDS, PHASES, OperationKey, keys_of
from projector.operations import table
from projector.projection.evaluate import evaluate
from thoroughness import examples


def test_names_follow_codes():
    assert [getattr(table, name.upper()) for name in KINDS] == list(range(5))
    assert [getattr(table, name.upper()) for name in PHASES] == list(range(3))
    assert [getattr(moe_exchange, name.upper()) for name in EXCHANGES] == list(range(5))
    assert OPERATIONS[0] == "all_reduce"


@settings(max_examples=examples(25))
@given(job=jobs())
def test_rows_of_one_key_take_the_same_time(job):
    evaluation = evaluate([job])
    rows = np.flatnonzero(evaluation.table.phase >= 0)
    keys = keys_of(evaluation.table, rows)
    once_s = evaluation.rows.time_s / evaluation.table.repeats
    known: dict[OperationKey, float] = {}
    for row, key in zip(rows, keys, strict=True):
        assert known.setdefault(key, once_s[row]) == pytest.approx(once_s[row], rel=1e-12)
        assert OperationKey.model_validate_json(key.model_dump_json()) == key


def test_keys_need_no_compiler():
    code = "import sys, projector.measure.task; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
