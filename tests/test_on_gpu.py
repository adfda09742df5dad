"""The morning on a GPU: its plan, budget and restart with stand-ins, and a rehearsal on a CPU."""

import csv
import json
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from tests.measure.bench_stand_in import CPU, H100, StandIn, died
from tests.measure.fake_smi import FakeNvml

from projector.errors import ConfigError
from projector.measure.smi import Nvml
from projector.measure.task import LayerProgram, OperationProgram, Outcome, StepProgram, Timing

VALIDATION = Path(__file__).resolve().parents[1] / "validation"
sys.path.insert(0, str(VALIDATION))

import on_gpu  # noqa: E402  # a script that imports its neighbours
import on_gpu_page  # noqa: E402
import on_gpu_parts as parts  # noqa: E402

sys.path.remove(str(VALIDATION))

SIZES = yaml.safe_load((VALIDATION / "on_gpu.yaml").read_text())
MI300X = {"device": "AMD Instinct MI300X", "backend": "rocm", "runtime": "7.0"}
THREE = {name: {"title": name.title(), "minutes": 1} for name in ("first", "second", "third")}


def soon():
    return time.monotonic() + 600.0


def place_of(folder, environment=H100, device="h100", section="gpu"):
    rehearsal = section != "gpu"
    return parts.Place(folder, environment, device, SIZES[section], rehearsal, soon())


def state_of(environment=H100, **changes):
    known = {"rehearsal": False, "device": "h100", "plan": "0"}
    return on_gpu.State(environment=environment.model_dump(mode="json"), **{**known, **changes})


def outcome_of(program):
    """Answer what ordinary stand-ins do not know."""
    if isinstance(program, StepProgram):
        numbers = {"peak_allocated_bytes": 4e10, "peak_reserved_bytes": 5e10, "parameters": 1e9}
        timing = Timing(median_s=0.1, low_s=0.1, high_s=0.1, repeats=3)
        return Outcome(status="ok", times={"total": timing}, numbers=numbers)
    if isinstance(program, OperationProgram) and program.key.dtype == "fp8":
        return Outcome(status="unsupported", message="FP8 does not run here")
    return None


@pytest.fixture
def stand_in(monkeypatch):
    worker = StandIn(rule=outcome_of)
    monkeypatch.setattr(
        parts, "run_task", lambda task, timeout_s, progress: worker(task, progress or (lambda _: 0))
    )
    return worker


# The plan.


def test_every_part_of_the_plan_can_be_run_and_has_sizes():
    assert SIZES["parts"].keys() == parts.PARTS.keys()
    for section in ("gpu", "rehearsal"):
        assert parts.PARTS.keys() <= SIZES[section].keys()


def test_the_plan_is_as_large_as_it_says():
    gpu = SIZES["gpu"]
    assert len(gpu["gemm"]["rows"]) * len(gpu["gemm"]["layers"]) == 200
    assert len(gpu["memory"]) == 10
    assert sum(part["minutes"] for part in SIZES["parts"].values()) == pytest.approx(40, abs=2)


@pytest.mark.parametrize("count", [1, 7, 49, 77, 200])
def test_any_beginning_of_a_list_shows_all_kinds(count):
    items = list(range(count))
    spread = list(parts._spread(items))
    assert sorted(spread) == items
    if count == 200:
        assert max(spread[:30]) > 150


@pytest.mark.parametrize("name", ["clock", "attention", "grouped", "copies", "gemm"])
@pytest.mark.parametrize("device", ["h100", "mi300x"])
def test_every_case_of_a_list_is_modelled(name, device, tmp_path, monkeypatch):
    where = H100 if device == "h100" else H100.model_copy(update=MI300X)
    worker = StandIn(where)
    monkeypatch.setattr(parts, "run_task", lambda task, **_: worker(task))
    found = parts.Found()
    parts.PARTS[name](place_of(tmp_path, where, device), found)
    assert not found.failures
    assert len(found.rows) == len(worker.programs) > 0


