import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.operations.cost import exposed_times, hiding_rows
from projector.operations.table import (
    BACKWARD,
    COLLECTIVE,
    COMPUTE_GEMM,
    FORWARD,
    GEMM,
    TP_COMM,
    TableBuilder,
)
from reference import overlap as reference

shares = st.floats(0.0, 1.0)
seconds = st.floats(1e-6, 1.0)


@st.composite
def tables(draw):
    """Draw rows whose shares of a segment add up to no more than one."""
    rows = []
    slowdowns = [tuple(draw(st.floats(0.0, 0.4)) for _ in range(3)) for _ in range(2)]
    for _ in range(draw(st.integers(1, 10))):
        workload = draw(st.integers(0, 1))
        compute = draw(st.booleans())
        rows.append({
            "workload": workload, "forward": draw(st.booleans()), "compute": compute,
            "segment": draw(st.integers(0 if compute else -1, 2)), "time": draw(seconds),
            "exposed": draw(shares), "partner": draw(st.floats(0.0, 0.1)),
            "ranks": draw(st.integers(8, 40)), "local": draw(st.sampled_from([1, 2, 3, 8])),
            "slowdown": slowdowns[workload],
        })  # fmt: skip
    return rows


def run(rows):
    table = TableBuilder()
    for row in rows:
        collective = {} if row["compute"] else {
            "exposed_share": row["exposed"], "partner_share": row["partner"],
            "ranks": row["ranks"], "local": row["local"],
        }  # fmt: skip
        table.add(
            np.array([row["workload"]]), "row",
            kind=GEMM if row["compute"] else COLLECTIVE,
            category=COMPUTE_GEMM if row["compute"] else TP_COMM,
            phase=FORWARD if row["forward"] else BACKWARD, segment=row["segment"], **collective,
        )  # fmt: skip
    times = np.array([row["time"] for row in rows])
    built = table.build()
    slowdown = np.array([rows[row]["slowdown"] for row in hiding_rows(built)]).reshape(-1, 3)
    return exposed_times(built, times, slowdown, 2)


@given(tables())
def test_matches_reference(rows):
    np.testing.assert_allclose(run(rows), reference.exposed(rows), rtol=1e-9, atol=1e-15)


@given(tables(), st.integers(0, 9), st.floats(0.0, 1.0))
def test_more_of_anything_never_ends_earlier(rows, which, more):
    slower = [dict(row) for row in rows]
    slower[which % len(rows)]["time"] += more
    assert run(slower).sum() >= run(rows).sum() * (1 - 1e-12)


def pair(**changes):
    """Return a GEMM of 1 s and a collective of 0.4 s that may hide behind all of it."""
    common = {"workload": 0, "forward": True, "segment": 0, "slowdown": (0.15, 0.02, 0.0)}
    gemm = {**common, "compute": True, "time": 1.0, "exposed": 1.0, "partner": 0.0}
    other = {**common, "compute": False, "time": 0.4, "exposed": 0.0, "partner": 1.0}
    return [gemm, {**other, "ranks": 8, "local": 8, **changes}]


def test_links_between_nodes_slow_compute_less_than_those_within():
    assert run(pair()).sum() == pytest.approx(1.0 + 0.15 * 0.4)
    assert run(pair(local=1)).sum() == pytest.approx(1.0 + 0.02 * 0.4)
    # Two of eight hops of a ring leave their domain.
    mixed = (0.75 * 0.15 + 0.25 * 0.02) * 0.4
    assert run(pair(local=4)).sum() == pytest.approx(1.0 + mixed)


def test_compute_slows_the_collective_beside_it():
    # Beside 1 s of compute a third as much moves as alone, 1/3 of a second's worth.
    slow = run(pair(slowdown=(0.0, 0.0, 2.0))).sum()
    assert slow == pytest.approx(1.0 + 0.4 - 1.0 / 3.0)
