"""A whole training run: how much is trained, what takes time beside the steps, and who pays."""

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from projector.config import _base
from projector.config.prices import region_named
from projector.config.resources import SPELLINGS, hardware_table
from projector.errors import ConfigError, shown
from projector.units import read_amount

MOST_G_CO2_PER_KWH = 5000.0
"""No grid emits more: lignite alone is at about 1,200."""

LEAST_SHARE, LEAST_YEARS = 1e-3, 1.0 / 366.0
"""A fleet is used for less than this by nobody, or for less than a day; prices of it leave a
float."""


def switched(value: Any) -> Any:
    """Read a term that is switched by true and false, or described by a mapping."""
    if isinstance(value, bool):
        return {"enabled": value}
    if value is None:
        return {}
    if not isinstance(value, Mapping | _base.Config):
        allowed = "true, false or a mapping"
        raise ConfigError(f"takes {allowed} (got {shown(value)})", value=value, allowed=allowed)
    return value


class OwnedConfig(_base.Config):
    """A fleet of one's own, by section 5 of the Roofline methodology.

    Of the fields that nothing is given for, ``hardware/prices.yaml`` has the numbers.
    """

    enabled: bool = False
    """Whether the run is paid with devices that are owned."""
    capex_usd_per_gpu: _base.Positive | None = None
    """Purchase of one device; none given means the listed one, where ``prices`` is ``listed``."""
    system_share: _base.NotNegative | None = None
    """Purchase of hosts, network and storage over that of the devices."""
    lifetime_years: Annotated[_base.Positive, Field(ge=LEAST_YEARS)] | None = None
    """Years over which the purchase is written off."""
    utilisation: Annotated[float, Field(ge=LEAST_SHARE, le=1), _base.NUMBER] | None = None
    """Share of these years in which some run pays."""
    cooling_usd_per_w: _base.NotNegative | None = None
    """Of the TDP of devices; every year, unless ``facility`` says otherwise."""
    real_estate_usd_per_mw: _base.NotNegative | None = None
    """Of the TDP of devices; every year, unless ``facility`` says otherwise."""
    facility: Literal["yearly", "once"] = "yearly"
    """Whether cooling and real estate are paid every year, as the equation of the methodology has
    it, or once in the lifetime, as its text could be read."""
    staff_share_per_year: _base.NotNegative | None = None
    """Of the capex of devices."""


class CostConfig(_base.Config):
    """Prices of a run; without any, no money is projected."""

    usd_per_gpu_hour: _base.NotNegative | None = None
    """Rent of one device, paid for every reserved one as long as the run takes."""
    prices: Literal["none", "listed"] = "none"
    """Whether the dated prices of ``hardware/prices.yaml`` stand in for what is not stated."""
    owned: OwnedConfig = OwnedConfig()
    """A fleet of one's own instead of rent: true, false or a mapping."""

    @field_validator("owned", mode="before")
    @classmethod
    def _switched(cls, value: Any) -> Any:
        term = switched(value)
        return {"enabled": True, **term} if isinstance(value, Mapping) else term

    @model_validator(mode="after")
    def _is_paid_once(self) -> Self:
        if not self.owned.enabled:
            return self
        if self.usd_per_gpu_hour is not None:
            msg = "owned and usd_per_gpu_hour both pay for the devices; give one of them"
            raise ConfigError(
                msg, key="usd_per_gpu_hour", value=self.usd_per_gpu_hour, allowed="without owned"
            )
        if self.owned.capex_usd_per_gpu is None and self.prices != "listed":
            msg = "owned needs capex_usd_per_gpu, or prices: listed in cost"
            raise ConfigError(msg, key="owned.capex_usd_per_gpu", allowed="a price > 0")
        return self

    @property
    def is_stated(self) -> bool:
        """Whether a job asks for money."""
        return self.usd_per_gpu_hour is not None or self.prices == "listed" or self.owned.enabled


class EnergyConfig(_base.Config):
    """What a run draws beside its devices, and what its power costs and emits."""

    pue: _base.AtLeastOne | None = None
    """Power of the building over that of its machines; none given means
    ``hardware/prices.yaml``."""
    node_overhead_w_per_gpu: _base.NotNegative | None = None
    """The rest of a node and of the network, for each device; none given means
    ``hardware/power.yaml``."""
    usd_per_kwh: _base.NotNegative | None = None
    """Paid by an owner; in a rent it is included. None given means ``hardware/prices.yaml``."""
    grid: float | str | None = None
    """Grams of CO2 that a kWh emits, or a region of ``hardware/prices.yaml``; none given means the
    average of the world."""

    @field_validator("grid", mode="before")
    @classmethod
    def _is_known(cls, value: Any) -> Any:
        if isinstance(value, str):
            return region_named(value)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and 0.0 <= value <= MOST_G_CO2_PER_KWH):
            allowed = f"grams of CO2 for a kWh, 0 to {MOST_G_CO2_PER_KWH:g}, or a region"
            raise ConfigError(
                f"takes {allowed} (got {shown(value)})", value=shown(value), allowed=allowed
            )
        return value


