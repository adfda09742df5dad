"""Steps of many deployments, batches and contexts at once, without an object for each.

Most operations of a step depend on its tokens alone. They are timed once for each distinct
deployment and number of tokens, and gathered. Attention to the cache is timed for each step.
Decode steps may verify proposed tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from projector.arrays import Array, Floats, Ints, Records
from projector.config.model import ModelConfig
from projector.errors import ConfigError
from projector.kernels.grouping import group_rows
from projector.operations.emit import emit_inference
from projector.operations.shapes import InferenceShapes, StepShapes
from projector.serving import columns as cols
from projector.serving.deployment import MTP, Deployment, further_token_module
from projector.serving.step import StepTimes, cost_rows, finished, hosts_of, totals_of

CHUNK = 1 << 16
"""Steps whose operations lie in memory together."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows of deployments as columns, int64[rows] each."""

    deployments: tuple[Deployment, ...]
    """Each distinct one once."""
    deployment: Ints
    """Row in ``deployments``."""
    batch: Ints
    """Sequences; 0 where there are chunks of prompts alone."""

    usual: ClassVar[Mapping[str, int]]
    """The columns in their order, with what they hold where nothing else is said."""

    @classmethod
    def of(cls, deployments: Sequence[Deployment], **columns: ArrayLike) -> Self:
        """Return rows whose columns are broadcast like numpy and flattened."""
        given = {**cls.usual, **columns}
        each = np.broadcast_arrays(*(np.asarray(values, np.int64) for values in given.values()))
        flat = (np.ascontiguousarray(values).ravel() for values in each)
        return cls(tuple(deployments), **dict(zip(given, flat, strict=True)))

    def __len__(self) -> int:
        return len(self.batch)

    def take(self, rows: Ints | slice) -> Self:
        """Return some of the rows."""
        return replace(self, **{name: getattr(self, name)[rows] for name in self.usual})


@dataclass(frozen=True, slots=True)
class StepGrid(Grid):
    """Passes through the model: of a batch, of chunks of prompts beside it, or of chunks alone."""

    new_tokens: Ints
    """Tokens of each sequence that go through the model; 1 is a decode step."""
    context: Ints
    """Tokens of each sequence that are cached already."""
    prefill_tokens: Ints
    """Tokens of each prompt that go through the model beside sequences that decode."""
    prefill_context: Ints
    """Tokens of each of these prompts that are cached already."""
    prefill_batch: Ints
    """Such prompts."""
    draft_tokens: Ints
    """Proposed tokens of each sequence that a decode step verifies beside its own one."""

    usual: ClassVar = {"deployment": 0, **cols.COUNTS}

    @property
    def counts(self) -> dict[str, Ints]:
        """The columns that count something, by name."""
        return {name: getattr(self, name) for name in cols.COUNTS}


_CACHED = ("context", "prefill_context")


def grid_times(grid: StepGrid) -> StepTimes:
    """Time steps; each result equals that of the step alone, bit for bit."""
    rows, known = grid.deployment, len(grid.deployments)
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < known:
        msg = f"steps name deployments 0 to {known - 1}, got {rows.min()} to {rows.max()}"
        raise ConfigError(msg, key="deployment", value=int(rows.max()), allowed=f"< {known}")
    cols.check_counts(grid.counts)
    columns = cols.step_columns(grid.deployments)
    first, of_step = _distinct(grid)
    none = np.zeros(len(first), np.int64)
    uncached = replace(grid.take(first), context=none, prefill_context=none)
    base = _totals(columns, uncached, core=False)
    core = _totals(columns, grid, core=True)
    return finished(base[of_step] + core, hosts_of(grid.deployments), grid.deployment, grid.counts)


def _distinct(grid: StepGrid) -> tuple[Ints, Ints]:
    """Return the first step of each distinct one but for its cache, and that of each step."""
    keys = [getattr(grid, name) for name in grid.usual if name not in _CACHED]
    # To group equal columns would take longer than all the rest.
    keys = [key for key in keys if len(key) and key.min() < key.max()]
    if not keys:
        return np.zeros(min(1, len(grid)), np.int64), np.zeros(len(grid), np.int64)
    return group_rows(*keys)


def _totals(columns: cols.StepColumns, grid: StepGrid, *, core: bool) -> Floats:
    """Return the sums over the rows that attention to the cache has, or over all others."""
    parts = []
    for begin in range(0, max(1, len(grid)), CHUNK):
        chunk = grid.take(slice(begin, begin + CHUNK))
        spread = _spread(columns, chunk)
        table = emit_inference(spread.shapes, spread.extents, base=not core, core=core)
        parts.append(totals_of(table, cost_rows(table, spread), spread))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


class _Gathered:
    """Some rows of records, of which columns are read when they are asked for."""

    def __init__(self, records: Records, rows: Ints) -> None:
        self._records, self._rows = records, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, name: str) -> Array:
        column: Array = self._records[name][self._rows]
        return column


