"""Kernels under a numba whose insides are others: numba's own cache stands for ours."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from projector.kernels import _jit

compiles = pytest.mark.skipif(
    os.environ.get("NUMBA_DISABLE_JIT", "0") != "0", reason="nothing is compiled"
)

BREAK = {
    "a name is gone": "import numba.core.caching; del numba.core.caching._Cache",
    "a class is none": "import numba.core.codegen as own; own.JITCodeLibrary = 7",
}
"""What a numba of another shape does to our file that knows its insides."""

CALLS = """
import numpy as np
from projector.kernels import _cache, _jit
from projector.kernels._vectors import ROW, anywhere, larger, less, load, spread, store, total
from projector.kernels.grouping import best_of_groups
from projector.kernels.intervals import union

SCALE = 1.0 / 3.0

@_jit.helper
def thirds(x):
    return x * SCALE

@_jit.inlined
def root(x):
    return np.sqrt(thirds(x)) + np.log(x + 2)

@_jit.kernel
def roots(values):
    total = 0.0
    for value in values:
        total += root(value) / thirds(7)
    return total

@_jit.kernel
def lanes(rows):
    found = larger(load(rows, 0, 0), load(rows, 1, 0)) + spread(3)
    store(found, rows, 2, 0)
    return total(found) if anywhere(less(spread(4), found)) else 0

random = np.random.default_rng(0)
print(roots(random.random(1000)).hex(), thirds(5.0).hex(), root(5.0).hex())
rows = random.integers(0, 9, (3, ROW))
print(lanes(rows), rows.tolist())
best = np.zeros(40, np.int64)
flags = random.random((2, 40)) < 0.7
print(best_of_groups(np.arange(40) // 7, *flags, *random.random((2, 40)), best), best.tolist())
start = np.sort(random.integers(0, 500, 40))
out, open_at = np.zeros((40, 3), np.int64), np.zeros(3, np.int64)
end, segment = start + random.integers(0, 30, 40), random.integers(0, 3, 40)
print(union(start, end, segment, out, open_at), out.tolist())

kernels = roots, lanes, best_of_groups, union
print(sum(sum(each.stats.cache_hits.values()) for each in kernels))
files = _cache.kernel_files()
print(_jit._INSIDES is None, _cache.is_compiled("projector.kernels.grouping", files))
"""


@pytest.fixture(scope="module")
def call(tmp_path_factory):
    """Call kernels in a process of its own; return what they gave, and what of them was found."""
    script = tmp_path_factory.mktemp("calls") / "script.py"

    def call(folder, broken=""):
        # numba looks at the time of a source, too.
        if not script.exists():
            script.write_text(CALLS)
        code = f"{broken}\nimport runpy; runpy.run_path({str(script)!r}, run_name='calls')"
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PROJECTOR_CACHE_DIR": str(folder)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == ""
        *results, hits, state = done.stdout.splitlines()
        return results, int(hits), state

    return call


@pytest.mark.thorough
@compiles
def test_results_are_equal_and_found_again_without_the_insides(call, tmp_path_factory):
    ours = tmp_path_factory.mktemp("ours")
    expected, hits, state = call(ours)
    assert (hits, state) == (0, "False True")
    assert call(ours) == (expected, 4, "False True")
    for broken in BREAK.values():
        folder = tmp_path_factory.mktemp("plain")
        assert call(folder, broken) == (expected, 0, "True True")
        assert call(folder, broken) == (expected, 4, "True True")
        kept = {path.suffix for path in (folder / "numba").iterdir()}
        assert kept == {".plain"}


@pytest.fixture
def unknown(monkeypatch, tmp_path):
    """A numba that nobody has tried, and how often it is checked."""
    monkeypatch.setenv("PROJECTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_jit.numba, "version_info", SimpleNamespace(short=(999, 0)))
    checks, check = [], _jit._check

    def counted():
        checks.append(1)
        return check()

    monkeypatch.setattr(_jit, "_check", counted)
    return checks


@compiles
def test_an_unknown_numba_is_checked_once(unknown):
    assert _jit._insides() is not None
    assert _jit._insides() is not None
    assert len(unknown) == 1


@pytest.mark.parametrize("fault", ["exit(1)", "print(0)"])
def test_an_unknown_numba_that_fails_is_done_without(unknown, monkeypatch, fault):
    run = subprocess.run
    monkeypatch.setattr(
        _jit.subprocess, "run", lambda _, **options: run([sys.executable, "-c", fault], **options)
    )
    assert _jit._insides() is None
    assert _jit._insides() is None
    assert len(unknown) == 1


def test_an_unknown_numba_that_cannot_be_checked_is_done_without(unknown, monkeypatch):
    monkeypatch.setenv("PROJECTOR_CACHE_DIR", "/dev/null/x")
    assert _jit._insides() is None
    assert not unknown