FILE = "failures.yaml"


@cache
def run_default(name: str) -> float:
    """Return the number of ``hardware/failures.yaml`` that a run takes where it states none."""
    return float(hardware_table(FILE)["defaults"][name]["value"])


def run_default_source(name: str) -> str:
    """Return where a default comes from, in words."""
    table = hardware_table(FILE)
    return str(table["sources"][table["defaults"][name]["source"]])


MOST_TOKENS = 1e18
"""Tokens beyond this are of no run, and the seconds of some leave a calendar."""


def _amount(value: Any) -> Any:
    amount = read_amount(value)
    if isinstance(amount, str):
        allowed = "a number of at least 1, such as 1e12, 300B or 15.6T"
        raise ConfigError(f"should be {allowed} (got {shown(value)})", value=value, allowed=allowed)
    return amount


Amount = Annotated[float, Field(ge=1, le=MOST_TOKENS), _base.NUMBER, BeforeValidator(_amount)]
"""Of what is trained: at least one token or sequence; texts such as ``15.6T`` are read."""


class WarmUpConfig(_base.Config):
    """Steps with a smaller global batch at the beginning, as Megatron's ``rampup_batch_size``."""

    start_batch_size: _base.Count | None = None
    """Sequences of the first step; none given means that every step is whole."""
    increment: _base.Count | None = None
    """Sequences by which the batch grows, again and again; none given means in one go."""
    samples: _base.Count | None = None
    """Sequences that are trained until the batch is whole."""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.start_batch_size is not None and self.samples is None:
            msg = "warm_up with a start_batch_size needs samples, the sequences of the warm-up"
            raise ConfigError(msg, key="samples", allowed="an integer > 0")
        if self.start_batch_size is None and (self.samples or self.increment):
            msg = "warm_up needs start_batch_size, the sequences of the first step"
            raise ConfigError(msg, key="start_batch_size", allowed="an integer > 0")
        return self


class EvaluationConfig(_base.Config):
    """Forward passes over held-out data in between."""

    enabled: bool = False
    """Whether they are counted."""
    interval_steps: _base.Count = 1000
    """Steps from one evaluation to the next; the default is Megatron's."""
    iterations: _base.Count = 100
    """Global batches of one evaluation; the default is Megatron's."""
    forward_share: _base.NotNegative | None = None
    """Time of a forward pass over that of a step; none given means by FLOP, a third without
    recomputation."""
    aliases: ClassVar = {"eval_interval": "interval_steps", "eval_iters": "iterations"}


class CheckpointConfig(_base.Config):
    """Saving weights and optimizer states to storage, and reading them again."""

    enabled: bool = True
    """Whether checkpoints are written."""
    interval_s: _base.Positive | None = None
    """Training between two checkpoints; none given means the interval of least expected time."""
    interval_steps: _base.Count | None = None
    """The same in steps (Megatron ``save_interval``)."""
    asynchronous: bool = False
    """Steps go on while a copy in host memory is written (Megatron ``async_save``)."""
    size_gib: _base.Positive | None = None
    """All files of one checkpoint; none given means weights, master weights and moments of the
    memory model."""
    write_gb_per_s: _base.Positive | None = None
    """What storage takes from all nodes together; none given means the share of each node."""
    write_gb_per_s_per_node: _base.Positive | None = None
    """What storage takes from one node; none given means ``hardware/failures.yaml``."""
    read_gb_per_s: _base.Positive | None = None
    """What storage gives to all nodes together; none given means the share of each node."""
    read_gb_per_s_per_node: _base.Positive | None = None
    """What storage gives to one node; none given means ``hardware/failures.yaml``."""
    overhead_s: _base.NotNegative | None = None
    """Of a checkpoint beside its bytes: planning, barriers, metadata; none given means
    ``hardware/failures.yaml``."""
    aliases: ClassVar = {"save_interval": "interval_steps", "async_save": "asynchronous"}

    @model_validator(mode="after")
    def _says_it_once(self) -> Self:
        for one, other in (
            ("interval_s", "interval_steps"),
            ("write_gb_per_s", "write_gb_per_s_per_node"),
            ("read_gb_per_s", "read_gb_per_s_per_node"),
        ):
            if getattr(self, one) is not None and getattr(self, other) is not None:
                msg = f"{one} and {other} say the same; give one of them"
                raise ConfigError(msg, key=other, value=getattr(self, other), allowed="one of both")
        return self


