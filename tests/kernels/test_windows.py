"""Passes over starts and bounds of ranks against plain lists."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from projector.kernels import windows as kernels
from reference import windows as reference
from thoroughness import examples


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 40), st.integers(0, 2**32 - 1))
def test_a_pass_matches_its_twin(pp, microbatches, visits, seed):
    """Times need not rise with the microbatch, and orders need not agree with the sequence."""
    random = np.random.default_rng(seed)
    shape = (pp, 3, microbatches)
    sequence = np.argwhere(np.ones(shape)).astype(np.int64)
    random.shuffle(sequence)
    last = random.integers(0, microbatches + 1, (*shape, 3))
    first = random.integers(0, last + 1)
    duration, latency = random.integers(0, 9, (pp, 3)), random.integers(0, 9, (2, pp))
    for step in (1, -1):
        found = random.integers(-9, 30, shape)
        if seed % 2:
            found = np.ascontiguousarray(np.sort(found)[..., ::step])
        expected = found.tolist()
        arguments = sequence, first, last, duration, latency
        left = kernels.pass_over(*arguments, step, visits, found)
        lists = [each.tolist() for each in arguments]
        assert left == reference.pass_over(*lists, step, visits, expected)
        assert found.tolist() == expected


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(1, 12), st.integers(0, 12), st.integers(0, 2**32 - 1))
def test_bound_of_a_rank_matches_its_twin(count, visits, seed):
    random = np.random.default_rng(seed)
    start, work, tail = random.integers(0, 20, (3, count))
    tail = np.sort(tail)[::-1].copy()
    arguments = np.unique(start), start, work, tail
    expected = reference.least_objective(*(each.tolist() for each in arguments), visits)
    assert kernels.least_objective(*arguments, visits) == expected
