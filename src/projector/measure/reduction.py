"""The benchmark job: what the devices at hand can run of a job that needs many more.

Degrees are given up in the order of how well they are restored: the pipeline first, whose schedule
is replayed exactly; then experts, of which each rank keeps as many as it had; then tensors, whose
share of every matrix changes. Context parallelism is never given up: it changes the sequence that
a rank computes, so that nothing of it would be measured.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import lcm
from typing import Any, Literal, NamedTuple

from projector.config._base import Config, Count, CountOrNone
from projector.config.first_order import FirstOrderConfig
from projector.config.job import Job
from projector.config.load import load_job
from projector.config.model import MoEConfig
from projector.config.parallelism import divisors
from projector.config.resources import settings_of
from projector.config.run import RunConfig
from projector.envelope import told
from projector.errors import ConfigError
from projector.lower.batch import data_parallel
from projector.lower.rules import first_broken
from projector.lower.workloads import layout_of

_SETTINGS = settings_of("benchmark_job")

AS_MEASURED: Mapping[str, Any] = _SETTINGS["as_measured"]
"""PyTorch's own kernels, one after the other. What the target does instead is scaled by the model,
so that no time of another kernel is taken for that of a fused one."""

Dimension = Literal["pp", "ep", "etp", "tp"]


class DescribedJob(Config):
    """Degrees and devices of a job."""

    tp: Count
    pp: Count
    vpp: Count
    cp: Count
    ep: Count
    etp: Count
    dp: Count
    nodes: Count
    gpus: Count
    num_experts: CountOrNone


class Step(Config):
    """One dimension given up."""

    dimension: Dimension
    before: Count
    after: Count
    gpus: Count
    """Devices that one copy takes from here on."""
    reason: str
    """How it is restored, for people."""


class DescribedReduction(Config):
    """A job, its benchmark job, and the way from one to the other."""

    target: DescribedJob
    benchmark: DescribedJob
    least_gpus: Count
    available_gpus: Count
    least_nodes: Count
    min_dp: Count
    target_dp: Count
    steps: list[Step]
    modelled: list[str]
    stand_ins: list[str]


WHOLE: Mapping[str, Any] = _SETTINGS["whole"]
"""What every benchmark job has: one stage, one copy, everything kept on the device."""


class Degrees(NamedTuple):
    """How one layer is divided."""

    tp: int
    cp: int
    ep: int
    etp: int

    @property
    def gpus(self) -> int:
        """Least devices of a layer: TP * CP and ETP * EP divide them (parallel folding)."""
        return lcm(self.tp * self.cp, self.etp * self.ep)


@dataclass(frozen=True, eq=False)
class Reduction:
    """A job, and the benchmark job that stands for it."""

    target: Job
    job: Job
    """What is measured: legal, and of one copy."""
    available: int
    steps: tuple[Step, ...]
    """What was given up, in order; none where the target fits as it is."""
    degrees: Degrees
    """Of a layer of the benchmark job."""

    @property
    def gpus(self) -> int:
        """Devices that the benchmark takes; never more than are offered."""
        return self.degrees.gpus

    @property
    def least_gpus(self) -> int:
        """Devices of one copy of the target."""
        return self.target.parallelism.pp * degrees_of(self.target).gpus

    @property
    def min_dp(self) -> int:
        """Data parallelism of the target on the fewest whole nodes that hold a copy."""
        split, gpus = self.target.parallelism, self.least_nodes * self.target.cluster.gpus_per_node
        return gpus // (split.tp * split.pp * split.cp)

    @property
    def target_dp(self) -> int:
        """Data parallelism of the target."""
        return data_parallel(self.target)

    @property
    def least_nodes(self) -> int:
        """Fewest whole nodes that hold a copy of the target."""
        node = self.target.cluster.gpus_per_node
        return lcm(self.least_gpus, node) // node

    def least_job(self) -> Job:
        """Return the target on the fewest nodes: ``min_dp`` copies share the same batch."""
        changed = {
            "cluster.nodes": self.least_nodes,
            "parallelism.dp": None,
            "parallelism.num_distributed_optimizer_instances": 1,
            "parallelism.sharding_group_size": None,
        }
        return load_job(self.target, changed)

    def closed_form_s(self, base_s: float, communication_s: float = 0.0) -> float:
        """Return the step of the target from that on the fewest nodes, by proportion.

        ``base_s * min_dp / target_dp + communication_s``: as many times fewer microbatches as there
        are more copies (Primus). It is exact without a pipeline. With one it shortens the bubble as
        well, which is as long whatever the microbatches: with equal stages it falls short of the
        replay by ``(1 - min_dp / target_dp)`` of the bubble. ``base_s`` is the step of `least_job`
        without the communication of data parallelism and the optimizer; ``communication_s`` is what
        the target adds once: exposed communication of its copies, optimizer.
        """
        return base_s * self.min_dp / self.target_dp + communication_s

    def to_dict(self) -> dict[str, Any]:
        """Return degrees, devices and steps, as records and JSON have them."""
        return {
            "target": _described(self.target),
            "benchmark": _described(self.job),
            "least_gpus": self.least_gpus,
            "available_gpus": self.available,
            **told(self, "least_nodes min_dp target_dp"),
            "steps": [step.model_dump() for step in self.steps],
            "modelled": self.modelled(),
            "stand_ins": self.stand_ins(),
        }

    def modelled(self) -> list[str]:
        """Return what the target does and its benchmark job does not."""
        split, training = self.target.parallelism, self.target.training
        recompute = training.recompute.granularity
        offloads = training.activation_offload_fraction + training.optimizer.offload_fraction
        left_out = {
            "data parallelism": self.target_dp > 1,
            "gathers and reductions of sharded weights": split.sharding_stage == 3,
            "sends between stages": split.pp > 1,
            f"{recompute} recomputation, as its forward": recompute != "none",
            "offloading to the host": offloads > 0.0,
            "what hides behind compute": (split.tp > 1 and split.tp_overlap != "none")
            or (
                split.ep > 1
                and (split.overlap_moe_expert_parallel_comm or split.moe_shared_expert_overlap)
            ),
            "graphs": training.cuda_graphs,
        }
        return [name for name, is_so in left_out.items() if is_so]

    def stand_ins(self) -> list[str]:
        """Return what the target runs by other kernels than were measured, which are scaled."""
        training = self.target.training
        fused = training.elementwise == "fused" or training.torch_compile
        exchange, optimizer = training.moe.dispatcher, training.optimizer.name
        others = {
            "fused kernels beside GEMMs, from PyTorch's own": fused,
            f"exchange by {exchange}, from an all-to-all": (
                self.target.parallelism.ep > 1 and exchange != "alltoall"
            ),
            f"{optimizer}, from adam": optimizer == "muon",
        }
        return [name for name, is_so in others.items() if is_so]


def reduction_lines(described: Mapping[str, Any]) -> list[str]:
    """Return what was reduced and why, one line each, from `Reduction.to_dict`."""
    steps, target = described["steps"], described["target"]
    least, offered = _count(described["least_gpus"]), described["available_gpus"]
    measured = described["benchmark"]["gpus"]
    shown = [
        f"Benchmark: {_degrees_shown(described['benchmark'])}",
        f"Target:    {_degrees_shown(target)}",
    ]
    if steps:
        shown.append(
            f"One copy of the target takes {least}; measured on {measured} of {offered} offered:"
        )
    else:
        shown.append(f"One copy of the target takes {least} of {offered}: nothing is reduced.")
    for number, step in enumerate(steps, 1):
        change = f"{step['dimension'].upper()} {step['before']} -> {step['after']}"
        shown.append(f"  {number}. {change}: {_count(step['gpus'])}. {step['reason']}")
    low, high = described["min_dp"], described["target_dp"]
    if low != high:
        nodes = _count(described["least_nodes"], "node")
        shown.append(
            f"DP {low} on {nodes}, the fewest that hold a copy -> {high} on "
            f"{_count(target['nodes'], 'node')}: each copy runs {low}/{high} of the microbatches."
        )
    closed = described.get("closed_form")
    if closed:
        shown.append(
            f"By Primus' rule a step takes {closed['step_ms']:,.1f} ms: "
            f"{closed['base_ms']:,.1f} x {low}/{high} + {closed['once_ms']:,.1f} once. "
            f"The replay says {closed['replayed_ms']:,.1f} ms, which counts."
        )
    if described["modelled"]:
        shown.append(f"Modelled, not measured: {'; '.join(described['modelled'])}.")
    if described["stand_ins"]:
        shown.append(f"Scaled from other measured kernels: {'; '.join(described['stand_ins'])}.")
    return shown


def reduction_to(job: Job, described: Mapping[str, Any]) -> Reduction:
    """Return the reduction of a job, maybe of other degrees, to the benchmark job of a record."""
    try:
        measured = described["benchmark"]
        degrees = Degrees(*(int(measured[name]) for name in Degrees._fields))
        available, experts = int(described["available_gpus"]), int(measured["num_experts"])
    except (KeyError, TypeError, ValueError):
        msg = "load_benchmark: the record does not say which degrees were measured"
        raise ConfigError(msg, key="load_benchmark", allowed="a record of measurements") from None
    reduced = benchmark_job(job, degrees, experts)
    steps = tuple(_steps(job, reduced, degrees_of(job), degrees))
    return Reduction(job, reduced, available, steps, degrees)


def degrees_of(job: Job) -> Degrees:
    """Return how a layer of a job is divided."""
    split = job.parallelism
    return Degrees(split.tp, split.cp, split.ep, split.expert_tp if job.model.moe else 1)


def reduce_job(job: Job, benchmark_gpus: int | None = None) -> Reduction:
    """Return the benchmark job of a job for the devices at hand, by default a node."""
    broken = first_broken(job)
    if broken is not None:
        raise broken
    layout_of(job.model, job.parallelism, job.training)
    available = _checked_gpus(job, benchmark_gpus)
    whole = degrees_of(job)
    for degrees in _candidates(job, whole):
        if degrees.gpus <= available:
            reduced = benchmark_job(job, degrees)
            if first_broken(reduced) is None:
                steps = tuple(_steps(job, reduced, whole, degrees))
                return Reduction(job, reduced, available, steps, degrees)
    least = _least_gpus(job, whole)
    cp = job.parallelism.cp
    why = f"cp ({cp}) is never reduced" if least % cp == 0 and cp > 1 else "its degrees need more"
    msg = (
        f"benchmark_gpus: {job.model.name} cannot be measured on {_count(available)}, because "
        f"{why}; at least {least} would do"
    )
    raise ConfigError(msg, key="benchmark_gpus", value=available, allowed=f"at least {least}")


def benchmark_job(job: Job, degrees: Degrees, experts: int | None = None) -> Job:
    """Return a job as its layers are measured, on one copy; ranks keep experts unless told."""
    split, gpus = job.parallelism, degrees.gpus
    copies = gpus // (degrees.tp * degrees.cp)
    changed: dict[str, Any] = {
        **WHOLE,
        **AS_MEASURED,
        "parallelism.tp": degrees.tp,
        "parallelism.ep": degrees.ep,
        "parallelism.etp": None if split.etp is None else degrees.etp,
        # Layers of the worker gather keys and values, where the target passes them round a ring.
        "parallelism.cp_comm_type": "a2a" if split.cp_comm_type == "a2a" else "all_gather",
        "training.global_batch_size": job.training.micro_batch_size * copies,
        "cluster.gpus_per_node": gpus,
    }
    if job.model.moe and (experts or degrees.ep < split.ep):
        experts = experts or kept_experts(job.model.moe, split.ep, degrees.ep)
        groups, group_topk = _kept_groups(job.model.moe, experts)
        changed |= {
            "model.moe.num_experts": experts,
            "model.moe.num_groups": groups,
            "model.moe.group_topk": group_topk,
        }
    reduced = load_job(job, changed)
    return reduced.model_copy(update={"run": RunConfig(), "first_order": FirstOrderConfig()})


def kept_experts(moe: MoEConfig, ep: int, reduced_ep: int) -> int:
    """Return each rank's own experts, or so many that a token finds all it visits."""
    return max(moe.num_experts // ep, -(-moe.router_topk // reduced_ep)) * reduced_ep


def _kept_groups(moe: MoEConfig, experts: int) -> tuple[int, int]:
    """Return groups of experts, and those that a token may visit, among fewer experts.

    Groups keep their size where that goes up, otherwise their number; otherwise routing is free.
    """
    if not moe.num_groups:
        return 0, 0
    size = moe.num_experts // moe.num_groups
    for groups in (experts // size, moe.num_groups):
        if groups and experts % groups == 0:
            visited = min(moe.group_topk, groups)
            if visited * (experts // groups) >= moe.router_topk or not visited:
                return groups, visited
    return 0, 0


def _candidates(job: Job, whole: Degrees) -> Iterator[Degrees]:
    """Yield degrees from the target's on down: TP gives way last, and experts' TP before it."""
    follows = job.parallelism.etp is None and job.model.moe is not None
    for tp in reversed(divisors(whole.tp)):
        for etp in [tp] if follows else reversed(divisors(whole.etp)):
            for ep in reversed(divisors(whole.ep)):
                yield Degrees(tp, whole.cp, ep, etp)


def _least_gpus(job: Job, whole: Degrees) -> int:
    for degrees in sorted(_candidates(job, whole), key=lambda degrees: degrees.gpus):
        if first_broken(benchmark_job(job, degrees)) is None:
            return degrees.gpus
    return whole.gpus


def _steps(job: Job, reduced: Job, whole: Degrees, degrees: Degrees) -> Iterator[Step]:
    pp, now = job.parallelism.pp, whole
    if pp > 1:
        stages = f"{pp * job.parallelism.vpp} virtual stages" if job.parallelism.vpp > 1 else ""
        reason = "The schedule of the stages is replayed from the times of layers"
        reason += f"{stages and f', over {stages}'}."
        yield Step(dimension="pp", before=pp, after=1, gpus=whole.gpus, reason=reason)
    # One rank has no collectives to measure.
    exchange = "scaled" if degrees.tp > 1 else "modelled"
    reasons: dict[Dimension, str] = {
        "ep": _about_experts(job, reduced) if degrees.ep < whole.ep else "",
        "etp": "GEMMs of a rank are measured by themselves; what else experts take is scaled.",
        "tp": "GEMMs and attention of a rank are measured by themselves; other compute is scaled, "
        f"collectives are {exchange}.",
    }
    for name, reason in reasons.items():
        before, after = getattr(whole, name), getattr(degrees, name)
        if after < before and (name != "etp" or job.parallelism.etp is not None):
            # Experts' tensor parallelism that follows the other one goes with it.
            now = degrees if name == "tp" else now._replace(**{name: after})
            yield Step(dimension=name, before=before, after=after, gpus=now.gpus, reason=reason)


def _about_experts(job: Job, reduced: Job) -> str:
    before, after = job.model.moe, reduced.model.moe
    assert before is not None
    assert after is not None
    each = before.num_experts // job.parallelism.ep
    now = after.num_experts // reduced.parallelism.ep
    count = f"Experts {before.num_experts} -> {after.num_experts}"
    ep = reduced.parallelism.ep
    exchange = f"measured among {ep}, the rest is modelled" if ep > 1 else "modelled"
    if now == each:
        kept = f", so that a rank keeps {each}"
    elif each * ep >= before.router_topk:
        kept = f": a rank had {now} where it has {each} now, and their layer is scaled"
    else:
        kept = f": a token visits {before.router_topk}, so a rank has {now} instead of {each} "
        kept += "and their layer is scaled"
    kept = f"{count}{kept}; their exchange is {exchange}."
    if after.num_groups == before.num_groups:
        return kept
    groups = f"Groups {before.num_groups} -> {after.num_groups}"
    return f"{kept} {groups if after.num_groups else 'Routing is not limited to groups'}."


def _checked_gpus(job: Job, benchmark_gpus: int | None) -> int:
    node = job.cluster.gpus_per_node
    if benchmark_gpus is None:
        return node
    if type(benchmark_gpus) is not int or not 1 <= benchmark_gpus <= node:
        allowed = f"an integer from 1 to {node}, the GPUs of a node"
        msg = f"benchmark_gpus is {allowed}, got {benchmark_gpus!r}"
        raise ConfigError(msg, key="benchmark_gpus", value=benchmark_gpus, allowed=allowed)
    return benchmark_gpus


def _described(job: Job) -> dict[str, Any]:
    split, cluster = job.parallelism, job.cluster
    return {
        **{name: getattr(split, name) for name in ("tp", "pp", "vpp", "cp", "ep")},
        "etp": degrees_of(job).etp,
        "dp": data_parallel(job),
        "nodes": cluster.nodes,
        "gpus": cluster.gpus,
        "num_experts": job.model.moe.num_experts if job.model.moe else 0,
    }


def _degrees_shown(values: Mapping[str, Any]) -> str:
    degrees = ", ".join(f"{name.upper()}={values[name]}" for name in _SHOWN)
    return f"{degrees} ({_count(values['gpus'])}, {_count(values['nodes'], 'node')})"


_SHOWN = ("tp", "pp", "vpp", "ep", "cp", "dp")


def _count(count: int, what: str = "GPU") -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"
