"""The local search against its twin, number by number."""

import numpy as np
import pytest

from projector.kernels import anneal as kernels
from reference import anneal as reference
from reference import zero_bubble


def codes(texts):
    return np.array([["FBW".index(letter) for letter in text] for text in texts], np.int8)


def run(texts, times, to_next, to_previous, since, size, w_share, limit, least, *search):
    kind = codes(texts)
    stages = kernels.StageTimes(
        *(np.array(each, np.int64) for each in (times, to_next, to_previous, since))
    )
    memory = kernels.StageMemory(np.array(size, np.float64), w_share, np.array(limit, np.float64))
    best = kernels.anneal(kind, stages, memory, least, *search)
    return ["".join("FBW"[code] for code in row) for row in kind.tolist()], best


@pytest.mark.parametrize("period", [False, True])
@pytest.mark.parametrize(("pp", "microbatches"), [(1, 2), (2, 3), (3, 4), (4, 3)])
def test_search_matches_twin(pp, microbatches, period):
    random = np.random.default_rng([pp, microbatches, period])
    improved = 0
    for seed in range(1, 9):
        times = random.integers(1, 20, (pp, 3)).tolist()
        to_next, to_previous = random.integers(0, 5, (2, pp)).tolist()
        since = [0] * pp
        for s in range(1, pp if period else 0):
            since[s] = since[s - 1] + times[s - 1][0] + to_next[s - 1]
        size, w_share = [0.5] * pp, float(random.choice([0.0, 0.5, 1.0]))
        limit = (0.5 * random.integers(1, 4, pp)).tolist()
        # One microbatch after the other fits whatever the limit.
        texts = ["FBW" * microbatches] * pp
        expected = reference.anneal(
            texts, times, to_next, to_previous, period, size, w_share, limit, 10.0, 300, seed
        )
        found = run(
            texts, times, to_next, to_previous, since, size, w_share, limit, 0, 10.0, 300, seed
        )
        assert found == expected
        values = zero_bubble.objectives(found[0], times, to_next, to_previous)
        assert values[period] == found[1]
        assert all(map(reference.is_legal, found[0], size, [w_share] * pp, limit))
        improved += found[0] != texts
    assert improved or pp == 1


def test_search_ends_at_the_bound():
    times = [[10, 10, 10]] * 2
    arguments = (times, [0, 0], [0, 0], [0, 0], [1.0, 1.0], 1.0, [3.0, 3.0])
    texts = ["FBW" * 3] * 2
    # Where the bound is met from the start, nothing is moved.
    assert run(texts, *arguments, 10**6, 5.0, 1000, 1)[0] == texts
    # F and B of the last stage, and all that the first has left of it.
    assert run(texts, *arguments, 100, 5.0, 10**5, 1)[1] == 100


def test_orders_that_cannot_run_are_refused():
    times = [[1, 1, 1]] * 2
    arguments = (times, [0, 0], [0, 0], [0, 0], [1.0, 1.0], 1.0)
    for texts, limit in (
        (["FBWFBW", "FFBBWW"], 1.0),  # too much
        (["FBWFBW", "BFWFBW"], 9.0),  # B before its F
        (["FBWFBW", "FWBFBW"], 9.0),  # W before its B
        (["FBWFBW", "FFBBWW"], 9.0),  # B of the first waits for F of the second, and that for it
    ):
        found = run(texts, *arguments, [limit, limit], 0, 1.0, 100, 1)
        assert found == (texts, kernels.NONE)
