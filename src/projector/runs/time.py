"""How long a run takes, term by term, and how far that spreads; docs/run.md explains every term.

The batch may start small (Megatron's ramp) and grow by one increment after every equal number of
sequences, until the warm-up's sequences are trained. A smaller batch has fewer microbatches. A step
then loses the work of the others and keeps everything else: the bubble, the update and the exposed
traffic of gradients. Ranks without a microbatch wait.

Checkpoints and failures have a closed form. Failures are a Poisson process of rate ``rate_per_s``.
After each the run is set up again for ``restart_s``, in which it can fail as well, and goes on from
the last checkpoint that is complete. A segment is ``interval_s`` of work followed by a stall of
``stall_s``. Where steps go on while a checkpoint is written, it is complete ``write_s`` after its
segment. J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
Future Generation Computer Systems 22 (2006), has the segment without ``write_s``. Runs are also
played from failure to failure: that gives the spread, and checks the closed form.
"""

import math
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from statistics import NormalDist

import numpy as np

from projector.arrays import Flags, Floats, Ints
from projector.errors import ConfigError, NumericError
from projector.kernels.failures import INVALID, simulate_failures

_NEWTON_STEPS = 5
"""From Young's interval 4 reach the last digits, with stalls of 1e-12 to 50 times the time between
failures."""


@dataclass(frozen=True, slots=True)
class Interruptions:
    """What interrupts each run, and what it costs; float64[runs]."""

    rate_per_s: Floats
    """Failures of the whole job."""
    restart_s: Floats
    """From a failure to the next step."""
    stall_s: Floats
    """Time that steps stand still for a checkpoint."""
    write_s: Floats
    """From there until it is complete, while steps go on."""


def expm1_over(rate_per_s: Floats, seconds: Floats) -> Floats:
    """Return ``(exp(rate * seconds) - 1) / rate``, which is ``seconds`` without failures."""
    exponent = rate_per_s * seconds
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return np.asarray(seconds * np.where(exponent > 0.0, np.expm1(exponent) / exponent, 1.0))


def segment_s(interruptions: Interruptions, interval_s: Floats) -> Floats:
    """Return the expected time until one more checkpoint is complete.

    ``exp(rate (restart + write)) (exp(rate (interval + stall)) - 1) / rate``.
    """
    with np.errstate(over="ignore"):
        again = np.exp(interruptions.rate_per_s * (interruptions.restart_s + interruptions.write_s))
        # Segments that are never complete take forever.
        return again * expm1_over(interruptions.rate_per_s, interval_s + interruptions.stall_s)


def expected_s(
    interruptions: Interruptions, work_s: Floats, interval_s: Floats
) -> tuple[Floats, Floats]:
    """Return the expected time of a whole run, and its checkpoints.

    ``work_s`` are steps with nothing lost. Between two checkpoints lie ``interval_s`` of work, at
    most all of it; the last segment takes the rest.
    """
    segments = np.ceil(work_s / interval_s * (1.0 - 1e-12))
    rest_s = work_s - (segments - 1.0) * interval_s
    whole_s = np.zeros_like(work_s)
    # No segment of infinite time takes none, where the product is no number.
    np.multiply(segments - 1.0, segment_s(interruptions, interval_s), whole_s, where=segments > 1.0)
    # From the last step until its checkpoint is complete; runs that never end have no such time.
    with np.errstate(over="ignore", invalid="ignore"):
        again = np.exp(interruptions.rate_per_s * interruptions.restart_s)
        last_s = again * expm1_over(interruptions.rate_per_s, interruptions.write_s)
    return whole_s + segment_s(interruptions, rest_s) + last_s, segments


def young_interval_s(interruptions: Interruptions) -> Floats:
    """Return Young's interval, ``sqrt(2 stall / rate)``.

    J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications
    of the ACM 17 (1974).
    """
    with np.errstate(divide="ignore"):
        return np.sqrt(2.0 * interruptions.stall_s / interruptions.rate_per_s)


def daly_interval_s(interruptions: Interruptions) -> Floats:
    """Return Daly's interval of higher order, equation (37) of his paper."""
    stall_s = interruptions.stall_s
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_s = 1.0 / interruptions.rate_per_s
        ratio = np.sqrt(stall_s / (2.0 * mean_s))
        higher = np.sqrt(2.0 * stall_s * mean_s) * (1.0 + ratio / 3.0 + ratio**2 / 9.0) - stall_s
        return np.where(stall_s < 2.0 * mean_s, higher, mean_s)


