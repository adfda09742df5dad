"""Configurations that a search proposes, as columns: no job is made for each of them.

A layout sets the section ``parallelism``, the rest of a configuration the section ``training``.
Either has few values, each read once; a configuration is a pair of them.
"""

import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from projector.arrays import Ints
from projector.config.formats.emit.runnable import SHARDINGS, Setting, searchable
from projector.config.job import Job
from projector.config.load import Variants
from projector.config.parallelism import divisors
from projector.errors import ProjectorError
from projector.lower.batch import SECTIONS, JobBatch, Sections
from projector.lower.columns import SectionTable
from projector.lower.fabrics import job_domain_gpus
from projector.searches.limits import LEAST_TOKENS_OF_A_CP_RANK, MOST_CHUNKS, Limits

SPLIT, TRAINING, CLUSTER = map(SECTIONS.index, ("parallelism", "training", "cluster"))

_STAGE_OF_FSDP = 3

Overrides = Mapping[str, Any]

FIELDS = (
    *(f"parallelism.{name}" for name in ("tp", "pp", "vpp", "cp", "ep", "etp")),
    "parallelism.zero_stage", "parallelism.fsdp", "training.micro_batch_size",
    "training.recompute", "training.schedule",
)  # fmt: skip
"""What each configuration sets, in the order of its overrides."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """Configurations whose sections can be read, in the order in which they are tried."""

    batch: JobBatch
    splits: Sequence[Overrides]
    """Dotted fields of each split."""
    trainings: Sequence[Overrides]
    """The same of each training section."""
    pairs: Ints
    """int64[2, configurations]: which split and training section each has."""
    illegal: Counter[str]
    """Configurations left out, by the field that refuses them."""

    def __len__(self) -> int:
        return len(self.batch)

    def overrides(self, row: int) -> dict[str, Any]:
        """Return the dotted fields that make a configuration of the job."""
        split, training = self.pairs[:, row]
        return {**self.splits[split], **self.trainings[training]}


class KnownSections:
    """Tables that the batches of several proposals share; equal sections are the same row."""

    def __init__(self) -> None:
        """Begin without any."""
        self.tables = Sections(*(SectionTable([]) for _ in SECTIONS))
        self._rows: list[dict[Any, int]] = [{} for _ in SECTIONS]
        self._splits: dict[str, dict[Hashable, Any]] = {}

    def splits(self, job: Job) -> dict[Hashable, Any]:
        """Return the splits that were read of jobs with the same base, by their values."""
        stated = job.parallelism.model_dump(exclude_unset=True)
        decisive = job.training.schedule, job.training.framework, job.cluster.device.architecture
        return self._splits.setdefault(repr((stated, *decisive)), {})

    def rows(self, position: int, sections: Iterable[Any]) -> Ints:
        """Return the row of each section, int64[sections]; new ones get one."""
        rows, table, found = self._rows[position], self.tables[position], []
        for section in sections:
            # Clusters cannot be hashed.
            key = id(section) if position == CLUSTER else section
            if key not in rows:
                rows[key] = len(rows)
                table.grow([section])
            found.append(rows[key])
        return np.array(found, np.int64)


def candidates(job: Job, limits: Limits, known: KnownSections | None = None) -> Candidates:
    """Propose the configurations whose degrees divide the model and the cluster."""
    kept: dict[str, Any] = {}
    for dotted in limits.fixed:
        section, name = dotted.split(".")
        kept[dotted] = getattr(getattr(job, section), name)
    if "training.recompute" in kept:
        stated = job.training.recompute.model_dump(mode="json", exclude_unset=True)
        kept["training.recompute"] = (
            stated if len(stated) > 1 else job.training.recompute.granularity
        )
    if kept.get("parallelism.fsdp"):
        kept["parallelism.zero_stage"] = _STAGE_OF_FSDP
    shardings = _shardings(kept, limits)
    trainings = [
        {
            "training.micro_batch_size": micro_batch,
            "training.recompute": recompute,
            "training.schedule": schedule,
        }
        for schedule, micro_batch, recompute in itertools.product(
            _tried(kept, "training.schedule", limits.schedules),
            _tried(kept, "training.micro_batch_size", limits.micro_batch_sizes),
            _tried(kept, "training.recompute", limits.recompute),
        )
    ]
    splits = [
        {**layout, "parallelism.zero_stage": zero, "parallelism.fsdp": fsdp}
        for layout in _layouts(job, limits, kept)
        for fsdp, zero in shardings
    ]
    # All shardings of a layout come together, for each training section in turn.
    layout, training, sharding = np.indices(
        (len(splits) // len(shardings), len(trainings), len(shardings))
    ).reshape(3, -1)
    split = layout * len(shardings) + sharding
    pairs = np.stack([split, training])
    return _read(job, splits, trainings, pairs, limits.formats, known or KnownSections())


def _shardings(kept: Overrides, limits: Limits) -> list[tuple[Any, int]]:
    """Return the pairs of FSDP and ZeRO stage: those of a framework where it has its own."""
    own = [SHARDINGS[name] for name in limits.formats if name in SHARDINGS]
    if own and not {"parallelism.fsdp", "parallelism.zero_stage"} & kept.keys():
        return [*own[0]]
    zeros = _tried(kept, "parallelism.zero_stage", limits.zero_stages)
    (fsdp,) = _tried(kept, "parallelism.fsdp", (False,))
    return [(fsdp, zero) for zero in zeros]


def _read(
    job: Job,
    splits: Sequence[Overrides],
    trainings: Sequence[Overrides],
    pairs: Ints,
    formats: Sequence[str],
    known: KnownSections,
) -> Candidates:
    """Read each section once; ``pairs`` are those of each configuration.

    What the frameworks of some formats cannot run is left out.
    """
    variants = Variants(job)
    index = np.empty((len(SECTIONS), pairs.shape[1]), np.int64)
    illegal: Counter[str] = Counter()
    legal = np.ones(pairs.shape[1], np.bool_)
    for position in {*range(len(SECTIONS))} - {SPLIT, TRAINING}:
        index[position] = known.rows(position, [getattr(job, SECTIONS[position])])
    for position, fields, chosen in zip((SPLIT, TRAINING), (splits, trainings), pairs, strict=True):
        sections, refused = [], {}
        read = known.splits(job) if position == SPLIT else {}
        for number, overrides in enumerate(fields):
            # All splits state the same fields, and none of them has parts.
            key = tuple(overrides.values()) if position == SPLIT else number
            if key not in read:
                try:
                    read[key] = variants.section(SECTIONS[position], overrides)
                except ProjectorError as error:
                    read[key] = error
            section = read[key]
            if isinstance(section, ProjectorError):
                refused[number] = section.key or "job"
                section = getattr(job, SECTIONS[position])
            sections.append(section)
        index[position] = known.rows(position, sections).take(chosen)
        for number, field in refused.items():
            of_error = legal & (chosen == number)
            illegal[field] += int(np.count_nonzero(of_error))
            legal &= ~of_error
    for row in np.flatnonzero(legal).tolist() if formats else ():
        split_of, training_of = (known.tables[at].items[index[at, row]] for at in (SPLIT, TRAINING))
        setting = Setting(job.model, split_of, training_of, job.cluster.gpus)
        found = (refusal for name in formats for refusal in searchable(name, setting))
        for field, _ in itertools.islice(found, 1):
            illegal[field] += 1
            legal[row] = False
    index, pairs = np.ascontiguousarray(index[:, legal]), pairs[:, legal]

    def configured(row: int) -> Job:
        sections = {
            SECTIONS[position]: known.tables[position].items[index[position, row]]
            for position in (SPLIT, TRAINING)
        }
        fields = [*splits[pairs[0, row]], *trainings[pairs[1, row]]]
        return variants.put_together(sections, fields)

    batch = JobBatch(known.tables, index, configured)
    return Candidates(batch, splits, trainings, pairs, illegal)


def _layouts(job: Job, limits: Limits, kept: Overrides) -> Iterator[dict[str, Any]]:
    """Yield the degrees that divide what they must."""
    model, gpus = job.model, job.cluster.gpus
    most_tp = job_domain_gpus(job.cluster, gpus) if limits.tp_inside_node else gpus
    experts = model.moe.num_experts if model.moe else 1
    split, seq = job.parallelism, job.training.seq_length
    # What stages share; embedding and loss are layers where the job says so.
    layers = model.num_layers
    layers += split.account_for_embedding_in_pipeline_split
    layers += split.account_for_loss_in_pipeline_split
    # Ranks of context parallelism have enough tokens each.
    slices = [cp for cp in divisors(seq) if cp == 1 or seq // cp >= LEAST_TOKENS_OF_A_CP_RANK]
    (etp,) = _tried(kept, "parallelism.etp", (1 if model.moe else None,))
    for tp in _tried(kept, "parallelism.tp", divisors(model.num_attention_heads, most_tp)):
        if gpus % tp:
            continue
        for pp, cp in itertools.product(
            _tried(kept, "parallelism.pp", divisors(gpus // tp, model.num_layers)),
            _tried(kept, "parallelism.cp", slices),
        ):
            if gpus % (tp * pp * cp):
                continue
            for vpp, ep in itertools.product(
                _tried(kept, "parallelism.vpp", _chunks(layers, pp)),
                _tried(kept, "parallelism.ep", divisors(experts, gpus // pp)),
            ):
                degrees = {"tp": tp, "pp": pp, "vpp": vpp, "cp": cp, "ep": ep, "etp": etp}
                yield {f"parallelism.{name}": degree for name, degree in degrees.items()}


def _tried(kept: Overrides, field: str, values: Iterable[Any]) -> list[Any]:
    return [kept[field]] if field in kept else list(values)


def _chunks(layers: int, pp: int) -> list[int]:
    """Return the chunks of a rank that its layers divide into."""
    if pp == 1:
        return [1]
    return [1, *(v for v in range(2, MOST_CHUNKS + 1) if layers % (pp * v) == 0)]
