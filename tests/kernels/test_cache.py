"""Compiled kernels on disk: only in their own folder, and renewed where they are damaged."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from numba.core import caching

import projector
from projector.kernels import _jit

PYCACHE = Path(projector.__file__).parent / "kernels" / "__pycache__"

COMPILE = """
from projector.kernels import _jit

@_jit.kernel
def twice(x):
    return 2 * x

assert twice(21) == 42
print(sum(twice.stats.cache_hits.values()), _jit.cache_is_writable())
"""

NO_TARGET = SimpleNamespace(refresh=lambda: None)

compiles = pytest.mark.skipif(
    os.environ.get("NUMBA_DISABLE_JIT", "0") != "0", reason="nothing is compiled"
)


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """Run a kernel in a process of its own; return whether it was found, and kept."""
    script = tmp_path_factory.mktemp("twice") / "script.py"

    def call(text=COMPILE, **environment):
        script.write_text(text)
        done = subprocess.run(
            [sys.executable, str(script)],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == ""
        hits, kept = done.stdout.split()
        return int(hits), kept == "True"

    call.folder = script.parent
    return call


@pytest.fixture(scope="module")
def kept(twice, tmp_path_factory):
    """A folder where the kernel was kept, and found again."""
    folder = tmp_path_factory.mktemp("kept")
    assert twice(PROJECTOR_CACHE_DIR=str(folder)) == (0, True)
    assert twice(PROJECTOR_CACHE_DIR=str(folder)) == (1, True)
    return folder


def leftovers():
    return {path.name for path in PYCACHE.glob("*.nb?")}


@compiles
@pytest.mark.parametrize(
    "environment",
    [
        {"PROJECTOR_CACHE_DIR": "/dev/null/x"},
        {"PROJECTOR_CACHE_DIR": "", "HOME": "/dev/null"},
        {"PROJECTOR_CACHE_DIR": "a\x01" * 300},
    ],
)
def test_a_folder_that_cannot_be_written(twice, environment):
    before = leftovers()
    assert twice(**environment) == (0, False)
    assert leftovers() == before
    assert not list(twice.folder.rglob("*.nb?"))


@compiles
@pytest.mark.parametrize(
    ("suffix", "content"),
    [("nbi", b"junk"), ("nbi", b""), ("nbc", b""), ("nbc", b"junk"), ("nbc", None)],
)
def test_a_damaged_file_is_renewed(twice, kept, tmp_path, suffix, content):
    folder = str(shutil.copytree(kept, tmp_path / "cache"))
    (file,) = (tmp_path / "cache").rglob(f"*.{suffix}")
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    assert twice(PROJECTOR_CACHE_DIR=folder) == (0, True)
    assert twice(PROJECTOR_CACHE_DIR=folder) == (1, True)


@compiles
def test_forms_of_other_sources_stay_for_a_month(twice, kept, tmp_path):
    folder = shutil.copytree(kept, tmp_path / "cache")
    before = {*folder.rglob("*.nb?")}

    def found(end):
        return twice(COMPILE + end, PROJECTOR_CACHE_DIR=str(folder))[0]

    assert not found("# edited")
    assert {*folder.rglob("*.nb?")} > before
    for path in before:
        os.utime(path, (0, 0))
    assert not found("# edited again")
    assert before.isdisjoint(folder.rglob("*.nb?"))
    assert found("# edited")


def function(x):
    return x


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(_jit, "_CACHE_DIR", str(tmp_path / "numba"))
    return _jit.KernelCache(function)


def test_reading_fails(cache, monkeypatch):
    def fail(*_):
        raise EOFError

    monkeypatch.setattr(caching.FunctionCache, "load_overload", fail)
    assert cache.load_overload(None, None) is None
    assert list(Path(cache.cache_path).glob("*.nbi"))
    monkeypatch.setattr(_jit.KernelCache, "flush", lambda _: Path("/dev/null/x").mkdir())
    assert cache.load_overload(None, None) is None
    monkeypatch.undo()
    assert cache.load_overload(None, NO_TARGET) is None


def test_writing_fails(cache, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(caching.FunctionCache, "save_overload", fail)
    cache.save_overload(None, None)
    monkeypatch.undo()
    cache.save_overload(None, None)  # disabled


def test_a_complete_folder_may_be_read_only(cache, monkeypatch):
    def fail(_):
        raise PermissionError

    monkeypatch.setattr(caching._CacheLocator, "ensure_cache_path", fail)
    assert _jit.KernelCache(function).cache_path == cache.cache_path
    Path(cache.cache_path).rmdir()
    with pytest.raises(RuntimeError):
        _jit.KernelCache(function)


def test_where_there_is_no_home(monkeypatch):
    monkeypatch.setattr(_jit, "cache_dir", lambda: Path("~/.cache/projector"))
    assert not _jit.cache_is_writable()
    monkeypatch.setattr(_jit, "_CACHE_DIR", "~/.cache/projector")
    with pytest.raises(RuntimeError):
        _jit.KernelCache(function)
    assert _jit.kernel(function)(2) == 2
    assert not Path("~").exists()
