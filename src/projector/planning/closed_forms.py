"""Plans by the first-order model: clusters of any device, ranked by days and money."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from projector.config.first_order import FIRST_ORDER
from projector.config.first_order_job import AnyJob, load_first_order_job
from projector.config.model_file import load_model
from projector.config.planning import PlanSettings
from projector.envelope import envelope
from projector.errors import ConfigError
from projector.first_order.layouts import fastest_layout
from projector.first_order.parameters import count_parameters
from projector.first_order.results import UNKNOWN_BAND, FirstOrderPerformance
from projector.first_order.run import FirstOrderRun, run_of_steps
from projector.planning.reading import (
    ClusterKind,
    positive,
    read_gpus,
    read_kinds,
    read_prices,
    read_tokens,
)
from projector.units import to_gib, to_ms

STEPS_ALONE = (
    "the first-order model counts steps alone: no warm-up, failures, checkpoints, stragglers, and "
    "no band"
)

PRICE = "run.cost.usd_per_gpu_hour"


@dataclass(frozen=True, slots=True)
class FirstOrderChoice:
    """One cluster with its fastest layout."""

    label: str
    step: FirstOrderPerformance
    run: FirstOrderRun
    meets: bool
    """Whether it keeps deadline and budget."""

    @property
    def overrides(self) -> dict[str, Any]:
        """Dotted fields that make its job of the one that was asked about."""
        degrees = {
            f"parallelism.{name}": value
            for name, value in self.step.degrees.items()
            if name in {"tp", "pp", "ep"}
        }
        return {
            "cluster.device": self.label.partition("@")[0],
            "cluster.nodes": self.step.job.cluster.nodes,
            **degrees,
            "parallelism.zero_stage": self.step.job.parallelism.zero_stage,
            "training.recompute": self.step.job.training.recompute.granularity,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of ``plan --fidelity first-order --json``."""
        return {
            "device": self.label,
            "gpus": self.step.gpus,
            "nodes": self.step.job.cluster.nodes,
            **self.run.to_dict(),
            "tokens_per_s_per_gpu": self.step.tokens_per_s_per_gpu,
            "mfu": self.step.mfu,
            "iteration_time_ms": to_ms(self.step.iteration_time_s),
            "verdict": "fits",
            "peak_gib": to_gib(self.step.memory.peak_bytes),
            "parallelism": self.step.degrees,
            "bound": self.step.bound,
            "status": "meets" if self.meets else "misses",
            "overrides": self.overrides,
        }


