"""Reading what serves and what is served; what that costs and yields, and what limits its steps."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, overload

from projector.config._base import Config
from projector.config.cluster import ClusterConfig
from projector.config.device import Device
from projector.config.first_order import TILES, by_closed_forms
from projector.config.load import resolve_paths, set_field
from projector.config.model import ModelConfig
from projector.config.yaml_file import read_yaml
from projector.errors import ConfigError
from projector.first_order.serving import FirstOrderServing, project_deployment
from projector.lower.hardware import native_type
from projector.serving import rates
from projector.serving.capacity import CapacityResult, Targets, capacity
from projector.serving.deployment import DEGREES, Deployment
from projector.serving.generation import Generation, disaggregated_times
from projector.serving.load import MAX_LENGTH, PROMISES, Load, Scheduler, Traffic
from projector.serving.memory import ServingMemory, serving_memory
from projector.serving.points import StepGrid, grid_times
from projector.serving.projection import ServingProjection, StepProjection
from projector.serving.simulation import LoadResult, Replica, replica_of, simulate_load
from projector.serving.step import BREAKDOWN, LIMITS
from projector.units import unwrapped

LOAD = "load"
"""Section of a serving file that describes the requests."""


SCHEDULER = "scheduler"
"""Section that describes how the engine schedules them."""


@dataclass(frozen=True, slots=True)
class ServingCase:
    """A deployment and the requests that it serves."""

    deployment: Deployment
    traffic: Traffic
    derived: dict[str, str] = field(default_factory=dict)
    """Dotted field -> the value that was chosen for it, and why."""
    scheduler: Scheduler = Scheduler()  # noqa: RUF009  # immutable
    """How the engine fills its steps under a load with a rate."""


def read_case(
    source: str | Path | Mapping[str, Any] | None = None, overrides: Mapping[str, Any] | None = None
) -> ServingCase:
    """Read a serving file or mapping: the fields of a deployment, and its ``load``.

    ``device`` is short for ``cluster.device``, and ``load`` is a mapping of `Traffic`. Overrides
    are dotted, e.g. ``{"tp": 4, "load.batch": 8}``, and applied last.
    """
    data, derived = serving_data(source, overrides), dict[str, str]()
    traffic, scheduler = read_traffic(data), read_scheduler(data)
    return ServingCase(read_deployment(data, derived), traffic, derived, scheduler)


def serving_data(
    source: str | Path | Mapping[str, Any] | None, overrides: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return what `read_case` parses, with overrides."""
    if source is None:
        data: dict[str, Any] = {}
    elif isinstance(source, Mapping):
        data = dict(source)
    elif isinstance(source, str | Path):
        data = resolve_paths(read_yaml(source), Path(source).parent)
    else:
        msg = f"a deployment is a file or a mapping, got {type(source).__name__}"
        raise ConfigError(msg, key="config", value=source, allowed="a file or a mapping")
    if "device" in data:
        device = data.pop("device")
        cluster = dict(data.get("cluster") or {})
        if "device" in cluster:
            msg = "device and cluster.device are both set; leave one out"
            raise ConfigError(msg, key="device", value=device)
        data["cluster"] = {**cluster, "device": device}
    for key, value in (overrides or {}).items():
        _set(data, f"cluster.{key}" if str(key).split(".")[0] == "device" else str(key), value)
    _hint_load(data)
    return data


def read_traffic(data: Mapping[str, Any]) -> Traffic:
    """Return the requests of a serving file."""
    load = data.get(LOAD)
    if isinstance(load, Traffic):
        return load
    return Traffic.parse({} if load is None else load, path=LOAD)


def read_scheduler(data: Mapping[str, Any]) -> Scheduler:
    """Return how the engine of a serving file fills its steps."""
    scheduler = data.get(SCHEDULER)
    return Scheduler.parse({} if scheduler is None else scheduler, path=SCHEDULER)


