"""A step of reinforcement learning, and the split of the devices that makes it fastest.

Nothing is timed here: rollouts are decode steps of serving, updates are steps of training jobs, a
log-probability is the forward share of one, and weights move in collectives.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from projector.config.bands import ALL, Band, band_of
from projector.config.job import Job
from projector.config.load import load_job
from projector.envelope import envelope, told
from projector.errors import ConfigError, ProjectorError
from projector.kernels.collective_algorithms import ALL_GATHER, BROADCAST
from projector.kernels.collectives import collective_time_columns
from projector.lower.batch import data_parallel, local_members
from projector.lower.fabrics import domain_gpus, fabric_record
from projector.operations.counts import count_architecture
from projector.projection.api import project_jobs
from projector.projection.bands import DOES_NOT_FIT, verdict_of
from projector.projection.evaluate import check_exists
from projector.projection.performance import PerformanceProjection
from projector.projection.run import forward_of
from projector.rl.job import APART, COLOCATED, RLJob, read_rl, within
from projector.rl.rollout import Rollout, rollouts
from projector.serving.deployment import degrees
from projector.serving.memory import serving_memories
from projector.serving.rates import legal_deployments
from projector.units import GB, GIB

ROLLOUT, TRAINING, TRANSFER = "rollout", "training", "transfer"

BUCKET_BYTES = 2 * GIB
"""Weights in 16 bits that are sent together (verl ``update_weights_bucket_megabytes``: 2048)."""

MOST_PARTS = 16
"""Numbers of nodes that train which a search tries beside all of them, evenly spaced."""


@dataclass(frozen=True, slots=True, repr=False)
class RLProjection:
    """One step of reinforcement learning. Times are seconds."""

    job: RLJob
    update: PerformanceProjection
    """One update of the policy."""
    rollout: Rollout
    phases_s: Mapping[str, float]
    """What each phase takes that the step has, in their order."""
    held_bytes: Mapping[str, Mapping[str, float]]
    """What the fullest device holds during ``rollout`` and ``training``, and has ``usable``."""
    verdict: str
    """The worse one of both sides: ``fits``, ``at_risk`` or ``does_not_fit``."""

    @property
    def sides_s(self) -> dict[str, float]:
        """The rollout, and all that the devices that train do beside the transfer."""
        rest = sum(self.phases_s.values()) - self.phases_s[ROLLOUT] - self.phases_s[TRANSFER]
        return {ROLLOUT: self.phases_s[ROLLOUT], TRAINING: rest}

    @property
    def step_s(self) -> float:
        """One step; sides that overlap wait for the longer one, and for the weights."""
        both = max if self.job.staleness else sum
        return both(self.sides_s.values()) + self.phases_s[TRANSFER]

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens of prompts and responses over the step and all devices."""
        responses = self.job.responses
        return responses.total * responses.mean_tokens / (self.step_s * self.job.gpus)

    @property
    def idle(self) -> dict[str, float]:
        """Share of the step in which the devices of a side wait for the other; none colocated."""
        if self.job.placement == COLOCATED:
            return {}
        sent, step_s = self.phases_s[TRANSFER], self.step_s
        return {side: 1.0 - (busy + sent) / step_s for side, busy in self.sides_s.items()}

    @property
    def bound(self) -> str:
        """What limits the step: its longest phase, or the longer of sides that overlap."""
        parts = self.sides_s if self.job.staleness else self.phases_s
        return max(parts, key=lambda name: parts[name])

    @property
    def fits(self) -> bool:
        """Whether both sides fit."""
        return self.verdict != DOES_NOT_FIT

    @property
    def band(self) -> Band:
        """Where published steps lie, with all that frameworks do besides; nothing is fitted."""
        kind = "dense" if self.job.training.model.moe is None else "moe"
        band = band_of("rl", (kind, ALL))
        basis = f"for 68 % of runs, from {band.runs} published steps of NeMo-RL"
        return replace(band, basis=f"{basis}, overheads of the framework included")

    @property
    def overrides(self) -> dict[str, Any]:
        """How the devices are divided, as overrides of the step."""
        job, split = self.job, degrees(self.job.rollout)
        chosen = told(job, "placement rollout_gpus staleness")
        chosen |= {"training.cluster.nodes": job.training.cluster.nodes}
        return chosen | {f"rollout.{name}": each for name, each in split.items() if each > 1}

    def to_dict(self) -> dict[str, Any]:
        """Return exactly the object that ``projector rl --json`` prints."""
        job, update = self.job, self.update
        return {
            **envelope(update.warnings, self.band.to_dict()),
            "model": job.training.model.name,
            "device": job.training.cluster.device.name,
            "training_gpus": update.gpus,
            **told(job, "gpus rollout_gpus placement staleness"),
            "mean_tokens": job.responses.mean_tokens,
            **told(self, "step_ms tokens_per_s_per_gpu bound idle fits verdict phases_ms"),
            "rollout": {
                **degrees(job.rollout),
                **told(self.rollout, "responses slots mean_batch prefill_ms decode_ms tail_ms"),
            },
            "update": told(update, "iteration_time_ms degrees mfu bound"),
            **told(self, "held_gib overrides"),
        }

    def __repr__(self) -> str:
        return (
            f"RLProjection({self.job.training.model.name} on {self.job.gpus} GPUs: "
            f"{self.step_s:,.1f} s a step, {self.tokens_per_s_per_gpu:,.0f} tokens/s/GPU, "
            f"{self.verdict.replace('_', ' ')})"
        )


