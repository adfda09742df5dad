"""Which rank holds which virtual stage."""

from functools import cached_property

import numpy as np

from projector.arrays import Flags, Ints
from projector.schedule.order import BACKWARD, FORWARD


class Placement:
    """The chunks of every rank; shared by all jobs of a schedule and size, so read-only."""

    def __init__(self, stage_of: Ints, directions: int = 1) -> None:
        """Keep the virtual stages ``int64[pp, chunks]`` of ``directions`` copies of a model."""
        # Kernels are compiled for one layout.
        self.stage_of = np.array(stage_of, np.int64, order="C")
        self.directions = directions

    @property
    def num_stages(self) -> int:
        """Virtual stages of one copy of the model."""
        return self.stage_of.size // self.directions

    @cached_property
    def model_stage(self) -> Ints:
        """Stage of the model that each chunk of each rank holds, ``int64[pp, chunks]``."""
        return self.stage_of % self.num_stages

    @cached_property
    def rank_of(self) -> Ints:
        """Rank of each virtual stage, ``int64[pp * chunks]``."""
        rank = np.empty(self.stage_of.size, np.int64)
        rank[self.stage_of] = np.arange(len(self.stage_of))[:, np.newaxis]
        return rank

    @cached_property
    def joins_ends(self) -> Flags:
        """Whether each rank holds the first stage of the model and the last, ``bool[pp]``."""
        first, last = self.model_stage == 0, self.model_stage == self.num_stages - 1
        return np.asarray(first.any(axis=1) & last.any(axis=1))

    @cached_property
    def neighbour(self) -> Ints:
        """Rank of the next stage and of the one before, ``int64[pp * chunks, 2]``.

        The first and the last stage of a copy are their own missing neighbour.
        """
        rank, stage = self.rank_of, np.arange(self.stage_of.size)
        depth = stage % self.num_stages
        following = np.where(depth == self.num_stages - 1, stage, stage + 1) % len(rank)
        before = np.where(depth == 0, stage, stage - 1)
        return np.stack([rank[following], rank[before]], axis=1)

    @cached_property
    def _sends(self) -> Flags:
        """Whether a virtual stage sends to another rank, on and back: ``bool[2, pp * chunks]``."""
        return np.asarray((self.neighbour != self.rank_of[:, np.newaxis]).T)

    def sent_ps(self, p2p_ps: Ints) -> Ints:
        """Return how long what each chunk sends is on its way: int64[..., 2, pp, chunks].

        Parameters
        ----------
        p2p_ps : int64[..., 2, pp * chunks]
            Latency from each virtual stage to the next and to the one before.
        """
        return np.where(self._sends, p2p_ps, 0).take(self.stage_of, axis=-1)

    def block(self, duration_ps: Ints, p2p_ps: Ints) -> tuple[Ints, Ints]:
        """Return durations and latencies of ranks that wait until what they send has arrived.

        Parameters
        ----------
        duration_ps : int64[..., pp, chunks, 3, 3]
            By rank, chunk, kind and class.
        p2p_ps : int64[..., 2, pp * chunks]
            Latency from each virtual stage to the next and to the one before.
        """
        sent = self.sent_ps(p2p_ps)
        longer = duration_ps.copy()
        for kind, direction in ((FORWARD, 0), (BACKWARD, 1)):
            longer[..., kind, :] += sent[..., direction, :, :, np.newaxis]
        return longer, np.zeros_like(p2p_ps)

    def sends_ps(self, p2p_ps: Ints, microbatches: int) -> Ints:
        """Return how long each rank waits for its messages in a step, ``int64[pp]``.

        Parameters
        ----------
        p2p_ps : int64[2, pp * chunks]
            Latency from each virtual stage to the next and to the one before.
        microbatches : int
            Microbatches that pass through each virtual stage.
        """
        per_stage = np.where(self._sends, p2p_ps, 0).sum(axis=0)
        return np.asarray(microbatches * per_stage[self.stage_of].sum(axis=1), np.int64)
