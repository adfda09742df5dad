"""What a kernel is compiled from: its digest changes with each of these sources, and no other."""

import ast
import importlib
import pkgutil
from importlib.util import resolve_name
from pathlib import Path

import pytest

import projector.kernels
from projector.kernels import _cache

NAMES = [
    found.name for found in pkgutil.walk_packages(projector.kernels.__path__, "projector.kernels.")
]


def imported(name):
    """Return the modules of the project that a module imports, by the grammar of Python."""
    module = importlib.import_module(name)
    for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            dotted = "." * node.level + (node.module or "")
            base = resolve_name(dotted, module.__package__)
            yield base
            yield from (f"{base}.{each.name}" for each in node.names)


def reference(name):
    """Return the files of a module and of all that it imports from the project."""
    found, waiting = {}, [name]
    while waiting:
        each = waiting.pop()
        if each in found or each.partition(".")[0] != "projector":
            continue
        try:
            found[each] = importlib.import_module(each).__file__
        except ModuleNotFoundError:  # a member that is no module
            continue
        waiting += imported(each)
    return {*found.values()}


@pytest.mark.parametrize("name", NAMES)
def test_sources_are_those_of_the_grammar(name):
    path = importlib.import_module(name).__file__
    assert {*_cache.sources_of(path)} == reference(name)


@pytest.mark.parametrize("name", NAMES)
def test_whatever_a_kernel_calls_is_among_its_sources(name):
    module = importlib.import_module(name)
    sources = _cache.sources_of(module.__file__)
    for value in vars(module).values():
        home = getattr(value, "__module__", None)
        if isinstance(home, str) and home.startswith("projector."):
            assert importlib.import_module(home).__file__ in sources


SOURCES = {
    "__init__.py": "",
    "alone.py": "import math\n",
    "constants.py": "SIZE = 3\n",
    "helpers.py": "from projector.constants import (  # see (there)\n    SIZE as LENGTH,\n)\n",
    "inner/__init__.py": "from .deep import help_out as assist\n",
    "inner/deep.py": "from ..constants import SIZE\n",
    "kernels/renamed.py": "from projector.helpers import help_out as something_else\n",
    "kernels/module.py": "import projector.helpers as h, projector.alone\n",
    "kernels/member.py": "from projector import (\n    inner,  # projector.alone\n)\n",
    "kernels/exported.py": "from projector.inner import assist\n",
    "kernels/inside.py": "def kernel():\n    from .. import helpers\n",
    "kernels/broken.py": "from projector \\\n    import helpers\n",
    "kernels/round.py": "from .trip import a\n",
    "kernels/trip.py": "from .round import b\nfrom ..alone import c\n",
    "kernels/nothing.py": '"""from projector.alone we took nothing."""\nimport numba\n',
}
MADE_OF = {
    "renamed": {"helpers", "constants"},
    "module": {"__init__", "helpers", "constants", "alone"},
    "member": {"__init__", "inner/__init__", "inner/deep", "constants"},
    "exported": {"inner/__init__", "inner/deep", "constants"},
    "inside": {"__init__", "helpers", "constants"},
    "broken": {"__init__", "helpers", "constants"},
    "round": {"kernels/trip", "alone"},
    "trip": {"kernels/round", "alone"},
    "nothing": set(),
}
"""Files of the project behind each kernel, beside its own."""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project in which every way to import a helper occurs."""
    root = tmp_path / "projector"
    for name, text in SOURCES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(_cache, "ROOT", str(root))

    def digests():
        _cache.sources_of.cache_clear()
        _cache._read.cache_clear()
        files = (root / f"kernels/{name}.py" for name in MADE_OF)
        return {file.stem: _cache.sources_digest(str(file)) for file in files}

    yield root, digests
    _cache.sources_of.cache_clear()
    _cache._read.cache_clear()


@pytest.mark.parametrize("edited", [name.removesuffix(".py") for name in SOURCES])
def test_an_edit_renews_what_is_made_of_it(project, edited):
    root, digests = project
    before = digests()
    path = root / f"{edited}.py"
    path.write_text(path.read_text() + "\nX = 1\n")
    after = digests()
    renewed = {name for name in before if before[name] != after[name]}
    assert renewed == {
        name for name, made_of in MADE_OF.items() if edited in {*made_of, f"kernels/{name}"}
    }


def test_a_digest_does_not_depend_on_the_folder(project, tmp_path, monkeypatch):
    root, digests = project
    before = digests()
    (tmp_path / "deep").mkdir()
    moved = root.rename(tmp_path / "deep" / "projector")
    monkeypatch.setattr(_cache, "ROOT", str(moved))
    _cache.sources_of.cache_clear()
    _cache._read.cache_clear()
    after = {name: _cache.sources_digest(str(moved / f"kernels/{name}.py")) for name in MADE_OF}
    assert after == before


def test_a_source_in_an_archive_cannot_be_read(tmp_path):
    (tmp_path / "code.zip").touch()
    with pytest.raises(OSError, match=r"code\.zip"):
        _cache.sources_digest(str(tmp_path / "code.zip" / "kernel.py"))
