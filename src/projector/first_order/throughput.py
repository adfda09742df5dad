"""Seconds of a step, of a run, and of prefill and decode, in closed form.

Every function takes numbers or arrays that broadcast, and returns float64.
"""

import numpy as np
from numpy.typing import ArrayLike

from projector.arrays import Floats
from projector.first_order.roofline import column

FLOP_OF_TRAINING = 6.0
"""FLOP of a parameter and token: 2 forward, 4 backward."""

FLOP_OF_INFERENCE = 2.0
"""The same forward alone."""


def training_flop(tokens: ArrayLike, active_parameters: ArrayLike) -> Floats:
    """Return FLOP: 6 N for each token, of experts only those that it meets.

    Source: the Roofline methodology, section 4.
    """
    return FLOP_OF_TRAINING * column(tokens) * column(active_parameters)


def compute_s(
    flop: ArrayLike, devices: ArrayLike, derate: ArrayLike, peak_flop_per_s: ArrayLike
) -> Floats:
    """Return seconds of compute: FLOP / (devices * derate * peak).

    Source: the Roofline methodology, section 4.
    """
    return column(flop) / (column(devices) * column(derate) * column(peak_flop_per_s))


def step_s(compute: ArrayLike, communication: ArrayLike, overlap: ArrayLike) -> Floats:
    """Return seconds of a step: max + (1 - overlap) * min of both.

    The communication includes the bubble: all-reduce + bubble * compute.

    Source: the Roofline methodology, section 4.
    """
    longer = np.maximum(column(compute), column(communication))
    shorter = np.minimum(column(compute), column(communication))
    return longer + (1.0 - column(overlap)) * shorter


def time_to_train_s(tokens: ArrayLike, tokens_per_step: ArrayLike, step: ArrayLike) -> Floats:
    """Return seconds of a run: its steps, each as long as one.

    Source: the Roofline methodology, section 4. It leaves out warm-up, restarts and stragglers.
    """
    return column(tokens) / column(tokens_per_step) * column(step)


def forward_flop(tokens: ArrayLike, active_parameters: ArrayLike) -> Floats:
    """Return FLOP of a prefill or of a decode step: 2 N for each token.

    Source: the Roofline methodology, sections 1 and 4 (forward part).
    """
    return FLOP_OF_INFERENCE * column(tokens) * column(active_parameters)


def weights_read(parameters: ArrayLike, active_parameters: ArrayLike, tokens: ArrayLike) -> Floats:
    """Return the parameters that a forward pass reads: all, or the experts that its tokens meet.

    A token meets the active ones; of many tokens none share an expert until all are met. An upper
    bound of our own: the methodology states nothing for experts in decode.
    """
    met = column(active_parameters) * np.maximum(1.0, column(tokens))
    return np.minimum(column(parameters), met)
