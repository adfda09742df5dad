"""Kernels that run as Python where few jobs are projected."""

import json
import math
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from projector.config.load import load_job
from projector.kernels import _interpreted
from projector.kernels._interpreted import (
    Interpreted,
    Wanted,
    interpreting,
    is_interpreting,
    wanted_kernels,
)
from projector.kernels.attention.times import attention_times
from projector.projection.api import project_performance

EXAMPLES = Path(__file__).parents[2] / "examples"
JOBS = [
    ("mixtral_8x22b_mi355x.yaml", {}),
    ("deepseek_v3_h800.yaml", {"training.global_batch_size": 4096}),
    ("llama3.1_70b_fp8_mi325x.yaml", {"parallelism.pp": 4, "parallelism.vpp": 2}),
    ("llama3.1_70b_fsdp_mi325x.yaml", {"parallelism.cp": 2, "cluster.device": "gb200"}),
    ("llama3.3_70b_lora_h100.yaml", {"parallelism.tp_comm_overlap": True}),
    ("llama3.1_8b_fp8_mi325x.yaml", {"parallelism.pp": 4, "training.schedule": "zerobubble"}),
    ("mixtral_8x22b_seed_sample.yaml", {"training.moe.load": "zipf"}),
]
ALONE = """
import json, math, sys
from projector.config.load import load_job
from projector.kernels import _interpreted
from projector.projection.api import project_performance
_interpreted.LIMIT_S = math.inf
with _interpreted.interpreting():
    for path, overrides in json.load(sys.stdin):
        print(json.dumps(project_performance(load_job(path, overrides)).to_dict()))
assert _interpreted.wanted_kernels()
"""

needs_jit = pytest.mark.skipif(
    os.environ.get("NUMBA_DISABLE_JIT", "0") != "0", reason="nothing is compiled"
)


@needs_jit
def test_jobs_are_equal_to_the_bit_to_those_of_compiled_kernels(tmp_path):
    jobs = [(str(EXAMPLES / name), overrides) for name, overrides in JOBS]
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", ALONE],
        env={**os.environ, "PROJECTOR_CACHE_DIR": str(tmp_path)},
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert not [*tmp_path.rglob("*.nbc")]
    expected = [project_performance(load_job(*each)).to_dict() for each in jobs]
    assert done.stdout.splitlines() == [json.dumps(each) for each in expected]


def add(values, other):
    return values.sum() + other[0].sum()


@pytest.fixture
def add_once(monkeypatch):
    """Call `add`, of which an element takes 1 ms as Python, and tell how it ran."""
    monkeypatch.setattr(_interpreted, "_wanted", [])
    monkeypatch.setattr(_interpreted, "LIMIT_S", 1.0)
    monkeypatch.setattr(Interpreted, "numba_has_begun", False)
    interpreted = Interpreted(add, 1000.0)

    def call(*values, is_kept=False):
        compiled = []

        def compile_it():
            compiled.append(True)
            return add

        instead = interpreted.instead("signature", lambda: is_kept, compile_it)
        if instead is None:
            return None
        assert instead(*values) == add(*values)
        return not compiled

    return call


SMALL = np.arange(3.0), (np.arange(4.0), 1.0)


def test_a_kernel_that_is_not_kept_runs_as_python_and_is_named_once(add_once):
    assert add_once(*SMALL) is None
    with interpreting():
        assert add_once(*SMALL)
        assert add_once(*SMALL)
    assert add_once(*SMALL) is None
    assert wanted_kernels() == (Wanted(__name__, "add", "signature"),)


def test_what_is_kept_is_not_interpreted(add_once):
    with interpreting():
        assert add_once(*SMALL, is_kept=True) is None
    assert wanted_kernels() == ()


def test_what_another_process_compiles_meanwhile_is_not_interpreted_any_more(add_once):
    with interpreting():
        assert add_once(*SMALL)
        assert add_once(*SMALL, is_kept=True) is None


def test_a_block_may_set_another_limit(add_once):
    with interpreting(math.inf):
        assert is_interpreting()
        assert add_once(np.zeros(9000), SMALL[1])
    assert not is_interpreting()


def test_large_arguments_are_compiled_for(add_once):
    with interpreting():
        assert add_once(np.zeros(900), (np.zeros(90),))
        assert add_once(np.zeros(900), (np.zeros(200),)) is False


def test_a_kernel_is_compiled_when_it_has_taken_as_long_as_compiling(add_once, monkeypatch):
    clock = iter([0.0, 0.7, 1.0, 1.4])
    monkeypatch.setattr(_interpreted.time, "thread_time", lambda: next(clock))
    with interpreting():
        assert [add_once(*SMALL) for _ in range(3)] == [True, True, False]


def test_a_small_kernel_is_compiled_sooner_where_numba_has_begun(add_once, monkeypatch):
    with interpreting():
        assert add_once(np.zeros(300), SMALL[1])
        monkeypatch.setattr(Interpreted, "numba_has_begun", True)
        assert add_once(np.zeros(300), SMALL[1]) is False


@needs_jit
def test_the_code_of_a_kernel_is_that_of_all_compiled_functions_that_it_calls():
    codes = _interpreted._codes(attention_times.py_func, set())
    assert {"attention_times", "_legal"} < {each.co_name for each in codes}


def test_work_without_a_bound_is_never_interpreted(monkeypatch):
    monkeypatch.setattr(Interpreted, "numba_has_begun", False)
    interpreted = Interpreted(add, math.inf)
    with interpreting():
        instead = interpreted.instead("signature", lambda: False, lambda: lambda *_: "compiled")
        assert instead(*SMALL) == "compiled"


def test_arithmetic_is_as_quiet_as_compiled():
    def overflow(values):
        return np.uint64(values[0]) * np.uint64(2**63 + 1), values[0] / values[1]

    with interpreting(), warnings.catch_warnings():
        warnings.simplefilter("error")
        instead = Interpreted(overflow, 1.0).instead("", lambda: False, lambda: None)
        assert instead(np.array([3.0, 0.0])) == (2**63 + 3, math.inf)
