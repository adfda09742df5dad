import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest

import projector
from projector.cli.main import COMMANDS, GROUPS, cli, run
from projector.envelope import SCHEMA_VERSION
from projector.schedule.registry import SCHEDULES

EXAMPLES = Path(__file__).parents[2] / "examples"
MIXTRAL = str(EXAMPLES / "mixtral_8x22b_mi355x.yaml")
TOO_LARGE = str(EXAMPLES / "mixtral_8x22b_seed_sample.yaml")
PROJECTOR = (sys.executable, "-c", "from projector.cli.main import main; main()")

JOB_OPTIONS = {
    "--config",
    "--exp",
    "--target-nodes",
    "--target-num-nodes",
    "--gpu-arch",
    "--gpu-clock-mhz",
    "--hardware-config",
    "--pipeline-schedule-algorithm",
    "--micro-batch-size",
    "--global-batch-size",
    "--list-ignored",
}
OUTPUT_OPTIONS = {"--json", "--quiet"}
PROFILING_OPTIONS = {
    "--profiling-mode",
    "--memory-mode",
    "--benchmark-gpus",
    "--save-benchmark",
    "--save-profiling",
    "--load-benchmark",
}
PRIMUS_OPTIONS = {
    "--target-ep-size",
    "--num-virtual-stages-per-pipeline-rank",
    "--enable-zero-bubble",
    "--enable-deepep",
    "--sync-free-stage",
    "--data_path",
    "--backend_path",
    "--gemm-backend",
}
# Adding a command or an option is a decision, and this list is where it is taken.
SURFACE = {
    "memory": {"assignments", "--emit", "--fidelity", "--defaults"}
    | PROFILING_OPTIONS
    | PRIMUS_OPTIONS
    | JOB_OPTIONS
    | OUTPUT_OPTIONS,
    "performance": {
        "assignments",
        "--emit",
        "--fidelity",
        "--defaults",
        "--timeline",
        "--memory-snapshot",
        "--chakra",
        "--plot",
    }
    | PROFILING_OPTIONS
    | PRIMUS_OPTIONS
    | JOB_OPTIONS
    | OUTPUT_OPTIONS,
    "both": {"assignments", "--emit", "--fidelity", "--defaults"}
    | PROFILING_OPTIONS
    | PRIMUS_OPTIONS
    | JOB_OPTIONS
    | OUTPUT_OPTIONS,
    "compare": {"first", "second", "assignments"} | OUTPUT_OPTIONS,
    "sweep": {
        "space",
        "--plot",
        "--csv",
        "--html",
        "--out",
        "--verify",
        "--engine",
        "--scheduler",
        "--dry-run",
        "--overwrite",
        "--allow-risk",
        "--workers",
    }
    | OUTPUT_OPTIONS,
    "search": {
        "assignments",
        "--emit",
        "--top",
        "--headroom-gib",
        "--allow-risk",
        "--objective",
        "--most-seconds",
        "--tp-across-nodes",
        "--recompute",
        "--schedule",
        "--plot",
        "--csv",
        "--html",
    }
    | JOB_OPTIONS
    | OUTPUT_OPTIONS,
    "sensitivity": {
        "assignments",
        "--weight",
        "--change",
        "--step",
        "--field",
        "--sobol",
        "--samples",
        "--seed",
        "--range",
        "--map",
        "--top",
        "--plot",
    }
    | JOB_OPTIONS
    | OUTPUT_OPTIONS,
    "serve": {"assignments", "--config", "--model", "--device", "--tp", "--pp", "--dtype"}
    | {"--weights", "--batch", "--context", "--output", "--rate", "--requests", "--ttft-ms"}
    | {"--tpot-ms", "--percentile", "--front", "--gpus", "--plot", "--html"}
    | {"--usd-per-gpu-hour", "--fidelity", "--emit", "--csv"}
    | {"--search", "--objective", "--top", "--max-ttft-ms", "--max-tpot-ms", "--most-seconds"}
    | OUTPUT_OPTIONS,
    "rl": {"assignments", "--config", "--search", "--gpus"} | OUTPUT_OPTIONS,
    "plan": {"assignments", "--config", "--model", "--tokens", "--device", "--gpus"}
    | {"--global-batch"}
    | {"--deadline-days", "--deadline", "--budget-usd", "--usd-per-gpu-hour", "--top"}
    | {"--fidelity", "--plot", "--csv", "--html", "--job-out", "--emit"}
    | OUTPUT_OPTIONS,
    "app": {"--config", "--exp", "--port", "--open"},
    "schedule": {
        "--pp",
        "--vpp",
        "--microbatches",
        "--f",
        "--b",
        "--w",
        "--p2p",
        "--memory-limit",
        "--blocking-p2p",
        "--group-size",
        "--objective",
    }
    | {"assignments", "--algorithm", "--plot", "--timeline"}
    | (JOB_OPTIONS - {"--list-ignored"})
    | OUTPUT_OPTIONS,
    "gemm": {"extents", "--out", "--csv", "--gpu", "--dtype", "--batch", "--out-bytes", "--layout"}
    | {"--model", "--library", "--run", "--tile", "--clock-mhz", "--l2-hit-rate"}
    | {"--explain", "--plot"}
    | OUTPUT_OPTIONS,
    "attention": {
        "shape",
        "--csv",
        "--kv-heads",
        "--head-dim",
        "--v-head-dim",
        "--window",
        "--causal",
        "--backward",
        "--gpu",
        "--dtype",
        "--impl",
        "--clock-mhz",
        "--run",
        "--packed",
        "--explain",
        "--plot",
    }
    | OUTPUT_OPTIONS,
    "collective": {"operation", "--bytes", "--gpus", "--device", "--network", "--stride"}
    | {"--algorithm", "--mpi", "--sweep", "--plot"}
    | OUTPUT_OPTIONS,
    "topology": set(),
    "validate": {"kind", "file", "--by", "--normalise", "--out", "--plot"} | OUTPUT_OPTIONS,
    "calibrate": {
        "arguments",
        "--from-run",
        "--measured-ms",
        "--from-runs",
        "--device",
        "--out",
        "--fields",
        "--holdout",
        "--force",
    }
    | OUTPUT_OPTIONS,
    "benchmark": set(),
    "probe": {"--out", "--device", "--threads", "--base", "--timeout-s", "--force"}
    | OUTPUT_OPTIONS,
    "record": {"files", "--config", "--tables", "--merge"} | OUTPUT_OPTIONS,
    "trace": set(),
    "init": {"--output", "--model", "--device", "--nodes", "--minimal", "--force"} | OUTPUT_OPTIONS,
    "models": {"name"} | OUTPUT_OPTIONS,
    "hardware": {"name", "--full"} | OUTPUT_OPTIONS,
    "schema": {"name"} | OUTPUT_OPTIONS,
    "warmup": OUTPUT_OPTIONS,
}


