"""Results and allocators against plain Python, to the bit."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from kernels.endings import NOTHING, ending, run_results
from projector.kernels import results
from projector.kernels.memory import Devices, RankBytes, allocator_columns
from projector.kernels.results import BREAKDOWN_TERMS, FEW, UNEVEN
from projector.kernels.step import (
    BUSIEST,
    BUSIEST_RANK,
    ENDING,
    LAST_OPERATION,
    PEAK,
    PEAK_RANK,
    STEP,
)
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
NUMBERS = {
    STEP: "step", LAST_OPERATION: "last", BUSIEST: "busiest", ENDING: "ending", PEAK: "peak",
}  # fmt: skip
"""Names of what stands behind the breakdown of a step."""

RESULTS = {
    "iteration_ms": results.ITERATION_MS,
    "model_flop": results.MODEL_FLOP,
    "recompute_flop": results.RECOMPUTE_FLOP,
    "tokens_per_s_per_gpu": results.TOKENS_PER_S,
    "tflops_per_gpu": results.TFLOPS,
    "mfu": results.MFU,
    "hfu": results.HFU,
    "bubble_fraction": results.BUBBLE_FRACTION,
    "usable_gib": results.USABLE_GIB,
    "allocator_gib": results.ALLOCATOR_GIB,
    "peak_gib": results.PEAK_GIB,
    "peak_gib_low": results.PEAK_GIB_LOW,
    "peak_gib_high": results.PEAK_GIB_HIGH,
    "headroom_gib": results.HEADROOM_GIB,
    "late_percent": results.LATE_PERCENT,
}
"""What the numbers of results are called."""

cases = st.lists(st.tuples(jobs, families, ranks, devices), min_size=1, max_size=3)

uneven = (
    [(0, 3 * 10**12, [0], 0, 3 * 10**12, busy * 10**12) for busy in (3, 1)],
    [[0], [1]],
    [NOTHING, {**NOTHING, "reduce_after": 0.1}],
    *([0.0, 0.0], 0.0, 0.0, 8, False, 0.0),
    [(1e8, 9e8), (1e8, 0.0)],
)
"""The end of a step whose last rank works a third of the time."""


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


def with_few(microbatches):
    """Return an end of a step with a bubble, and a job of so many microbatches on four stages."""
    family = {
        "pp": 4, "gpus": 16, "seq": 1, "flop_per_sequence": 1e9, "recompute_flop": 0.0,
        "peak_tflops": 1.0, "low": 0.9, "high": 1.1,
    }  # fmt: skip
    rank = {"static": 1e8, "transient": 1e6, "unplaced": 1e6, "embedding": 0.0}
    device = {"left": 2e9, "pinned_share": 0.1, "idle_share": 0.2, "fixed": True, "stated": None}
    return uneven, [({"global_batch": 8, "microbatches": microbatches}, family, rank, device)]


@given(ending(), cases)
@example(*with_few(4))
@example(*with_few(16))
def test_results_match_reference(end, found):
    job, family, rank, device = (list(rows) for rows in zip(*found, strict=True))
    numbers = {
        results.GPUS: column(family, "gpus"),
        results.STAGE_GPUS: column(family, "gpus") // column(family, "pp"),
        results.SEQ: column(family, "seq"),
        results.FLOP: column(family, "flop_per_sequence"),
        results.AGAIN_FLOP: column(family, "recompute_flop"),
        results.DATASHEET_TFLOPS: column(family, "peak_tflops"),
        results.LOW: column(family, "low"),
        results.HIGH: column(family, "high"),
        results.FEW_BELOW: [4 * each["pp"] if each["pp"] > 1 else 0 for each in family],
    }
    # Families stand the other way round.
    of_families = np.array([numbers[place][::-1] for place in range(results.RATED_NUMBERS)])
    rated = results.Rated(
        column(job, "global_batch"),
        column(job, "microbatches"),
        of_families.astype(np.float64),
        as_devices(device[::-1]),
        as_ranks(rank),
    )
    # An order that runs both ways counts half of them.
    ends = [(*end[:6], each["microbatches"] // 2 + 1, *end[7:]) for each in job]
    steps, columns = run_results(rated, *ends)
    for row, (of_job, of_family, of_rank, of_device) in enumerate(found):
        number, ends = steps.number[row].tolist(), steps.rank[row].tolist()
        step = {name: number[place] for place, name in NUMBERS.items()}
        step["breakdown"] = number[:BREAKDOWN_TERMS]
        expected = reference.result(of_job, of_family, step, of_rank, of_device)
        for name, place in RESULTS.items():
            assert columns.column(place)[row] == expected[name], name
        assert columns.number[results.BREAKDOWN_MS :, row].tolist() == expected["breakdown_ms"]
        assert columns.limit[row] == expected["limit"]
        assert columns.busiest_rank[row] == ends[BUSIEST_RANK]
        assert columns.peak_rank[row] == ends[PEAK_RANK]


def test_uneven_stages_and_few_microbatches_are_limits():
    for microbatches, limit in ((4, FEW), (16, UNEVEN)):
        _, [(job, family, rank, device)] = with_few(microbatches)
        step = {"step": 3.1, "last": 3.0, "busiest": 3.0, "ending": 1.0, "peak": 1e9}
        step["breakdown"] = [0.0] * 6 + [2.0] + [0.0] * 5
        assert reference.result(job, family, step, rank, device)["limit"] == limit


def test_limits_stand_behind_the_terms():
    assert (FEW, UNEVEN) == (BREAKDOWN_TERMS, BREAKDOWN_TERMS + 1)