def best_interval_s(interruptions: Interruptions) -> Floats:
    """Return the interval of least expected time for each second of work; inf without failures.

    With ``x = rate * interval`` the derivative of `segment_s` over the interval is zero where
    ``x - 1 + exp(-x - rate * stall) = 0``. Its left side is convex, so that Newton's method falls
    to the root from Young's interval, which lies above it.
    """
    rate = interruptions.rate_per_s
    stall = rate * interruptions.stall_s
    x = np.minimum(1.0, np.sqrt(2.0 * stall))
    for _ in range(_NEWTON_STEPS):
        slope = -np.expm1(-(x + stall))
        left = x + np.expm1(-(x + stall))
        with np.errstate(divide="ignore", invalid="ignore"):
            x = np.where(slope > 0.0, np.maximum(0.0, x - left / slope), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(rate > 0.0, x / rate, np.inf)


@dataclass(frozen=True, slots=True)
class WarmUp:
    """The ramp of each run; float64[runs]. NaN as `start_batch` means that there is none."""

    start_batch: Floats
    """Sequences of the first step."""
    increment: Floats
    """Sequences that the batch grows by; NaN for all at once."""
    samples: Floats
    """Sequences until the batch is whole."""
    batch: Floats
    """Sequences of a whole step."""
    round_samples: Floats
    """Sequences that all replicas together take as one microbatch each."""
    microbatch_s: Floats
    """Time that one more microbatch adds to a step."""
    seq: Floats


def _ramps(warm_up: WarmUp, tokens: Floats, step_s: Floats) -> tuple[Floats, Floats]:
    """Return seconds and steps of the ramp beyond those of whole batches."""
    more_s, more_steps = np.zeros_like(tokens), np.zeros_like(tokens)
    rows = np.flatnonzero(warm_up.start_batch < warm_up.batch)
    if len(rows) == 0:
        return more_s, more_steps
    start, batch, seq = warm_up.start_batch[rows], warm_up.batch[rows], warm_up.seq[rows]
    step_s, per_microbatch = step_s[rows], warm_up.microbatch_s[rows]
    grows = np.where(np.isnan(warm_up.increment[rows]), batch - start, warm_up.increment[rows])
    levels = np.maximum(1.0, np.floor((batch - start) / grows))
    samples = np.minimum(warm_up.samples[rows], tokens[rows] / seq)
    each = warm_up.samples[rows] / levels
    whole = batch / warm_up.round_samples[rows]
    for level in range(int(levels.max())):
        here = np.clip(samples - level * each, 0.0, each)
        here = np.where(level < levels, here, 0.0)
        size = start + level * grows
        missing = whole - np.ceil(size / warm_up.round_samples[rows])
        short_s = step_s - per_microbatch * missing
        more_s[rows] += here * (short_s / size - step_s / batch)
        more_steps[rows] += here * (1.0 / size - 1.0 / batch)
    return more_s, more_steps


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


_NAMES = tuple(each.name for each in fields(RunTimes))
TERMS = _NAMES[: _NAMES.index("total_s")]
"""Fields of `RunTimes` that add up to the total, which stands behind them."""


def interruptions_of(inputs: RunInputs) -> tuple[Interruptions, Floats]:
    """Return what interrupts the runs, and the time that a checkpoint is written."""
    write_s = inputs.checkpoint_overhead_s + inputs.checkpoint_bytes / inputs.write_bytes_per_s
    copy_s = inputs.checkpoint_overhead_s + inputs.checkpoint_bytes / (
        inputs.gpus * inputs.gpu_bytes_per_s
    )
    stall_s = np.where(inputs.asynchronous != 0, np.minimum(copy_s, write_s), write_s)
    saves = inputs.saves != 0
    read_s = np.where(saves, inputs.checkpoint_bytes / inputs.read_bytes_per_s, 0.0)
    # Failures of the whole job a second: devices and nodes fail one by one.
    rate = inputs.gpus / inputs.gpu_mtbf_s + inputs.nodes / inputs.node_mtbf_s
    interruptions = Interruptions(
        rate_per_s=np.where(inputs.fails != 0, rate, 0.0),
        restart_s=inputs.detection_s + inputs.restart_s + read_s,
        stall_s=np.where(saves, stall_s, 0.0),
        write_s=np.where(saves & (inputs.asynchronous != 0), write_s, 0.0),
    )
    return interruptions, np.where(saves, write_s, 0.0)


def run_times(inputs: RunInputs) -> RunTimes:
    """Return the expected time of each run; NaN as its total where it cannot be (`status`)."""
    compute_s = inputs.tokens / inputs.tokens_per_step * inputs.step_s
    warm_up_s, more_steps = _ramps(inputs.warm_up, inputs.tokens, inputs.step_s)
    steps = inputs.tokens / inputs.tokens_per_step + more_steps
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


SAMPLES = 2000
"""Runs that are played for a band; its ends then move by about 2 % of its width."""

MOST_PLAYED = 5000.0
"""Expected failures beyond which runs are not played. Their moments then average out: they move the
time by a hundredth of what the rate of failures does."""

_NEVER = 1e9
"""Intervals of this many runs have no checkpoint in them."""

_SIDE_90 = 1.645
"""Standard deviations on each side that hold 90 % of a normal law."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """Runs as they were played; float64[runs, samples], NaN where one never ends."""

    total_s: Floats
    failures: Floats


@dataclass(frozen=True, slots=True)
class Spread:
    """What is not known of each run beside when it fails; float64[runs]."""

    low: Floats
    """Lower end of the 90 % band of the step, over its projected time."""
    high: Floats
    """Upper end."""
    rate_log: Floats
    """Standard deviation of the logarithm of the rate of failures."""


def simulate_segments(
    interruptions: Interruptions,
    work_s: Floats,
    interval_s: Floats,
    slower: Floats,
    more: Floats,
    seed: int = 0,
) -> Simulated:
    """Play runs of some work, each as often as there are samples.

    ``slower`` and ``more``, float64[runs, samples], are factors of the work and of the rate of
    failures. Equal seeds give equal failures, whatever else a batch holds.
    """
    if not 0 <= seed < 1 << 63:
        msg = f"seed should be an integer from 0 to 2**63 (got {seed!r})"
        raise ConfigError(msg, key="seed", value=seed, allowed="an integer >= 0")
    slower = _floats(slower)
    total_s, failures = np.empty_like(slower), np.empty_like(slower)
    status = simulate_failures(
        _floats(work_s),
        _floats(interval_s),
        _floats(interruptions.stall_s),
        _floats(interruptions.write_s),
        _floats(interruptions.restart_s),
        _floats(interruptions.rate_per_s),
        slower,
        _floats(more),
        seed,
        total_s,
        failures,
    )
    if status == INVALID:
        msg = "a run to simulate has a time or a rate that is negative or no number"
        raise NumericError(msg, key="run")
    return Simulated(total_s, failures)


_floats = partial(np.ascontiguousarray, dtype=np.float64)


def simulate_runs(
    inputs: RunInputs,
    times: RunTimes,
    spread: Spread | None = None,
    samples: int = SAMPLES,
    seed: int = 0,
) -> Simulated:
    """Play runs that `run_times` has found possible.

    Without a spread only the moments of failures differ from sample to sample. The intervals
    between checkpoints in ``times`` are kept. Waiting for spare nodes is added as its expected
    share. A run with more than `MOST_PLAYED` failures takes the expected time of every sample.
    """
    interruptions, _ = interruptions_of(inputs)
    work_s = times.compute_s + times.warm_up_s + times.evaluation_s + times.stragglers_s
    interval_s = np.where(inputs.saves != 0, times.checkpoint_interval_s, work_s * _NEVER)
    slower = more = np.ones((len(work_s), samples))
    if spread is not None:
        # Quantiles of a normal law, each in an order of its own (a Latin hypercube), so that the
        # band of the step alone is met without noise; the same numbers for every run.
        draw = np.random.Generator(np.random.Philox(seed))
        quantiles = _normal_quantiles(samples)
        step, rate = draw.permutation(quantiles) / _SIDE_90, draw.permutation(quantiles)
        side = np.where(step > 0.0, np.log(spread.high)[:, None], -np.log(spread.low)[:, None])
        slower, more = np.exp(side * step), np.exp(spread.rate_log[:, None] * rate)
    many = times.failures > MOST_PLAYED
    played = simulate_segments(
        interruptions, np.where(many, 0.0, work_s), interval_s, slower, more, seed
    )
    columns = {
        each.name: getattr(interruptions, each.name)[:, None] for each in fields(interruptions)
    }
    each = Interruptions(**{**columns, "rate_per_s": columns["rate_per_s"] * more})
    longer_s = work_s[:, None] * slower
    total_s, checkpoints = expected_s(each, longer_s, np.minimum(interval_s[:, None], longer_s))
    undisturbed_s = longer_s + checkpoints * each.stall_s + each.write_s
    total_s = np.where(total_s < MOST_SLOWER * undisturbed_s, total_s, math.nan)
    failures = np.where(many[:, None], each.rate_per_s * total_s, played.failures)
    total_s = np.where(many[:, None], total_s, played.total_s)
    waiting = times.total_s / (times.total_s - times.spares_s)
    return Simulated(total_s * waiting[:, None], failures)


@lru_cache(maxsize=8)
def _normal_quantiles(count: int) -> Floats:
    """Return the middles of ``count`` equal shares of a normal law."""
    inverse = NormalDist().inv_cdf
    return np.array([inverse((number + 0.5) / count) for number in range(count)])


def band_of(played: Simulated, row: int = 0) -> tuple[float, float]:
    """Return the 5th and the 95th percentile of a run in seconds; inf where it may never end."""
    total_s = np.sort(np.where(np.isnan(played.total_s[row]), math.inf, played.total_s[row]))
    last = len(total_s) - 1
    return float(total_s[round(0.05 * last)]), float(total_s[round(0.95 * last)])
