"""Native job files: the commented one that ``projector init`` writes, and that of a given job."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel

from projector.config import resources
from projector.config.cluster import ClusterConfig
from projector.config.device_file import FIRST_ORDER_DEVICES, load_device
from projector.config.first_order import FirstOrderConfig, FirstOrderDevice, first_order_device
from projector.config.first_order_job import AnyJob
from projector.config.load import load_job
from projector.config.model_file import load_model
from projector.config.network import load_network
from projector.config.parallelism import ParallelismConfig
from projector.config.run import RunConfig
from projector.config.training import TrainingConfig
from projector.files import write_whole
from projector.projection.api import project_memory
from projector.projection.bands import FITS
from projector.report.terminal.grid import assignments
from projector.searches.configurations import fitting_overrides

WIDTH = 92
"""Columns of a file."""

_TEXTS: Mapping[str, str] = resources.hardware_table("report_words.yaml")["job_file"]
"""What stands above a job file, and above its model."""


def field_docstrings(owner: type[BaseModel]) -> dict[str, str]:
    """Return the docstring under each field of a configuration class, on one line each."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
    found: dict[str, str] = {}
    for statement, following in pairwise(getattr(tree, "body", ())):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            found[statement.target.id] = " ".join(following.value.value.split())
    return found


class JobFile(NamedTuple):
    """A job file, and what is to be said about it."""

    text: str
    note: str = ""
    """Why the job does not fit; nothing where it does."""


def fitting_job_file(
    model: str = "llama3.1_8b",
    device: str = "mi300x",
    nodes: int | None = None,
    *,
    minimal: bool = False,
) -> JobFile:
    """Return a job file whose job fits, or say that none does.

    The layout is the default one where it fits, else the fastest of a small search, and the file
    says so. Without ``nodes`` it is one where a layout fits on one, else the least hosts on which
    one does. A ``minimal`` file has no defaults and no explanations.
    """
    write = partial(job_file, model, device, minimal=minimal)
    job = load_job(_stated(model, device, 1 if nodes is None else nodes))
    if project_memory(job).verdict == FITS:
        return JobFile(write(job.cluster.nodes))
    found = fitting_overrides(job)
    needed = None if found is None else found.get("cluster.nodes")
    if found is not None and (needed is None or nodes is None):
        chosen = {name: value for name, value in found.items() if value is not None}
        why = f"The default layout does not fit. A small search chose {assignments(chosen)}."
        return JobFile(_comment(why, "") + write(job.cluster.nodes, found))
    size = f"{model} on {job.cluster.gpus:,} GPUs fits in no layout"
    remedy = "no number of hosts that was tried would do"
    if needed is not None:
        remedy = f"--nodes {needed} ({needed * job.cluster.gpus_per_node:,} GPUs) would do"
    note = f"{size}; {remedy}"
    return JobFile(f"# {note}.\n{write(job.cluster.nodes)}", note)


def _stated(model: str, device: str, nodes: int) -> dict[str, Any]:
    """Return what a job file states, before its layout is chosen."""
    architecture = load_model(model)
    cluster = ClusterConfig.parse({"device": device, "nodes": nodes}, path="cluster")
    training = {
        "micro_batch_size": 1,
        "global_batch_size": 16 * cluster.gpus,
        "seq_length": min(8192, architecture.max_position_embeddings),
    }
    return {"model": model, "training": training, "cluster": {"device": device, "nodes": nodes}}


def job_file(
    model: str = "llama3.1_8b",
    device: str = "mi300x",
    nodes: int = 1,
    layout: Mapping[str, Any] | None = None,
    *,
    minimal: bool = False,
) -> str:
    """Return a job file with every field explained, its default behind a comment sign.

    The file also states ``layout``, by dotted field; ``cluster.nodes`` among them is meant.
    """
    stated = _stated(model, device, nodes)
    chip = load_device(device)
    for dotted, value in (layout or {}).items():
        if value is not None:
            section, _, name = dotted.partition(".")
            given = {"granularity": value} if name == "recompute" else value
            stated.setdefault(section, {})[name] = given
    if minimal:
        return yaml.safe_dump(stated, sort_keys=False, width=WIDTH)
    cluster = ClusterConfig.parse(stated["cluster"], path="cluster")
    filled = {"network": chip.network, "gpus_per_node": cluster.gpus_per_node}
    sections = [
        _TEXTS["head"],
        _line("model", model, _comment(_TEXTS["model"], "")),
        "parallelism:\n"
        + _comment(
            f"tp * pp * cp must divide the {cluster.gpus} GPUs; the rest is data parallelism.", "  "
        )
        + "\n"
        + _fields(ParallelismConfig, stated.get("parallelism", {}), {}),
        "training:\n" + _fields(TrainingConfig, stated["training"], {}),
        "cluster:\n" + _fields(ClusterConfig, stated["cluster"], filled),
        "run:\n" + _fields(RunConfig, {}, {}),
        "first_order:\n" + _fields(FirstOrderConfig, {}, {}),
    ]
    return "\n".join(sections)


