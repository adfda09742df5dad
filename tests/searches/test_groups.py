"""Configurations that a projection cannot tell apart."""

import numpy as np
import pytest

from projector.searches.ranking import noise_groups

NOISE = {(): 0.0, ("a",): 0.02, ("b",): 0.05, ("a", "b"): 0.1}


def noise(fields):
    return NOISE[tuple(sorted(fields))]


def groups(*entries):
    times = np.array([time for time, _, _ in entries])
    return noise_groups(times, [{"a": a, "b": b} for _, a, b in entries], noise).tolist()


def test_the_first_group_is_within_the_noise_of_the_fastest():
    # The noise follows what differs from the leader, so groups overlap in time.
    assert groups((1.0, 1, 1), (1.01, 2, 1), (1.03, 3, 1), (1.04, 1, 2), (1.09, 2, 2)) == [
        1, 1, 2, 1, 1
    ]  # fmt: skip
    # What is left has a leader of its own.
    assert groups((1.0, 1, 1), (1.2, 2, 1), (1.22, 3, 1), (1.5, 1, 2)) == [1, 2, 2, 3]


def test_the_same_and_one_and_none():
    assert groups((1.0, 1, 1), (1.0, 1, 1), (1.0 + 1e-9, 1, 1)) == [1, 1, 2]
    assert groups((1.0, 1, 1)) == [1]
    assert noise_groups(np.zeros(0), [], noise).tolist() == []


@pytest.mark.parametrize("size", [2, 60])
def test_groups_are_what_their_definition_says(size):
    rng = np.random.default_rng(size)
    times = np.sort(rng.uniform(1.0, 1.5, size))
    settings = [{"a": None if rng.random() < 0.5 else [1], "b": str(k % 3)} for k in range(size)]
    found = noise_groups(times, settings, noise)
    rest, number = list(range(size)), 0
    while rest:
        number += 1
        leader, left = rest[0], []
        for row in rest:
            changed = [name for name in "ab" if settings[row][name] != settings[leader][name]]
            within = row == leader or times[row] <= times[leader] * (1.0 + noise(changed))
            if within:
                assert found[row] == number
            else:
                left.append(row)
        rest = left
