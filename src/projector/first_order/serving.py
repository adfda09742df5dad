"""Prefill, decode and the largest batch of a deployment, in closed form, and reading one."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Flags, Floats
from projector.config.cluster import ClusterConfig
from projector.config.device import Device
from projector.config.first_order import (
    FIRST_ORDER,
    FirstOrderConfig,
    FirstOrderDevice,
    first_order_device,
)
from projector.config.model import ModelConfig
from projector.config.model_file import load_model
from projector.config.resources import settings_of
from projector.config.yaml_file import beside, read_yaml
from projector.envelope import Told, envelope, told
from projector.errors import ConfigError, shown
from projector.first_order import equations as eq
from projector.first_order.results import UNKNOWN_BAND, provenance
from projector.units import to_ms

TYPE_BYTES = {
    "fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "mxfp8": 1.0, "fp8_block": 1.0,
    "int8": 1.0, "mxfp6": 0.75, "nvfp4": 0.5, "mxfp4": 0.5, "fp4": 0.5, "int4": 0.5,
}  # fmt: skip
"""Bytes of an element, without scales."""

MEMORY, COMPUTE = "memory", "compute"


class ServingColumns(NamedTuple):
    """Columns of deployments, float64[deployments]."""

    parameters: Floats
    active_parameters: Floats
    weight_bytes: Floats
    """Of one parameter."""
    layers: Floats
    """With attention."""
    key_heads: Floats
    head_dim: Floats
    cache_element_bytes: Floats
    state_bytes: Floats
    """Of recurrent layers, for a sequence."""
    tp: Floats
    pp: Floats
    batch: Floats
    context: Floats
    output: Floats
    """Tokens that are generated for it."""
    peak_flop_per_s: Floats
    bytes_per_s: Floats
    memory_bytes: Floats
    scale_up_domain: Floats


@dataclass(frozen=True, slots=True)
class ServingTimes:
    """Closed forms of deployments, float64[deployments] unless stated otherwise."""

    prefill_s: Floats
    """Prompt of one sequence to its first token."""
    decode_s: Floats
    """A step of the batch, halfway through the output."""
    prefill_is_memory_bound: Flags
    decode_is_memory_bound: Flags
    cache_bytes: Floats
    """Of the batch at its full length, over all devices."""
    max_batch: Floats
    """Sequences of full length that fit beside the weights; nothing else is reserved."""


def serve(columns: ServingColumns, constants: eq.Constants) -> ServingTimes:
    """Time prefill and decode under the derated roof of ``tp`` devices.

    Stages of a pipeline work one after the other on a batch, so that ``pp`` adds memory and
    throughput alone. All-reduces are left out; beyond the scale-up domain 1.40 applies.

    Source: the Roofline methodology, sections 1 and 2.4.
    """
    c = columns
    rates = (c.peak_flop_per_s * c.tp, c.bytes_per_s * c.tp)
    crossing = eq.crossing_factor(c.tp, c.scale_up_domain, constants)
    one = (c.layers, 1.0, c.key_heads, c.head_dim, c.cache_element_bytes)

    def cache(tokens: Floats) -> Floats:
        layers, batch, heads, width, element = one
        return c.state_bytes + eq.kv_cache_bytes(layers, batch, tokens, heads, width, element)

    prompt_flop = eq.forward_flop(c.context, c.active_parameters)
    prompt_bytes = eq.weights_read(c.parameters, c.active_parameters, c.context) * c.weight_bytes
    prompt_bytes = prompt_bytes + cache(c.context)
    step_flop = eq.forward_flop(c.batch, c.active_parameters)
    step_bytes = eq.weights_read(c.parameters, c.active_parameters, c.batch) * c.weight_bytes
    # A state is read and written.
    step_bytes = step_bytes + c.batch * (cache(c.context + 0.5 * c.output) + c.state_bytes)
    full = cache(c.context + c.output)
    room = c.memory_bytes * c.tp * c.pp - c.parameters * c.weight_bytes
    return ServingTimes(
        prefill_s=crossing
        * eq.roofline_time_s(prompt_flop, prompt_bytes, *rates, constants.prefill_mfu),
        decode_s=crossing * eq.roofline_time_s(step_flop, step_bytes, *rates, constants.decode_mfu),
        prefill_is_memory_bound=eq.is_memory_bound(
            eq.arithmetic_intensity(prompt_flop, prompt_bytes), *rates
        ),
        decode_is_memory_bound=eq.is_memory_bound(
            eq.arithmetic_intensity(step_flop, step_bytes), *rates
        ),
        cache_bytes=np.asarray(c.batch * full),
        max_batch=np.maximum(0.0, np.floor(room / np.maximum(1.0, full))),
    )


@dataclass(frozen=True, slots=True, repr=False)
class FirstOrderServing:
    """What serving a model costs and yields, by closed forms."""

    model: ModelConfig
    device: FirstOrderDevice
    columns: ServingColumns
    times: ServingTimes
    constants: FirstOrderConfig
    unused: tuple[str, ...] = ()
    """What a deployment states that has no meaning here, in words."""

    @property
    def gpus(self) -> int:
        """Devices of the replica."""
        return int(self.columns.tp[0] * self.columns.pp[0])

    @property
    def scalars(self) -> dict[str, Any]:
        """The columns of `times`, which has one row."""
        return {each.name: getattr(self.times, each.name)[0] for each in fields(self.times)}

    ttft_s = Told(float, "prefill_s")
    """Seconds from a prompt that waits for nothing to its first token."""
    tpot_s = Told(float, "decode_s")
    """Seconds between two tokens of a sequence."""
    max_batch = Told(int)
    """Sequences of full length that fit."""

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Generated tokens over all devices, with a batch in each stage, prompts left out."""
        return float(self.columns.batch[0] / (self.times.decode_s[0] * self.columns.tp[0]))

    @property
    def kv_cache_bytes(self) -> float:
        """Cache of one device at full length."""
        return float(self.times.cache_bytes[0]) / self.gpus

    @property
    def fits(self) -> bool:
        """Whether the batch fits at its full length."""
        return bool(self.columns.batch[0] <= self.times.max_batch[0])

    @property
    def bound_prefill(self) -> str:
        """``compute`` or ``memory``."""
        return MEMORY if self.times.prefill_is_memory_bound[0] else COMPUTE

    @property
    def bound_decode(self) -> str:
        """``compute`` or ``memory``."""
        return MEMORY if self.times.decode_is_memory_bound[0] else COMPUTE

    @property
    def ridge_flop_per_byte(self) -> float:
        """Intensity at which both bind alike."""
        return float(eq.ridge_point(self.columns.peak_flop_per_s, self.columns.bytes_per_s)[0])

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the projection does not follow of the model and of what is stated."""
        return *self.model.notes, *self.unused

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``projector serve --fidelity first-order --json`` prints."""
        c = self.columns
        return {
            **envelope(self.warnings, UNKNOWN_BAND),
            "fidelity": FIRST_ORDER,
            "model": self.model.name,
            "device": self.device.name,
            "gpus": self.gpus,
            "parallelism": {"tp": int(c.tp[0]), "pp": int(c.pp[0])},
            "load": {name: int(getattr(c, name)[0]) for name in ("batch", "context", "output")},
            **told(self, "ttft_ms tpot_ms tokens_per_s_per_gpu max_batch kv_cache_gib"),
            **told(self, "bound_prefill bound_decode ridge_flop_per_byte fits"),
            "provenance": provenance(self.device, self.constants),
        }

    def __repr__(self) -> str:
        return (
            f"FirstOrderServing({self.model.name} on {self.gpus} x {self.device.name}, batch "
            f"{int(self.columns.batch[0])}: TTFT {to_ms(self.ttft_s):,.1f} ms, TPOT "
            f"{to_ms(self.tpot_s):,.2f} ms, decode bound by {self.bound_decode}; first-order model)"
        )


