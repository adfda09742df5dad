"""A row says all that was measured: whatever is written is read back, also from a file."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from measure.bench_stand_in import CPU, H100
from projector.measure.bench.cases import (
    LAYOUTS,
    AttentionShape,
    attention_case,
    clock_cases,
    collective_cases,
    copy_cases,
    gemm_case,
)
from projector.measure.bench.rows import (
    Machine,
    from_row,
    identity,
    identity_of,
    measured,
    read_spread,
    spread_words,
    work_of,
)
from projector.measure.bench.session import Results
from projector.measure.task import Outcome, Timing
from thoroughness import examples

SIZES = st.integers(1, 1 << 20)
TYPES = st.sampled_from(["bf16", "fp16", "fp8", "fp32"])
SECONDS = st.floats(1e-9, 1e4)


@st.composite
def timings(draw):
    low, median, high = sorted(draw(st.tuples(SECONDS, SECONDS, SECONDS)))
    numbers = st.none() | st.floats(1.0, 1e4)
    return Timing(
        median_s=median, low_s=low, high_s=high, repeats=draw(st.integers(1, 999)),
        settled=draw(st.booleans()), clock_mhz=draw(numbers), power_w=draw(numbers),
    )  # fmt: skip


@st.composite
def cases(draw):
    kind = draw(st.sampled_from(["gemm", "attention", "collective", "memory", "clock"]))
    size = draw(SIZES)
    if kind == "gemm":
        m, n, k = draw(st.tuples(SIZES, SIZES, SIZES))
        several = {draw(st.sampled_from(["batch", "groups"])): draw(st.integers(1, 99))}
        layout = draw(st.sampled_from(sorted(LAYOUTS)))
        return gemm_case(m, n, k, draw(TYPES), layout=layout, **several)
    if kind == "attention":
        shape = AttentionShape(
            batch=draw(st.integers(1, 64)), heads=8 * draw(st.integers(1, 16)), seq=size,
            kv_heads=draw(st.sampled_from([1, 2, 4, 8])), head_dim=128, v_head_dim=64,
            window=draw(st.sampled_from([0, 128])), causal=draw(st.booleans()),
        )  # fmt: skip
        return attention_case(shape, draw(TYPES), draw(st.sampled_from(["fwd", "bwd"])), "flash")
    if kind == "collective":
        return collective_cases(["all_reduce"], [size], draw(st.integers(2, 64)))[0]
    return copy_cases([size])[0] if kind == "memory" else clock_cases([draw(TYPES)], 2.0)[0]


@st.composite
def outcomes(draw):
    status = draw(st.sampled_from(["ok", "out_of_memory", "unsupported", "failed"]))
    if status != "ok":
        return Outcome(status=status, message=draw(st.text(max_size=80)))
    numbers = {"clock_mhz": draw(st.floats(1.0, 1e4)), "flop_per_s": draw(st.floats(1.0, 1e18))}
    return Outcome(status="ok", times={"time": draw(timings())}, numbers=numbers)


@given(timings())
def test_a_spread_is_read_back_from_its_words(timing):
    found = read_spread(f"locked 1300 MHz; {spread_words(timing)}; more")
    assert found.low_s == pytest.approx(timing.low_s, rel=1e-6)
    assert found.high_s == pytest.approx(timing.high_s, rel=1e-6)
    assert (found.repeats, found.settled) == (timing.repeats, timing.settled)
    for name in ("clock_mhz", "power_w"):
        value = getattr(timing, name)
        assert getattr(found, name) == (None if value is None else pytest.approx(value, rel=1e-6))


def test_words_without_a_spread_have_none():
    assert read_spread("clock free; sliding window 128") == read_spread("")


@settings(max_examples=examples(40), deadline=None)
@given(cases(), outcomes(), st.sampled_from([H100, CPU]), st.none() | st.floats(1.0, 3e3))
def test_a_row_is_read_back(tmp_path_factory, case, outcome, environment, locked_mhz):
    machine = Machine("h100", environment, locked_mhz, day="2026-01-31")
    found = measured(case, outcome, machine)
    assert identity(case.kind, found.row) == identity_of(case, machine)
    out = tmp_path_factory.mktemp("rows") / "out.csv"
    Results(out, case.kind, overwrite=False).add([found.row])
    row = Results(out, case.kind, overwrite=False).any_row(identity_of(case, machine))
    again = from_row(case, row)
    assert (again.row, again.status, again.spread) == (found.row, found.status, found.spread)
    assert again.message == found.message
    if found.time_s is None:
        assert again.time_s is None
    else:
        assert again.time_s == pytest.approx(found.time_s, rel=1e-6)
        assert again.rate == pytest.approx(work_of(case) / found.time_s, rel=1e-6)


@given(cases(), cases())
def test_two_cases_have_two_rows(one, other):
    machine = Machine("h100", H100)
    if one.kind == other.kind:
        same = one.program == other.program
        assert (identity_of(one, machine) == identity_of(other, machine)) == same