def read_deployment(data: Mapping[str, Any], derived: dict[str, str]) -> Deployment:
    """Return the deployment of a serving file, noting what is ``derived``."""
    own = {name: value for name, value in data.items() if name not in (LOAD, SCHEDULER)}
    _require(own)
    return Deployment.parse({**own, "cluster": _cluster(own, derived)})


def _set(data: dict[str, Any], dotted: str, value: Any) -> None:
    """Set one field under the spelling that the data has for it, be it an alias."""
    section, _, name = dotted.partition(".")
    sections: dict[str, type[Config]] = {LOAD: Traffic, SCHEDULER: Scheduler}
    owner = sections.get(section)
    node: Any = data.get(section)
    if owner is None:
        owner, node, name = Deployment, data, section
    field = owner.aliases.get(name.replace("-", "_"), name)
    same = [field, *(alias for alias, own in owner.aliases.items() if own == field)]
    given = [each for each in same if isinstance(node, Mapping) and each in node]
    if given and name not in given:
        dotted = ".".join([*([section] if node is not data else []), given[0]])
    set_field(data, dotted, value)


def _hint_load(data: Mapping[str, Any]) -> None:
    """Refuse a field of the requests that stands beside ``load``, and say where it belongs."""
    for key in data:
        name = Traffic.aliases.get(key, key)
        if name in Traffic.model_fields and key not in Deployment.model_fields:
            msg = f"{key}: belongs to the requests; write {LOAD}.{name}"
            raise ConfigError(msg, key=key, value=data[key], allowed=f"{LOAD}.{name}")


def _require(data: Mapping[str, Any]) -> None:
    """Refuse a deployment without model or device, in words of the command line."""
    if data.get("model") is None:
        msg = "model: is required; name one, for example llama3.1_70b"
        raise ConfigError(msg, key="model", allowed="a model name")
    cluster = data.get("cluster")
    if isinstance(cluster, ClusterConfig):
        return
    if not isinstance(cluster, Mapping) or cluster.get("device") is None:
        msg = "device: is required; name the GPU, for example h100"
        raise ConfigError(msg, key="device", allowed="a GPU name")


