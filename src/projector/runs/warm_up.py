"""Steps with a smaller global batch at the beginning of a run.

Megatron's ramp: the batch starts small and grows by one increment after every equal number of
sequences, until the warm-up's sequences are trained. A smaller batch has fewer microbatches, so
that a step loses the work of the others and keeps everything else: the bubble, the update and the
exposed traffic of gradients. Ranks without a microbatch wait.
"""

from dataclasses import dataclass

import numpy as np

from projector.arrays import Floats


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
    """Tokens of a sequence."""


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


def more_s(warm_up: WarmUp, tokens: Floats, step_s: Floats) -> Floats:
    """Return seconds that smaller batches add to runs whose every step is whole."""
    return _ramps(warm_up, tokens, step_s)[0]


def steps_of(warm_up: WarmUp, tokens: Floats, tokens_per_step: Floats) -> Floats:
    """Return the steps of each run."""
    return tokens / tokens_per_step + _ramps(warm_up, tokens, np.zeros_like(tokens))[1]