@pytest.fixture
def projector_run(capsys):
    def call(*arguments):
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def as_json(text):
    def refuse(name):
        raise AssertionError(name)

    assert text.endswith("}\n")
    return json.loads(text, parse_constant=refuse)


def through_json(value):
    return json.loads(json.dumps(value))


def test_commands_and_options_are_these():
    context = click.Context(cli)
    found = {
        name: {
            option
            for parameter in cli.get_command(context, name).params
            for option in parameter.opts
        }
        for name in cli.list_commands(context)
    }
    assert found == SURFACE


def test_every_command_explains_itself(projector_run):
    for name in COMMANDS:
        code, out, err = projector_run(name, "--help")
        assert (code, err) == (0, "")
        assert out.startswith(f"Usage: projector {name} ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["performance", "--help"],
        ["schedule", "--help"],
        ["init", "--help"],
        ["topology", "--help"],
        ["topology", "matrix", "--help"],
        ["benchmark", "--help"],
        ["benchmark", "gemm", "--help"],
        ["trace", "--help"],
        ["trace", "summary", "--help"],
    ],
)
def test_help_loads_nothing_heavy(arguments):
    heavy = (
        "{'numba', 'numpy', 'pydantic', 'rich', 'yaml', 'torch', 'scipy', 'networkx', "
        "'projector.projection'}"
    )
    code = (
        "import sys; from projector.cli.main import run; "
        f"code = run({arguments!r}); "
        f"print(code, *sorted(set(sys.modules) & {heavy}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.split() == ["0"]


def test_memory_json_is_the_result(projector_run):
    code, out, err = projector_run("memory", "--config", MIXTRAL, "--json", "--quiet")
    assert (code, err) == (0, "")
    assert as_json(out) == through_json(projector.project_memory(MIXTRAL).to_dict())


def test_performance_json_is_the_result(projector_run):
    code, out, err = projector_run("performance", "--config", MIXTRAL, "--json", "--quiet")
    assert (code, err) == (0, "")
    assert as_json(out) == through_json(projector.project_performance(MIXTRAL).to_dict())


def test_both_json_holds_the_two(projector_run):
    code, out, _ = projector_run("both", "--config", MIXTRAL, "--json")
    found = as_json(out)
    result = projector.project_performance(MIXTRAL)
    assert code == 0
    assert found["memory"] == through_json(result.memory.to_dict())
    assert found["performance"] == through_json(result.to_dict())
    assert {"schema_version", "version", "warnings", "uncertainty"} <= found.keys()


@pytest.mark.parametrize("command", ["models", "hardware"])
def test_objects_that_project_nothing_carry_the_envelope(command, projector_run):
    code, out, _ = projector_run(command, "--json")
    found = as_json(out)
    assert code == 0
    assert (found["schema_version"], found["version"], found["warnings"]) == (
        SCHEMA_VERSION,
        projector.__version__,
        [],
    )


def test_a_model_is_shown_with_its_size(projector_run):
    code, out, _ = projector_run("models", "mixtral_8x7b")
    assert code == 0
    assert out.splitlines()[0] == "46,702,792,704 parameters (46.7 B), 12.88 B active for a token"
    found = as_json(projector_run("models", "mixtral_8x7b", "--json")[1])
    assert (found["parameters_total"], found["model"]["num_layers"]) == (46_702_792_704, 32)


def test_a_job_that_does_not_fit_is_projected_and_exits_3(projector_run):
    large = ("--config", TOO_LARGE, "cluster.device=mi300x")
    for command in ("memory", "performance", "both"):
        code, out, _ = projector_run(command, *large)
        assert code == 3
        assert "DOES NOT FIT" in out
    code, out, _ = projector_run("memory", *large, "--json")
    assert (code, as_json(out)["fits"]) == (3, False)


def test_options_reach_the_job(projector_run, tmp_path):
    hardware = tmp_path / "hardware.yaml"
    hardware.write_text("hardware_config:\n  pod_lat: 7.0\n  node_bw: 448\n")
    code, out, err = projector_run(
        *("performance", "--config", MIXTRAL, "--json", "--hardware-config", hardware),
        *("--target-nodes", 16, "--gpu-arch", "mi325x", "--gpu-clock-mhz", 1500),
        *("--micro-batch-size", 1, "--global-batch-size", 512),
        *("--pipeline-schedule-algorithm", "1f1b", "parallelism.vpp=1"),
    )
    found = as_json(out)
    expected = projector.load_job(
        MIXTRAL,
        {
            "cluster.device": "mi325x",
            "cluster.device.scale_up_gb_per_s": 448,
            "cluster.device.scale_up_peer_gb_per_s": 448,
            "cluster.network.nic_latency_us": 7.0,
            "cluster.nodes": 16,
            "cluster.gpu_clock_mhz": 1500,
            "training.micro_batch_size": 1,
            "training.global_batch_size": 512,
            "training.schedule": "1f1b",
            "parallelism.vpp": 1,
        },
    )
    result = projector.project_performance(expected).to_dict()
    assert (code, err) == (0, "") if result["memory"]["fits"] else (3, "")
    assert found["iteration_time_ms"] == result["iteration_time_ms"]
    assert (found["nodes"], found["schedule"]) == (16, "1f1b")
    assert any("node_topology" in warning for warning in found["warnings"])


def test_warnings_go_to_standard_error(projector_run, tmp_path):
    hardware = tmp_path / "hardware.yaml"
    hardware.write_text("hardware_config:\n  node_bw: 500\n")
    loud = projector_run("memory", "--config", MIXTRAL, "--hardware-config", hardware)
    quiet = projector_run("memory", "--config", MIXTRAL, "--hardware-config", hardware, "--quiet")
    assert loud[2].startswith("warning: node_topology is missing")
    assert quiet == (0, loud[1], "")


def test_another_device_brings_its_network(projector_run):
    _, out, _ = projector_run("performance", "--config", MIXTRAL, "--gpu-arch", "h100", "--json")
    assert "H100" in as_json(out)["provenance"]["derived"]["cluster.network"]


def test_all_schedules_are_compared(projector_run):
    code, out, _ = projector_run(
        "performance", "--config", MIXTRAL, "parallelism.vpp=1", "--json",
        "--pipeline-schedule-algorithm", "all",
    )  # fmt: skip
    found = as_json(out)
    compared = {found["schedule"]: found["parallelism"]["vpp"]}
    compared |= {other["schedule"]: other["vpp"] for other in found["alternatives"]}
    assert "left_out" not in found
    assert {*compared} == {*SCHEDULES}
    # Each in the chunks that it needs.
    assert (compared["1f1b"], compared["interleaved"], compared["zbv-formatted"]) == (1, 2, 2)
    assert code == 0 if found["memory"]["fits"] else 3


def test_the_first_run_says_that_it_compiles(tmp_path, monkeypatch, capsys):
    from projector.cli.output import announce_compilation
    from projector.kernels import _cache, step
    from projector.kernels._cache import sources_digest

    monkeypatch.setattr(_cache, "cache_dir", lambda: tmp_path)
    announce_compilation(quiet=True)
    assert capsys.readouterr().err == ""
    announce_compilation(quiet=False)
    assert capsys.readouterr().err.startswith("compiling kernels")
    # What was compiled from other sources is compiled again.
    (tmp_path / "projector.kernels.step.end_steps-1-0.0.nbc").touch()
    (tmp_path / ".nbc").mkdir()
    announce_compilation(quiet=False)
    assert capsys.readouterr().err.startswith("compiling kernels")
    digest = sources_digest(step.__file__)
    (tmp_path / f"projector.kernels.step.end_steps-1-{digest}.0.nbc").touch()
    announce_compilation(quiet=False)
    assert capsys.readouterr().err == ""


def test_warmup_compiles_every_kernel(projector_run):
    code, out, _ = projector_run("warmup", "--json", "--quiet")
    assert code == 0
    assert as_json(out)["seconds"] > 0
    folder = Path(projector.__file__).parent / "kernels"
    kernels = {
        name: value
        for path in folder.glob("[a-z]*.py")
        for name, value in vars(import_module(f"projector.kernels.{path.stem}")).items()
        if type(getattr(value, "_cache", None)).__name__ == "KernelCache"
    }
    assert kernels
    assert not {name for name, value in kernels.items() if not value.signatures}


def test_init_writes_a_job_that_projects(projector_run, tmp_path):
    path = tmp_path / "job.yaml"
    assert projector_run("init", "--output", path)[0] == 0
    first = path.read_text()
    code, _, _ = projector_run("memory", "--config", path)
    assert code in {0, 3}
    code, _, err = projector_run("init", "--output", path, "--nodes", 2)
    assert code == 2
    assert "--force" in err
    assert path.read_text() == first
    assert projector_run("init", "--output", path, "--nodes", 2, "--force")[0] == 0
    assert path.read_text() != first


def test_init_prints_without_output(projector_run):
    code, out, err = projector_run("init", "--model", "mixtral_8x7b", "--device", "h200")
    assert (code, err) == (0, "")
    assert "model: mixtral_8x7b" in out


def test_compare_shows_what_moved(projector_run):
    code, out, _ = projector_run("compare", MIXTRAL, TOO_LARGE, "--json")
    found = as_json(out)
    # The second is at risk: its peak is too large, the lower end of its band is not.
    assert code == 0
    a, b = (projector.project_performance(path) for path in (MIXTRAL, TOO_LARGE))
    moved = found["breakdown_ms"]
    differences = [abs(change["difference"]) for change in moved.values()]
    assert differences == sorted(differences, reverse=True)
    total = sum(change["difference"] for change in moved.values())
    assert total == pytest.approx((b.iteration_time_s - a.iteration_time_s) * 1e3)
    assert found["settings"]["cluster.nodes"] == {"a": 8, "b": 4}
    assert found["fits"] == {"a": True, "b": False}
    ratio = found["time_ratio"]
    assert ratio["value"] == pytest.approx(a.tokens_per_s_per_gpu / b.tokens_per_s_per_gpu)
    low, high = ratio["low"], ratio["high"]
    assert low["90"] < low["68"] < ratio["value"] < high["68"] < high["90"]
    # Their vocabularies differ, so nothing cancels.
    assert ratio["basis"] == "the bands of both jobs, taken as independent"


def test_compare_with_a_job_that_does_not_fit(projector_run):
    code, _, _ = projector_run("compare", MIXTRAL, TOO_LARGE, "cluster.device=mi300x")
    assert code == 3


def test_compare_of_a_job_with_itself(projector_run):
    code, out, _ = projector_run("compare", MIXTRAL, MIXTRAL, "training.cuda_graphs=true")
    assert code == 0
    assert "the same in both" in out


def test_lists_name_everything_that_ships(projector_run):
    from projector.config import resources

    for command, kind in (("models", "models"), ("hardware", "hardware")):
        code, out, _ = projector_run(command)
        assert code == 0
        for name in resources.shipped(kind):
            assert f" {name} " in out


def test_one_device_is_shown_with_its_sources(projector_run):
    code, out, _ = projector_run("hardware", "mi355x")
    assert code == 0
    assert len(out.splitlines()) < 24  # one screen
    assert "5,033.2" in out
    code, out, _ = projector_run("hardware", "mi355x", "--full")
    assert code == 0
    assert "hbm_gib" in out
    assert "ROCm" in out
    assert "nic_gbit_per_s" in out


def test_the_help_has_every_command_in_one_group():
    assert sorted(" ".join(GROUPS.values()).split()) == sorted(COMMANDS)


def test_a_reader_that_leaves_is_no_error():
    done = subprocess.run(
        f"'{sys.executable}' -c 'from projector.cli.main import main; main()' models "
        "| head -1 >/dev/null; echo ${PIPESTATUS[0]}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert done.stdout.strip() in {"0", "141"}


def test_an_interrupt_exits_130(monkeypatch, capsys):
    from projector.cli.job import JobRequest

    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(JobRequest, "load", interrupt)
    assert run(["memory", "--config", MIXTRAL]) == 130
    assert capsys.readouterr().out == ""


def test_an_error_of_our_own_is_not_swallowed(monkeypatch):
    from projector.cli.job import JobRequest

    def fail(self):
        raise ZeroDivisionError

    monkeypatch.setattr(JobRequest, "load", fail)
    with pytest.raises(ZeroDivisionError):
        run(["memory", "--config", MIXTRAL])


def test_an_ascii_terminal_gets_ascii():
    done = subprocess.run(
        [*PROJECTOR, "performance", "--config", MIXTRAL],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "####" in done.stdout


@pytest.mark.rotated
@pytest.mark.parametrize("redirection", [">&-", ">/dev/full"])
@pytest.mark.parametrize(
    "arguments", ["--help", "models", "models --json", "init", "hardware nowhere --json"]
)
def test_output_that_cannot_be_written(arguments, redirection):
    done = subprocess.run(
        f"'{sys.executable}' -c 'from projector.cli.main import main; main()' "
        f"{arguments} {redirection}",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: standard output ")
    assert "Traceback" not in done.stderr


def test_errors_need_no_standard_error():
    done = subprocess.run(
        f"'{sys.executable}' -c 'from projector.cli.main import main; main()' "
        "memory --config nowhere.yaml 2>&-",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")


def test_a_cache_that_cannot_be_written_is_said_every_time(monkeypatch, capsys):
    from projector.cli.output import announce_compilation
    from projector.kernels import _cache

    monkeypatch.setattr(_cache, "cache_dir", lambda: Path("/dev/null/kernels"))
    announce_compilation(quiet=False)
    err = capsys.readouterr().err
    assert "every run" in err
    assert "/dev/null/kernels" in err


def test_commands_of_one_job_say_that_kernels_are_compiled_later(tmp_path, monkeypatch, capsys):
    import click

    from projector.cli.output import interpret_at_first
    from projector.kernels import _cache

    def told(*, quiet: bool) -> str:
        with click.Context(click.Command("any")):
            interpret_at_first(quiet=quiet)
        return capsys.readouterr().err

    monkeypatch.setattr(_cache, "cache_dir", lambda: tmp_path)
    monkeypatch.setenv("PROJECTOR_BACKGROUND", "0")
    assert told(quiet=False) == ""
    monkeypatch.delenv("PROJECTOR_BACKGROUND")
    assert told(quiet=True) == ""
    assert told(quiet=False).startswith("kernels are compiled in the background")