class FailuresConfig(_base.Config):
    """Interruptions that nobody planned, and what follows each."""

    enabled: bool = True
    """Whether a run is interrupted."""
    gpu_mtbf_hours: _base.Positive | None = None
    """Hours of one device between two failures that it causes; none given means
    ``hardware/failures.yaml``."""
    node_mtbf_hours: _base.Positive | None = None
    """Hours of one node between two failures of anything but its devices: host, network,
    software; none given means ``hardware/failures.yaml``."""
    detection_s: _base.NotNegative | None = None
    """From a failure until somebody or something stops the job; none given means
    ``hardware/failures.yaml``."""
    restart_s: _base.NotNegative | None = None
    """From there to the first step, without reading the checkpoint; none given means
    ``hardware/failures.yaml``."""
    spare_nodes: _base.CountOrNone | None = Field(default=None, le=1 << 16)
    """Nodes that wait to take over; none given means that there is always one."""
    repair_hours: _base.NotNegative | None = None
    """Until a node that was taken out returns; none given means ``hardware/failures.yaml``."""
    repaired_share: Annotated[float, Field(ge=0, le=1), _base.NUMBER] | None = None
    """Share of failures that take a node out; none given means ``hardware/failures.yaml``."""


class StragglersConfig(_base.Config):
    """Devices, nodes and links that are slow for a while; the step has its steady spread."""

    enabled: bool = True
    """Whether they are counted."""
    slowdown: _base.NotNegative | None = None
    """Time that they add to the steps, as a share; none given means ``hardware/failures.yaml``."""


SWITCHED_TERMS = ("evaluation", "checkpoint", "failures", "stragglers")
"""Terms that have a switch; a warm-up is there where it is described."""
_OF_TERMS = dict.fromkeys(EvaluationConfig.aliases, "evaluation") | dict.fromkeys(
    CheckpointConfig.aliases, "checkpoint"
)
"""Megatron's names of settings that are fields of a term."""


class RunConfig(_base.Config):
    """A whole run; without tokens, steps or samples none is projected."""

    tokens: Amount | None = None
    """Tokens to train."""
    steps: _base.Count | None = None
    """The same in steps of the whole global batch (Megatron ``train_iters``)."""
    samples: Amount | None = None
    """The same in sequences (Megatron ``train_samples``)."""
    warm_up: WarmUpConfig = WarmUpConfig()
    """Smaller global batches at the beginning: a mapping, or Megatron's three numbers."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Evaluation on held-out data: true, false or a mapping."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Checkpoints: true, false or a mapping."""
    failures: FailuresConfig = FailuresConfig()
    """Failures and restarts: true, false or a mapping."""
    stragglers: StragglersConfig = StragglersConfig()
    """Stragglers: true, false or a mapping."""
    cost: CostConfig = CostConfig()
    """Prices."""
    energy: EnergyConfig = EnergyConfig()
    """Power and emissions."""
    aliases: ClassVar = SPELLINGS["run"]

    @model_validator(mode="before")
    @classmethod
    def _settings_of_terms(cls, data: Any) -> Any:
        """Move Megatron's flat names into the terms that they belong to."""
        if not isinstance(data, Mapping):
            return data
        moved = dict(data)
        for name, term in _OF_TERMS.items():
            for given in [key for key in moved if str(key).replace("-", "_") == name]:
                moved[term] = {"enabled": True, **_fields(moved.get(term)), name: moved.pop(given)}
        return moved

    @field_validator("warm_up", "cost", "energy", *SWITCHED_TERMS, mode="before")
    @classmethod
    def _switched(cls, value: Any, info: Any) -> Any:
        if info.field_name == "warm_up":
            return _ramp(value)
        if info.field_name in SWITCHED_TERMS:
            return switched(value)
        return {} if value is None else value

    @model_validator(mode="after")
    def _says_it_once(self) -> Self:
        given = [name for name in ("tokens", "steps", "samples") if getattr(self, name) is not None]
        if len(given) > 1:
            msg = f"{given[0]} and {given[1]} both say how much is trained; give one of them"
            value = getattr(self, given[1])
            raise ConfigError(msg, key=given[1], value=value, allowed=f"without {given[0]}")
        return self

    @property
    def is_stated(self) -> bool:
        """Whether there is a run to project."""
        return not (self.tokens is None and self.steps is None and self.samples is None)


def _fields(term: Any) -> Mapping[str, Any]:
    if isinstance(term, _base.Config):
        return term.model_dump(exclude_unset=True)
    if isinstance(term, bool):
        return {"enabled": term}
    return term if isinstance(term, Mapping) else {}


def _ramp(value: Any) -> Any:
    if value is None or value is False:
        return {}
    numbers = value.split() if isinstance(value, str) else value
    if isinstance(numbers, list | tuple):
        if len(numbers) != len(WarmUpConfig.model_fields):
            msg = f"takes three numbers: first batch, increment, samples (got {shown(value)})"
            raise ConfigError(msg, value=value, allowed="three integers, or a mapping")
        return dict(zip(WarmUpConfig.model_fields, numbers, strict=True))
    if value is True:
        msg = "needs start_batch_size and samples to be switched on"
        raise ConfigError(msg, value=value, allowed="false, or a mapping")
    return value
