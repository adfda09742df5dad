"""How long a run takes, term by term; docs/run.md explains every one."""

from dataclasses import dataclass

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.runs.checkpoints import Interruptions, best_interval_s, expected_s
from projector.runs.warm_up import WarmUp, more_s, steps_of

OK, TOO_SHORT, NEVER_ENDS = range(3)
"""What is wrong with a run: a checkpoint takes longer than the interval between two of them, or
failures come faster than it gets on."""

MOST_SLOWER = 1e3
"""A run that takes this many times its steps and checkpoints is said to never end."""


@dataclass(frozen=True, slots=True)
class RunInputs:
    """What the time of runs follows from; every column is float64[runs], NaN is not stated."""

    step_s: Floats
    """One step of the whole global batch."""
    tokens: Floats
    """To train."""
    tokens_per_step: Floats
    gpus: Floats
    nodes: Floats
    gpu_bytes_per_s: Floats
    """From a device to its host."""
    warm_up: WarmUp
    """Steps with a smaller batch."""
    evaluation_steps: Floats
    """Steps whose time evaluations take, for each step that is trained."""
    slowdown: Floats
    """Share of the steps' time that stragglers add."""
    saves: Ints
    """int64[runs]: whether checkpoints are written."""
    asynchronous: Ints
    """int64[runs]: whether steps go on while they are."""
    checkpoint_bytes: Floats
    interval_s: Floats
    """Of work between two checkpoints as stated; NaN for the best."""
    write_bytes_per_s: Floats
    """From all nodes to storage."""
    read_bytes_per_s: Floats
    """From storage to all nodes."""
    checkpoint_overhead_s: Floats
    """Of a checkpoint beside its bytes."""
    fails: Ints
    """int64[runs]: whether failures interrupt the run."""
    gpu_mtbf_s: Floats
    """Of one device."""
    node_mtbf_s: Floats
    """Of one node, its devices apart."""
    detection_s: Floats
    restart_s: Floats
    """Without reading the checkpoint."""
    spare_nodes: Floats
    """NaN where there is always one."""
    repair_s: Floats
    repaired_share: Floats
    """Of failures that take a node out."""


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Expected seconds of runs by term, which add up to `total_s`; float64[runs]."""

    compute_s: Floats
    """Steps of the whole batch."""
    warm_up_s: Floats
    """What smaller batches add."""
    evaluation_s: Floats
    stragglers_s: Floats
    checkpoint_s: Floats
    """Steps stand still."""
    lost_work_s: Floats
    """Steps and checkpoints that are done again after failures."""
    restart_s: Floats
    """Detection, set-up and reading of the checkpoint."""
    spares_s: Floats
    """Waiting for a node, as all spares are in repair."""
    total_s: Floats
    """NaN where `status` is not `OK`."""
    goodput: Floats
    """Share of the total in which steps are made that stay."""
    failures: Floats
    checkpoint_interval_s: Floats
    """Of work between two checkpoints; NaN where none is written."""
    checkpoints: Floats
    write_s: Floats
    """Of one checkpoint, from the first byte to the last."""
    status: Ints
    """int64[runs]: `OK`, or what is wrong."""


TERMS = (
    "compute_s",
    "warm_up_s",
    "evaluation_s",
    "stragglers_s",
    "checkpoint_s",
    "lost_work_s",
    "restart_s",
    "spares_s",
)
"""Fields of `RunTimes` that add up to the total."""


def failure_rate_per_s(inputs: RunInputs) -> Floats:
    """Return failures of the whole job a second: devices and nodes fail one by one."""
    rate = inputs.gpus / inputs.gpu_mtbf_s + inputs.nodes / inputs.node_mtbf_s
    return np.where(inputs.fails != 0, rate, 0.0)


def interruptions_of(inputs: RunInputs) -> tuple[Interruptions, Floats]:
    """Return what interrupts the runs, and the time that a checkpoint is written."""
    write_s = inputs.checkpoint_overhead_s + inputs.checkpoint_bytes / inputs.write_bytes_per_s
    copy_s = inputs.checkpoint_overhead_s + inputs.checkpoint_bytes / (
        inputs.gpus * inputs.gpu_bytes_per_s
    )
    stall_s = np.where(inputs.asynchronous != 0, np.minimum(copy_s, write_s), write_s)
    saves = inputs.saves != 0
    read_s = np.where(saves, inputs.checkpoint_bytes / inputs.read_bytes_per_s, 0.0)
    interruptions = Interruptions(
        rate_per_s=failure_rate_per_s(inputs),
        restart_s=inputs.detection_s + inputs.restart_s + read_s,
        stall_s=np.where(saves, stall_s, 0.0),
        write_s=np.where(saves & (inputs.asynchronous != 0), write_s, 0.0),
    )
    return interruptions, np.where(saves, write_s, 0.0)


def run_times(inputs: RunInputs) -> RunTimes:
    """Return the expected time of each run.

    A run that cannot be has a `RunTimes.status`, and NaN as its total.
    """
    compute_s = inputs.tokens / inputs.tokens_per_step * inputs.step_s
    warm_up_s = more_s(inputs.warm_up, inputs.tokens, inputs.step_s)
    steps = steps_of(inputs.warm_up, inputs.tokens, inputs.tokens_per_step)
    evaluation_s = steps * inputs.evaluation_steps * inputs.step_s
    trained_s = compute_s + warm_up_s
    stragglers_s = inputs.slowdown * (trained_s + evaluation_s)
    work_s = trained_s + evaluation_s + stragglers_s
    interruptions, write_s = interruptions_of(inputs)
    interval_s, too_short = _intervals(inputs, interruptions, write_s, work_s)
    total_s, checkpoints = expected_s(interruptions, work_s, interval_s)
    saves = inputs.saves != 0
    saved_s = checkpoints * interruptions.stall_s + interruptions.write_s
    # A run is up for exp(-rate * restart) of its time: set-ups fail as well.
    down = -np.expm1(-interruptions.rate_per_s * interruptions.restart_s)
    restart_s = total_s * down
    waiting = waiting_share(inputs, interruptions.rate_per_s)
    with np.errstate(divide="ignore", invalid="ignore"):
        spares_s = total_s * waiting / (1.0 - waiting)
        lost_s = np.maximum(0.0, total_s - restart_s - work_s - saved_s)
        failures = interruptions.rate_per_s * total_s
        total_s = total_s + spares_s
        # A run of a few tokens, or with slow storage, is long without any failure.
        ends = total_s < MOST_SLOWER * (work_s + saved_s)
        status = np.where(too_short, TOO_SHORT, np.where(ends, OK, NEVER_ENDS))
        total_s = np.where(status == OK, total_s, np.nan)
        goodput = (trained_s + stragglers_s) / total_s
    return RunTimes(
        compute_s=compute_s,
        warm_up_s=warm_up_s,
        evaluation_s=evaluation_s,
        stragglers_s=stragglers_s,
        checkpoint_s=saved_s,
        lost_work_s=lost_s,
        restart_s=restart_s,
        spares_s=spares_s,
        total_s=total_s,
        goodput=goodput,
        failures=failures,
        checkpoint_interval_s=np.where(saves, interval_s, np.nan),
        checkpoints=np.where(saves, checkpoints, 0.0),
        write_s=write_s,
        status=status.astype(np.int64),
    )


def _intervals(
    inputs: RunInputs, interruptions: Interruptions, write_s: Floats, work_s: Floats
) -> tuple[Floats, Flags]:
    """Return the work between checkpoints, and where a stated one is shorter than its write.

    The best interval is at least a step, and the time of a write that goes on beside steps.
    """
    stated = ~np.isnan(inputs.interval_s)
    least_s = np.maximum(inputs.step_s, interruptions.write_s)
    best_s = np.maximum(best_interval_s(interruptions), least_s)
    interval_s = np.where(stated, inputs.interval_s, best_s)
    saves = inputs.saves != 0
    too_short = saves & stated & (inputs.interval_s < np.minimum(write_s, work_s))
    return np.where(saves, np.minimum(interval_s, work_s), work_s), too_short


def waiting_share(inputs: RunInputs, rate_per_s: Floats) -> Floats:
    """Return the share of time in which a run waits for a node, all spares being in repair.

    With ``s`` spares the run stands still while ``s + 1`` nodes are in repair, and nothing fails
    then: a loss system with ``s + 1`` servers, so Erlang's formula B, which holds for repairs of
    any distribution (L. Takacs, "On Erlang's formula", Annals of Mathematical Statistics 40, 1969).
    """
    load = np.where(inputs.fails != 0, rate_per_s * inputs.repaired_share * inputs.repair_s, 0.0)
    servers = np.where(np.isnan(inputs.spare_nodes), 0.0, inputs.spare_nodes + 1.0)
    share, found = np.ones_like(load), np.zeros_like(load)
    for server in range(1, int(servers.max(initial=0.0)) + 1):
        share = load * share / (server + load * share)
        found = np.where(servers == server, share, found)
    return found