@pytest.mark.parametrize("name", ["clock", "attention", "grouped", "copies", "gemm"])
def test_lists_of_a_gpu_are_measured_once(name, tmp_path, stand_in):
    found = parts.Found()
    parts.PARTS[name](place_of(tmp_path), found)
    asked, cases = len(stand_in.programs), int(found.facts["cases"].split()[0])
    assert cases == asked > 0
    unsupported = [each for each in found.failures if each["status"] == "unsupported"]
    others = [each for each in found.failures if each["status"] != "unsupported"]
    assert not others
    assert len(found.rows) + len(unsupported) == cases
    # All of it is on the disk: nothing is measured again.
    measured = [each for each in stand_in.programs if outcome_of(each) is None]
    parts.PARTS[name](place_of(tmp_path), parts.Found())
    assert len(stand_in.programs) - asked == asked - len(measured)


def test_operators_and_peaks_of_a_gpu_are_compared(tmp_path, stand_in):
    place = place_of(tmp_path)
    found = parts.Found()
    parts.operators(place, found)
    assert {row.term for row in found.rows} == {
        f"operators {name}" for name in SIZES["gpu"]["operators"]
    }
    assert {key.kind for key in (each.key for each in stand_in.programs)} == {"memory"}
    found = parts.Found()
    parts.memory(place, found)
    assert [row.unit for row in found.rows] == ["GiB"] * 20
    # What is projected of a whole job, and of the step that ran, are about the same.
    for job, step in zip(found.rows[::2], found.rows[1::2], strict=True):
        assert step.what == job.what
        assert 0.5 < job.projected / step.projected < 2.0, job.what


def test_a_step_without_memory_is_told_and_the_others_go_on(tmp_path, monkeypatch):
    first = []

    def rule(program):
        first.append(program)
        if len(first) == 1:
            return Outcome(status="out_of_memory", message="tried to allocate 80 GiB")
        return outcome_of(program)

    worker = StandIn(rule=rule)
    monkeypatch.setattr(parts, "run_task", lambda task, **_: worker(task))
    found = parts.Found()
    parts.memory(place_of(tmp_path), found)
    assert [each["status"] for each in found.failures] == ["out_of_memory"]
    assert len(found.rows) == 18


def test_a_step_whose_process_dies_fails_and_the_others_go_on(tmp_path, monkeypatch):
    calls, worker = [], StandIn(rule=outcome_of)

    def run_task(task, **_):
        calls.append(task)
        return died() if len(calls) == 2 else worker(task)

    monkeypatch.setattr(parts, "run_task", run_task)
    found = parts.Found()
    with pytest.raises(parts.MeasurementError, match="1 of 10 failed: llama, 4 layers, fp8"):
        parts.memory(place_of(tmp_path), found)
    assert [each["message"] for each in found.failures] == ["the worker ended with exit code -9"]
    assert len(found.rows) == 18
    # It alone is tried again.
    found = parts.Found()
    parts.memory(place_of(tmp_path), found)
    assert (len(calls), len(found.rows)) == (11, 20)


@pytest.mark.thorough
def test_a_probe_of_a_gpu_extends_its_profile(tmp_path, monkeypatch):
    def rule(program):
        if isinstance(program, StepProgram | LayerProgram):
            one = Timing(median_s=1e-3, low_s=1e-3, high_s=1e-3, repeats=11)
            parts_of = ("forward", "backward", "input_gradient", "optimizer", "total")
            return Outcome(status="ok", times=dict.fromkeys(parts_of, one))
        return None

    worker = StandIn(rule=rule)
    monkeypatch.setattr(parts, "run_task", lambda task, **_: worker(task))
    found = parts.Found()
    parts.probe(place_of(tmp_path), found)
    profile = yaml.safe_load((tmp_path / "probed.yaml").read_text())
    assert (profile["extends"], profile["name"]) == ("h100", H100.device)
    assert not found.failures
    assert {row.term.split()[1].rstrip(",") for row in found.rows} == {
        "sweep", "memory", "gemm", "attention", "layer", "step"
    }  # fmt: skip