def project_serving(
    model: str | Path | Mapping[str, Any] | ModelConfig,
    device: str | Path | Mapping[str, Any] | Device | FirstOrderDevice,
    *,
    tp: int = 1,
    pp: int = 1,
    batch: int = 1,
    context: int = 2048,
    output: int = 0,
    dtype: str = "bf16",
    weights: str | None = None,
    cache_element_bytes: float = 2.0,
    first_order: FirstOrderConfig | None = None,
) -> FirstOrderServing:
    """Project a deployment under equal requests in closed form.

    ``batch`` sequences generate ``output`` tokens behind prompts of ``context``. ``dtype`` is the
    type of the operands, ``weights`` that of stored weights where it is another one.
    """
    for key, value, least in (
        ("tp", tp, 1),
        ("pp", pp, 1),
        ("batch", batch, 1),
        ("context", context, 1),
        ("output", output, 0),
    ):
        if type(value) is not int or value < least:
            msg = f"{key} is an integer of at least {least}, got {shown(value)}"
            raise ConfigError(msg, key=key, value=value, allowed=f"an integer >= {least}")
    stored = weights or dtype
    if stored not in TYPE_BYTES:
        msg = f"weights: unknown type {stored!r}; known: {', '.join(TYPE_BYTES)}"
        raise ConfigError(msg, key="weights", value=stored, allowed=list(TYPE_BYTES))
    architecture = model if isinstance(model, ModelConfig) else load_model(model)
    seen = first_order_device(device, key="device")
    counts, config = eq.count_parameters(architecture), first_order or FirstOrderConfig()
    heads, width = _cached(architecture)
    values = (
        counts.total, counts.active, TYPE_BYTES[stored],
        eq.layer_parts(architecture)[0]["attention"], heads, width, cache_element_bytes,
        eq.state_bytes(architecture), tp, pp, batch, context, output,
        seen.peak_flop_per_s(dtype, key="dtype"), seen.memory_bytes_per_s, seen.memory_bytes,
        seen.scale_up_domain,
    )  # fmt: skip
    columns = ServingColumns(*(np.array([value], np.float64) for value in values))
    times = serve(columns, eq.Constants.of(config))
    return FirstOrderServing(architecture, seen, columns, times, config)


