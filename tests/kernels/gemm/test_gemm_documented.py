import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.kernels.gemm.documented import TERMS, Rates, ws_persistent_columns
from reference import gemm_documented as reference

RATES = Rates(10.65e12, 8e12, 1.0, 32.0, 6e-6, 1e-6, 1.0)

extents = st.integers(1, 20_000)
menus = st.lists(
    st.tuples(
        st.sampled_from([64.0, 128.0, 256.0]), st.sampled_from([64.0, 192.0]),
        st.sampled_from([1.0, 2.0]), st.sampled_from([1.0, 2.0, 4.0]),
        st.integers(8, 160).map(float),
    ),
    min_size=1, max_size=4,
)  # fmt: skip
rates = st.builds(
    Rates, st.floats(1e11, 1e14), st.floats(1e11, 1e13), st.sampled_from([0.5625, 1.0, 2.0]),
    st.floats(0.0, 64.0), st.floats(0.0, 1e-5), st.floats(0.0, 1e-5), st.floats(0.0, 1.0),
)  # fmt: skip


@given(extents, extents, extents, st.integers(1, 8), st.floats(0.5, 8.0), menus, rates)
def test_matches_reference(m, n, k, batch, out_bytes, menu, rates):
    choice, terms = ws_persistent_columns(
        np.array([[m, n, k, batch]]), np.array([out_bytes]), np.array(menu), rates
    )
    place, expected = reference.terms(m, n, k, batch, out_bytes, menu, rates)
    assert terms[0, -1] == pytest.approx(expected["time_s"], rel=1e-9)
    same = reference.one(m, n, k, batch, out_bytes, menu[choice[0]], rates)
    assert same["time_s"] == pytest.approx(expected["time_s"], rel=1e-9)
    assert choice[0] <= place or same["time_s"] == pytest.approx(expected["time_s"])
    for name, value in zip(TERMS, terms[0], strict=True):
        assert value == pytest.approx(same[name], rel=1e-9)


def test_nothing_costs_nothing_and_bad_rows_are_named():
    menu = np.array([[128.0, 128.0, 1.0, 1.0, 148.0]])
    table = np.array([[0, 8, 8, 1], [8, 8, 8, 0]])
    choice, terms = ws_persistent_columns(table, np.ones(2), menu, RATES)
    assert choice.tolist() == [-1, -1]
    assert not terms.any()
    with pytest.raises(ValueError, match=r"GEMM 1 \(m, n, k, batch = 8, -8, 8, 1\)"):
        ws_persistent_columns(np.array([[8, 8, 8, 1], [8, -8, 8, 1]]), np.ones(2), menu, RATES)


@given(st.lists(st.tuples(extents, extents, extents), min_size=1, max_size=6))
def test_a_batch_equals_its_rows_bit_for_bit(rows):
    menu = np.array([[128.0, 256.0, 2.0, 1.0, 148.0], [128.0, 64.0, 2.0, 2.0, 136.0]])
    table = np.array([(*row, 1) for row in rows])
    out = np.full(len(rows), 2.0)
    together = ws_persistent_columns(table, out, menu, RATES)[1]
    alone = [
        ws_persistent_columns(table[g : g + 1], out[:1], menu, RATES)[1][0]
        for g in range(len(rows))
    ]
    np.testing.assert_array_equal(together, np.array(alone))
