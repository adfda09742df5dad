"""Projecting what serving a model costs and yields."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from projector.config.device import Device
from projector.config.model import ModelConfig
from projector.lower.hardware import native_type
from projector.serving.deployment import Deployment
from projector.serving.limits import LIMITS, limit_seconds
from projector.serving.memory import ServingMemory, serving_memory
from projector.serving.projection import ServingProjection, StepProjection
from projector.serving.rates import LoadGrid, decode_grid, load_rates, prefill_grid
from projector.serving.read import LOAD, ServingCase, read_case
from projector.serving.step import CostedSteps, costed_steps, times_of
from projector.serving.totals import BREAKDOWN
from projector.serving.traffic import MAX_LENGTH, Traffic


def project_serving(
    model: str | Path | Mapping[str, Any] | ModelConfig | None = None,
    device: str | Path | Mapping[str, Any] | Device | None = None,
    *,
    deployment: Deployment | Mapping[str, Any] | str | Path | None = None,
    batch: int | None = None,
    context: int | None = None,
    output: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    **settings: Any,
) -> ServingProjection:
    """Project a deployment under a load of equal requests.

    Parameters
    ----------
    model, device : str, Path, mapping or an instance, optional
        Architecture and accelerator, as in a job.
    deployment : Deployment, mapping, str or Path, optional
        Instead of both, or beside them: a deployment, or a serving file.
    batch : int, optional
        Sequences that generate at once.
    context : int, optional
        Tokens of a prompt.
    output : int, optional
        Tokens that are generated for it.
    overrides : mapping, optional
        Dotted field -> value, e.g. ``{"cluster.gpu_clock_mhz": 1500}``.
    **settings
        Fields of `Deployment`: ``tp``, ``pp``, ``dtype`` ...

    Raises
    ------
    ProjectorError
        If the deployment or the load cannot exist. A load that does not fit is projected all the
        same.
    """
    given: dict[str, Any] = {"model": model, "device": device, **settings}
    load = {"batch": batch, "context": context, "output": output}
    given |= {f"{LOAD}.{name}": value for name, value in load.items()}
    changes = {key: value for key, value in given.items() if value is not None}
    changes |= dict(overrides or {})
    source = _mapping(deployment) if isinstance(deployment, Deployment) else deployment
    return project_case(read_case(source, changes))


def _mapping(deployment: Deployment) -> dict[str, Any]:
    """Return the fields that a deployment states, with its model and cluster as they are."""
    stated = deployment.model_dump(exclude_unset=True, exclude={"model", "cluster"})
    return {**stated, "model": deployment.model, "cluster": deployment.cluster}


def project_case(case: ServingCase) -> ServingProjection:
    """Project a deployment under a load."""
    deployment, traffic = case.deployment, case.traffic
    memory = serving_memory(deployment)
    batch = traffic.batch or 1
    point = LoadGrid.of(
        [deployment],
        batch=batch,
        context=traffic.context,
        output=traffic.output or 0,
        prompts=traffic.prompts or 0,
    )
    steps = [prefill_grid(point).step(0), decode_grid(point).step(0)]
    prefill, decode = _projected(costed_steps(steps))
    return ServingProjection(
        deployment=deployment,
        traffic=traffic,
        batch=batch,
        prefill=prefill,
        decode=decode,
        rates=load_rates(point),
        memory=memory,
        max_context=longest_prompt(memory, batch, traffic.output or 0),
        derived=case.derived,
        warnings=tuple(_warnings(deployment, traffic)),
    )


def _projected(costed: CostedSteps) -> list[StepProjection]:
    times = times_of(costed)
    limits_s = limit_seconds(costed, times)
    return [
        StepProjection(
            sequences=step.batch or step.prefill_batch,
            new_tokens=step.prefill_tokens or step.new_tokens,
            cached_tokens=step.context + step.prefill_context,
            time_s=float(times.latency_s[row]),
            interval_s=float(times.interval_s[row]),
            breakdown_s=dict(zip(BREAKDOWN, times.breakdown_s[row].tolist(), strict=True)),
            limits_s=dict(zip(LIMITS, limits_s[row].tolist(), strict=True)),
        )
        for row, step in enumerate(costed.steps)
    ]


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
    found = []
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
