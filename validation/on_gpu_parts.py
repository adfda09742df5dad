"""The parts of `on_gpu.py`: what each one measures, and puts beside what the models say.

A part leaves its measurements in the folder as it goes and begins with what is there, so that it
can be cut off at any moment and called again.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import projector as pj
from projector.calibrate.probed import fit_probe
from projector.config.job import Job
from projector.errors import MeasurementError, ProjectorError
from projector.files import write_whole
from projector.measure.bench.cases import (
    AttentionShape,
    Case,
    attention_case,
    clock_cases,
    copy_cases,
    gemm_case,
)
from projector.measure.bench.session import Settings, begin
from projector.measure.probe import ProbeSettings, plan_probe, settings_of, whole_step
from projector.measure.process import run_task
from projector.measure.programs import record_of, task_of
from projector.measure.reduction import Reduction, reduce_job
from projector.measure.task import Answer, Environment, OperationProgram, Pace, Progress, Task
from projector.units import GIB
from projector.validate.beside import benchmark_of, shape_of

HERE = Path(__file__).parent
LOOP = HERE / "on_gpu_loop.py"
QUICK = HERE / "on_gpu_quick.py"
KEY = "out"

ENDING_S = 20.0
"""How long a command may take to end once its time is up."""

LINES = 6
"""Lines of a command's error output that a message keeps, the last ones."""

COUNTER_TOOLS = {"cuda": "ncu", "rocm": "rocprofv3"}


class OutOfTimeError(Exception):
    """The time of a part is over; what it measured stays."""


class NotPossibleError(Exception):
    """A part needs what this machine lacks; says what."""


@dataclass
class Row:
    """One thing measured and projected."""

    term: str
    what: str
    measured: float
    projected: float
    unit: str = "s"

    @property
    def ratio(self) -> float:
        """Projected over measured."""
        return self.projected / self.measured


@dataclass
class Found:
    """What a part has so far."""

    rows: list[Row] = field(default_factory=list)
    failures: list[dict[str, str]] = field(default_factory=list)
    """What gave no number: ``what``, ``status``, ``message``."""
    facts: dict[str, str] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)

    def add(self, term: str, what: str, measured: Any, projected: Any, unit: str = "s") -> None:
        """Keep a pair, if both are known."""
        if measured and projected:
            self.rows.append(Row(term, what, float(measured), float(projected), unit))

    def fail(self, what: str, status: str, message: str) -> None:
        """Keep why something has no number."""
        self.failures.append({"what": what, "status": status, "message": message})


