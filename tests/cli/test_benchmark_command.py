"""``projector benchmark`` from the door, with a stand-in for the worker."""

import json
from pathlib import Path

import pytest

from measure.bench_stand_in import StandIn, out_of_memory
from projector.cli.main import run
from projector.errors import MeasurementError
from projector.measure.bench import session

COMMANDS = {
    "gemm": ["--sizes", "512:2048", "--dtype", "bf16,fp8"],
    "attention": ["--sizes", "1024,2048"],
    "collective": ["all_reduce", "--ranks", "8", "--sizes", "1KiB:1MiB:x8"],
    "memory": ["--sizes", "1MiB:1GiB:x8"],
    "clock": ["--dtype", "bf16"],
}


@pytest.fixture
def stand_in(monkeypatch):
    """Put a stand-in where the worker is called."""
    worker = StandIn()
    monkeypatch.setattr(session, "run_task", lambda task, timeout_s, progress: worker(task))
    return worker


@pytest.mark.rotated
@pytest.mark.parametrize("kind", COMMANDS)
def test_every_kind_prints_writes_and_draws(stand_in, capsys, tmp_path, kind):
    out, figure = tmp_path / "out.csv", tmp_path / "out.png"
    options = ["--out", str(out), "--plot", str(figure)]
    assert run(["benchmark", kind, *COMMANDS[kind], *options]) == 0
    printed = capsys.readouterr()
    assert "NVIDIA H100 80GB HBM3" in printed.out
    assert "modelled as h100" in printed.out
    assert f"wrote {out}" in printed.err
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert max(map(len, printed.out.splitlines())) <= 100
    count = len(stand_in.programs)
    assert run(["benchmark", kind, *COMMANDS[kind], *options, "--json", "--quiet"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert printed.err == ""
    assert len(found["rows"]) == found["asked"] == count == len(stand_in.programs)
    assert all(row["status"] == "ok" for row in found["rows"])
    assert found["errors"]["rows"] == count


def test_out_of_memory_is_a_line(stand_in, capsys):
    stand_in.rule = lambda program: out_of_memory() if program.key.m == 2048 else None
    assert run(["benchmark", "gemm", *COMMANDS["gemm"]]) == 0
    printed = capsys.readouterr().out
    assert "2 out of memory: tried to allocate 80 GiB" in printed


@pytest.mark.parametrize("out", [None, "out.csv"])
def test_an_interruption_shows_what_is_there(stand_in, capsys, tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)

    def stop(program):
        if program.key.m == 640:
            raise KeyboardInterrupt

    stand_in.rule = stop
    arguments = ["benchmark", "gemm", "--sizes", "16:640:16"]
    assert run([*arguments, *(["--out", out] if out else [])]) == 130
    printed = capsys.readouterr()
    assert "not measured yet: 8 of 40" in printed.out
    says = "the same command continues" if out else "lost without --out"
    assert "stopped: 32 of 40 measured, " in printed.err
    assert says in printed.err


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["gemm"], "sizes"),
        (["gemm", "--sizes", "8:4"], "sizes"),
        (["gemm", "--sizes", "64", "--dtype", "fp9"], "dtype"),
        (["gemm", "--sizes", "64", "--device", "h1000"], "device"),
        (["gemm", "--sizes", "64", "--backend", "tpu"], "backend"),
        (["gemm", "--csv", "missing.csv"], "csv"),
        (["gemm", "--sizes", "64", "--plot", "a.gif"], "plot"),
        (["gemm", "--sizes", "64", "--out", "missing/out.csv"], "out"),
        (["attention", "--sizes", "64", "--pass", "sideways"], "pass"),
        (["attention", "--sizes", "64", "--kernel", "fast"], "kernel"),
        (["collective", "gather"], "operation"),
        (["memory", "--sizes", "1.5"], "sizes"),
        (["clock", "--seconds", "0"], "seconds"),
        (["clock", "--seconds", "nan"], "seconds"),
    ],
)
@pytest.mark.usefixtures("stand_in")
def test_mistakes_are_named(capsys, arguments, key):
    assert run(["benchmark", *arguments, "--json"]) == 2
    printed = capsys.readouterr()
    assert json.loads(printed.out)["key"] == key
    assert printed.err.count("\n") == 1


@pytest.mark.usefixtures("stand_in")
def test_a_list_is_not_overwritten_with_its_results(capsys, tmp_path):
    table = tmp_path / "shapes.csv"
    table.write_text("m,n,k\n64,64,64\n")
    arguments = ["--csv", str(table), "--out", str(table), "--overwrite"]
    assert run(["benchmark", "gemm", *arguments]) == 2
    assert "is the file that is read" in capsys.readouterr().err
    assert table.read_text() == "m,n,k\n64,64,64\n"


def test_the_list_among_the_examples_is_measured(stand_in, capsys):
    table = Path(__file__).parents[2] / "examples" / "gemms_deepseek_v3.csv"
    assert run(["benchmark", "gemm", "--csv", str(table), "--dtype", "bf16,fp8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(stand_in.programs) == len(found["rows"]) == 42
    padded = {
        (row["dtype"], row["asked"][name], row[name])
        for row in found["rows"]
        for name in row["asked"] or ()
        if row["asked"][name] != row[name]
    }
    assert padded == {("bf16", 257, 264), ("fp8", 257, 272)}


def test_without_torch_it_says_so(monkeypatch, capsys):
    def no_torch(task, **options):
        del task, options
        msg = "torch is not installed: pip install '.[torch]'"
        raise MeasurementError(msg, key="torch")

    monkeypatch.setattr(session, "run_task", no_torch)
    assert run(["benchmark", "gemm", "--sizes", "64"]) == 2
    assert ".[torch]" in capsys.readouterr().err