def _fields(
    owner: type[BaseModel], stated: dict[str, Any], filled: dict[str, Any], indent: str = "  "
) -> str:
    """Write every field of a section: stated ones plainly, defaults commented out."""
    text = ""
    docs = field_docstrings(owner)
    for name, field in owner.model_fields.items():
        text += _comment(docs.get(name, ""), indent)
        if name in stated:
            given = stated[name]
            if isinstance(field.default, BaseModel):
                body = _fields(type(field.default), given, {}, indent + "  ")
                text += f"{indent}{name}:\n{body}"
            else:
                text += _line(f"{indent}{name}", given)
            continue
        value = filled[name] if name in filled else field.get_default(call_default_factory=True)
        if isinstance(value, BaseModel):
            body = _fields(type(value), value.model_dump(mode="json"), {}, indent + "  ")
            shown = f"{indent}{name}:\n{body}"
            text += "".join(
                f"{indent}# {line[len(indent) :]}\n" for line in shown.rstrip("\n").split("\n")
            )
        else:
            text += f"{indent}# {name}: {_scalar(value)}\n"
    return text


def _line(name: str, value: Any, comment: str = "") -> str:
    return f"{comment}{name}: {_scalar(value)}\n"


def _comment(text: str, indent: str) -> str:
    plain = text.replace("``", "")
    return "".join(f"{indent}# {line}\n" for line in textwrap.wrap(plain, WIDTH - len(indent) - 2))


def _scalar(value: Any) -> str:
    if isinstance(value, tuple):
        value = list(value)
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000).strip()
    return text.removesuffix("...").strip()


def write_job(job: AnyJob, path: str | Path, note: str = "") -> None:
    """Write a job as a native file, whole, without defaults, the note above it as a comment."""
    text = yaml.safe_dump(job_mapping(job), sort_keys=False, width=WIDTH)
    head = "".join(f"# {line}\n" for line in textwrap.wrap(note, WIDTH - 2))
    write_whole(Path(path), (head + text).encode(), key="job_out")


def job_mapping(job: AnyJob) -> dict[str, Any]:
    """Return the mapping of a job file; shipped models, devices and networks go by their names."""
    model_name = _name_of(resources.shipped("models"), load_model, job.model)
    cluster = {**_set_fields(job.cluster, {"device", "network"}), **_machines(job)}
    sections = {
        name: _set_fields(getattr(job, name)) for name in ("parallelism", "training", "run")
    }
    return {
        **({"name": job.name} if job.name else {}),
        "model": model_name or job.model.model_dump(mode="json", exclude_unset=True),
        **{name: fields for name, fields in sections.items() if fields},
        "cluster": cluster,
    }


def _machines(job: AnyJob) -> dict[str, Any]:
    """Return device and network of a job; the network only where it is not the usual one."""
    device = job.cluster.device
    if isinstance(device, FirstOrderDevice):
        name = _name_of(resources.shipped(FIRST_ORDER_DEVICES), first_order_device, device)
        return {"device": name or device.model_dump(mode="json", exclude_unset=True)}
    name = _name_of(resources.shipped("hardware"), load_device, device)
    machines = {"device": name or device.model_dump(mode="json", exclude_unset=True)}
    network = getattr(job.cluster, "network", None)
    if network is not None and network != load_network(device.network):
        machines["network"] = network.model_dump(mode="json", exclude_unset=True)
    return machines


def _set_fields(section: BaseModel, exclude: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields that were set, without those that were set to a default of none."""
    fields: dict[str, Any] = {}
    data = section.model_dump(mode="json", include=section.model_fields_set - set(exclude))
    for name, field in type(section).model_fields.items():
        if name not in data or (data[name] is None and field.default is None):
            continue
        value = getattr(section, name)
        fields[name] = _set_fields(value) if isinstance(value, BaseModel) else data[name]
    return fields


def _name_of(names: Iterable[str], load: Callable[[str], Any], wanted: Any) -> str | None:
    return next((name for name in names if load(name) == wanted), None)
