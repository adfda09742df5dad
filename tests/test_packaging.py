"""The wheel carries its data, and finds it."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


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
    assert "projector/_data/hardware/mi355x.yaml" in names
    assert "projector/_data/hardware/nodes/mi250x.yaml" in names
    assert "projector/_data/hardware/first_order/tpu_v5p.yaml" in names
    assert "projector/_data/models/mixtral_8x22b.yaml" in names
    assert "projector/py.typed" in names
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
