"""No two files import each other, not even inside functions: each can be read after its imports."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def imported(file: Path) -> Iterator[str]:
    """Yield every name that a file imports anywhere, as a module or as something of one."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            relative = "." * node.level + (node.module or "")
            home = resolve_name(relative, module_name(file.parent))
            yield home
            yield from (f"{home}.{alias.name}" for alias in node.names)


def test_no_files_import_each_other():
    files = {module_name(file): file for file in (SOURCE / "projector").rglob("*.py")}
    graph = {name: (set(imported(file)) & files.keys()) - {name} for name, file in files.items()}
    assert sum(map(len, graph.values())) > len(graph)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"these import each other: {' <- '.join(error.args[1])}")


def test_two_files_import_torch_and_are_imported_by_none():
    files = {
        module_name(file): set(imported(file)) for file in (SOURCE / "projector").rglob("*.py")
    }
    worker = "projector.measure.worker"
    with_torch = [
        name for name, names in files.items() if "torch" in {n.split(".")[0] for n in names}
    ]
    recorder = "projector.measure.recorder"
    assert sorted(with_torch) == [recorder, worker]
    assert not [name for name, names in files.items() if worker in names]
    # The package itself names it for type checkers, and loads it on first use.
    assert [name for name, names in files.items() if recorder in names] == ["projector"]