def project_rl(
    job: RLJob | Mapping[str, Any] | str | Path, *, overrides: Mapping[str, Any] | None = None
) -> RLProjection:
    """Project one step of reinforcement learning.

    Args:
        job (RLJob, mapping, str or Path): A step, or a file or mapping of one (docs/rl.md).
        overrides (mapping, optional): Dotted field -> value, e.g. ``{"rollout.tp": 4}``.

    Raises:
        ProjectorError: If the step cannot exist. One that does not fit is projected all the same.
    """
    return _projected([job if isinstance(job, RLJob) else read_rl(job, overrides)])[0]


def search_rl(
    job: Mapping[str, Any] | str | Path,
    *,
    gpus: int | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> list[RLProjection]:
    """Return the steps on ``gpus`` devices that fit, those of the job if left out, fastest first.

    Colocated, and apart in whole nodes, with every split of a replica that ``rollout`` does not
    state. The split of training is kept; its replicas take the devices it has. Apart has the
    staleness of the job, and colocated none.
    """
    changes = dict(overrides or {})
    late = changes.pop("staleness", None)
    base = read_rl(job, changes)
    node, total = base.training.cluster.gpus_per_node, base.gpus if gpus is None else gpus
    nodes, rest = divmod(total, node) if type(total) is int else (0, 0)
    if nodes < 1 or rest:
        msg = f"gpus ({total}) must be whole nodes of {node}"
        raise ConfigError(msg, key="gpus", value=total, allowed=f"a multiple of {node}")
    parts = np.linspace(1, nodes - 1, min(nodes - 1, MOST_PARTS)).astype(np.int64)
    jobs: list[RLJob] = []
    refused: ProjectorError | None = None
    for train in [*np.unique(parts).tolist(), nodes]:
        own: dict[str, Any] = {"placement": APART, "rollout_gpus": total - train * node}
        own["staleness"] = base.staleness if late is None else late
        if train == nodes:
            own = {"placement": COLOCATED, "rollout_gpus": total, "staleness": 0}
        try:
            for name in ("training", "critic"):
                part = getattr(base, name)
                own[name] = part and load_job(part, {"cluster.nodes": train})
                check_exists(_of_update(base, own[name] or own["training"]))
        except ProjectorError as error:
            refused = error
        else:
            jobs += _placed(base, own)
    if not jobs and refused is not None:
        raise refused
    return sorted((each for each in _projected(jobs) if each.fits), key=lambda each: each.step_s)


def _placed(base: RLJob, own: dict[str, Any]) -> list[RLJob]:
    """Return a step for each split of a replica that holds the longest response."""
    gpus, cluster = own["rollout_gpus"], base.rollout.cluster
    cluster = cluster.model_copy(update={"nodes": -(-gpus // cluster.gpus_per_node)})
    one = base.rollout.model_copy(update={"cluster": cluster})
    splits = [each for each in legal_deployments(one, gpus) if gpus % each.gpus == 0]
    return [
        RLJob.parse({**dict(base), **own, "rollout": split})
        for split, memory in zip(splits, serving_memories(splits), strict=True)
        if int(memory.max_batch(base.responses.longest)) > 0
    ]


def _projected(jobs: Sequence[RLJob]) -> list[RLProjection]:
    """Project steps that share their responses and engine."""
    if not jobs:
        return []
    deployments, gpus = [job.rollout for job in jobs], [job.rollout_gpus for job in jobs]
    placed = rollouts(deployments, gpus, jobs[0].responses, jobs[0].scheduler)
    of: dict[int, PerformanceProjection] = {}
    for job in jobs:
        for name, part in ((TRAINING, job.training), ("critic", job.critic)):
            if part is not None and id(part) not in of:
                with within(name):
                    (of[id(part)],) = project_jobs([_of_update(job, part)])
    found = []
    for job, rollout in zip(jobs, placed, strict=True):
        update, critic = of[id(job.training)], of.get(id(job.critic))
        phases_s = _phases_s(job, update, critic) | {ROLLOUT: rollout.prefill_s + rollout.decode_s}
        memory = _memory(job, update, critic, rollout)
        found.append(RLProjection(job, update, rollout, phases_s, *memory))
    return found


def _of_update(job: RLJob, part: Job) -> Job:
    """Return the training job of one update, as many packed sequences on each replica."""
    training, tokens = part.training, job.responses.mean_tokens
    whole = max(1, data_parallel(part)) * training.micro_batch_size
    rows = int(np.ceil(training.global_batch_size * tokens / training.seq_length / whole)) * whole
    changes = {"training.packed_tokens": round(tokens), "training.global_batch_size": rows}
    return load_job(part, changes)


def _phases_s(
    job: RLJob, update: PerformanceProjection, critic: PerformanceProjection | None
) -> dict[str, float]:
    """Return the phases in the order of verl's trainer, the rollout still without its time.

    What moves between device and host is that of the fullest rank; the reference only comes in.
    """
    updates = job.responses.total / job.training.training.global_batch_size
    phases = {ROLLOUT: 0.0, "logprob": updates * forward_of(update.pipeline_s, update)}
    moved = 2.0 * _bytes(update, *_STATES) * (job.placement == COLOCATED or critic is not None)
    if job.reference:
        phases["reference"] = phases["logprob"]
        moved += _bytes(update, "weights")
    if critic is not None and job.critic is not None:
        each = job.responses.total / job.critic.training.global_batch_size
        phases["values"] = each * forward_of(critic.pipeline_s, critic)
        phases["critic"] = each * critic.iteration_time_s
        moved += 2.0 * _bytes(critic, *_STATES)
    phases |= {TRAINING: updates * update.iteration_time_s, TRANSFER: _transfer_s(job)}
    if job.offload and moved:
        phases["offload"] = moved / (job.training.cluster.device.host_link_gb_per_s * GB)
    return phases


def _transfer_s(job: RLJob) -> float:
    """Return the time of updated weights from the layout of training to that of the rollout.

    The ranks that share one copy gather it, bucket by bucket, and each rank of the rollout keeps
    its part. Apart, one of them sends each bucket to all others and to the rollout (NeMo-RL, verl).
    """
    split, cluster = job.training.parallelism, job.training.cluster
    domain, stage = domain_gpus(cluster), -(-cluster.gpus // split.pp)
    copy = stage if split.sharding_stage == 3 else max(split.tp, split.expert_tp * split.ep)
    # The ranks of a stage lie side by side, those of the next one behind them.
    near = local_members(copy, 1, domain) * local_members(split.pp, stage, domain)
    num_bytes = 2.0 * count_architecture(job.training.model).parameters_total
    buckets = np.ceil(num_bytes / BUCKET_BYTES)
    ends = [(ALL_GATHER, split.pp * copy, near)]
    ends += [(BROADCAST, job.gpus, min(job.gpus, domain))] * (job.placement == APART)
    codes, ranks, local = np.array(ends).T
    fabric = fabric_record(cluster)
    each_s, _ = collective_time_columns(codes, num_bytes / buckets, ranks, local, 0, fabric)
    return float(buckets * each_s.sum())


def _bytes(projection: PerformanceProjection, *terms: str) -> float:
    stages = projection.memory.stages
    return max(float(sum(getattr(each, f"{term}_bytes") for term in terms)) for each in stages)


_STATES = "weights", "gradients", "optimizer"


def _memory(
    job: RLJob,
    update: PerformanceProjection,
    critic: PerformanceProjection | None,
    rollout: Rollout,
) -> tuple[dict[str, dict[str, float]], str]:
    """Return what a device holds on either side: the engine's share, the larger update, who waits.

    Beside it stands the worse verdict.
    """
    models = sorted(filter(None, (update, critic)), key=lambda each: -each.memory.peak_bytes)
    memory, largest = rollout.memory, models[0].memory
    taken = {"weights": memory.weights_bytes, "workspace": memory.workspace_bytes}
    taken |= {"cache": max(0.0, memory.usable_bytes - sum(taken.values()))}
    taken, held = taken | {"reserve": memory.reserve_bytes}, {"update": largest.peak_bytes}
    if not job.offload:
        frozen = _bytes(update, "weights") * job.reference
        held["waiting"] = frozen + sum(_bytes(each, *_STATES) for each in models[1:])
        if job.placement == COLOCATED:
            taken["waiting"] = frozen + sum(_bytes(each, *_STATES) for each in models)
    verdict = verdict_of(models[0].job, sum(held.values()), largest.usable_bytes).verdict
    device = (memory.usable_bytes + memory.reserve_bytes) / job.rollout.gpu_memory_utilization
    if rollout.slots == 0 or sum(taken.values()) > device:
        verdict = DOES_NOT_FIT
    held = {**held, "usable": largest.usable_bytes}
    return {ROLLOUT: {**taken, "usable": device}, TRAINING: held}, verdict
