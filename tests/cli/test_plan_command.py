"""``projector plan`` as its users run it."""

import json

import pytest

import projector as pj
from projector.cli.main import run

SMALL = ("plan", "--model", "llama3.2_1b", "--tokens", "20B", "--device", "h100", "--gpus", "8")
PRICED = (*SMALL, "--gpus", "16", "--usd-per-gpu-hour", "2.5")


@pytest.fixture
def projector_run(capsys):
    def call(*arguments):
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_json_is_the_result_of_python(projector_run):
    code, out, err = projector_run(*SMALL, "--json", "--quiet")
    assert (code, err) == (0, "")
    printed = json.loads(out)
    expected = json.loads(
        json.dumps(pj.project_plan("llama3.2_1b", "20B", devices=["h100"], gpus=[8]).to_dict())
    )
    for result in (printed, expected):
        result.pop("seconds")
    assert printed == expected


def test_the_first_choice_is_a_job_that_performance_runs(projector_run, tmp_path):
    file = tmp_path / "winner.yaml"
    code, out, err = projector_run(*PRICED, "--job-out", file, "--json")
    assert code == 0
    assert f"wrote {file}" in err
    first = json.loads(out)["choices"][0]
    assert file.read_text(encoding="utf-8").startswith("# Llama-3.2-1B on 20 B tokens")
    code, out, _ = projector_run("performance", "--config", file, "--json", "--quiet")
    step = json.loads(out)
    assert code == 0
    assert step["iteration_time_ms"] == pytest.approx(first["iteration_time_ms"], rel=1e-12)
    assert step["run"]["days"] == pytest.approx(first["days"], rel=1e-12)
    assert step["run"]["cost_usd"] == pytest.approx(first["cost_usd"], rel=1e-12)
    assert step["gpus"] == first["gpus"]


def test_what_cannot_be_met_exits_3_and_says_what_would_do(projector_run):
    code, out, _ = projector_run(*PRICED, "--budget-usd", 50, "--quiet")
    assert code == 3
    assert "no cluster that was tried" in out
    assert "What would do" in out
    assert "A budget of $" in out


def test_a_date_is_a_deadline(projector_run):
    code, out, _ = projector_run(*SMALL, "--deadline", "2199-01-01", "--json", "--quiet")
    assert code == 0
    assert json.loads(out)["deadline_days"] > 365


def test_prices_by_device(projector_run):
    code, out, _ = projector_run(
        *SMALL, "--device", "h200", "--usd-per-gpu-hour", "h100=2.5", "--usd-per-gpu-hour",
        "h200=3", "--json", "--quiet",
    )  # fmt: skip
    assert code == 0
    hourly = {
        each["device"]: each["cost_usd"] / each["gpu_hours"] for each in json.loads(out)["choices"]
    }
    assert hourly == {"h100": pytest.approx(2.5), "h200": pytest.approx(3.0)}


def test_page_and_picture(projector_run, tmp_path):
    page, picture = tmp_path / "plan.html", tmp_path / "plan.png"
    code, _, err = projector_run(*PRICED, "--deadline-days", 2, "--html", page, "--plot", picture)
    assert code == 0
    assert f"wrote {page}" in err
    assert picture.read_bytes().startswith(b"\x89PNG")
    text = page.read_text(encoding="utf-8")
    assert "http-equiv" in text
    for title in ("Choices", "Days against USD", "What the figures rest on"):
        assert f"<h2>{title}</h2>" in text


MISTAKES = {
    "no tokens": (("--model", "llama3.2_1b"), "tokens", "--tokens 1T"),
    "no model": (("--tokens", "1T"), "model", "--config FILE"),
    "past": ((*SMALL[1:], "--deadline", "2020-01-01"), "deadline", "does not lie ahead"),
    "no date": ((*SMALL[1:], "--deadline", "soon"), "deadline", "YYYY-MM-DD"),
    "two deadlines": (
        (*SMALL[1:], "--deadline", "2199-01-01", "--deadline-days", "3"), "deadline", "one of them"
    ),
    "negative price": ((*SMALL[1:], "--usd-per-gpu-hour", "-2"), "usd_per_gpu_hour", "above 0"),
    "no price": ((*SMALL[1:], "--budget-usd", "9"), "usd_per_gpu_hour", "--usd-per-gpu-hour X"),
    "two prices": (
        (*SMALL[1:], "--usd-per-gpu-hour", "2", "--usd-per-gpu-hour", "h100=3"),
        "usd_per_gpu_hour",
        "not both",
    ),
    "one price twice": (
        (*SMALL[1:], "--usd-per-gpu-hour", "h100=2", "--usd-per-gpu-hour", "h100=3"),
        "usd_per_gpu_hour",
        "h100 is given twice",
    ),
    "price of another": (
        (*SMALL[1:], "--usd-per-gpu-hour", "b200=2"), "usd_per_gpu_hour", "its devices: h100"
    ),
    "price of letters": ((*SMALL[1:], "--usd-per-gpu-hour", "cheap"), "usd_per_gpu_hour", "number"),
    "part of a node": ((*SMALL[1:], "--gpus", "12"), "gpus", "8 or 16"),
    "unknown device": ((*SMALL[1:], "--device", "h10"), "cluster.device", "nearest"),
    "unknown network": ((*SMALL[1:], "--device", "h100@p9"), "cluster.network", "p5_efa"),
    "page without a folder": ((*SMALL[1:], "--html", "no/such/plan.html"), "html", "no folder"),
    "job without a folder": ((*SMALL[1:], "--job-out", "no/such/a.yaml"), "job_out", "no folder"),
    "not a figure": ((*SMALL[1:], "--plot", "plan.txt"), "plot", ".png"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(projector_run, name):
    arguments, key, words = MISTAKES[name]
    code, out, err = projector_run("plan", *arguments, "--json")
    error = json.loads(out)
    assert code == 2
    assert error["key"] == key
    assert words in f"{error['error']} {error['allowed']}"
    assert err.startswith("error: ")
