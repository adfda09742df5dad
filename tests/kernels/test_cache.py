"""Compiled kernels on disk: only in their own folder, and renewed where they are damaged."""

import errno
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numba
import pytest

import projector
from projector.kernels import _cache, _jit, _numba

PYCACHE = Path(projector.__file__).parent / "kernels" / "__pycache__"

COMPILE = """
from projector.kernels import _cache, _jit

@_jit.kernel
def twice(x):
    return 2 * x

assert twice(21) == 42
print(sum(twice.stats.cache_hits.values()), _cache.cache_is_writable())
"""

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
        call.told = done.stderr
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


@pytest.fixture
def run(tmp_path):
    """Run a script with a folder of kernels of its own; return what it prints."""

    def run(text, *arguments):
        script = tmp_path / "script.py"
        script.write_text(text)
        done = subprocess.run(
            [sys.executable, str(script), *arguments],
            env={**os.environ, "PROJECTOR_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.split()

    return run


def leftovers():
    return {path.name for path in PYCACHE.glob("*.nb?")}


@pytest.mark.thorough
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
    assert twice.told == ""
    assert leftovers() == before
    assert not list(twice.folder.rglob("*.nb?"))


@pytest.mark.thorough
@compiles
@pytest.mark.parametrize("content", [b"", b"junk", "one bit", None])
def test_a_damaged_file_is_renewed(twice, kept, tmp_path, content):
    folder = str(shutil.copytree(kept, tmp_path / "cache"))
    (file,) = (tmp_path / "cache").rglob("*.nbc")
    if content is None:
        file.unlink()
    elif content == "one bit":
        whole = bytearray(file.read_bytes())
        whole[len(whole) // 2] ^= 1  # in machine code: it would end the process
        file.write_bytes(whole)
    else:
        file.write_bytes(content)
    assert twice(PROJECTOR_CACHE_DIR=folder) == (0, True)
    assert twice.told.count("\n") == (content is not None)
    assert "compiled again" in twice.told or content is None
    assert twice(PROJECTOR_CACHE_DIR=folder) == (1, True)
    assert twice.told == ""


def _planted(folder, makes):
    """A file of a kernel whose unpickling makes a file."""

    class Plant:
        def __reduce__(self):
            return os.mkdir, (str(makes),)

    path = _numba.KernelCache(function)._path((), _Codegen())
    _cache.write_kept(path, pickle.dumps(Plant()))
    assert path.parent == folder
    return path


def _is_loaded(makes):
    _numba.KernelCache(function).load_overload((), TARGET)
    loaded = makes.exists()
    if loaded:
        makes.rmdir()
    return loaded


@pytest.mark.skipif(os.name == "nt", reason="Windows has other rights")
def test_what_others_can_have_written_is_not_loaded(folder, tmp_path, capsys):
    makes = tmp_path / "made"
    path = _planted(folder, makes)
    assert _is_loaded(makes)  # ours
    _planted(folder, makes).chmod(0o666)
    assert not _is_loaded(makes)
    assert "others may write there" in capsys.readouterr().err
    assert not path.exists()
    _planted(folder, makes)
    folder.chmod(0o777)
    assert not _is_loaded(makes)
    assert _cache.kernel_files() == set()
    assert "chmod go-w" in _cache.cache_fault()
    folder.chmod(0o700)
    assert path.name in _cache.kernel_files()


@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="only root gives files away")
def test_what_others_own_is_not_loaded(folder, tmp_path):
    makes = tmp_path / "made"
    path = _planted(folder, makes)
    os.chown(path, 65534, 65534)
    assert not _is_loaded(makes)
    _planted(folder, makes)
    os.chown(folder, 65534, 65534)
    assert not _is_loaded(makes)
    assert not _cache.cache_is_writable()


@pytest.mark.skipif(os.name == "nt", reason="Windows has other rights")
def test_a_new_folder_is_closed_to_others(folder):
    before = os.umask(0)
    try:
        assert _cache.cache_is_writable()
        _cache.write_kept(folder / "one", b"content")
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "one").stat().st_mode & 0o777 == 0o644
    assert _cache.read_kept(folder / "one") == b"content"


@pytest.mark.thorough
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
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PROJECTOR_CACHE_DIR", str(tmp_path))
    return tmp_path / "numba"


class _Codegen:
    def magic_tuple(self):
        return ("machine",)


COMPILED = SimpleNamespace(
    lifted=(), library=SimpleNamespace(has_dynamic_globals=False), codegen=_Codegen()
)
TARGET = SimpleNamespace(codegen=_Codegen)


def test_what_cannot_be_read_is_removed(folder, monkeypatch):
    cache = _numba.KernelCache(function)
    assert cache.load_overload((), TARGET) is None
    folder.mkdir()
    path = cache._path((), _Codegen())
    path.write_bytes(b"junk")
    assert cache.load_overload((), TARGET) is None
    assert not path.exists()

    def fail(*_, **__):
        raise PermissionError

    path.write_bytes(b"junk")
    monkeypatch.setattr(Path, "unlink", fail)
    assert cache.load_overload((), TARGET) is None
    assert not cache._enabled


def test_what_cannot_be_written_is_not_kept(folder, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(_numba, "_reduced", lambda _: "form")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail)
        cache = _numba.KernelCache(function)
        cache.save_overload((), COMPILED)
    assert list(folder.iterdir()) == []
    cache.save_overload((), COMPILED)  # disabled
    assert list(folder.iterdir()) == []
    assert cache.load_overload((), TARGET) is None
    cache.enable()
    cache.save_overload((), COMPILED)
    assert len(list(folder.iterdir())) == 1
    cache.flush()
    assert list(folder.iterdir()) == []


def test_forms_of_other_settings_are_others(folder, monkeypatch):
    cache = _numba.KernelCache(function)
    types = (numba.int64, numba.float64[::1])
    paths = {cache._path(types, _Codegen()), cache._path(types[:1], _Codegen())}
    monkeypatch.setattr(numba.config, "BOUNDSCHECK", not numba.config.BOUNDSCHECK)
    paths.add(cache._path(types, _Codegen()))
    assert len(paths) == 3
    assert {path.parent for path in paths} == {folder}


def test_where_there_is_no_home(monkeypatch):
    for module in (_cache, _numba, _jit):
        monkeypatch.setattr(module, "cache_dir", lambda: Path("~/.cache/projector"))
    assert not _cache.cache_is_writable()
    cache = _numba.KernelCache(function)
    assert cache.load_overload((), TARGET) is None
    cache.save_overload((), COMPILED)
    assert not cache._enabled
    assert _jit.kernel(function)(2) == 2
    monkeypatch.setattr(_jit, "_INSIDES", None)
    assert _jit.kernel(function)(2) == 2
    assert not Path("~").exists()


CALLED_BY_ANOTHER = """
import sys
from projector.kernels import _jit

@_jit.kernel
def inner(x):
    return x + 1

@_jit.kernel
def outer(x):
    return inner(x) * 2

def hits(kernel):
    return sum(kernel.stats.cache_hits.values())

assert inner(1) == 2
if len(sys.argv) > 1:
    assert outer(1) == 4
print(hits(inner), "numba.np.arraymath" in sys.modules)
"""


@pytest.mark.thorough
@compiles
def test_a_kernel_that_was_loaded_can_be_linked(run):
    assert run(CALLED_BY_ANOTHER) == ["0", "True"]
    # Found again, without what only a compiler needs; then another kernel is compiled with it.
    assert run(CALLED_BY_ANOTHER) == ["1", "False"]
    assert run(CALLED_BY_ANOTHER, "outer") == ["1", "True"]
    assert run(CALLED_BY_ANOTHER, "outer") == ["1", "False"]


NEEDS_MORE = """
import sys
from math import gamma
import numpy as np
from projector.kernels import _jit

@_jit.kernel
def solve(a):
    return np.linalg.solve(a, np.random.random(2)).sum() + gamma(a[0, 0])

assert solve(np.eye(2)) > 1
print(sum(solve.stats.cache_hits.values()))
"""


@pytest.mark.thorough
@compiles
def test_what_a_loaded_kernel_calls_is_there(run):
    assert run(NEEDS_MORE) == ["0"]
    assert run(NEEDS_MORE) == ["1"]


CALLS_NUMBA = """
import sys
import numpy as np
from projector.kernels import _jit

@_jit.kernel
def smallest(a):
    return a.min()

assert smallest(np.arange(3.0, 5.0)) == 3.0
try:
    smallest(np.empty(0))
except ValueError as error:
    assert "zero-size array" in str(error)
    print(sum(smallest.stats.cache_hits.values()), "numba.np.arraymath" in sys.modules)
"""


@pytest.mark.thorough
@compiles
def test_functions_of_numba_in_a_loaded_kernel(run):
    assert run(CALLS_NUMBA) == ["0", "True"]
    assert run(CALLS_NUMBA) == ["1", "False"]
