"""Documentation agrees with the code: generated pages are current, links and names exist."""

import re
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name

import pytest

import projector
from projector.cli.main import run
from projector.schedule.registry import SCHEDULES

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_command_line_reference_is_current():
    # Help texts depend on options that other tests may have loaded; a process of its own does not.
    script = str(ROOT / "docs" / "make_cli.py")
    assert subprocess.run([sys.executable, script, "--check"], check=False).returncode == 0


def test_the_table_of_frameworks_is_current():
    script = str(ROOT / "docs" / "make_frameworks.py")
    assert subprocess.run([sys.executable, script, "--check"], check=False).returncode == 0


def test_the_table_of_hybrid_models_is_current_and_their_counts_are_the_published_ones():
    script = str(ROOT / "docs" / "make_hybrid.py")
    assert subprocess.run([sys.executable, script, "--check"], check=False).returncode == 0


@pytest.mark.thorough
def test_the_figures_of_the_documents_are_current():
    script = str(ROOT / "docs" / "make_seeds.py")
    assert subprocess.run([sys.executable, script, "--check"], check=False).returncode == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target, anchor in links(page):
        assert target.exists(), target
        assert not anchor or anchor in anchors(target), f"{target.name}#{anchor}"


def test_every_page_is_linked_from_the_index():
    index = ROOT / "docs" / "index.md"
    linked = {target.resolve() for target, _ in links(index)}
    assert {page for page in PAGES if page.parent == index.parent} - linked == {index}


def test_the_reference_of_python_names_all_that_is_public():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^- \[`(\w+)`\]\(\.\./src/(.+)\.py\)$", page, re.MULTILINE)
    assert sorted(name for name, _ in listed) == sorted(projector.__all__)
    for name, module in listed:
        assert getattr(projector, name).__module__ == module.replace("/", "."), name


def links(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        target, _, anchor = link.partition("#")
        if not target.startswith("http"):
            yield (page.parent / target if target else page), anchor


def anchors(page):
    """Names of a page's headings as code hosts make them."""
    fenced = re.split(r"^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", "".join(fenced[::2]), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_and_modules_exist(page):
    text = page.read_text(encoding="utf-8")
    folders = (ROOT, ROOT / "src" / "projector")
    for path in re.findall(r"`((?:[\w.]+/)+[\w.]+\.(?:csv|ipynb|py|yaml))\b[^`]*`", text):
        # Files of other projects are named by their top folder, which is not ours.
        if any((folder / path.split("/")[0]).is_dir() for folder in folders):
            assert any((folder / path).exists() for folder in folders), path
    names = re.findall(r"`(projector(?:\.[a-z_]+){2,})`", text)
    for name in (*names, *re.findall(r"^from (projector[\w.]*)", text, re.MULTILINE)):
        resolve_name(name)


def test_the_worked_examples_of_a_gemm_are_current(capsys):
    page = (ROOT / "docs" / "gemm.md").read_text(encoding="utf-8")
    examples = re.findall(r"```\n\$ projector (gemm .*)\n([\s\S]*?)\n```", page)
    assert examples
    for command, shown in examples:
        assert run(command.split()) == 0
        printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
        assert shown.splitlines() == printed[: len(shown.splitlines())]
        assert not any(printed[len(shown.splitlines()) :])


def test_the_worked_examples_of_traces_are_current():
    # Run docs/make_trace.py.
    script = str(ROOT / "docs" / "make_trace.py")
    assert subprocess.run([sys.executable, script, "--check"], check=False).returncode == 0


def test_the_quick_start_is_two_blocks_that_stand_alone():
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    first, second = blocks[:2]
    for block in (first, second):
        assert block.startswith("python3 -m venv ")
        assert "$" not in block
    assert "projector performance" in first
    assert second.rstrip().endswith("pytest")


def test_the_projection_of_the_readme_is_current(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    pattern = r"/projector (performance [^\n]*)\n```\n\n```\n(.*?)\n  \.\.\."
    command, shown = re.search(pattern, text, re.DOTALL).groups()
    assert run(command.split()) == 0
    assert shown in capsys.readouterr().out


def test_the_python_example_of_the_readme_runs(monkeypatch):
    monkeypatch.chdir(ROOT)
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    exec(compile(block, "README.md", "exec"), {})


def test_the_table_and_the_charts_of_schedules_are_current():
    # Run docs/make_schedules.py.
    script = str(ROOT / "docs" / "make_schedules.py")
    assert subprocess.run([sys.executable, script, "--check"], check=False).returncode == 0


def test_the_changes_of_published_layouts_are_current():
    # Run docs/make_search.py, which also searches; then read what docs/search.md says about them.
    script = str(ROOT / "docs" / "make_search.py")
    assert subprocess.run([sys.executable, script, "--check"], check=False).returncode == 0


def test_every_schedule_has_a_chart_and_every_chart_is_shown():
    page = (ROOT / "docs" / "schedules.md").read_text(encoding="utf-8")
    shown = re.findall(r"\]\(figures/schedules/(.+)\.png\)", page)
    files = (ROOT / "docs" / "figures" / "schedules").glob("*.png")
    assert sorted(shown) == sorted(SCHEDULES) == sorted(path.stem for path in files)
