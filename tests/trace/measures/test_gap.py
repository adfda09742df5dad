"""The gap between theory and measurement against equations 6 to 10, with known answers."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector.trace.activity import GEMM
from projector.trace.measures.gap import (
    COUNTED,
    FACTORS,
    REST,
    SAMPLED,
    Counted,
    Needed,
    operation_gaps,
)
from synthetic import activities, collective, compute

PEAK_FLOP_PER_S = 1e12
PEAK_CLOCK_HZ = 2e9
FLOP = 400e6
"""Of both kernels: 400 µs in theory."""


def table(*beside):
    """Two runs of one product, 600 µs alone and 900 µs under communication."""
    product = {"type": GEMM, "operation": "fc1", "iteration": 0}
    return activities(
        compute(0, 600_000, **product),
        compute(700_000, 700_001, operation="norm", iteration=0),
        compute(1_000_000, 1_900_000, **product),
        collective(1_000_000, 1_900_000, iteration=0),
        *beside,
    )


def needed(flop=FLOP, peak=PEAK_FLOP_PER_S, source="extents"):
    return [
        Needed(
            operation="fc1", phase="forward", type="gemm", flop=flop, flop_from=source,
            peak_flop_per_s=peak,
        )
    ]  # fmt: skip


def counted(performed, utilisation, cycles):
    """Counters of the two products; nothing else has any."""
    return Counted(
        performed_flop=of_both(performed / 2, performed / 2),
        utilisation=of_both(utilisation, utilisation),
        cycles=of_both(cycles / 2, cycles / 2),
    )


def of_both(first, second):
    return np.array([first, np.nan, second, np.nan])


def gap(counters=None, activities_=None, **options):
    run = table() if activities_ is None else activities_
    of = np.where(run.type == GEMM, 0, -1)
    counters = Counted.none(len(run)) if counters is None else counters
    options = {"peak_clock_hz": PEAK_CLOCK_HZ} | options
    need = options.pop("need", needed())
    return operation_gaps(run, of, need, steps=1, counted=counters, **options)


def test_every_equation():
    # 1.25 times the FLOP at 0.8 of the units: 625 µs of cycles at the peak clock. D50 / D0 is
    # 900 / 600, as the one run that communication touches is the longer one.
    (found,) = gap(counted(1.25 * FLOP, 0.8, 625e-6 * PEAK_CLOCK_HZ))
    assert found.theory_ns == pytest.approx(FLOP / PEAK_FLOP_PER_S * 1e9)
    assert found.actual_ns == 1_500_000.0
    assert found.factors == pytest.approx(
        {
            "instruction": 1.25,
            "utilisation": 1.0 / 0.8,
            "overlap": 900 / 600,
            "frequency": 1500 / 625 / 1.5,
            REST: 1.0,
        }
    )
    assert found.frequency_from == COUNTED
    assert found.missing == ()
    assert found.ratio == pytest.approx(1500 / 400)


@given(
    st.floats(1.0, 3.0), st.floats(0.05, 1.0), st.floats(1e5, 1e9), st.floats(1e-3, 1.0),
)  # fmt: skip
def test_the_product_is_always_the_ratio(instruction, utilisation, cycles, share):
    (found,) = gap(counted(instruction * FLOP, utilisation, cycles), need=needed(flop=FLOP * share))
    assert math.prod(found.factors.values()) == pytest.approx(found.ratio, rel=1e-12)


def test_a_serialised_run_at_the_counted_clock_leaves_no_rest():
    # Utilisation, FLOP and cycles that agree: performed = utilisation * cycles * FLOP a cycle.
    performed, utilisation = 1.1 * FLOP, 0.37
    cycles = performed / utilisation / (PEAK_FLOP_PER_S / PEAK_CLOCK_HZ)
    (found,) = gap(counted(performed, utilisation, cycles))
    assert found.factors[REST] == pytest.approx(1.0, rel=1e-12)


def test_without_counters_the_rest_says_what_is_missing():
    (found,) = gap()
    assert set(found.factors) == {"overlap", REST}
    assert found.factors[REST] == pytest.approx(1500 / 400 / 1.5)
    assert len(found.missing) == 3
    assert {text.partition(":")[0] for text in found.missing} == {
        "performed FLOP", "utilisation of matrix units", "frequency",
    }  # fmt: skip


def test_sampled_clocks_stand_for_cycles():
    (found,) = gap(clock_hz=of_both(1e9, 1.6e9))
    mean = (600 * 1e9 + 900 * 1.6e9) / 1500
    assert found.factors["frequency"] == pytest.approx(PEAK_CLOCK_HZ / mean)
    assert found.frequency_from == SAMPLED


def test_flop_of_counters_stand_in():
    (found,) = gap(counted(FLOP, 0.5, 1e6), need=needed(flop=0.0, source=""))
    assert found.flop_from == "counters"
    assert found.flop == FLOP
    assert "instruction" not in found.factors
    assert math.prod(found.factors.values()) == pytest.approx(found.ratio)


def test_without_a_device_there_is_no_theory():
    (found,) = gap(counted(FLOP, 0.5, 1e6), need=needed(peak=0.0), peak_clock_hz=0.0)
    assert found.theory_ns is None
    assert found.ratio is None
    assert set(found.factors) == {"instruction", "utilisation", "overlap"}
    assert found.to_dict()["theory_ns"] is None


def test_a_few_counted_kernels_are_too_few():
    counters = Counted(
        performed_flop=of_both(FLOP, np.nan),
        utilisation=of_both(np.nan, 0.5),
        cycles=of_both(np.nan, np.nan),
    )
    (found,) = gap(counters)
    assert "instruction" not in found.factors, "600 of 1500 µs"
    assert found.factors["utilisation"] == pytest.approx(2.0), "900 of 1500 µs"


def test_what_takes_longest_over_its_theory_comes_first():
    run = activities(
        compute(0, 100, type=GEMM, operation="a"), compute(200, 1200, type=GEMM, operation="b")
    )
    need = needed() + needed(flop=0.0)
    found = operation_gaps(run, np.array([0, 1]), need, steps=1, counted=Counted.none(2))
    assert found[0].actual_ns == 1000.0
    assert FACTORS[-1] == "frequency"
