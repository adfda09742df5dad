"""What a run measured, as the tables that `projector validate` and `projector calibrate` read.

Products and attention that ran without communication beside are rows of a GEMM and of an attention
table. A collective is a row where all its ranks were traced: the rank that waits least tells how
long it took. With a job, its step is a row of a table of runs.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.files import write_whole
from projector.measure.bench import cases
from projector.measure.bench.rows import Machine, csv_text
from projector.measure.devices import profile_of
from projector.measure.tables import KEY, MeasuredTable, Tables, add_row, write_tables
from projector.measure.task import Environment, Outcome, Timing
from projector.trace.activity import BACKWARD, COMMUNICATION, Activities
from projector.trace.analysis import TraceAnalysis
from projector.trace.groups import group
from projector.trace.measures.overlap import overlap_ratios
from projector.trace.work import Work, Works, works_of
from projector.units import PICOSECOND, to_ms
from projector.validate.traces.compare import whole_steps
from projector.validate.traces.products import collective_of
from projector.validate.traces.sides import ALONE, turns

SOURCE = "projector-trace"
"""First word of ``source``, by which fits weigh rows."""

RUNS = "runs.csv"
"""Table that `projector calibrate --from-runs` reads."""


def tables_of_run(analysis: TraceAnalysis, device: str = "") -> Tables:
    """Return the measurements of a run that have a kind of table.

    Ranks and iterations that are selected count. `device` is what ran it, where the trace does not
    say.
    """
    activities = whole_steps(analysis.in_time)
    machine = _machine(analysis, device)
    left_out: Counter[str] = Counter()
    tables: dict[str, MeasuredTable] = {}
    for case, times_s in _cases(activities, left_out):
        low, middle, high = np.quantile(times_s, (0.25, 0.5, 0.75)).tolist()
        timing = Timing(median_s=middle, low_s=low, high_s=high, repeats=len(times_s))
        outcome = Outcome(status="ok", times={"time": timing})
        source = f"{SOURCE} of {machine.environment.device}, in a training step"
        add_row(tables, case, outcome, machine, source)
    return Tables(tables, dict(left_out.most_common()))


def write_run(
    tables: Tables, folder: str | Path, job: str | None = None, step_s: float | None = None
) -> list[Path]:
    """Write the tables of a run into a folder, with the step of its job's file if that is known."""
    written = write_tables(tables, folder)
    if job is not None and step_s is not None:
        rows = [("job", "measured_ms"), (str(Path(job).resolve()), f"{to_ms(step_s):.7g}")]
        written.append(Path(folder) / RUNS)
        write_whole(written[-1], csv_text(rows).encode(), key=KEY)
    return written


def _machine(analysis: TraceAnalysis, device: str) -> Machine:
    ranks = analysis.trace.ranks
    device = next((name for rank in ranks for name in rank.devices), device or "unknown device")
    vendors = {rank.vendor for rank in ranks}
    backend = "rocm" if "AMD" in vendors else "cuda" if "NVIDIA" in vendors else "cpu"
    about = {"device": device, "backend": backend, "memory_bytes": 0, "torch": "unknown"}
    environment = Environment.model_validate(about | {"ranks": max(len(ranks), 1)})
    return Machine(profile_of(device) or device, environment)


def _cases(activities: Activities, left_out: Counter[str]) -> Iterator[tuple[cases.Case, Floats]]:
    works = works_of(activities)
    beside = overlap_ratios(activities) > ALONE
    left_out["a product or attention beside communication"] = int(
        np.count_nonzero(works.main & beside)
    )
    backward = activities.phase == BACKWARD
    for number, work in enumerate(works.works):
        for again in (False, True):
            rows = np.flatnonzero(works.main & (works.of == number) & (backward == again) & ~beside)
            if not len(rows):
                continue
            case = _case(work, backward=again)
            if isinstance(case, str):
                left_out[case] += len(rows)
            else:
                yield case, _with_helpers(activities, works, number, rows)
    yield from _collectives(activities, left_out)
    left_out += Counter()