@dataclass
class Place:
    """Where parts measure, and until when."""

    folder: Path
    environment: Environment
    device: str
    """Shipped profile of the device, or path of one."""
    sizes: Mapping[str, Any]
    """A section of ``on_gpu.yaml``."""
    rehearsal: bool
    deadline: float = 0.0
    """Of the part, by ``time.monotonic``."""

    @property
    def kind(self) -> str:
        """Device as a task names it."""
        return "cpu" if self.environment.backend == "cpu" else "cuda"

    def left_s(self) -> float:
        """Return the seconds that the part has left, above zero."""
        left = self.deadline - time.monotonic()
        if left <= 0.0:
            raise OutOfTimeError
        return left

    def say(self, text: str) -> None:
        """Say what happens now."""
        print(f"    {text}", flush=True)

    def run(self, task: Task, heard: Progress | None = None) -> Answer:
        """Run a task within the time of the part."""
        if not task.programs:
            return Answer(environment=self.environment, outcomes=[])
        try:
            return run_task(task, timeout_s=self.left_s(), progress=heard)
        except MeasurementError:
            self.left_s()
            raise

    def command(self, *arguments: object, run: Sequence[object] = ()) -> dict[str, Any]:
        """Run a command of the project and return what it prints as JSON.

        ``run`` is a command line that the command runs.
        """
        start: Sequence[object] = ("-m", "projector")
        if self.rehearsal and "--save-benchmark" in arguments:
            start = (QUICK, json.dumps({key: self.sizes[key] for key in ("pace", "copies")}))
        call = [*start, *arguments, "--json", "--quiet", *(["--", *run] if run else ())]
        code, out, err = bounded([sys.executable, *map(str, call)], self.left_s())
        try:
            answer = json.loads(out)
        except ValueError:
            answer = {}
        # 3: the job does not fit, and is projected all the same.
        if code not in (0, 3) or not isinstance(answer, dict) or "error" in answer:
            why = answer.get("error") or "\n".join(err.splitlines()[-LINES:])
            name = " ".join(str(each) for each in arguments[:2])
            msg = f"projector {name} ended with exit code {code}: {why or out[-200:]}"
            raise MeasurementError(msg, key="command", value=code)
        return answer

    def job(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return a job of eight devices as a mapping."""
        job = {key: value for key, value in given.items() if key != "changes"}
        training = {"micro_batch_size": 1, "global_batch_size": 8, "precision": "bf16"}
        micro = job["training"].get("micro_batch_size", 1)
        training |= {"global_batch_size": 8 * micro, **job["training"]}
        machines = {"device": self.device, "nodes": 1, "gpus_per_node": 8}
        return {"parallelism": {}, **job, "training": training, "cluster": machines}

    def reduced(self, given: Mapping[str, Any]) -> Reduction:
        """Return such a job and what one device measures of it."""
        return reduce_job(pj.load_job(self.job(given), overrides=given.get("changes", {})), 1)

    def keep(self, name: str, data: Any) -> Path:
        """Write a file of JSON."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(data, indent=1).encode(), key=KEY)
        return path


def bounded(call: Sequence[str], seconds: float) -> tuple[int, str, str]:
    """Run a command and return exit code and output; end it and all it started if it is late."""
    with subprocess.Popen(  # noqa: S603  # our own interpreter and scripts
        call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=seconds)
        except BaseException as error:
            _end(process)
            if isinstance(error, subprocess.TimeoutExpired):
                raise OutOfTimeError from None
            raise
    return process.returncode, out, err


def _end(process: "subprocess.Popen[str]") -> None:
    for number in (signal.SIGINT, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=ENDING_S)
            return


def _listed(place: Place, found: Found, kind: Any, cases: Sequence[Case], name: str) -> None:
    """Measure a list as `projector benchmark` does, and put the model beside what is there."""
    path = place.folder / f"{name}.csv"
    pace = Pace.model_validate(place.sizes["pace"])
    settings = Settings(place.kind, pace=pace, chunk=place.sizes["chunk"])
    session = begin(
        kind, cases, device=place.device, out=str(path), overwrite=False, settings=settings,
        run=place.run, say=place.say,
    )  # fmt: skip
    found.files.append(path.name)
    try:
        session.go()
    finally:
        _beside(found, session, name)


def _beside(found: Found, session: Any, name: str) -> None:
    bench = benchmark_of(session)
    found.facts["cases"] = f"{len(bench.measured)} of {bench.asked}"
    for row, (here, there) in enumerate(zip(bench.measured, bench.modelled, strict=True)):
        shape = shape_of(here.case)
        what = " ".join(f"{key}={value}" for key, value in shape.items() if value)
        layer = getattr(here.case.program, "layer", None)
        kernel = layer.attention if layer is not None else None
        term = " ".join(filter(None, (name, kernel, shape.get("dtype"), shape.get("pass"))))
        if here.status != "ok":
            found.fail(what, here.status, here.message)
        elif session.kind == "clock":
            ratio, clock_mhz = bench.ratio(row), there.clock_mhz
            measured_mhz = clock_mhz / ratio if clock_mhz and ratio else None
            found.add(term, what, measured_mhz, clock_mhz, "MHz")
            columns = ("clock_mhz", "power_w", "tflops")
            found.facts[term] = ", ".join(f"{key} {here.row[key] or '?'}" for key in columns)
        else:
            found.add(term, what, here.time_s, there.time_s)
            if there.time_s is None:
                found.fail(what, "not modelled", there.why_not)
    run_by = (each.row.get("library") or each.row.get("impl") for each in bench.measured)
    found.facts["run by"] = "; ".join(filter(None, dict.fromkeys(run_by)))


def clock(place: Place, found: Found) -> None:
    """Watch clock, power and rate under a load of each type."""
    asked = place.sizes["clock"]
    cases = clock_cases(asked["types"], asked["seconds"])
    _listed(place, found, "clock", cases, "clock")


def probe(place: Place, found: Found) -> None:
    """Probe the device as `projector probe` does; what is fitted stands beside what it fits."""
    answered = place.folder / "probe.answer.json"
    asked = place.sizes["probe"]
    base = None if place.kind == "cpu" else place.device
    settings = _probe_settings(place, asked)
    plan = plan_probe(place.environment, base, settings=settings)
    if answered.exists():
        answer = Answer.model_validate_json(answered.read_text(encoding="utf-8"))
    else:
        answer = place.run(plan.task)
        place.keep(answered.name, answer.model_dump(mode="json"))
    probed = fit_probe(plan, answer)
    profile = place.folder / "probed.yaml"
    write_whole(profile, probed.text().encode(), key=KEY)
    found.files += [answered.name, profile.name]
    for seen in probed.rows:
        found.add(f"probe {seen.what}, fitted", seen.name, seen.measured_s, seen.projected_s)
    for each in probed.fields:
        found.facts[each.field] = f"{each.start:.4g} -> {each.value:.4g}"
    for name, message in probed.missing.items():
        found.fail(name, "not measured", message)


def _probe_settings(place: Place, asked: Mapping[str, Any]) -> ProbeSettings:
    whole = settings_of(place.environment.backend)
    if not asked:
        return whole
    changed = {key: value for key, value in asked.items() if key != "keep_jobs"}
    jobs = {name: whole.jobs[name] for name in asked["keep_jobs"]}
    return ProbeSettings.parse({**whole.model_dump(), **changed, "jobs": jobs})


def gemm(place: Place, found: Found) -> None:
    """Multiply matrices of layers of public models, spread so that a part of the list stands."""
    asked = place.sizes["gemm"]
    shapes = [(m, n, k) for m in asked["rows"] for n, k in asked["layers"]]
    cases = [gemm_case(*shape, dtype) for shape in _spread(shapes) for dtype in asked["types"]]
    _listed(place, found, "gemm", cases, "gemm")


def _spread(items: Sequence[Any]) -> Iterator[Any]:
    """Yield all items, far from each other first, so that any beginning shows all kinds."""
    step = next(each for each in (7, 11, 13, 17, 1) if len(items) % each)
    for place in range(len(items)):
        yield items[place * step % len(items)]


def attention(place: Place, found: Found) -> None:
    """Run attention forward and backward."""
    asked = place.sizes["attention"]
    cases = [
        attention_case(_attention_shape(*numbers), dtype, phase, kernel)
        for numbers in asked["shapes"]
        for kernel in asked["kernels"]
        for dtype in asked["types"]
        for phase in ("fwd", "bwd")
    ]
    _listed(place, found, "attention", cases, "attention")


def _attention_shape(
    batch: int, heads: int, kv_heads: int, seq: int, head_dim: int, v_head_dim: int, window: int
) -> AttentionShape:
    return AttentionShape(batch, heads, seq, kv_heads, head_dim, v_head_dim, window)


def grouped(place: Place, found: Found) -> None:
    """Multiply grouped matrices, in the layouts of forward, input and weight gradient."""
    asked = place.sizes["grouped"]
    cases = [
        gemm_case(rows, n, k, dtype, groups=groups, layout=layout)
        for layout in asked["layouts"]
        for dtype in asked["types"]
        for groups, rows, n, k in asked["shapes"]
    ]
    _listed(place, found, "gemm", cases, "grouped")


def copies(place: Place, found: Found) -> None:
    """Copy within the memory, from caches to far beyond them."""
    _listed(place, found, "memory", copy_cases(place.sizes["copies"]), "copies")


def operators(place: Place, found: Found) -> None:
    """Measure the memory-bound operators of a few models by themselves."""
    pace = Pace.model_validate(place.sizes["pace"])

    def measure(name: str, given: Mapping[str, Any]) -> None:
        reduction = place.reduced(given)
        whole = task_of(reduction, place.kind, pace)  # type: ignore[arg-type]
        wanted = [
            each for each in whole.programs
            if isinstance(each, OperationProgram) and each.key.kind == "memory"
        ]  # fmt: skip
        task = whole.model_copy(update={"programs": wanted})
        record = _recorded(place, found, f"operators/{name}.json", reduction, task)
        _compared(found, f"operators {name}", reduction.job, record)

    _one_by_one(found, place.sizes["operators"], measure)


def _one_by_one(
    found: Found, items: Mapping[str, Any], run: Callable[[str, Mapping[str, Any]], None]
) -> None:
    """Run all of a part; what fails does not stop the others, and the part has failed."""
    failed = []
    for name, given in items.items():
        try:
            run(name, given)
        except (OutOfTimeError, NotPossibleError):
            raise
        except Exception as error:  # a defect in one of them must not cost the others
            text = error.message if isinstance(error, ProjectorError) else repr(error)
            found.fail(name, "failed", text)
            failed.append(name)
    if failed:
        msg = f"{len(failed)} of {len(items)} failed: {', '.join(failed)}"
        raise MeasurementError(msg, key="part", value=failed)


def _recorded(place: Place, found: Found, name: str, reduction: Reduction, task: Task) -> pj.Record:
    """Return the record of a task, measured unless the folder has it."""
    path = place.folder / name
    found.files.append(name)
    if not path.exists():
        place.say(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        record_of(reduction, task, place.run(task)).save(path)
    return pj.load_record(path)


def _compared(found: Found, term: str, job: Job, record: pj.Record) -> None:
    both = pj.project_performance(job, records=record, profiling_mode="both")
    assert both.comparison is not None
    _of_comparison(found, term, both.comparison.to_dict())


def _of_comparison(found: Found, term: str, comparison: Mapping[str, Any]) -> None:
    """Keep everything of the ``comparison`` of ``--json``."""
    for each in comparison["operations"]:
        name = f"{each['operation']} {each['phase']}"
        kind = "" if term.startswith("operators") else f" {each['kind']} alone"
        _milliseconds(found, f"{term}{kind}", f"{name} {each['shape']}", each)
    for each in comparison["layers"]:
        _milliseconds(found, f"{term} layer", f"{each['layer']} {each['phase']}", each)
    for name, each in comparison["step"].items():
        _milliseconds(found, f"{term} step", name, each)
    for each in comparison["not_measured"]:
        found.fail(f"{term}: {each['name']}", each["status"], each["message"])


def _milliseconds(found: Found, term: str, what: str, pair: Mapping[str, Any]) -> None:
    """Keep a pair of ``--json``; traces call projected what a record calls simulated."""
    projected_ms = pair["projected_ms" if "projected_ms" in pair else "simulated_ms"]
    found.add(term, what, pair["measured_ms"] / 1e3, projected_ms / 1e3)


def jobs(place: Place, found: Found) -> None:
    """Measure jobs, show and use their records, and take them to clusters."""
    _one_by_one(found, place.sizes["jobs"], lambda name, given: _job(place, found, name, given))


def _job(place: Place, found: Found, name: str, given: Mapping[str, Any]) -> None:
    changes = [f"{key}={value}" for key, value in given.get("changes", {}).items()]
    config = place.keep(f"jobs/{name}.job.json", place.job(given))
    record = config.with_name(f"{name}.record.json")
    asked = ("performance", "--config", config, *changes, "--profiling-mode", "both")
    if not record.exists():
        place.say(f"{name}: measured")
        place.command(*asked, "--benchmark-gpus", 1, "--save-benchmark", record)
    found.files.append(str(record.relative_to(place.folder)))
    shown = place.command("record", record, "--tables", place.folder / "tables" / name)
    rows = ", ".join(f"{count} {table}" for table, count in shown["tables"].items())
    found.facts[f"{name}: rows of tables"] = rows
    loaded = (*asked, "--load-benchmark", record)
    both = place.command(*loaded)
    place.keep(f"jobs/{name}.both.json", both)
    _of_comparison(found, name, both["comparison"])
    _restored(found, f"{name}: {both['gpus']} GPUs", both)
    for target, more in place.sizes["targets"].items():
        _restored(found, f"{name}: {target}", place.command(*loaded, *more))


def _restored(found: Found, name: str, answer: Mapping[str, Any]) -> None:
    """Say what a step on a cluster takes, with the record and without, and how much of it is known.

    Nothing was measured there, so it is no error of the models.
    """
    total, origins = answer["comparison"]["target"]["total"], answer["provenance"]["terms"]
    counts = Counter(origins.values())
    shares = ", ".join(f"{count} terms {origin}" for origin, count in counts.items())
    restored = f"{total['measured_ms']:.4g} ms restored, {total['simulated_ms']:.4g} ms simulated"
    found.facts[name] = f"{restored}; {shares}"


def memory(place: Place, found: Found) -> None:
    """Run whole steps for their peak, and project it: the job's, and that of the step that ran."""
    _one_by_one(found, place.sizes["memory"], lambda name, given: _peak(place, found, name, given))


def _peak(place: Place, found: Found, name: str, given: Mapping[str, Any]) -> None:
    reduction = place.reduced(given)
    pace = Pace.model_validate(place.sizes["memory_pace"])
    task = Task(device=place.kind, pace=pace, programs=[whole_step(reduction.job)])  # type: ignore[arg-type]
    record = _recorded(place, found, f"memory/{_file(name)}.json", reduction, task)
    assert record.step is not None
    outcome = record.step.outcome
    if outcome.status != "ok":
        found.fail(name, outcome.status, outcome.message)
        return
    peaks = pj.project_memory(reduction.job, records=record, profiling_mode="both").comparison
    assert peaks is not None
    allocated = peaks["step"].measured_bytes / GIB
    found.add("peak memory", name, allocated, peaks["target"].simulated_bytes / GIB, "GiB")
    modelled = peaks["step"].simulated_bytes / GIB
    found.add("peak memory, as the step ran", name, allocated, modelled, "GiB")
    numbers = ("peak_reserved_bytes", "outside_allocator_bytes", "peak_resident_bytes")
    found.facts[name] = ", ".join(
        f"{each.removesuffix('_bytes')} {outcome.numbers[each] / GIB:.2f} GiB"
        for each in numbers
        if each in outcome.numbers
    )


def _file(name: str) -> str:
    return re.sub(r"\W+", "_", name)


def _measured_job(place: Place, name: str, given: Mapping[str, Any]) -> Path:
    """Write the job that one device runs, as the loop and the comparison read it."""
    job = place.reduced(given).job
    sections = {
        section: getattr(job, section).model_dump(mode="json", exclude_unset=True)
        for section in ("model", "parallelism", "training")
    }
    cluster = {"device": place.device, "nodes": 1, "gpus_per_node": 1}
    return place.keep(name, {**sections, "cluster": cluster})


def _loop_recorded(place: Place, config: Path, asked: Mapping[str, Any]) -> Path:
    """Record the loop of a job with the profiler, unless the folder has its trace."""
    folder = config.with_suffix("")
    if not list(folder.glob("rank*.json.gz")):
        warmup, active = asked["warmup"], asked["active"]
        counts = ("--warmup", warmup, "--active", active, "--overwrite")
        loop = (sys.executable, LOOP, config, warmup + active + 1, "--device", place.kind)
        try:
            place.command("trace", "record", "--out", folder, *counts, run=loop)
        except BaseException:
            # Half a trace is read as far as it goes, and would count as done.
            shutil.rmtree(folder, ignore_errors=True)
            raise
    return folder


def traces(place: Place, found: Found) -> None:
    """Record steps of the jobs with the profiler, and compare each trace with its job."""
    items = {name: place.sizes["jobs"][name] for name in place.sizes["traces"]["jobs"]}
    _one_by_one(found, items, lambda name, given: _trace(place, found, name, given))


def _trace(place: Place, found: Found, name: str, given: Mapping[str, Any]) -> None:
    config = _measured_job(place, f"traces/{name}.json", given)
    folder = _loop_recorded(place, config, place.sizes["traces"])
    found.files.append(str(folder.relative_to(place.folder)))
    answer = place.command("trace", "compare", "--config", config, folder)
    place.keep(f"traces/{name}.compare.json", answer)
    for each in answer["operations"]:
        what = f"{each['operation']} {each['phase']}"
        _milliseconds(found, f"trace {name} {each['kind']}", what, each)
    for term, pair in answer["step"].items():
        _milliseconds(found, f"trace {name} step", term, pair)
    shares = ", ".join(f"{side} {share:.1%}" for side, share in answer["matched_share"].items())
    found.facts[f"{name}: time that was matched"] = shares
    found.facts[f"{name}: warnings"] = "; ".join(answer["warnings"]) or "none"


def counters(place: Place, found: Found) -> None:
    """Collect hardware counters in a run of its own, and join them with its trace."""
    tool = COUNTER_TOOLS.get(place.environment.backend)
    if tool is None:
        raise NotPossibleError("a processor has no hardware counters that are read here")
    if shutil.which(tool) is None:
        raise NotPossibleError(f"{tool} is not installed, or not on the PATH")
    asked = place.sizes["counters"]
    config = _measured_job(place, "counters/one_layer.json", asked["job"])
    folder = _loop_recorded(place, config, asked)
    code, out, err = bounded(["sh", str(folder / "counters.sh")], place.left_s())
    said = "\n".join([*out.splitlines(), *err.splitlines()])
    files = sorted(str(path) for path in folder.rglob("*counter*.csv"))
    text = said + "".join(Path(path).read_text(errors="replace") for path in files[:1])
    if "ERR_NVGPUCTRPERM" in text:
        raise NotPossibleError(
            "the driver gives counters to administrators alone (ERR_NVGPUCTRPERM)"
        )
    if code or not files:
        tail = "\n".join(said.splitlines()[-LINES:])
        raise MeasurementError(f"{tool} ended with exit code {code}: {tail}", key="counters")
    options = [text for path in files for text in ("--counters", path)]
    answer = place.command("trace", "gap", "--config", config, folder, *options)
    place.keep("counters/gap.json", answer)
    found.files.append("counters")
    found.facts["operations"] = f"{len(answer['operations'])}"
    found.facts["joined"] = json.dumps(answer["counters"])
    found.facts["warnings"] = "; ".join(answer["warnings"]) or "none"


PARTS: Mapping[str, Callable[[Place, Found], None]] = {
    each.__name__: each
    for each in (
        clock, probe, gemm, attention, grouped, copies, operators, jobs, memory, traces, counters
    )
}  # fmt: skip
"""What each part of ``on_gpu.yaml`` calls."""
