"""The wheel carries its data, and finds it."""

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from projector.distribution import DISTRIBUTION, install_command

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_extras_are_installed_from_a_clone():
    """No index has the package yet, and another project has the name of the import there."""
    assert PROJECT["name"] == DISTRIBUTION != "projector"
    command = "pip install '.[torch,trace]' in a clone of the repository"
    assert install_command("torch", "trace") == command
    known = set(PROJECT["optional-dependencies"])
    texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.*")]
    sources = [*ROOT.glob("src/**/*.py"), *ROOT.glob("examples/*.py")]
    for path in [*texts, *sources]:
        text = path.read_text(encoding="utf-8")
        for name, extras in re.findall(r"([\w.-]*projector|\.)\[([a-z][a-z, ]*)\]'", text):
            assert name == ".", path
            assert known.issuperset(re.split(", *", extras)), path
        for extras in re.findall(r"install_command\(([^)]*)\)", text):
            assert known.issuperset(re.findall(r"['\"]([a-z]+)['\"]", extras)), path


def test_the_wheel_holds_hardware_and_models(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
        (about,) = (name for name in names if name.endswith("METADATA"))
        needed = archive.read(about).decode().splitlines()
    assert "projector/_data/hardware/mi355x.yaml" in names
    assert "projector/_data/hardware/nodes/mi250x.yaml" in names
    assert "projector/_data/hardware/first_order/tpu_v5p.yaml" in names
    assert "projector/_data/hardware/settings/megatron.yaml" in names
    assert "projector/_data/schemas/job.json" in names
    assert "projector/_data/models/mixtral_8x22b.yaml" in names
    assert {"projector/report/pages/page.css", "projector/report/pages/page.js"} <= {*names}
    assert {"projector/py.typed", "projector/app/assets/app.css"} <= {*names}
    # What the caller starts as a script, and what needs torch only with its extra.
    assert "projector/measure/guard.py" in names
    assert [line for line in needed if line.startswith("Requires-Dist: torch")] == [
        "Requires-Dist: torch>=2.6; extra == 'test'",
        "Requires-Dist: torch>=2.6; extra == 'torch'",
    ]
    code = (
        "import projector; from projector.config.resources import data_dir; "
        "print(data_dir('models')); print(projector.load_job({'model': 'llama3.1_8b', 'training': "
        "{'mbs': 1, 'gbs': 8, 'seq_length': 64}, 'cluster': {'device': 'h100'}}))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "site"), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(tmp_path / "site" / "projector" / "_data" / "models") in run.stdout


def test_every_pin_is_one_version_of_one_package():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    names = [re.sub(r"[-_.]+", "-", pin.partition("==")[0]).lower() for pin in pins]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    assert len(set(names)) == len(names)
    assert pins == sorted(pins, key=str.lower)


def test_pins_are_not_below_the_floors():
    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    )
    pinned = {canonicalize_name(name): version for name, version in pins.items()}
    run = [sys.executable, ".ci/floors.py"]
    printed = subprocess.run(run, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    floors = dict(line.split("==") for line in printed.splitlines())
    assert {"numba", "click", "pyarrow", "SALib", "matplotlib"} < floors.keys()
    for name, floor in floors.items():
        if canonicalize_name(name) in pinned:
            assert Version(pinned[canonicalize_name(name)]) >= Version(floor), name
    lists = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    for requirement in (Requirement(text) for one in lists for text in one):
        if requirement.name in floors:
            assert str(requirement.specifier) == f">={floors[requirement.name]}", requirement


@pytest.mark.parametrize("package", ["torch", "numba", "pydantic", "distributed", "matplotlib"])
def test_what_a_package_needs_is_pinned(package):
    """Walk the requirements of a package as installed, on this platform and Python."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines}
    left, seen = [package], set()
    while left:
        name = canonicalize_name(left.pop())
        if name in seen:
            continue
        seen.add(name)
        try:
            texts = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        needed = (Requirement(text) for text in texts)
        left += [
            each.name for each in needed if not each.marker or each.marker.evaluate({"extra": ""})
        ]
    assert seen <= pinned
