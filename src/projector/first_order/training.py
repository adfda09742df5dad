"""Memory and step time of training jobs, in closed form."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from projector.arrays import Flags, Floats
from projector.config.first_order_job import AnyJob
from projector.first_order.columns import TrainingColumns, training_columns
from projector.first_order.communication import all_reduce_s, bubble_fraction, crossing_factor
from projector.first_order.constants import Constants
from projector.first_order.memory import (
    StateBytes,
    activation_bytes,
    bytes_per_parameter,
    checkpointed_bytes,
    sharded_states,
)
from projector.first_order.throughput import compute_s, step_s, training_flop

NARROW_GRADIENT_BYTES = 2.0


@dataclass(frozen=True, slots=True)
class TrainingResults:
    """Closed forms of a batch of jobs, float64[jobs]."""

    columns: TrainingColumns
    constants: Constants
    states: StateBytes
    """Of one rank, sharded."""
    activations: Floats
    """Bytes of one rank."""
    compute_s: Floats
    all_reduce_s: Floats
    bubble_fraction: Floats
    crossing: Floats
    """What the step is multiplied by where tensor parallelism leaves its domain."""

    @property
    def peak_bytes(self) -> Floats:
        """What one rank holds."""
        return np.asarray(self.states.total + self.activations)

    @property
    def fits(self) -> Flags:
        """Whether that is less than the memory of a device; nothing else is reserved."""
        return np.asarray(self.peak_bytes <= self.columns.memory_bytes)

    @property
    def bubble_s(self) -> Floats:
        """Idle seconds of the pipeline."""
        return self.bubble_fraction * self.compute_s

    @property
    def communication_s(self) -> Floats:
        """All-reduce and bubble together, as the methodology adds them."""
        return np.asarray(self.all_reduce_s + self.bubble_s)

    @property
    def iteration_s(self) -> Floats:
        """Seconds of a step."""
        within_s = step_s(self.compute_s, self.communication_s, self.constants.overlap)
        return np.asarray(within_s * self.crossing)

    @property
    def model_flop(self) -> Floats:
        """FLOP of a step."""
        return training_flop(self.columns.tokens_per_step, self.columns.active_parameters)

    @property
    def breakdown_s(self) -> dict[str, Floats]:
        """Terms that add up to the step.

        The longer of compute and communication is whole, of the shorter there is the part that does
        not hide; the rest is the crossing.
        """
        leads = self.compute_s >= self.communication_s
        left = 1.0 - self.constants.overlap
        compute, waits = np.where(leads, 1.0, left), np.where(leads, left, 1.0)
        within_s = step_s(self.compute_s, self.communication_s, self.constants.overlap)
        return {
            "compute": self.compute_s * compute,
            "dp_comm": self.all_reduce_s * waits,
            "pp_bubble": self.bubble_s * waits,
            "tp_comm": within_s * (self.crossing - 1.0),
        }


def train(jobs: Sequence[AnyJob]) -> TrainingResults:
    """Project jobs; each result equals that of the job alone."""
    constants = Constants.of_jobs([job.first_order for job in jobs])
    return train_columns(training_columns(jobs), constants)


def train_columns(columns: TrainingColumns, constants: Constants) -> TrainingResults:
    """Project jobs that are columns already."""
    replicas = columns.dp * columns.cp
    held = _parameters_of_a_rank(columns)
    flop = training_flop(columns.tokens_per_step, columns.active_parameters)
    near = np.floor(columns.scale_up_domain / columns.tp)
    return TrainingResults(
        columns=columns,
        constants=constants,
        states=_states(columns, constants, held, replicas),
        activations=_activations(columns, constants),
        compute_s=compute_s(flop, columns.gpus, constants.training_mfu, columns.peak_flop_per_s),
        all_reduce_s=all_reduce_s(
            replicas,
            near,
            held * columns.gradient_wire_bytes,
            columns.scale_up_bytes_per_s,
            columns.scale_out_bytes_per_s,
        ),
        bubble_fraction=bubble_fraction(columns.pp, columns.microbatches, columns.vpp),
        crossing=crossing_factor(columns.tp, columns.scale_up_domain, constants),
    )


def _parameters_of_a_rank(columns: TrainingColumns) -> Floats:
    """Divide parameters evenly over the ranks that hold different ones."""
    dense = columns.parameters - columns.expert_parameters
    experts = columns.expert_parameters / (columns.ep * columns.etp)
    return np.asarray((dense / columns.tp + experts) / columns.pp)


def _states(
    columns: TrainingColumns, constants: Constants, held: Floats, replicas: Floats
) -> StateBytes:
    each = bytes_per_parameter(constants, accumulates_beside=columns.accumulates_beside)
    gradients = np.where(columns.narrow_gradients, NARROW_GRADIENT_BYTES, each.gradients)
    whole = StateBytes(held * each.weights, held * gradients, held * each.optimizer)
    return sharded_states(whole, replicas, columns.sharding_stage)


def _activations(columns: TrainingColumns, constants: Constants) -> Floats:
    """Return activations of the first stage, which holds those of PP microbatches."""
    held = np.minimum(columns.pp, columns.microbatches)
    kept = activation_bytes(
        columns.layers / columns.pp * held,
        columns.seq,
        columns.micro_batch,
        columns.hidden,
        columns.heads,
        keeps_scores=columns.keeps_scores,
    )
    whole = np.where(columns.checkpointed, checkpointed_bytes(kept, constants), kept)
    return np.asarray(whole / (columns.tp * columns.cp))
