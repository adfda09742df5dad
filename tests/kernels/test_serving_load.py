"""The replica under a load against the plain one that takes every step by itself."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from projector.kernels import serving_load as kernel
from reference import serving_load as reference
from thoroughness import examples


def random_table(rng):
    """A table with kinks that grows along every axis."""
    batch, context = np.array([1, 2, 5, 12]), np.array([0, 7, 40, 200])
    tokens, chunk = np.array([2, 9, 30, 100]), np.array([2, 10, 64])

    def rising(*shape):
        grid = rng.uniform(0.1, 1.0, shape)
        for axis in range(len(shape)):
            grid = grid.cumsum(axis=axis)
        return grid

    return kernel.StepTable(
        batch, context, rising(4, 4), 0.1 * rising(4, 4), tokens, rising(4), chunk, context,
        0.1 * rising(3, 4), 0.1 * rising(4), *(2.0 * rng.random(2)), *(0.1 * rng.random(2)),
    )  # fmt: skip


def random_load(rng, count, gap_s):
    arrival_s = np.cumsum(rng.exponential(gap_s, count)) if gap_s > 0 else np.zeros(count)
    inputs = rng.integers(1, 60, count)
    prefix = rng.integers(0, inputs) * rng.integers(0, 2)
    return kernel.Requests(arrival_s, inputs, rng.integers(1, 60, count), prefix)


def run_kernel(requests, limits, table):
    count = len(requests.arrival_s)
    served = kernel.Served(
        *(np.full(count, np.nan) for _ in range(3)), np.zeros(count, np.int64), np.empty(count),
        np.empty(kernel.TOTALS),
    )  # fmt: skip
    return kernel.serve_requests(requests, limits, table, served), served


def limits_of(units, **settings):
    plain = kernel.Limits(
        max_seqs=4, max_tokens=32, chunk_tokens=32, prompts=kernel.CHUNKED, reserve=0,
        page_tokens=4, units=units, layers=3, windowed=0, window_pages=0, concurrency=0,
        overlaps=0,
    )  # fmt: skip
    return plain._replace(**settings)


@settings(max_examples=examples(200))
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 30),
    gap_s=st.sampled_from([0.0, 0.3, 5.0, 40.0]),
    max_seqs=st.integers(1, 8),
    max_tokens=st.integers(1, 80),
    chunk_tokens=st.integers(1, 80),
    prompts=st.sampled_from([kernel.CHUNKED, kernel.WHOLE, kernel.FIRST]),
    reserve=st.integers(0, 1),
    page_tokens=st.integers(1, 20),
    room=st.floats(1.0, 4.0),
    windowed=st.integers(0, 2),
    concurrency=st.integers(0, 5),
    overlaps=st.integers(0, 1),
)
@example(1, 30, 0.3, 8, 64, 64, kernel.CHUNKED, 0, 4, 1.0, 0, 0, 0)  # preempts
@example(1, 30, 0.3, 8, 4, 80, kernel.CHUNKED, 0, 4, 2.0, 0, 0, 0)  # fewer tokens than sequences
def test_matches_reference(
    seed, count, gap_s, max_seqs, max_tokens, chunk_tokens, prompts, reserve, page_tokens, room,
    windowed, concurrency, overlaps,
):  # fmt: skip
    rng = np.random.default_rng(seed)
    requests, table = random_load(rng, count, gap_s), random_table(rng)
    most_pages = -(-120 // page_tokens)
    limits = limits_of(
        int(room * 4 * most_pages), max_seqs=max_seqs, max_tokens=max_tokens,
        chunk_tokens=chunk_tokens, prompts=prompts, reserve=reserve, page_tokens=page_tokens,
        layers=4 - windowed, windowed=windowed, window_pages=2, concurrency=concurrency,
        overlaps=overlaps,
    )  # fmt: skip
    status, served = run_kernel(requests, limits, table)
    expected = reference.serve(requests, limits, table)
    assert status == kernel.OK
    close = {"rtol": 1e-9, "atol": 1e-9}
    columns = expected.requests
    np.testing.assert_allclose(served.admitted_s, [r.admitted for r in columns], **close)
    np.testing.assert_allclose(served.first_s, [r.first for r in columns], **close)
    np.testing.assert_allclose(served.finish_s, [r.finish for r in columns], **close)
    np.testing.assert_array_equal(served.preemptions, [r.preempted for r in columns])
    totals = np.zeros(kernel.TOTALS)
    totals[kernel.END], totals[kernel.BUSY] = expected.now, expected.busy
    totals[kernel.STEPS], totals[kernel.PROMPT_STEPS] = expected.steps, expected.prompt_steps
    totals[kernel.PROMPT_S], totals[kernel.BATCH_S] = expected.prompt_time, expected.batch_time
    totals[kernel.PEAK_UNITS], totals[kernel.COMPUTED] = expected.peak, expected.computed
    np.testing.assert_allclose(served.totals, totals, **close)


def test_too_long_for_the_cache():
    requests = kernel.Requests(np.zeros(1), np.array([40]), np.array([41]), np.zeros(1, np.int64))
    table = random_table(np.random.default_rng(0))
    status, _ = run_kernel(requests, limits_of(3 * 20), table)
    assert status == kernel.STUCK


def test_pages_run_out():
    requests = random_load(np.random.default_rng(0), 30, 0.0)
    table = random_table(np.random.default_rng(0))
    _, served = run_kernel(requests, limits_of(3 * 31), table)
    assert served.preemptions.sum() > 0
    assert served.totals[kernel.PEAK_UNITS] <= 3 * 31
    _, reserved = run_kernel(requests, limits_of(3 * 31, reserve=1), table)
    assert reserved.preemptions.sum() == 0


def test_deterministic_service_waits_as_md1():
    """One at a time with a fixed service time: mean wait rho s / (2 (1 - rho))."""
    rng = np.random.default_rng(1)
    count, service_s, load = 200_000, 10.0, 0.7
    arrival_s = np.cumsum(rng.exponential(service_s / load, count))
    requests = kernel.Requests(
        arrival_s, np.full(count, 8), np.full(count, 1), np.zeros(count, np.int64)
    )
    flat = np.zeros((2, 2))
    two = np.array([1, 2])
    table = kernel.StepTable(
        two,
        two,
        flat,
        flat,
        two,
        np.full(2, service_s),
        two,
        two,
        flat,
        np.zeros(2),
        0.0,
        0.0,
        0.0,
        0.0,
    )
    _, served = run_kernel(requests, limits_of(10**6, max_seqs=1), table)
    waited_s = (served.admitted_s - arrival_s).mean()
    assert waited_s == pytest.approx(load * service_s / (2.0 * (1.0 - load)), rel=0.02)
