"""The columns of whole runs: the casts and units of what `RunConfig` states."""

import math

from projector.config.run import RunConfig
from projector.config.run_defaults import run_default
from projector.lower.columns import Declare, SectionColumns
from projector.units import GB, GIB, HOUR

_run = Declare[RunConfig]()


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _or_default(value: float | None, name: str) -> float:
    return run_default(name) if value is None else float(value)


class RunColumns(SectionColumns[RunConfig]):
    """Whole runs; NaN is not stated."""

    tokens = _run.floats(lambda r: _or_nan(r.tokens), "tokens", "To train.")
    steps = _run.floats(lambda r: _or_nan(r.steps), "steps", "To train, of the whole batch.")
    samples = _run.floats(lambda r: _or_nan(r.samples), "sequences", "To train.")
    start_batch = _run.floats(
        lambda r: _or_nan(r.warm_up.start_batch_size), "sequences", "Of the first step."
    )
    batch_increment = _run.floats(
        lambda r: _or_nan(r.warm_up.increment), "sequences", "That the batch grows by."
    )
    warm_up_samples = _run.floats(
        lambda r: _or_nan(r.warm_up.samples), "sequences", "Until the batch is whole."
    )
    evaluates = _run.ints(lambda r: r.evaluation.enabled, "flag", "Evaluations are counted.")
    evaluation_interval = _run.floats(
        lambda r: r.evaluation.interval_steps, "steps", "From one evaluation to the next."
    )
    evaluation_iterations = _run.floats(
        lambda r: r.evaluation.iterations, "batches", "Of one evaluation."
    )
    forward_share = _run.floats(
        lambda r: _or_nan(r.evaluation.forward_share), "share", "Of a step that its forward takes."
    )
    saves = _run.ints(lambda r: r.checkpoint.enabled, "flag", "Checkpoints are written.")
    interval_s = _run.floats(
        lambda r: _or_nan(r.checkpoint.interval_s), "s", "Of training between checkpoints."
    )
    interval_steps = _run.floats(
        lambda r: _or_nan(r.checkpoint.interval_steps), "steps", "The same in steps."
    )
    asynchronous = _run.ints(
        lambda r: r.checkpoint.asynchronous, "flag", "Steps go on while a checkpoint is written."
    )
    checkpoint_bytes = _run.floats(
        lambda r: _or_nan(r.checkpoint.size_gib) * GIB, "bytes", "Of a checkpoint."
    )
    write_bytes_per_s = _run.floats(
        lambda r: _or_nan(r.checkpoint.write_gb_per_s) * GB, "bytes/s", "To storage, all nodes."
    )
    node_write_bytes_per_s = _run.floats(
        lambda r: _or_default(r.checkpoint.write_gb_per_s_per_node, "write_gb_per_s_per_node") * GB,
        "bytes/s",
        "To storage, of one node.",
    )
    read_bytes_per_s = _run.floats(
        lambda r: _or_nan(r.checkpoint.read_gb_per_s) * GB, "bytes/s", "From storage, all nodes."
    )
    node_read_bytes_per_s = _run.floats(
        lambda r: _or_default(r.checkpoint.read_gb_per_s_per_node, "read_gb_per_s_per_node") * GB,
        "bytes/s",
        "From storage, of one node.",
    )
    checkpoint_overhead_s = _run.floats(
        lambda r: _or_default(r.checkpoint.overhead_s, "overhead_s"), "s", "Beside its bytes."
    )
    fails = _run.ints(lambda r: r.failures.enabled, "flag", "Failures interrupt the run.")
    gpu_mtbf_s = _run.floats(
        lambda r: _or_default(r.failures.gpu_mtbf_hours, "gpu_mtbf_hours") * HOUR,
        "s",
        "Of one device between failures that it causes.",
    )
    node_mtbf_s = _run.floats(
        lambda r: _or_default(r.failures.node_mtbf_hours, "node_mtbf_hours") * HOUR,
        "s",
        "Of one node between other failures.",
    )
    detection_s = _run.floats(
        lambda r: _or_default(r.failures.detection_s, "detection_s"), "s", "Until the job stops."
    )
    restart_s = _run.floats(
        lambda r: _or_default(r.failures.restart_s, "restart_s"), "s", "Until the first step."
    )
    spare_nodes = _run.floats(
        lambda r: _or_nan(r.failures.spare_nodes), "nodes", "That wait to take over."
    )
    repair_s = _run.floats(
        lambda r: _or_default(r.failures.repair_hours, "repair_hours") * HOUR,
        "s",
        "Until a node returns.",
    )
    repaired_share = _run.floats(
        lambda r: _or_default(r.failures.repaired_share, "repaired_share"),
        "share",
        "Of failures that take a node out.",
    )
    slowdown = _run.floats(
        lambda r: _or_default(r.stragglers.slowdown, "slowdown") if r.stragglers.enabled else 0.0,
        "share",
        "Of the steps' time that stragglers add.",
    )