def _cached(model: ModelConfig) -> tuple[float, float]:
    """Return key heads and their width; half of a latent, which is kept once for keys and values.

    The methodology has no latent attention; that half is our own.
    """
    if model.mla is not None:
        return 1.0, 0.5 * model.mla.cached_size
    return float(model.query_groups), float(model.head_dim)


FIELDS: Mapping[str, str] = settings_of("first_order")["serving"]
"""Dotted field of a deployment -> argument of `project_serving`."""

CONSTANT = "first_order."


def project_deployment(
    source: str | Path | Mapping[str, Any] | None, changes: Mapping[str, Any]
) -> FirstOrderServing:
    """Project a serving file or mapping in closed form.

    What has no meaning is a warning if it stands there, an error if a change names it.
    """
    data = read_yaml(source) if isinstance(source, str | Path) else source
    stated = _flat(data or {})
    ignored = sorted(name for name in stated if not _is_used(name))
    for name, value in changes.items():
        if not _is_used(name):
            msg = f"{name} has no meaning in closed forms; leave it or --fidelity out"
            raise ConfigError(msg, key=name, value=value, allowed=sorted(FIELDS))
    merged = {**stated, **changes}
    given = {FIELDS[name]: value for name, value in merged.items() if name in FIELDS}
    if isinstance(source, str | Path):
        folder = Path(source).parent
        given |= {
            name: beside(given[name], folder) for name in ("model", "device") if name in given
        }
    cached = given.get("cache_element_bytes")
    if isinstance(cached, str):
        if cached not in TYPE_BYTES:
            msg = f"kv_cache_bytes: unknown type {cached!r}; known: {', '.join(TYPE_BYTES)}"
            raise ConfigError(msg, key="kv_cache_bytes", value=cached, allowed=[*TYPE_BYTES])
        given["cache_element_bytes"] = TYPE_BYTES[cached]
    for name, example in (("model", "llama3.1_70b"), ("device", "tpu_v5p")):
        if given.get(name) is None:
            msg = f"{name}: is required; name one, for example {example}"
            raise ConfigError(msg, key=name, allowed=f"a {name} name")
    constants = {
        name.removeprefix(CONSTANT): value
        for name, value in merged.items()
        if name.startswith(CONSTANT)
    }
    config = FirstOrderConfig.parse(constants, path="first_order")
    kept = {name: value for name, value in given.items() if value is not None}
    result = project_serving(kept.pop("model"), kept.pop("device"), **kept, first_order=config)
    unused = tuple(f"{name} has no meaning in closed forms and is not used" for name in ignored)
    return replace(result, unused=unused)


def _is_used(name: str) -> bool:
    return name in FIELDS or name.startswith(CONSTANT)


def _flat(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted fields; models and devices stay whole."""
    flat: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, ClusterConfig):
            flat["device"] = value.device
        elif name in {"cluster", "load", "first_order"} and isinstance(value, Mapping):
            flat |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            flat[name] = value
    return flat
