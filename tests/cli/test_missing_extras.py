"""Without an optional extra, a command that needs it says in one line what installs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
JOB = ["--config", str(EXAMPLES / "llama3.1_8b_fp8_mi325x.yaml")]
SPACE = str(EXAMPLES / "space_chips_search.yaml")

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize(
    ("module", "extra", "command"),
    [
        ("matplotlib", "plot", ["sweep", SPACE, "--plot", "pareto=a.png"]),
        ("matplotlib", "plot", ["performance", *JOB, "--plot", "interval=a.png"]),
        ("matplotlib", "plot", ["gemm", "64", "64", "64", "--plot", "a.png"]),
        ("plotly", "html", ["sweep", SPACE, "--html", "a.html"]),
        ("plotly", "html", ["search", *JOB, "--html", "a.html"]),
        ("dash", "app", ["app", "--port", "0"]),
        ("SALib", "sensitivity", ["sensitivity", *JOB, "--sobol"]),
        ("distributed", "dask", ["sweep", SPACE, "--engine", "dask"]),
        ("upath", "cloud", ["sweep", SPACE, "--out", "memory://folder/rows.parquet"]),
        ("s3fs", "cloud", ["sweep", SPACE, "--out", "s3://bucket/rows.parquet"]),
        ("torch", "torch", ["probe"]),
        ("torch", "torch", ["benchmark", "gemm", "--m", "64", "--n", "64", "--k", "64"]),
        ("torch", "torch", ["trace", "record", "--out", "traces", "train.py"]),
    ],
)
def test_a_missing_extra_is_named_in_one_line(module, extra, command, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(f"import sys; sys.modules[{module!r}] = None\n")
    (tmp_path / "train.py").write_text("print('trains')\n")
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    code = "from projector.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *before])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert f".[{extra}]" in line
    assert done.stdout == ""
