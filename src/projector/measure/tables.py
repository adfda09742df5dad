"""A record as measurement tables: the columns that `projector validate` and `calibrate` read.

Operations become the rows that `projector benchmark` would have written for them. The step, where
it is a whole model of fewer layers, becomes a row of memory and one of a training step.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from projector.config import resources
from projector.config.model import ModelConfig
from projector.config.model_file import load_model
from projector.config.parallelism import ParallelismConfig
from projector.config.training import TrainingConfig
from projector.files import not_written, write_whole
from projector.measure.bench.cases import BenchKind, Case
from projector.measure.bench.rows import COLUMNS, TABLES, Machine, Row, csv_text, measured
from projector.measure.devices import profile_of
from projector.measure.record import MeasuredOperation, MeasuredStep, Record
from projector.measure.task import OperationProgram, Outcome
from projector.units import to_gib

KEY = "tables"

SOURCE = "projector-record"
"""First word of ``source``, by which fits weigh rows."""

_WRITTEN: Mapping[str, list[str]] = resources.hardware_table("table_names.yaml")["written"]
MEMORY_COLUMNS = tuple(_WRITTEN["memory_rows"])
THROUGHPUT_COLUMNS = tuple(_WRITTEN["training_rows"])

_KINDS: dict[str, BenchKind] = {
    "gemm": "gemm", "attention": "attention", "collective": "collective"
}  # fmt: skip
_OTHERS: dict[str, BenchKind] = {"copy": "memory", "clock": "clock"}
_FILES: dict[BenchKind, str] = {**TABLES, "memory": "copies", "clock": "clocks"}
"""Name of the table of each kind of row; the last two are for people alone."""

_PEAKS = (
    ("peak_allocated_bytes", "peak allocated", "GiB torch max_memory_allocated"),
    ("peak_reserved_bytes", "peak reserved", "GiB torch max_memory_reserved"),
)


class MeasuredTable(NamedTuple):
    """Rows of one kind."""

    columns: tuple[str, ...]
    rows: list[Row]


class Tables(NamedTuple):
    """What a record says, by kind of table."""

    tables: dict[str, MeasuredTable]
    """Those that have rows, by name; ``gemm_measured`` and others are kinds of `validate`."""
    left_out: dict[str, int]
    """Why other outcomes are in no table, and how many."""


def tables_of(record: Record) -> Tables:
    """Return all measurements that have a kind of table."""
    machine = Machine(gpu_of(record), record.environment)
    tables: dict[str, MeasuredTable] = {}
    left_out: Counter[str] = Counter()
    for case, outcome in _cases(record):
        why = case if isinstance(case, str) else _why_not(outcome)
        if isinstance(case, str) or why:
            left_out[why] += 1
            continue
        add_row(tables, case, outcome, machine, " ".join((SOURCE, *machine.source.split()[1:])))
    why, steps = _step_tables(record, machine)
    if why:
        left_out[why] += 1
    return Tables({**tables, **steps}, dict(left_out.most_common()))


def add_row(
    tables: dict[str, MeasuredTable], case: Case, outcome: Outcome, machine: Machine, source: str
) -> None:
    """Add the row of a case to the table of its kind, with where it comes from."""
    row = measured(case, outcome, machine).row | {"source": source}
    tables.setdefault(_FILES[case.kind], MeasuredTable(COLUMNS[case.kind], [])).rows.append(row)


def joined(several: Sequence[Tables]) -> Tables:
    """Return the tables of several records, one after the other."""
    tables: dict[str, MeasuredTable] = {}
    left_out: Counter[str] = Counter()
    for each in several:
        left_out.update(each.left_out)
        for name, table in each.tables.items():
            rows = tables.setdefault(name, MeasuredTable(table.columns, [])).rows
            rows += table.rows
    return Tables(tables, dict(left_out.most_common()))


def write_tables(tables: Tables, folder: str | Path) -> list[Path]:
    """Write each table as a CSV file of its name into a folder, which is made."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise not_written(folder, error.strerror or str(error), key=KEY) from None
    written = []
    for name, table in tables.tables.items():
        rows = [[row.get(column, "") for column in table.columns] for row in table.rows]
        written.append(folder / f"{name}.csv")
        write_whole(written[-1], csv_text([table.columns, *rows]).encode(), key=KEY)
    return written


