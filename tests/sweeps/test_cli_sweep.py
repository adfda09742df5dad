"""The command."""

import json

import pytest

from projector.cli.main import run
from projector.sweeps import table
from projector.sweeps.engine import sweep
from sweeps.grid import AXES, grid


@pytest.fixture
def command(monkeypatch, capsys):
    def call(*arguments, space=None):
        found = space or grid()
        monkeypatch.setattr(table, "load_space", lambda _: found)
        code = run(["sweep", "space.yaml", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_json_is_the_result(command, tmp_path):
    code, out, err = command("--out", tmp_path / "out", "--json", "--quiet")
    found, expected = json.loads(out), sweep(grid()).to_dict()
    assert (code, err) == (0, "")
    changing = ("seconds", "rate_per_s", "output")
    assert {k: v for k, v in found.items() if k not in changing} == {
        k: v for k, v in expected.items() if k not in changing
    }
    assert found["output"] == str(tmp_path / "out")
    code, out, _ = command("--out", tmp_path / "out", "--json")
    assert code == 0
    assert json.loads(out)["rate_per_s"] is None


def test_the_summary(command, tmp_path):
    code, out, err = command("--out", tmp_path / "out", "--workers", 1)
    assert (code, err) == (0, "")
    for text in ("Sweep", "153", "Left out", "does not divide", "Best that fit", "tokens/s/GPU"):
        assert text in out
    code, out, _ = command("--out", tmp_path / "out")
    assert "complete before" in out


def test_many_axes_stand_below_each_other(command):
    axes = {**AXES, "training.cuda_graphs": [False], "training.seq_length": [2048],
            "training.precision": ["bf16"]}  # fmt: skip
    code, out, _ = command(space=grid(axes))
    assert code == 0
    assert "precision=bf16" in out.replace("\n", "")


def test_a_dry_run_computes_a_sample(command, tmp_path):
    code, out, _ = command("--dry-run", "--out", tmp_path / "out")
    assert code == 0
    for text in ("216", "153 of 216", "time", "cluster.nodes"):
        assert text in out
    assert not (tmp_path / "out").exists()
    code, out, _ = command("--dry-run", "--json")
    assert (code, json.loads(out)["legal"]) == (0, 153)


def test_a_space_without_a_job_exits_3(command, tmp_path):
    axes = {"parallelism.tp": [3, 5], "cluster.nodes": [1, 2]}
    code, out, _ = command("--json", "--out", tmp_path / "out", space=grid(axes))
    found = json.loads(out)
    assert (code, found["rows"], found["rate_per_s"]) == (3, 0, None)
    assert sum(found["infeasible"].values()) == 4
    code, out, _ = command(space=grid(axes))
    assert code == 3
    assert "No point of the space is legal" in out
    assert len(sweep(grid(axes), tmp_path / "out").to_arrow()) == 0


def test_nothing_fits(command):
    code, out, _ = command(space=grid({"parallelism.tp": [1]}, model="llama3.1_70b"))
    assert code == 0
    assert "No row fits" in out


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_other_engines_are_not_there(command, dry):
    code, out, err = command("--engine", "ray", "--json", *dry)
    assert code == 2
    assert json.loads(out)["allowed"] == ["local", "dask"]
    assert "legal: local, dask" in err
    code, out, err = command("--scheduler", "tcp://host:8786", "--json", *dry)
    assert (code, json.loads(out)["key"]) == (2, "scheduler")
    assert "only engine dask uses one" in err


def test_another_sweep_at_that_place(command, tmp_path):
    out = tmp_path / "out"
    assert command("--out", out)[0] == 0
    code, _, err = command("--out", out, space=grid({"parallelism.tp": [1, 2]}))
    assert code == 2
    assert "another sweep" in err
    assert command("--out", out, "--overwrite", space=grid({"parallelism.tp": [1, 2]}))[0] == 0


def test_an_interrupt_says_how_to_continue(command, tmp_path, monkeypatch):
    from projector.sweeps import engine

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "sweep", interrupt)
    code, out, err = command("--out", tmp_path / "out")
    assert (code, out) == (130, "")
    assert "the same command continues" in err


def test_warnings_go_to_standard_error(command, tmp_path):
    out = tmp_path / "out"
    command("--out", out)
    next(iter(sorted(out.glob("part-*")))).write_bytes(b"")
    code, text, err = command("--out", out, "--json")
    assert code == 0
    assert len(json.loads(text)["warnings"]) == 1
    assert "computed again" in err


class Terminal:
    encoding = "utf-8"

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text

    def flush(self):
        pass

    def isatty(self):
        return True


@pytest.mark.parametrize("quiet", [False, True])
def test_progress_shows_after_a_second(quiet, monkeypatch):
    from projector.report.terminal import progress

    terminal = Terminal()
    monkeypatch.setattr(progress.sys, "stderr", terminal)
    with progress.SweepProgress(quiet=quiet) as bar:
        bar(1, 100, 1)
        assert bar._bar is None
        monkeypatch.setattr(progress, "SILENT_S", 0.0)
        bar(50, 100, 40)
    assert ("50%" in terminal.text) is not quiet