def _cluster(data: Mapping[str, Any], derived: dict[str, str]) -> ClusterConfig:
    """Return the cluster, with the nodes that the deployment takes where none are stated."""
    given = data["cluster"]
    if isinstance(given, ClusterConfig):
        return given
    cluster = ClusterConfig.parse(given, path="cluster")
    if "nodes" in cluster.model_fields_set:
        return cluster
    degrees = [unwrapped(data.get(name, 1)) for name in ("tp", "pp", "attention_dp")]
    if not all(isinstance(value, int) and 0 < value <= 1 << 20 for value in degrees):
        return cluster
    gpus = degrees[0] * degrees[1] * degrees[2]
    nodes = -(-gpus // cluster.gpus_per_node)
    if nodes > 1:
        derived["cluster.nodes"] = f"{nodes} ({gpus} devices, {cluster.gpus_per_node} a node)"
        return ClusterConfig.parse({**given, "nodes": nodes}, path="cluster")
    return cluster


@overload
def project_serving(
    model: Any = None, device: Any = None, *, fidelity: Literal["first-order"], **settings: Any
) -> FirstOrderServing: ...


@overload
def project_serving(
    model: Any = None, device: Any = None, *, fidelity: Literal["tiles"] = "tiles", **settings: Any
) -> ServingProjection: ...


def project_serving(
    model: str | Path | Mapping[str, Any] | ModelConfig | Deployment | None = None,
    device: str | Path | Mapping[str, Any] | Device | None = None,
    *,
    deployment: Deployment | Mapping[str, Any] | str | Path | None = None,
    batch: int | None = None,
    context: int | None = None,
    output: int | None = None,
    rate_per_s: float | None = None,
    ttft_ms: float | None = None,
    tpot_ms: float | None = None,
    front: bool = False,
    gpus: int | None = None,
    fidelity: str = TILES,
    overrides: Mapping[str, Any] | None = None,
    **settings: Any,
) -> ServingProjection | FirstOrderServing:
    """Project a deployment under a load of equal requests.

    Args:
        model, device (str, Path, mapping or an instance, optional): Architecture and accelerator,
            as in a job.
        deployment (Deployment, mapping, str or Path, optional): Instead of both, or beside them: a
            deployment, or a serving file; it may also stand first.
        batch (int, optional): Sequences that generate at once; left out, the knee of throughput
            against speed.
        context (int, optional): Tokens of a prompt.
        output (int, optional): Tokens that are generated for it.
        rate_per_s (float, optional): Requests that arrive a second; the load is then simulated
            request by request.
        ttft_ms, tpot_ms (float, optional): What 99 % of the users are promised
            (``load.percentile``): the answer has the replicas that keep it.
        front (bool): Whether to try every split and batch on ``gpus`` devices, those of a node when
            left out.
        fidelity (str): ``tiles``, or ``first-order`` for the closed forms of
            ``docs/first_order.md``, which also take devices without compute units.
        overrides (mapping, optional): Dotted field -> value, e.g. ``{"cluster.gpu_clock_mhz":
            1500}``.
        **settings: Fields of `Deployment`: ``tp``, ``pp``, ``dtype`` ...

    Raises:
        ProjectorError: If the deployment or the load cannot exist. A load that does not fit is
            projected all the same.
    """
    if deployment is None and _is_deployment(model):
        # A deployment stands first, as a job does in the other functions.
        model, deployment = None, model
    given: dict[str, Any] = {"model": model, "device": device, **settings}
    load = {"batch": batch, "context": context, "output": output, "rate_per_s": rate_per_s}
    load |= {"ttft_ms": ttft_ms, "tpot_ms": tpot_ms}
    given |= {f"{LOAD}.{name}": value for name, value in load.items()}
    changes = {key: value for key, value in given.items() if value is not None}
    changes |= dict(overrides or {})
    source = deployment_data(deployment) if isinstance(deployment, Deployment) else deployment
    if by_closed_forms(fidelity):
        if front or gpus is not None:
            msg = "front and gpus: closed forms know no front; leave them or fidelity out"
            raise ConfigError(msg, key="front", value=front, allowed="fidelity tiles")
        return project_deployment(source, changes)
    return project_case(read_case(source, changes), front=front, gpus=gpus)


def _is_deployment(given: Any) -> bool:
    """Whether what stands first is a deployment or a serving file, and no model."""
    if isinstance(given, str | Path) and Path(given).suffix in {".yaml", ".yml"}:
        with suppress(ConfigError):
            given = read_yaml(given)
    return isinstance(given, Deployment) or (isinstance(given, Mapping) and "model" in given)


def deployment_data(deployment: Deployment) -> dict[str, Any]:
    """Return what a deployment states, with its model and cluster as they are."""
    stated = deployment.model_dump(exclude_unset=True, exclude={"model", "cluster"})
    return {**stated, "model": deployment.model, "cluster": deployment.cluster}


def project_case(
    case: ServingCase, *, front: bool = False, gpus: int | None = None
) -> ServingProjection:
    """Project a deployment under a load, with what is left open chosen.

    With a ``front`` the split is open: the projection is of the knee of all splits and batches on
    ``gpus`` devices, those of the cluster when left out.
    """
    found: rates.ServingFront | None = None
    for name in PROMISES:
        if case.traffic.rate_per_s is None and (value := getattr(case.traffic, name)) is not None:
            msg = f"{name} belongs to a load with a rate; give rate_per_s (--rate), or search"
            raise ConfigError(msg, key=f"{LOAD}.{name}", value=value)
    if gpus is not None and not front:
        msg = "gpus belongs to a front; give front too, or state the split"
        raise ConfigError(msg, key="gpus", value=gpus, allowed="with front")
    if front:
        case, found = _knee(case, gpus)
    elif case.traffic.batch is not None:
        case = _with_split(case)
    else:
        found = rates.serving_front(splits_of(case.deployment), case.traffic)
        case = _at_knee(case, found)
    deployment, traffic = case.deployment, case.traffic
    memory = serving_memory(deployment)
    batch = traffic.batch or 1
    point = rates.LoadGrid.of([deployment], batch=batch, **rates.load_columns(traffic))
    chunks, _ = rates.chunk_grid(point)
    prefill, (decode,) = _together(_projected(chunks)), _projected(rates.decode_grid(point))
    disaggregated = None
    if deployment.disaggregated is not None and (traffic.output or 1) > 1:
        load = Generation(deployment, batch, traffic.context, traffic.output or 1)
        disaggregated = disaggregated_times([load])
    result = ServingProjection(
        deployment=deployment,
        traffic=traffic,
        batch=batch,
        prefill=prefill,
        decode=decode,
        rates=rates.load_rates(point),
        memory=memory,
        max_context=longest_prompt(memory, batch, traffic.output or 0),
        derived=case.derived,
        warnings=tuple(_warnings(deployment, traffic)),
        decoding=rates.decode_times(point),
        front=found,
        disaggregated=disaggregated,
    )
    if traffic.rate_per_s is None or memory.max_batch(traffic.longest) < 1:
        return result
    served, found_capacity = serve_case(case)
    return replace(result, under_load=served, capacity=found_capacity)


def serve_case(
    case: ServingCase, replicas: Callable[..., Replica] = replica_of
) -> tuple[LoadResult, CapacityResult | None]:
    """Simulate the requests; with promises, as many replicas as keep them.

    ``replicas`` returns that of a deployment, a scheduler, and a longest sequence.
    """
    traffic = case.traffic
    load = Load.parse(
        {
            "rate_per_s": traffic.rate_per_s,
            "input_tokens": traffic.context,
            "output_tokens": traffic.output,
            "requests": traffic.requests,
        }
    )
    if traffic.ttft_ms is None and traffic.tpot_ms is None:
        return simulate_load(case.deployment, load, case.scheduler, replicas), None
    names = ("ttft_ms", "tpot_ms", "percentile")
    targets = Targets.parse({name: getattr(traffic, name) for name in names})
    found = capacity(case.deployment, load, targets, case.scheduler, replicas)
    return found.result, found


def _with_split(case: ServingCase) -> ServingCase:
    """Return a case with the least tensor parallelism that fits, where none is stated."""
    if "tp" in case.deployment.model_fields_set:
        return case
    chosen = case.deployment
    for chosen in splits_of(case.deployment):
        if serving_memory(chosen).max_batch(case.traffic.longest) >= (case.traffic.batch or 1):
            note = "the least that fits"
            break
    else:
        note = "the most of a node; it does not fit"
    return replace(case, deployment=chosen, derived={**case.derived, "tp": f"{chosen.tp} ({note})"})


def splits_of(deployment: Deployment) -> list[Deployment]:
    """Return a deployment with each legal power of two as tensor parallelism of its cluster."""
    if "tp" in deployment.model_fields_set:
        return [deployment]
    fields = {name: getattr(deployment, name) for name in deployment.model_fields_set}
    found = []
    for tp in (1 << power for power in range(MOST_TP.bit_length())):
        try:
            found.append(Deployment.parse({**fields, "tp": tp}))
        except ConfigError:
            if tp == 1:
                raise
    return found


MOST_TP = 64


def _at_knee(case: ServingCase, front: rates.ServingFront) -> ServingCase:
    """Return a case with split and batch of the knee; the last split with 1 if nothing fits."""
    if len(front.rows):
        row, note = int(front.rows[front.knee]), "the knee of throughput against speed"
        chosen, batch = front.deployment(row), int(front.grid.batch[row])
    else:
        chosen, batch, note = front.grid.deployments[-1], 1, "nothing fits"
    stated = case.deployment.model_fields_set
    derived = {
        name: f"{getattr(chosen, name)} ({note})"
        for name in DEGREES
        if name in chosen.model_fields_set - stated and (name == "tp" or getattr(chosen, name) != 1)
    }
    derived["load.batch"] = f"{batch:,} ({note})"
    traffic = case.traffic.model_copy(update={"batch": batch})
    return replace(case, deployment=chosen, traffic=traffic, derived={**case.derived, **derived})


def _knee(case: ServingCase, gpus: int | None) -> tuple[ServingCase, rates.ServingFront]:
    """Return the case of the knee of all splits and batches, and their front."""
    deployment, traffic = case.deployment, case.traffic
    stated = [name for name in DEGREES if name in deployment.model_fields_set]
    if stated or traffic.batch is not None:
        key = stated[0] if stated else "load.batch"
        value = getattr(deployment, stated[0]) if stated else traffic.batch
        msg = f"a front tries every split and batch, and {key} is stated; leave one out"
        raise ConfigError(msg, key=key, value=value, allowed="not stated")
    count = deployment.cluster.gpus if gpus is None else gpus
    front = rates.serving_front(
        rates.legal_deployments(on_devices(deployment, count), count), traffic
    )
    return _at_knee(case, front), front


def on_devices(deployment: Deployment, gpus: int) -> Deployment:
    """Return a deployment whose cluster has at least ``gpus`` devices."""
    cluster = deployment.cluster
    nodes = -(-gpus // cluster.gpus_per_node)
    if nodes <= cluster.nodes:
        return deployment
    if "nodes" in cluster.model_fields_set:
        msg = f"gpus ({gpus}) exceeds the {cluster.gpus} of cluster.nodes ({cluster.nodes})"
        raise ConfigError(msg, key="gpus", value=gpus, allowed=f"<= {cluster.gpus}")
    cluster = cluster.model_copy(update={"nodes": nodes})
    return deployment.model_copy(update={"cluster": cluster})


def _projected(grid: StepGrid) -> list[StepProjection]:
    times = grid_times(grid)
    return [
        StepProjection(
            sequences=int(grid.batch[row] or grid.prefill_batch[row]),
            new_tokens=int(grid.prefill_tokens[row] or grid.new_tokens[row]),
            cached_tokens=int(grid.context[row] + grid.prefill_context[row]),
            time_s=float(times.latency_s[row]),
            interval_s=float(times.interval_s[row]),
            breakdown_s=dict(zip(BREAKDOWN, times.breakdown_s[row].tolist(), strict=True)),
            limits_s=dict(zip(LIMITS, times.limits_s[row].tolist(), strict=True)),
        )
        for row in range(len(grid))
    ]


def _together(chunks: list[StepProjection]) -> StepProjection:
    """Return the chunks of one prefill as one step."""

    def added(name: str) -> dict[str, float]:
        every = [getattr(each, name) for each in chunks]
        return {term: sum(each[term] for each in every) for term in every[0]}

    return replace(
        chunks[0],
        new_tokens=sum(each.new_tokens for each in chunks),
        time_s=sum(each.time_s for each in chunks),
        interval_s=sum(each.interval_s for each in chunks),
        breakdown_s=added("breakdown_s"),
        limits_s=added("limits_s"),
    )


def longest_prompt(memory: ServingMemory, batch: int, output: int) -> int:
    """Return the longest prompt with which a batch and its output fit; 0 if none does."""
    low, high = 0, MAX_LENGTH
    while low < high:
        middle = (low + high + 1) // 2
        if int(memory.max_batch(middle + output)) >= batch:
            low = middle
        else:
            high = middle - 1
    return low


def _warnings(deployment: Deployment, traffic: Traffic) -> list[str]:
    """List settings that are projected as given, and may not be what was meant."""
    model, device = deployment.model, deployment.cluster.device
    found = [*model.notes]
    most = model.max_position_embeddings
    if "max_position_embeddings" in model.model_fields_set and traffic.longest > most:
        found.append(
            f"prompt and output have {traffic.longest:,} tokens, and {model.name} has "
            f"{most:,} positions"
        )
    native = native_type(device, deployment.dtype)
    if native != deployment.dtype:
        found.append(f"{device.name} computes {deployment.dtype} as {native}")
    return found