def test_a_list_that_is_cut_off_goes_on_where_it_ended(tmp_path, monkeypatch):
    place, calls = place_of(tmp_path), []
    worker = StandIn()

    def run_task(task, **_):
        calls.append(len(task.programs))
        if len(calls) == 3:
            place.deadline = 0.0
        return worker(task)

    monkeypatch.setattr(parts, "run_task", run_task)
    found = parts.Found()
    with pytest.raises(parts.OutOfTimeError):
        parts.gemm(place, found)
    assert len(found.rows) == sum(calls) == 3 * SIZES["gpu"]["chunk"]
    place.deadline = soon()
    found = parts.Found()
    parts.gemm(place, found)
    assert len(found.rows) == sum(calls) == 400
    with (tmp_path / "gemm.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 400


# The budget, and going on.


def test_what_a_part_leaves_goes_to_those_behind_it():
    assert on_gpu.share_s(600.0, [1, 2, 3]) == 100.0
    assert on_gpu.share_s(600.0, [2, 3]) == 240.0
    # A short rest is not divided further than a part can use.
    assert on_gpu.share_s(30.0, [1, 9]) == on_gpu.LEAST_S
    assert on_gpu.share_s(5.0, [1, 9]) == 5.0


def test_a_part_that_fails_does_not_stop_the_rest(tmp_path):
    def broken(place, found):
        found.add("a term", "a case", 2.0, 1.0)
        raise ZeroDivisionError("no luck")

    def refused(place, found):
        raise ConfigError("tp must divide heads", key="tp")

    done = []
    state = state_of()
    run = {"first": broken, "second": refused, "third": lambda place, found: done.append(1)}
    on_gpu.go(place_of(tmp_path), state, THREE, 40.0, run)
    assert done == [1]
    assert [state.status(name) for name in THREE] == ["failed", "failed", "ok"]
    assert "ZeroDivisionError: no luck (test_on_gpu.py, line" in state.parts["first"]["error"]
    # What it had measured stays, with its error.
    assert state.parts["first"]["errors"]["a term"]["median_ape"] == 0.5
    assert state.parts["second"]["error"] == "tp must divide heads"


def test_errors_of_terms():
    found = parts.Found()
    for measured, projected in ((1.0, 1.1), (1.0, 0.8), (2.0, 2.0), (0.0, 1.0)):
        found.add("a term", "", measured, projected)
    assert on_gpu.errors_of(found)["a term"] == {
        "count": 3,
        "median_ape": pytest.approx(0.1),
        "p90_ape": pytest.approx(0.18),
        "geomean_ratio": pytest.approx((1.1 * 0.8) ** (1 / 3)),
    }


def test_the_same_command_does_what_is_left(tmp_path):
    calls, late = [], {"second"}

    def part(name):
        def run(place, found):
            calls.append(name)
            found.add(name, "", 1.0, 1.0)
            if name in late:
                raise parts.OutOfTimeError
            if name == "third":
                raise parts.NotPossibleError("ncu is not installed")

        return run

    run = {name: part(name) for name in THREE}
    fresh = state_of()
    on_gpu.go(place_of(tmp_path), fresh, THREE, 40.0, run)
    assert calls == ["first", "second", "third"]
    late.clear()
    state = on_gpu.read_state(tmp_path, state_of())
    assert [state.status(name) for name in THREE] == ["ok", "cut off", "not possible"]
    on_gpu.go(place_of(tmp_path), state, THREE, 40.0, run)
    assert calls[3:] == ["second"]
    assert state.status("second") == "ok"
    assert len(state.runs) == 2


def test_without_time_parts_are_left_out_and_said(tmp_path):
    state = state_of()
    on_gpu.go(place_of(tmp_path), state, THREE, 0.1, dict.fromkeys(THREE, None))
    assert {state.status(name) for name in THREE} == {"left out"}


def test_a_part_that_looks_at_no_clock_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(on_gpu, "GRACE_S", 0.0)

    def spin(place, found):
        found.add("a term", "", 1.0, 1.0)
        while True:
            pass

    done = on_gpu.run_part(place_of(tmp_path), spin, 0.05)
    assert done["status"] == "cut off"
    assert len(done["rows"]) == 1


def test_an_interrupt_keeps_what_was_done(tmp_path):
    def interrupted(place, found):
        raise KeyboardInterrupt

    run = {"first": lambda place, found: None, "second": interrupted, "third": None}
    with pytest.raises(KeyboardInterrupt):
        on_gpu.go(place_of(tmp_path), state_of(), THREE, 40.0, run)
    state = on_gpu.read_state(tmp_path, state_of())
    assert [state.status(name) for name in THREE] == ["ok", "", ""]


def test_a_part_is_measured_anew_where_that_is_asked_for(tmp_path, stand_in):
    state, place = state_of(), place_of(tmp_path)
    plan = {name: SIZES["parts"][name] for name in ("clock", "copies")}
    on_gpu.go(place, state, plan, 40.0)
    asked = len(stand_in.programs)
    with pytest.raises(ConfigError, match="no part 'copy'"):
        on_gpu.forget(tmp_path, state, ["clock", "copy"])
    on_gpu.forget(tmp_path, state, ["clock"])
    on_gpu.go(place, state, plan, 40.0)
    assert len(stand_in.programs) == asked + len(SIZES["gpu"]["clock"]["types"])
    assert [state.status(name) for name in plan] == ["ok", "ok"]
    assert list(state.parts) == list(plan)


@pytest.mark.parametrize("changes", [{"environment": CPU}, {"rehearsal": True}, {"plan": "1"}])
def test_a_folder_of_another_run_is_refused(changes, tmp_path):
    state_of().write(tmp_path)
    with pytest.raises(ConfigError, match="holds a run with"):
        on_gpu.read_state(tmp_path, state_of(**changes))


@pytest.mark.parametrize("text", ["{", "[]", '{"rehearsal": true}'])
def test_a_spoilt_state_is_refused(text, tmp_path):
    (tmp_path / on_gpu.STATE).write_text(text)
    with pytest.raises(ConfigError, match="cannot be read"):
        on_gpu.read_state(tmp_path, state_of())


# Commands and counters.


def test_a_command_that_is_late_is_ended(tmp_path):
    place = place_of(tmp_path)
    with pytest.raises(parts.OutOfTimeError):
        parts.bounded([sys.executable, "-c", "import time; time.sleep(60)"], 0.2)
    place.deadline = 0.0
    with pytest.raises(parts.OutOfTimeError):
        place.command("hardware")


def test_a_command_that_refuses_says_why(tmp_path):
    with pytest.raises(parts.MeasurementError, match=r"exit code 2: .*nothing.yaml"):
        place_of(tmp_path).command("performance", "--config", "nothing.yaml")


def test_half_a_trace_does_not_count_as_done(tmp_path, monkeypatch):
    place = place_of(tmp_path)
    config = parts._measured_job(place, "traces/moe.json", SIZES["rehearsal"]["jobs"]["moe"])

    def late(*arguments, run):
        folder = arguments[arguments.index("--out") + 1]
        folder.mkdir()
        (folder / "rank0.json.gz").write_bytes(b"half")
        raise parts.OutOfTimeError

    monkeypatch.setattr(place, "command", late)
    with pytest.raises(parts.OutOfTimeError):
        parts._loop_recorded(place, config, SIZES["rehearsal"]["traces"])
    assert not list(tmp_path.rglob("rank*.json.gz"))


@pytest.fixture
def counted(tmp_path, monkeypatch):
    """Run a script in place of a profiler's."""

    def run(script):
        def recorded(place, config, asked):
            folder = config.with_suffix("")
            folder.mkdir()
            (folder / "counters.sh").write_text(f"cd {folder}\n{script}\n")
            return folder

        monkeypatch.setattr(parts, "_loop_recorded", recorded)
        monkeypatch.setattr(parts.shutil, "which", lambda tool: f"/bin/{tool}")
        parts.counters(place_of(tmp_path), parts.Found())

    return run


@pytest.mark.parametrize(
    "script", ["echo '==ERROR== ERR_NVGPUCTRPERM' > counters.csv; exit 1",
               "echo ERR_NVGPUCTRPERM >&2; exit 1"],
)  # fmt: skip
def test_counters_that_are_not_allowed_are_no_failure(counted, script):
    with pytest.raises(parts.NotPossibleError, match="administrators"):
        counted(script)


def test_counters_that_fail_say_why(counted):
    with pytest.raises(parts.MeasurementError, match="exit code 3: no such metric"):
        counted("echo no such metric >&2; exit 3")


@pytest.mark.parametrize(("environment", "why"), [(CPU, "processor"), (H100, "ncu")])
def test_counters_need_a_gpu_and_its_tool(environment, why, tmp_path, monkeypatch):
    monkeypatch.setattr(parts.shutil, "which", lambda _: None)
    with pytest.raises(parts.NotPossibleError, match=why):
        parts.counters(place_of(tmp_path, environment), parts.Found())


# Bad input.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--minutes", "0"], "minutes must be above 0"),
        (["--minutes", "nan"], "minutes must be above 0"),
        (["--minutes", "40"], "no GPU is at hand"),
    ],
)
def test_bad_input_has_one_error(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(on_gpu, "gpus_at_hand", lambda: None)
    folder = tmp_path / "out"
    assert on_gpu.main([*arguments, "--out", str(folder)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {message}")
    assert said.count("\n") == 1
    assert not folder.exists()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert on_gpu.main(["--rehearse", "--out", str(tmp_path / "file" / "folder")]) == 2
    assert "cannot be made or written" in capsys.readouterr().err


def test_an_unknown_gpu_takes_the_profile_that_is_named(tmp_path):
    unknown = H100.model_copy(update={"device": "NVIDIA H100 NVL"})
    with pytest.raises(ConfigError, match="--device names one like it"):
        on_gpu.device_of(None, unknown, tmp_path)
    path = on_gpu.device_of("h100", unknown, tmp_path)
    assert yaml.safe_load(Path(path).read_text()) == {"extends": "h100", "name": "NVIDIA H100 NVL"}
    assert on_gpu.device_of(None, H100, tmp_path) == "h100"
    assert on_gpu.device_of("h100", H100, tmp_path) == "h100"


class Forbidden(FakeNvml):
    """Numbers of a driver that gives them to administrators alone."""

    def nvmlDeviceGetEnforcedPowerLimit(self, device, power):
        return 4

    def nvmlDeviceGetPowerUsage(self, device, power):
        return 4


def test_what_a_gpu_tells_at_rest_stands_beside_its_profile(monkeypatch):
    monkeypatch.setattr(on_gpu, "open_library", lambda _: Nvml(FakeNvml(345, reasons=0x1), 0))
    facts = on_gpu.at_rest(H100, "h100")
    assert facts["power"] == "695.5 W, limit 700 W, TDP of the profile 700 W"
    assert facts["clock"] == "345 MHz, memory 2619 MHz"
    assert facts["clock held down by"] == "idle"
    assert facts["memory"].startswith("80.00 GiB, profile 79.")
    monkeypatch.setattr(on_gpu, "open_library", lambda _: Nvml(Forbidden(), 0))
    assert on_gpu.at_rest(H100, "h100")["power"].startswith("not told, limit not told")
    monkeypatch.setattr(on_gpu, "open_library", lambda _: None)
    assert "no library" in on_gpu.at_rest(H100, "h100")["clock and power"]


# The page.


def test_the_page_says_what_ran_and_what_failed(tmp_path):
    def measured(place, found):
        found.add("gemm bf16", "a shape", 2.0, 1.0)
        found.fail("another", "unsupported", "FP8 does not run here")
        found.facts["run by"] = "cuBLAS"

    def broken(place, found):
        raise ConfigError("tp must divide heads", key="tp")

    state = state_of()
    run = {"first": measured, "second": broken, "third": lambda place, found: None}
    place = place_of(tmp_path)
    on_gpu.go(place, state, THREE, 40.0, run)
    on_gpu.finish(place, state)
    page = (tmp_path / on_gpu.PAGE).read_text()
    for text in ("A morning on NVIDIA H100", "tp must divide heads", "FP8 does not run here",
                 "cuBLAS", "gemm bf16", "580.1"):  # fmt: skip
        assert text in page
    assert "https://" not in page.split("</script>", 1)[1]
    kept = json.loads((tmp_path / on_gpu.STATE).read_text())
    assert kept["parts"]["first"]["errors"]["gemm bf16"]["count"] == 1


def test_a_rehearsal_says_that_it_is_one():
    document = on_gpu_page.document(vars(state_of(CPU, rehearsal=True)))
    assert document.title.startswith("A rehearsal")
    assert "No number here says" in document.lead


@pytest.mark.thorough
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_a_rehearsal_runs_every_part(tmp_path, monkeypatch):
    options = ["--rehearse", "--out", str(tmp_path)]
    call = [sys.executable, VALIDATION / "on_gpu.py", *options]
    ended = subprocess.run(call, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    state = json.loads((tmp_path / on_gpu.STATE).read_text())
    status = {name: part["status"] for name, part in state["parts"].items()}
    assert status.pop("counters") == "not possible"
    assert set(status.values()) == {"ok"}
    assert len(status) == len(SIZES["parts"]) - 1
    for name, part in state["parts"].items():
        assert part["rows"] or name == "counters", name
        assert not part["failures"], name
    # Nothing is measured again.
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*.json")}
    monkeypatch.setattr(on_gpu.signal, "signal", lambda number, handler: None)
    assert on_gpu.main(options) == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*.json")} == written
