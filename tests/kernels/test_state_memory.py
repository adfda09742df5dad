"""What ranks hold besides activations, against plain Python."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.kernels.memory import Maxima, Replica, State, Sums, hold_state
from projector.kernels.replicas import Patterns
from reference import state_memory as reference

NF4 = 0.5625
FLAGS = ("fsdp", "waits", "again", "frozen", "keeps_quantised")
RANKS = ("dense_ranks", "expert_ranks")

numbers = st.one_of(st.just(0.0), st.floats(1.0, 1e6))
replicas = st.fixed_dictionaries(
    {
        **dict.fromkeys(Replica._fields, numbers),
        **dict.fromkeys(FLAGS, st.sampled_from([0.0, 1.0])),
        **dict.fromkeys(RANKS, st.sampled_from([1.0, 2.0, 8.0])),
        "zero": st.sampled_from([0.0, 1.0, 2.0, 3.0]),
        "on_device": st.floats(0.0, 1.0),
    }
)
stages = st.fixed_dictionaries(dict.fromkeys((*Sums._fields, *Maxima._fields), numbers))
ranks = st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=3), st.booleans())


@given(
    rows=st.lists(stages, min_size=5, max_size=5),
    kinds=st.lists(st.lists(ranks, min_size=1, max_size=2), min_size=2, max_size=2),
    chosen=st.lists(
        st.tuples(replicas, st.integers(0, 1), st.integers(0, 2)), min_size=1, max_size=3
    ),
)
def test_ranks_match_reference(rows, kinds, chosen):
    of_patterns = [rank for pattern in kinds for rank in pattern]
    nothing = np.zeros(1, np.int64)
    patterns = Patterns(*[nothing] * len(Patterns._fields))._replace(
        rank_kind_first=np.cumsum([0, *map(len, kinds)]),
        joins_ends=np.array([joins for _, joins in of_patterns]),
        held_first=np.cumsum([0, *(len(held) for held, _ in of_patterns)]),
        held_stage=np.array([stage for held, _ in of_patterns for stage in held]),
    )
    expected = [
        reference.rank_state(own, [rows[first + stage] for stage in held], joins, NF4)
        for own, pattern, first in chosen
        for held, joins in kinds[pattern]
    ]
    found = np.full((len(State._fields), len(expected)), -7.0)
    hold_state(
        np.array([pattern for _, pattern, _ in chosen]),
        np.array([first for *_, first in chosen]),
        np.array([[own[name] for own, *_ in chosen] for name in Replica._fields]),
        patterns,
        np.array([[row[name] for row in rows] for name in Sums._fields]),
        np.array([[row[name] for row in rows] for name in Maxima._fields]),
        NF4,
        found,
    )
    for name, column in zip(State._fields, found, strict=True):
        wanted = [each[name] for each in expected]
        # Differences of large numbers keep their rounding.
        assert column == pytest.approx(np.array(wanted), rel=1e-9, abs=1e-2), name