def _case(work: Work, *, backward: bool) -> cases.Case | str:
    if not work.dtype:
        return "the matrix type is not known"
    if work.kind == "attention":
        if work.m != work.n:
            return "an attention of a part of the sequence"
        shape = cases.AttentionShape(
            work.batch, work.heads, work.m, work.key_heads, work.k, work.d_v or work.k
        )
        if work.heads % work.key_heads:
            return "key heads that do not divide the heads"
        return cases.attention_case(shape, work.dtype, "bwd" if work.backward else "fwd", "flash")
    if work.kind == "convolution":
        return "a convolution, which no table has"
    if work.grouped or work.batch > 1:
        return "a GEMM of groups or of a batch, whose parts a trace does not tell"
    layout = list(cases.LAYOUTS)[1 if backward else 0]
    return cases.gemm_case(work.m, work.n, work.k, work.dtype, layout=layout, pad=False)


def _with_helpers(
    activities: Activities, works: Works, number: int, rows: Ints
) -> Floats:  # fmt: skip
    """Return what each run of a work took, with the mean of the kernels that finish it."""
    duration_s = np.asarray((activities.end_ps - activities.start_ps) * PICOSECOND, np.float64)
    helpers = (works.of == number) & ~works.main
    helpers &= np.isin(activities.type, np.unique(activities.type[rows]))
    added = float(duration_s[helpers].sum()) / max(int(np.count_nonzero(
        works.main & (works.of == number))), 1)  # fmt: skip
    return np.asarray(duration_s[rows] + added, np.float64)


def _collectives(
    activities: Activities, left_out: Counter[str]
) -> Iterator[tuple[cases.Case, Floats]]:
    """Yield the collectives that all ranks of their group were traced in, the shortest of each."""
    chosen = np.flatnonzero(activities.klass == COMMUNICATION)
    members = [detail.get("group_ranks") or () for detail in activities.details]
    sizes = [len(each) if isinstance(each, Sequence) else 0 for each in (*members, ())]
    ranks = np.array(sizes, np.int64)[activities.detail[chosen]]
    known = (ranks > 1) & (activities.bytes[chosen] > 0)
    left_out["a collective of which ranks or bytes are not known"] = int(np.count_nonzero(~known))
    rows, ranks = chosen[known], ranks[known]
    turn = turns(activities, rows)
    same = group(activities.group[rows], activities.name[rows], activities.iteration[rows], turn)
    whole = same.sizes()[same.of] == ranks
    left_out["a collective of which ranks were not traced: how long it waited is not known"] = int(
        np.count_nonzero(~whole)
    )
    duration_ps = activities.end_ps[rows] - activities.start_ps[rows]
    least_s = np.asarray(same.least(duration_ps) * PICOSECOND, np.float64)
    first: Flags = np.zeros(len(rows), np.bool_)
    first[same.first] = True
    kinds = [collective_of(_kind(activities, row)) for row in rows.tolist()]
    named = {kind: at for at, kind in enumerate(dict.fromkeys(kinds))}
    of_kind = np.array([named[kind] for kind in kinds], np.int64)
    for kind, at in named.items():
        here = np.flatnonzero(whole & first & (of_kind == at))
        if kind not in cases.MEASURED_COLLECTIVES:
            if len(here):
                left_out["a collective that tables do not have"] += len(here)
            continue
        alike = group(ranks[here], activities.bytes[rows[here]])
        for place in range(alike.count):
            members = here[alike.of == place]
            size, many = int(activities.bytes[rows[members[0]]]), int(ranks[members[0]])
            (case,) = cases.collective_cases([kind], [size], many)
            yield case, least_s[same.of[members]]


def _kind(activities: Activities, row: int) -> str:
    detail = activities.detail[row]
    about = activities.details[detail] if detail >= 0 else {}
    return str(about.get("collective") or activities.names[activities.name[row]])
