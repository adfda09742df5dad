"""Results and allocators against plain Python, to the bit."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from projector.kernels.device_memory import Devices, RankBytes, allocator_columns
from projector.kernels.results import (
    BREAKDOWN_TERMS,
    FEW,
    UNEVEN,
    Families,
    Jobs,
    ResultColumns,
    result_columns,
)
from projector.kernels.step import BUSIEST, ENDING, LAST_OPERATION, PEAK, STEP, StepOutputs
from reference import results as reference

sizes = st.one_of(st.just(0.0), st.floats(1.0, 2.0**40))
shares = st.floats(0.0, 1.0)
seconds = st.one_of(st.just(0.0), st.floats(1e-6, 10.0))
works = st.floats(1e-6, 10.0)

ranks = st.fixed_dictionaries(
    dict.fromkeys(("static", "transient", "unplaced", "embedding"), sizes)
)
devices = st.fixed_dictionaries(
    {
        "left": st.floats(-1e9, 2e11),
        "pinned_share": shares,
        "idle_share": shares,
        "fixed": st.booleans(),
        "stated": st.one_of(st.none(), shares),
    }
)
families = st.fixed_dictionaries(
    {
        "pp": st.integers(1, 16),
        "gpus": st.integers(16, 1 << 17),
        "seq": st.integers(1, 1 << 20),
        "flop_per_sequence": st.floats(1e6, 1e18),
        "recompute_flop": st.one_of(st.just(0.0), st.floats(1e6, 1e18)),
        "peak_tflops": st.floats(1.0, 1e4),
        "low": st.floats(0.5, 1.0),
        "high": st.floats(1.0, 1.5),
    }
)
jobs = st.fixed_dictionaries(
    {"global_batch": st.integers(1, 1 << 20), "microbatches": st.integers(1, 1 << 16)}
)
steps = st.fixed_dictionaries(
    {
        "step": works,
        "last": works,
        "busiest": works,
        "ending": seconds,
        "breakdown": st.lists(seconds, min_size=BREAKDOWN_TERMS, max_size=BREAKDOWN_TERMS),
        "peak": sizes,
    }
)
NUMBERS = {
    STEP: "step", LAST_OPERATION: "last", BUSIEST: "busiest", ENDING: "ending", PEAK: "peak",
}  # fmt: skip
"""Names of what stands behind the breakdown of a step."""

cases = st.lists(st.tuples(jobs, families, steps, ranks, devices), min_size=1, max_size=3)


def column(rows, name):
    return np.array([row[name] for row in rows])


def as_devices(rows):
    fixed = column(rows, "fixed").astype(np.float64)
    stated = [np.nan if row["stated"] is None else row["stated"] for row in rows]
    return Devices(
        column(rows, "left"),
        column(rows, "pinned_share") * fixed,
        column(rows, "idle_share") * fixed,
        fixed,
        np.array(stated),
    )


def as_ranks(rows):
    return RankBytes(*(column(rows, name) for name in RankBytes._fields))


@given(st.lists(st.tuples(sizes, ranks, devices), min_size=1, max_size=3))
def test_allocators_match_reference(found):
    num = len(found)
    activations, of_ranks, of_devices = zip(*found, strict=True)
    # Ranks and families stand the other way round.
    back = np.arange(num)[::-1].copy()
    outputs = np.empty((3, num))
    allocator_columns(
        np.array(activations),
        back,
        as_ranks(of_ranks[::-1]),
        back,
        as_devices(of_devices[::-1]),
        *outputs,
    )
    for row, case in enumerate(found):
        assert tuple(outputs[:, row].tolist()) == reference.allocator(*case)


@given(cases)
@example(
    [
        (
            {"global_batch": 8, "microbatches": 4},
            {"pp": 4, "gpus": 16, "seq": 1, "flop_per_sequence": 1e9, "recompute_flop": 0.0,
             "peak_tflops": 1.0, "low": 0.9, "high": 1.1},
            {"step": 10.0, "last": 9.0, "busiest": 3.0, "ending": 1.0,
             "breakdown": [0.0] * 6 + [bubble_s] + [0.0] * 5, "peak": 1e9},
            {"static": 1e8, "transient": 1e6, "unplaced": 1e6, "embedding": 0.0},
            {"left": 2e9, "pinned_share": 0.1, "idle_share": 0.2, "fixed": True, "stated": None},
        )
        for bubble_s in (2.0, 0.5)
    ]
)  # fmt: skip
def test_results_match_reference(found):
    num = len(found)
    job, family, step, rank, device = (list(rows) for rows in zip(*found, strict=True))
    back = np.arange(num)[::-1].copy()
    outputs = StepOutputs.empty(num)
    outputs.number[:, :BREAKDOWN_TERMS] = column(step, "breakdown")
    for place, name in NUMBERS.items():
        outputs.number[:, place] = column(step, name)
    columns = ResultColumns.empty(num)
    result_columns(
        Jobs(back, back, column(job, "global_batch"), column(job, "microbatches")),
        Families(
            *(
                column(family[::-1], name)
                for name in (
                    "pp", "gpus", "seq", "flop_per_sequence", "recompute_flop", "peak_tflops",
                    "low", "high",
                )
            )
        ),
        outputs,
        as_devices(device[::-1]),
        as_ranks(rank[::-1]),
        columns,
    )  # fmt: skip
    for row, case in enumerate(found):
        expected = reference.result(*case)
        assert list(expected) == list(ResultColumns._fields)
        for name, value in expected.items():
            assert getattr(columns, name)[..., row].tolist() == value, name


def test_limits_stand_behind_the_terms():
    assert (FEW, UNEVEN) == (BREAKDOWN_TERMS, BREAKDOWN_TERMS + 1)