def _spread(columns: cols.StepColumns, grid: StepGrid) -> cols.StepColumns:
    """Return the columns of steps, from those of their deployments."""
    rows = grid.deployment
    shared = columns.extents
    of_steps = {field.name: getattr(shared, field.name)[rows] for field in fields(shared)}
    per_step = {
        field.name: getattr(columns, field.name)[rows]
        for field in fields(columns)
        if field.name not in _TABLES
    }
    own = cols.step_counts(grid.counts, shared.attention_dp[rows], per_step["exchange_codes"])
    extents = StepShapes(**{**of_steps, **own})
    gathered: Records = _Gathered(columns.shapes.rows, rows)  # type: ignore[assignment]  # read alike
    shapes = InferenceShapes(gathered, extents.tokens, extents.emitting)
    return replace(columns, shapes=shapes, extents=extents, **per_step)


_TABLES = ("shapes", "extents", "devices", "fabrics", "exchanges", "grouped")
"""Columns of `StepColumns` that are tables, or have columns of their own."""


@dataclass(frozen=True, slots=True)
class SpeculatedTimes:
    """Times of decode steps, float64[steps] each."""

    verify_s: Floats
    """The model's own step; without speculation that of one token."""
    draft_s: Floats
    """Proposing tokens before it; 0 without speculation."""
    tokens: Floats
    """Expected tokens that each sequence gains; 1 without speculation."""
    interval_s: Floats
    """Between two of the model's own steps of the slowest stage, with a batch in each stage."""
    limits_s: Floats
    """Of the model's own step, float64[steps, len(LIMITS)]."""

    def step_s_of(self, stages: Floats) -> Floats:
        """Return the seconds between two steps of a sequence, with a batch in each stage."""
        return np.maximum(self.verify_s, stages * self.interval_s) + self.draft_s

    @property
    def step_s(self) -> Floats:
        """Seconds from one step to the next."""
        return self.verify_s + self.draft_s

    @property
    def token_s(self) -> Floats:
        """Seconds of a token of a sequence."""
        return self.step_s / self.tokens


def draft_deployment(deployment: Deployment) -> Deployment | None:
    """Return what proposes tokens, on the devices of one stage; None where it is no model."""
    speculative = deployment.speculative
    if speculative is None or speculative.draft is None:
        return None
    changes: dict[str, object] = {"speculative": None, "pp": 1}
    changes |= {"step_overhead_us": 0.0, "sequence_overhead_us": 0.0}
    if speculative.draft == MTP:
        return deployment.model_copy(
            update={**changes, "model": further_token_module(deployment.model)}
        )
    assert isinstance(speculative.draft, ModelConfig)
    tp = speculative.draft_tp or deployment.tp
    groups = {"ep": 1, "attention_dp": deployment.attention_dp, "tp": tp, "dispatcher": "auto"}
    return deployment.model_copy(update={**changes, **groups, "model": speculative.draft})


def speculated_grid_times(grid: StepGrid) -> SpeculatedTimes:
    """Time decode steps, of deployments with and without speculative decoding.

    A step verifies the proposed tokens of each sequence together, as that many more queries that
    read the cache once. Before it a small model proposes them, one after the other; the tokens
    that it has to catch up with are part of its first pass and cost nothing more. Steps that
    prefill are timed as they are.
    """
    settings = [each.speculative for each in grid.deployments]
    drafts = [draft_deployment(each) for each in grid.deployments]
    proposed = np.array([each.tokens if each else 0 for each in settings], np.int64)
    gained = np.array([each.tokens_per_step if each else 1.0 for each in settings])
    # Passes of what drafts, or steps of the deployment itself that a stated share is of.
    passes = np.array(
        [
            0.0 if each is None else float(each.tokens if draft else each.draft_share or 0.0)
            for each, draft in zip(settings, drafts, strict=True)
        ]
    )
    decodes = (grid.batch > 0) & (grid.new_tokens == 1)
    speculates = decodes & (proposed[grid.deployment] > 0)
    drafted = np.where(speculates, proposed[grid.deployment], grid.draft_tokens)
    own = grid_times(replace(grid, draft_tokens=drafted))
    draft_s = np.zeros(len(grid))
    rows = np.flatnonzero(speculates)
    if len(rows):
        drafters = [draft or each for draft, each in zip(drafts, grid.deployments, strict=True)]
        owner = grid.deployment[rows]
        one = StepGrid.of(
            drafters, deployment=owner, batch=grid.batch[rows], context=grid.context[rows]
        )
        draft_s[rows] = passes[owner] * grid_times(one).latency_s
    tokens = np.where(decodes, gained[grid.deployment], 1.0)
    return SpeculatedTimes(own.latency_s, draft_s, tokens, own.interval_s, own.limits_s)
