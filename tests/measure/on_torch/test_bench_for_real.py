"""Lists are measured by the real worker on a CPU, tiny ones."""

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from projector.measure.bench.cases import copy_cases
from projector.measure.bench.lists import (
    AttentionOptions,
    GemmOptions,
    attention_list,
    gemm_list,
)
from projector.measure.bench.session import begin, settings_of
from projector.validate.beside import benchmark_of

QUICK = {"warm_up_s": 0.0, "most_warm_up_s": 0.02, "least_s": 1e-5}
"""A processor that runs other tests is not steady in five seconds either."""


def measured(kind, cases, out=None):
    settings = settings_of(backend="cpu", threads=1, repeats=3)
    settings = replace(settings, pace=settings.pace.model_copy(update=QUICK))
    session = begin(kind, cases, device=None, out=out, overwrite=False, settings=settings)
    session.go()
    return benchmark_of(session)


@pytest.mark.thorough
def test_small_lists_are_measured_and_kept(tmp_path):
    out = tmp_path / "out.csv"
    cases = gemm_list(GemmOptions(m="64", n="64", k="64,1024", dtypes="fp32,bf16,mxfp6"))
    found = measured("gemm", cases, str(out))
    assert [each.status for each in found.measured] == ["ok"] * 4 + ["unsupported"] * 2
    assert found.machine.environment.backend == "cpu"
    for each in found.measured[:4]:
        assert each.spread.repeats == 3
        assert 0.0 < each.spread.low_s <= each.time_s <= each.spread.high_s
    kept = out.read_text()
    assert measured("gemm", cases[:4], str(out)).measured == found.measured[:4]
    assert out.read_text() == kept


@pytest.mark.thorough
def test_other_kinds_have_times_too():
    attention = measured("attention", attention_list(AttentionOptions(sizes="64", heads=2)))
    assert [each.status for each in attention.measured] == ["ok", "ok"]
    assert attention.measured[0].row["impl"].startswith("torch SDPA (sdpa ")
    copies = measured("memory", copy_cases([2**20]))
    assert copies.measured[0].rate > 0.0