@dataclass(frozen=True, slots=True, repr=False)
class FirstOrderPlan:
    """Ranked clusters by closed forms: no band, no failures, no energy."""

    model: str
    tokens: float
    deadline_days: float | None
    budget_usd: float | None
    choices: tuple[FirstOrderChoice, ...]
    """Best first; every one fits."""
    top: int
    objective: str

    @property
    def met(self) -> bool:
        """Whether some choice keeps the limits."""
        return any(choice.meets for choice in self.choices)

    @property
    def answer(self) -> str:
        """The answer in one sentence."""
        if not self.choices:
            return "nothing that was tried fits"
        best = self.choices[0]
        money = "" if best.run.cost_usd is None else f", {best.run.cost_usd:,.0f} USD"
        kept = "" if best.meets else "; it misses the limits"
        return (
            f"{best.step.gpus:,} x {best.label}: {best.run.days:,.1f} days, "
            f"{best.run.gpu_hours:,.0f} GPU-hours{money}{kept} (first-order model)"
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What these days leave out."""
        return (STEPS_ALONE,)

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``projector plan --fidelity first-order --json`` prints."""
        return {
            **envelope(self.warnings, UNKNOWN_BAND),
            "fidelity": FIRST_ORDER,
            "model": self.model,
            "tokens": self.tokens,
            "deadline_days": self.deadline_days,
            "budget_usd": self.budget_usd,
            "met": self.met,
            "answer": self.answer,
            "objective": self.objective,
            "choices": [choice.to_dict() for choice in self.choices[: self.top]],
            "considered": len(self.choices),
            "provenance": {"times": FIRST_ORDER, "memory": FIRST_ORDER},
        }

    def __repr__(self) -> str:
        """Give the answer in one line."""
        return f"FirstOrderPlan({self.answer})"


def plan_by_closed_forms(
    model: Any = None,
    tokens: Any = None,
    *,
    job: Any = None,
    devices: Any = None,
    gpus: Any = None,
    deadline_days: Any = None,
    budget_usd: Any = None,
    usd_per_gpu_hour: Any = None,
    overrides: Mapping[str, Any] | None = None,
    top: int = 10,
    settings: PlanSettings | None = None,
) -> FirstOrderPlan:
    """Rank clusters and layouts in closed form; the arguments are those of `project_plan`.

    Raises
    ------
    ConfigError
        For anything that describes no question.
    """
    settings = settings or PlanSettings()
    if (model is None) == (job is None):
        given = "both" if job is not None else "neither"
        msg = f"a plan takes a model or a job, got {given}: --model NAME or --config FILE"
        raise ConfigError(msg, key="model", allowed="one of model and job")
    deadline, budget = positive(deadline_days, "deadline_days"), positive(budget_usd, "budget_usd")
    changes = dict(overrides or {})
    if tokens is not None:
        number = read_tokens(tokens)
        changes |= {"run.tokens": number, "run.steps": None, "run.samples": None}
    kinds, base = _kinds_and_base(model, job, devices, changes, settings)
    prices = read_prices(usd_per_gpu_hour, kinds)
    if not base.run.is_stated:
        msg = "a plan needs the tokens to train: --tokens 1T, or run.tokens in the job"
        raise ConfigError(msg, key="tokens", allowed="a number above 0")
    found = []
    for kind in kinds:
        price = {PRICE: prices[kind.label]} if kind.label in prices else {}
        on_one_node = {**kind.overrides, "cluster.nodes": 1, "parallelism.dp": None, **price}
        found += _sizes(load_first_order_job(base, on_one_node), kind, read_gpus(gpus), settings)
    if budget is not None and all(run.cost_usd is None for _, _, run in found):
        msg = "budget_usd needs a price: --usd-per-gpu-hour X, or run.cost.prices=listed"
        raise ConfigError(msg, key="usd_per_gpu_hour", allowed="a price above 0")
    choices = [
        FirstOrderChoice(label, step, run, _meets(run, deadline, budget))
        for label, step, run in found
    ]
    objective = _objective(deadline, budget)
    # What misses its limits stands behind, the nearest to a deadline first.
    choices.sort(
        key=lambda each: (
            not each.meets,
            each.run.days if deadline and not each.meets else _value(each.run, objective),
        )
    )
    return FirstOrderPlan(
        model=base.model.name,
        tokens=choices[0].run.tokens if choices else float(base.run.tokens or 0.0),
        deadline_days=deadline,
        budget_usd=budget,
        choices=tuple(choices),
        top=top,
        objective=objective,
    )


def _kinds_and_base(
    model: Any, job: Any, devices: Any, changes: Mapping[str, Any], settings: PlanSettings
) -> tuple[tuple[ClusterKind, ...], AnyJob]:
    if job is not None:
        base = load_first_order_job(job, changes)
        own = (ClusterKind(base.cluster.device, None, base.cluster.device.name),)
        return (own if devices is None else read_kinds(devices)), base
    kinds = read_kinds(devices or changes.get("cluster.device") or settings.devices)
    architecture = load_model(model)
    seq = min(settings.longest_sequence, architecture.max_position_embeddings)
    parameters = count_parameters(architecture).total
    tokens = next(least for most, least in settings.batch_tokens if parameters <= most)
    training = {"micro_batch_size": 1, "global_batch_size": max(1, round(tokens / seq))}
    data = {
        "model": architecture,
        "training": {**training, "seq_length": seq},
        "cluster": {"device": kinds[0].device},
    }
    return kinds, load_first_order_job(data, {**changes, **kinds[0].overrides})


def _sizes(
    job: AnyJob, kind: ClusterKind, gpus: tuple[int, ...], settings: PlanSettings
) -> list[tuple[str, FirstOrderPerformance, FirstOrderRun]]:
    """Return the fastest layout of each size that fits: sizes given, or doubled ones."""
    per_node, found = job.cluster.gpus_per_node, []
    for size in gpus:
        if size % per_node:
            msg = f"gpus: {size} is no multiple of the {per_node} devices of a node of {kind.label}"
            raise ConfigError(msg, key="gpus", value=size, allowed=f"a multiple of {per_node}")
    nodes = [size // per_node for size in gpus]
    power = 1
    while not gpus and power * per_node <= settings.most_gpus:
        nodes.append(power)
        power *= 2
    for count in nodes:
        step = fastest_layout(load_first_order_job(job, {"cluster.nodes": count}))
        if step is not None:
            run = run_of_steps(step.job, step.iteration_time_s)
            found.append((kind.label, step, run))
    return found


def _meets(run: FirstOrderRun, deadline: float | None, budget: float | None) -> bool:
    in_time = deadline is None or run.days <= deadline
    return in_time and (budget is None or (run.cost_usd is not None and run.cost_usd <= budget))


def _objective(deadline: float | None, budget: float | None) -> str:
    if deadline is not None:
        return "cost"
    return "days" if budget is not None else "days times cost"


def _value(run: FirstOrderRun, objective: str) -> float:
    """Return what choices are ranked by; GPU-hours stand for money where there is no price."""
    spent = run.gpu_hours if run.cost_usd is None else run.cost_usd
    return {"cost": spent, "days": run.days}.get(objective, run.days * spent)