def gpu_of(record: Record) -> str:
    """Return the device as tables name it: a shipped one, or as its runtime gives it."""
    return profile_of(record.environment.device) or record.environment.device


def _cases(record: Record) -> Iterator[tuple[Case | str, Outcome]]:
    for operation in record.operations:
        yield _case_of(operation), operation.outcome
    for other in record.others:
        yield Case(_OTHERS[other.program.program], other.program), other.outcome


def _case_of(measured_operation: MeasuredOperation) -> Case | str:
    key = measured_operation.key
    kind = _KINDS.get(key.kind)
    if kind is None:
        return f"no table has operations of kind {key.kind}"
    if key.kind == "attention" and key.m != key.n:
        return "an attention of a part of the sequence"
    if key.kind == "gemm" and key.batch > 1 and not key.expert:
        return "a GEMM of a batch, which the tables have for experts alone"
    return Case(kind, OperationProgram(key=key))


def _why_not(outcome: Outcome) -> str:
    if outcome.status != "ok":
        return f"not measured: {outcome.status.replace('_', ' ')}"
    return "" if outcome.times or outcome.numbers else "not measured: no time"


def _step_tables(record: Record, machine: Machine) -> tuple[str, dict[str, MeasuredTable]]:
    step = record.step
    if step is None:
        return "", {}
    why = _why_not(step.outcome) or _why_no_model(record, step)
    if why:
        return f"the step: {why}", {}
    row = _job_row(record, step, machine)
    tables = {}
    if "total" in step.outcome.times:
        seconds = step.outcome.times["total"].median_s
        timed = {"task": "pretrain", "step_time_s": f"{seconds:.7g}"}
        tables["training_throughput"] = MeasuredTable(THROUGHPUT_COLUMNS, [row | timed])
    # A processor has no memory of its own, and what its process holds is another thing.
    on_gpu = record.environment.backend != "cpu"
    peaks = [
        row
        | {
            "component": component,
            "mem_gib": f"{to_gib(step.outcome.numbers[name]):.7g}",
            "unit_note": unit,
            "kind": "measured",
        }
        for name, component, unit in _PEAKS
        if on_gpu and name in step.outcome.numbers
    ]
    if peaks:
        tables["memory"] = MeasuredTable(MEMORY_COLUMNS, peaks)
    return "", tables


def _why_no_model(record: Record, step: MeasuredStep) -> str:
    """Return why no table can name the model of a step, whose rows name shipped ones."""
    model = record.section("model", ModelConfig)
    file = resources.index("models").get(resources.normalise(model.name))
    shipped = load_model(str(file)) if file else None
    if shipped is None or _layer(shipped) != _layer(model):
        return "its model is no shipped one"
    layers = [layer.kind for layer in step.layers if layer.kind in ("dense", "moe")]
    cut = model.model_copy(update={"num_layers": len(layers)})
    if model.sliding_window_layers or list(cut.layer_kinds) != layers:
        return "its layers are not the first of the model"
    return ""


def _layer(model: ModelConfig) -> dict[str, Any]:
    return model.model_dump(exclude={"num_layers", "source", "mtp_num_layers"})


def _job_row(record: Record, step: MeasuredStep, machine: Machine) -> Row:
    model = record.section("model", ModelConfig)
    split = record.section("parallelism", ParallelismConfig)
    training = record.section("training", TrainingConfig)
    ranks = record.environment.ranks
    layers = sum(layer.kind in ("dense", "moe") for layer in step.layers)
    copies = max(1, ranks // (split.tp * split.cp))
    return {
        "model": model.name,
        "gpu": machine.gpu,
        "n_gpus": f"{ranks}",
        "precision": training.precision.upper(),
        "seq_len": f"{training.seq_length}",
        "micro_batch": f"{training.micro_batch_size}",
        "global_batch": f"{training.micro_batch_size * copies}",
        "tp": f"{split.tp}",
        "pp": "1",
        "vpp": "1",
        "cp": f"{split.cp}",
        "ep": f"{split.ep}",
        "dp": f"{copies}",
        "fsdp_zero": "none",
        "recompute": "none",
        "num_layers": f"{layers}",
        "other_flags": f"one microbatch; optimizer {step.optimizer}; PyTorch without a framework",
        "source": f"{SOURCE} {machine.source.partition(' ')[2]}",
        "verified": "measured",
    }
