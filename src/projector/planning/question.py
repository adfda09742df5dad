"""What a plan is asked: the run, the clusters to choose from, the deadline and the budget.

Numbers, dates, prices and clusters are read as people write them, and written as plans do.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

from projector.config.first_order import FIDELITIES
from projector.config.first_order_job import AnyJob
from projector.config.model_file import load_model
from projector.config.names import in_full
from projector.config.planning import PlanSettings
from projector.config.training import TrainingConfig
from projector.errors import ConfigError, one_of, shown
from projector.files import is_file
from projector.first_order.results import tokens_of
from projector.planning.fidelity import Fidelity, fidelity_named
from projector.projection.api import JobLike
from projector.units import read_amount, unwrapped


def number(value: float) -> str:
    """Write a large number as people say it: ``1 T``, ``15.6 T``, ``300 B``."""
    for scale, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if value >= scale:
            return f"{value / scale:.4g} {letter}"
    return f"{value:,.0f}"


def days_number(days: float) -> str:
    """Write days in three digits or more."""
    return f"{days:,.1f}" if days >= 9.95 else f"{days:.2f}" if days >= 0.995 else f"{days:.3g}"


def usd(value: float) -> str:
    """Write money in three or four digits."""
    if value >= 1e6:
        return f"${value / 1e6:,.2f} M"
    return f"${value:,.0f}"


_TOKENS = "a number above 0, such as 1e12, 300B or 15.6T"


def read_tokens(value: Any) -> float:
    """Return tokens from a number or a text such as ``1e12``, ``300B`` or ``15.6T``."""
    return positive(value, "tokens", _TOKENS) or 0.0


def days_until(deadline: Any, today: date) -> float:
    """Return the days from today to a date, given as such or as ``2027-03-01``."""
    try:
        day = deadline if isinstance(deadline, date) else date.fromisoformat(str(deadline).strip())
    except ValueError:
        msg = f"deadline is a date such as 2027-03-01, got {shown(deadline)}"
        raise ConfigError(msg, key="deadline", value=deadline, allowed="YYYY-MM-DD") from None
    days = (day - today).days
    if days <= 0:
        msg = (
            f"deadline {day} does not lie ahead: today is {today}. A run that starts today needs a "
            "later date"
        )
        raise ConfigError(msg, key="deadline", value=str(day), allowed=f"after {today}")
    return float(days)


def positive(value: Any, key: str, allowed: str = "a number above 0") -> float | None:
    """Return a number above 0, or what a text such as ``100M`` stands for; None where none is."""
    amount = read_amount(unwrapped(value), key)
    if amount is None:
        return None
    is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
    if not is_number or not math.isfinite(amount) or amount <= 0.0:
        msg = f"{key} is {allowed}, got {shown(value)}"
        raise ConfigError(msg, key=key, value=value, allowed=allowed)
    return float(amount)


@dataclass(frozen=True, slots=True)
class ClusterKind:
    """One kind of cluster: a device and, where it is not the usual one, a network."""

    device: Any
    """A name, a file, a mapping or a `Device`."""
    network: str | None = None
    label: str = ""
    """What reports and prices call it."""

    @property
    def overrides(self) -> dict[str, Any]:
        """Dotted fields of a job on it."""
        chosen = {"cluster.device": self.device}
        return chosen if self.network is None else {**chosen, "cluster.network": self.network}


def read_kinds(devices: Any) -> tuple[ClusterKind, ...]:
    """Return the kinds of clusters that ``NAME`` or ``NAME@NETWORK`` stand for, each once."""
    given = [devices] if isinstance(devices, str | Mapping) else devices
    if not isinstance(given, Iterable) or not (listed := list(given)):
        msg = f"devices are names such as h100 or h100@p5_efa, at least one; got {shown(devices)}"
        raise ConfigError(msg, key="devices", value=devices, allowed="one or more names")
    kinds = []
    for each in listed:
        name, at, network = each.partition("@") if isinstance(each, str) else (each, "", "")
        if at and is_file(Path(each)):
            name, at, network = each, "", ""
        if at and not (name and network):
            msg = f"devices: {each!r} should be NAME, or NAME@NETWORK such as h100@p5_efa"
            raise ConfigError(msg, key="devices", value=each, allowed="NAME or NAME@NETWORK")
        label = str(each) if isinstance(each, str) else str(getattr(each, "name", "own device"))
        kinds.append(ClusterKind(name, network or None, label))
    labels = [kind.label for kind in kinds]
    for label in labels:
        if labels.count(label) > 1:
            msg = f"devices: {label!r} is given twice"
            raise ConfigError(msg, key="devices", value=label, allowed="each once")
    return tuple(kinds)


def read_gpus(gpus: Any) -> tuple[int, ...]:
    """Return the sizes to choose from in GPUs, rising; none where the plan chooses them."""
    gpus = unwrapped(gpus)
    if gpus is None:
        return ()
    given: Sequence[Any] = list(map(unwrapped, gpus if isinstance(gpus, list | tuple) else [gpus]))
    for each in given:
        if isinstance(each, bool) or not isinstance(each, int) or each < 1:
            msg = f"gpus is a whole number above 0, got {shown(each)}"
            raise ConfigError(msg, key="gpus", value=each, allowed=">= 1")
    return tuple(sorted(set(given)))


def read_prices(value: Any, kinds: Sequence[ClusterKind]) -> dict[str, float]:
    """Return USD for an hour of a GPU by label: one price for all, or a mapping."""
    key = "usd_per_gpu_hour"
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        price = positive(value, key)
        assert price is not None
        return {kind.label: price for kind in kinds}
    labels = [kind.label for kind in kinds]
    prices = {}
    for label, given in value.items():
        if label not in labels:
            msg = f"{key}: {label!r} is no device of this plan; its devices: {', '.join(labels)}"
            raise ConfigError(msg, key=key, value=label, allowed=labels)
        price = positive(given, key)
        if price is None:
            msg = f"{key}: {label} has no price"
            raise ConfigError(msg, key=key, value=None, allowed="above 0")
        prices[label] = price
    return prices


BATCH = "training.global_batch_size"

MOST_BATCH = 1 << 16
"""Sequences of a step beyond this are of no run, and have more microbatches than are replayed."""

_BATCHES = f"whole numbers from 1 to {MOST_BATCH}: one, several as 512,1024, or a range as 512..2k"


def read_batches(value: Any) -> tuple[int, ...]:
    """Return the global batches to choose from, rising; a range is doubled from its lower end."""
    value = unwrapped(value)
    parts = value.split(",") if isinstance(value, str) else value
    found: set[int] = set()
    for part in parts if isinstance(parts, list | tuple) else [parts]:
        ends = [read_amount(end) for end in part.split("..")] if isinstance(part, str) else [part]
        kinds = {type(end) for end in ends} <= {int, float}
        whole = kinds and all(1 <= end <= MOST_BATCH and end % 1 == 0 for end in ends)
        if not whole or len(ends) > 2 or ends[0] > ends[-1]:
            msg = f"global_batch: takes {_BATCHES}; got {shown(value)}"
            raise ConfigError(msg, key="global_batch", value=value, allowed=_BATCHES)
        low, high = int(ends[0]), int(ends[-1])
        found |= {high, *doubled(low, high)}
    return tuple(sorted(found))


def doubled(low: int, high: int) -> tuple[int, ...]:
    """Return a number and its doubles up to another."""
    return tuple(low << power for power in range((high // low).bit_length()))


ROUND = 64
"""A global batch that no power of two gives is a multiple of this, so that replicas divide it."""


@dataclass(frozen=True)
class Question:
    """What a plan is asked."""

    job: AnyJob
    """Model, global batch, sequence and run; its cluster is replaced."""
    kinds: tuple[ClusterKind, ...]
    gpus: tuple[int, ...]
    """Sizes to choose from; none means that the plan chooses them."""
    deadline_days: float | None
    budget_usd: float | None
    prices: Mapping[str, float]
    """USD for an hour of a GPU, by label of the kind of cluster."""
    settings: PlanSettings
    fidelity: str
    source: Any
    """What the job was read from: other devices bring other nodes along."""
    changes: Mapping[str, Any]
    """Dotted fields that were stated besides, and the largest global batch."""
    batches: tuple[int, ...]
    """Global batches to choose from, rising."""
    batch_basis: str
    """Where the global batch comes from, in words."""
    devices_basis: str
    formats: tuple[str, ...] = ()
    """Formats of `emit_job` whose frameworks must be able to run a layout."""

    @cached_property
    def model(self) -> Fidelity:
        """The model that answers, with what it learnt so far."""
        return fidelity_named(self.fidelity, self.formats)

    @property
    def tokens(self) -> float:
        """Tokens of the run."""
        return tokens_of(self.job)

    @property
    def longest_batches(self) -> tuple[int, ...]:
        """Global batches that divide no larger one: what divides one is no faster than it."""
        given = self.batches
        return tuple(
            each for each in given if not any(other % each == 0 for other in given if other > each)
        )


def ask(
    model: Any,
    tokens: Any,
    *,
    job: JobLike | None,
    devices: Any,
    gpus: Any,
    deadline_days: Any,
    budget_usd: Any,
    usd_per_gpu_hour: Any,
    overrides: Mapping[str, Any] | None,
    fidelity: str,
    settings: PlanSettings,
    formats: Sequence[str] = (),
    global_batch: Any = None,
) -> Question:
    """Read the arguments of `projector.planning.plan.project_plan`, which documents them."""
    one_of("fidelity", fidelity, FIDELITIES)
    if (model is None) == (job is None):
        given = "both" if job is not None else "neither"
        msg = f"a plan takes a model or a job, got {given}: --model NAME or --config FILE"
        raise ConfigError(msg, key="model", allowed="one of model and job")
    answers = fidelity_named(fidelity, formats)
    deadline = positive(deadline_days, "deadline_days")
    budget = positive(budget_usd, "budget_usd")
    length = {} if tokens is None else stating(read_tokens(tokens))
    stated = in_full(overrides or {})
    _check_changes(overrides or {}, length)
    batches = () if global_batch is None else read_batches(global_batch)
    names = [key.removeprefix("training.").replace("-", "_") for key in stated]
    is_stated = BATCH in {f"training.{TrainingConfig.aliases.get(name, name)}" for name in names}
    if batches and is_stated:
        msg = f"{BATCH} and global_batch both say the global batch; give one of them"
        raise ConfigError(msg, key="global_batch", value=global_batch, allowed="one of the two")
    changes = {**stated, **length, **({BATCH: batches[-1]} if batches else {})}
    if job is not None:
        source: Any = job
        base = answers.load(source, changes)
        batch_basis = "as asked" if batches or is_stated else "as the job has it"
        kinds, devices_basis = _kinds_of_job(base, devices)
    else:
        kinds, devices_basis = _kinds_of_model(devices, changes, settings)
        source = _source_of(model, kinds[0], settings)
        base = answers.load(source, {**changes, **kinds[0].overrides})
        batch_basis = "as asked"
    if not base.run.is_stated:
        msg = "a plan needs the tokens to train: --tokens 1T, or run.tokens in the job"
        raise ConfigError(msg, key="tokens", allowed="a number above 0")
    if job is None and not batches and not is_stated:
        batches, batch_basis = _batches_by_rule(answers, base, settings)
        changes[BATCH] = batches[-1]
        base = answers.load(base, {BATCH: batches[-1]})
    if len(batches) > 1 and base.run.steps is not None:
        msg = "run.steps: so many steps train other tokens with each global batch; state tokens"
        raise ConfigError(msg, key="run.steps", value=base.run.steps, allowed="tokens or samples")
    prices = read_prices(usd_per_gpu_hour, kinds)
    if budget is not None and not prices and not base.run.cost.is_stated:
        msg = (
            "budget_usd needs a price: --usd-per-gpu-hour X; run.cost.prices=listed takes dated "
            "prices, run.cost.owned.capex_usd_per_gpu=X those of a fleet of one's own"
        )
        raise ConfigError(msg, key="usd_per_gpu_hour", allowed="a price above 0")
    return Question(
        job=base,
        kinds=kinds,
        gpus=read_gpus(gpus),
        deadline_days=deadline,
        budget_usd=budget,
        prices=prices,
        settings=settings,
        fidelity=fidelity,
        source=source,
        changes=changes,
        batches=batches or (base.training.global_batch_size,),
        batch_basis=batch_basis,
        devices_basis=devices_basis,
        formats=tuple(formats),
    )


CHOSEN = (
    "cluster.nodes",
    *(f"parallelism.{name}" for name in ("tp", "pp", "vpp", "cp", "ep", "dp")),
)
"""Fields that a plan chooses, whatever a job says."""

LENGTHS = frozenset(("tokens", "steps", "samples"))
"""Fields of a run that say how much is trained."""


def _check_changes(overrides: Mapping[str, Any], length: Mapping[str, Any]) -> None:
    """Refuse what was stated for this plan without effect; a job file may have such fields."""
    for key, value in overrides.items():
        (field,) = in_full({key: value})
        section, _, name = field.partition(".")
        if length and section == "run" and name in LENGTHS:
            msg = f"{key} and tokens both say how much is trained; give one of them"
            raise ConfigError(msg, key=key, value=value, allowed="without tokens")
        if field in CHOSEN:
            instead = "give gpus" if field == "cluster.nodes" else "performance projects one layout"
            msg = f"{key}: a plan chooses it, so that {shown(value)} has no effect; {instead}"
            raise ConfigError(msg, key=key, value=value, allowed=instead)


def stating(tokens: float) -> dict[str, Any]:
    """Return what makes a run as long as these tokens, whatever else said so."""
    return {"run.tokens": tokens, "run.steps": None, "run.samples": None}


def _kinds_of_job(job: AnyJob, devices: Any) -> tuple[tuple[ClusterKind, ...], str]:
    if devices is None:
        device = job.cluster.device
        return (ClusterKind(device, None, device.name),), "the device of the job"
    return read_kinds(devices), "as asked"


def _kinds_of_model(
    devices: Any, changes: dict[str, Any], settings: PlanSettings
) -> tuple[tuple[ClusterKind, ...], str]:
    if devices is not None:
        return read_kinds(devices), "as asked"
    if "cluster.device" in changes:
        return read_kinds([changes["cluster.device"]]), "as asked"
    basis = (
        f"{', '.join(settings.devices)}: the last and the current generation of both vendors of "
        "GPUs, of which training runs are published; --device names others"
    )
    return read_kinds(settings.devices), basis


def _source_of(model: Any, kind: ClusterKind, settings: PlanSettings) -> dict[str, Any]:
    """Return the mapping of a job of a model, without its global batch."""
    architecture = load_model(model)
    seq = min(settings.longest_sequence, architecture.max_position_embeddings)
    return {
        "model": architecture,
        "training": {"micro_batch_size": 1, "global_batch_size": 1, "seq_length": seq},
        "cluster": {"device": kind.device},
    }


def _batches_by_rule(
    answers: Fidelity, base: AnyJob, settings: PlanSettings
) -> tuple[tuple[int, ...], str]:
    """Return the global batches from the rule by size to the law by tokens, and these in words."""
    # Any batch that the devices of a node divide: what is counted does not depend on it.
    parameters = answers.parameters(answers.load(base, {BATCH: 1 << 10}))
    most, batch_tokens = next(each for each in settings.batch_tokens if parameters <= each[0])
    size = f"up to {number(most)}"
    if most >= settings.batch_tokens[-1][0] and len(settings.batch_tokens) > 1:
        size = f"more than {number(settings.batch_tokens[-2][0])}"
    by_size = f"our rule for models of {size} parameters"
    # The tokens of so many steps follow from the batch, which one rule alone can say.
    by_law = batch_tokens
    if base.run.steps is None:
        scale, power = settings.batch_law
        by_law = 2.0 ** round(math.log2(scale * tokens_of(base) ** power))
    both = sorted((batch_tokens, by_law))
    low, high = (max(1.0, each / base.training.seq_length) for each in both)
    least = int(low) if low >= 1.0 and low.is_integer() else max(1, round(low / ROUND)) * ROUND
    batches = doubled(least, least * round(high / low))
    if len(batches) == 1:
        return batches, by_size
    law = f"the law of best batches for {number(tokens_of(base))} tokens"
    ends = (law, by_size) if by_law < batch_tokens else (by_size, law)
    return batches, f"from {ends[0]} to {ends[1]}"
