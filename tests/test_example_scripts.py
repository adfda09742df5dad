"""The example scripts and the notebook run as a user runs them, and say what projections say."""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import projector as pj

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOK = EXAMPLES / "tour.ipynb"

NO_SALIB = (
    "import runpy, sys; sys.modules['SALib'] = None; sys.argv = sys.argv[1:]; "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)


def run_example(folder, *arguments):
    """Run a script in a folder of its own and return what it prints."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.mark.thorough
def test_explain_a_run(tmp_path):
    pytest.importorskip("torch")
    out = run_example(tmp_path, EXAMPLES / "explain_a_run.py", "trace")
    rank, *shares, wait = out.splitlines()
    assert re.fullmatch(r"rank 0: [\d.]+ ms, of which \d+% computing and \d+% idle", rank)
    assert len(shares) == 3
    assert all(re.fullmatch(r"\w+ \w+: \d+% of the work", line) for line in shares)
    assert wait.startswith("the longest wait is before ")
    assert (tmp_path / "trace" / "rank0.json.gz").stat().st_size > 1000


@pytest.mark.thorough
def test_plan_a_cluster(tmp_path):
    out = run_example(tmp_path, EXAMPLES / "plan_a_cluster.py")
    first, second = out.split("Llama-3.1-70B on 1 T tokens ")[1:]
    assert first.startswith("within 30 days: ")
    rows = re.findall(
        r"^ *([\d,]+)  (\w+) +([\d.]+) +([\d.]+) +([\d,]+) +([\d,]+)  (.*?); first$",
        first,
        re.MULTILINE,
    )
    (gpus, device, days, high, hours, cost, _) = rows[0]
    assert float(high) <= 30.0
    # The first choice is the job that was written, and the job gives the figures of its row.
    job = pj.load_job(tmp_path / "out" / "plan.yaml")
    step = pj.project_performance(job)
    assert f"{job.cluster.gpus:,}" == gpus
    assert pj.load_job({**JOB, "cluster": {"device": device}}).cluster.device == job.cluster.device
    assert step.memory.verdict == "fits"
    assert f"{step.run.days:.1f}" == days
    assert f"{step.run.days_high:.1f}" == high
    assert f"{step.run.gpu_hours:,.0f}" == hours
    assert f"{step.run.cost_usd:,.0f}" == cost
    tokens = job.training.global_batch_size * job.training.seq_length
    assert step.run.days > 1e12 / tokens * step.iteration_time_s / 86_400
    # The budget cannot be met; what would do is said.
    assert second.startswith("for $500,000: no cluster that was tried keeps this.")
    assert second.count("Would do: ") == 3
    assert (tmp_path / "out" / "plan.png").read_bytes().startswith(b"\x89PNG")


JOB = {
    "model": "llama3.1_70b",
    "training": {"micro_batch_size": 1, "global_batch_size": 512, "seq_length": 8192},
}

WORTH = re.compile(
    r"^(\w.*?) +(-?[\d.]+) +(-?[\d.]+) +(-?[\d.]+)  (matrix rate|HBM rate|links)$", re.MULTILINE
)
PARTS = ("matrix rate", "HBM rate", "links")


@pytest.mark.thorough
def test_compare_chips(tmp_path):
    out = run_example(tmp_path, EXAMPLES / "compare_chips.py", tmp_path / "figures")
    found = WORTH.findall(out)
    assert len(found) == 4
    assert {best for *_, best in found} == {"matrix rate", "links"}
    for name, *worth, best in found:
        assert best == max(zip(map(float, worth), PARTS, strict=True))[1], name
    # A chip twice as fast in the part that is worth most beats chips twice as fast in another.
    base = {
        "model": "qwen3_30b_a3b",
        "parallelism": {"ep": 16},
        "training": {"micro_batch_size": 1, "global_batch_size": 256, "seq_length": 4096},
        "cluster": {"device": "h100", "nodes": 8},
    }
    chip = {
        "matrix rate": {"cluster.device.matrix_flop_per_clk_per_cu.bf16": 8192.0},
        "HBM rate": {"cluster.device.hbm_peak_tb_per_s": 6.7},
        "links": {
            "cluster.device.scale_up_gb_per_s": 900.0,
            "cluster.device.scale_up_peer_gb_per_s": 900.0,
            "cluster.network.nic_gbit_per_s": 800.0,
        },
    }
    steps = {
        part: pj.project_performance(pj.load_job(base, chip[part])).iteration_time_s
        for part in PARTS
    }
    assert min(steps, key=steps.get) == found[-1][-1]
    # Sobol indices agree with the table: the same order, and shares of about the same size.
    checks = re.findall(r"^(\w.*?) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)$", out, re.MULTILINE)
    assert [part for part, *_ in checks] == list(PARTS)
    for _, _, share, alone, _ in checks:
        assert float(alone) == pytest.approx(float(share), abs=0.1)
    assert (tmp_path / "figures" / "chips.png").read_bytes().startswith(b"\x89PNG")


def test_serve_frontier(tmp_path):
    out = run_example(tmp_path, EXAMPLES / "serve_frontier.py", "llama3.1_8b", "50")
    rates = re.findall(r"^(\w+) +([\d,]+) tokens/s/GPU  tp=", out, flags=re.MULTILINE)
    assert [name for name, _ in rates] == ["h100", "h200", "mi300x", "b200"]


@pytest.mark.thorough
def test_compare_chips_without_salib(tmp_path):
    out = run_example(tmp_path, "-c", NO_SALIB, EXAMPLES / "compare_chips.py")
    assert len(WORTH.findall(out)) == 4
    assert "pip install '.[sensitivity]'" in out
    assert (tmp_path / "out" / "chips.png").exists()


def shown(cell):
    """Return what a cell shows, pictures by their kind alone."""
    return [
        (each.output_type, each.get("text"), each.get("data", {}).get("text/html"))
        for each in cell.get("outputs", [])
    ]


@pytest.mark.thorough
def test_the_notebook_runs_and_is_stored_with_its_outputs():
    stored = nbformat.read(NOTEBOOK, as_version=4)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": EXAMPLES}}).execute()
    assert [*map(shown, notebook.cells)] == [*map(shown, stored.cells)]
    outputs = [each for cell in notebook.cells for each in cell.get("outputs", [])]
    data = [each.data for each in outputs if "data" in each]
    tables = [each["text/html"] for each in data if "text/html" in each]
    assert sum("image/png" in each for each in data) == 3
    text = "".join(each.text for each in outputs if each.output_type == "stream")
    job = pj.load_job(EXAMPLES / "mixtral_8x22b_mi355x.yaml", {"parallelism.vpp": 1})
    # What is shown in HTML and what is printed are the results of the same calls here.
    assert tables[0] == pj.project_memory(job)._repr_html_()
    assert tables[1] == pj.project_performance(job)._repr_html_()
    assert tables[2] == pj.search(job, top=3)._repr_html_()
    fastest = pj.project_performance(job, schedule="all").schedule
    assert re.search(rf"^{fastest} ", text, flags=re.MULTILINE)


WITHOUT_TORCH = NO_SALIB.replace("SALib", "torch")


@pytest.mark.rotated
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve_frontier.py", "no_such_model"], "unknown model 'no_such_model'"),
        (["serve_frontier.py", "llama3.1_8b", "fast"], "could not convert"),
        (["plan_a_cluster.py", "taken"], "taken"),
        (["compare_chips.py", "taken"], "taken"),
        (["explain_a_run.py"], "needs the extras torch and trace: pip install"),
    ],
)
def test_mistakes_in_examples_end_without_a_traceback(tmp_path, arguments, words):
    (tmp_path / "taken").write_text("a file, not a folder")
    script, *rest = arguments
    starter = ["-c", WITHOUT_TORCH] if script == "explain_a_run.py" else []
    command = [sys.executable, *starter, str(EXAMPLES / script), *rest]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert words in done.stderr
