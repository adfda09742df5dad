"""Documentation agrees with the code: generated pages are current, links lead somewhere."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_command_line_reference_is_current():
    path = ROOT / "docs" / "make_cli.py"
    spec = importlib.util.spec_from_file_location("make_cli", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.reference() == module.TARGET.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_the_quick_start_is_two_blocks_that_stand_alone():
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    first, second = blocks[:2]
    for block in (first, second):
        assert block.startswith("python3 -m venv ")
        assert "$" not in block
    assert "projector performance" in first
    assert second.rstrip().endswith("pytest")


def test_the_python_example_of_the_readme_runs(monkeypatch):
    monkeypatch.chdir(ROOT)
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    exec(compile(block, "README.md", "exec"), {})
