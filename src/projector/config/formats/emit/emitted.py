"""A job in the words of a training framework, so that reading them again gives the same job."""

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, cast

from pydantic import BaseModel

from projector.config import resources
from projector.config.device_file import is_first_order, load_device
from projector.config.formats.emit import FORMATS, TITLES
from projector.config.formats.emit.runnable import Setting, check_runnable
from projector.config.job import Job
from projector.config.load import load_job
from projector.config.model import CHUNKS, ModelConfig, refuse_diffusion
from projector.config.model_file import load_model
from projector.errors import ConfigError, ProjectorError, UnsupportedError, shown
from projector.files import check_place


class Emitted(NamedTuple):
    """A file that starts a job."""

    format: str

    text: str
    suffix: str
    """Ending that the file's name needs to be read again."""
    carried: Mapping[str, Any]
    """Dotted field -> value, of what the framework has no words for. The text carries it too,
    where the framework does not read it (`projector.config.formats.detect`)."""


class Writer(Protocol):
    """What a module of this package offers."""

    SUFFIX: str

    def own(self, job: Job) -> dict[str, Any]:
        """Return what the framework is told elsewhere, dotted field -> value.

        An architecture that the framework does not know is refused.
        """

    def write(self, job: Job, carried: Mapping[str, Any]) -> str:
        """Return the file of a job, with fields that it carries beside the framework's own."""


def write_job(job: Job, format: str) -> Emitted:  # noqa: A002  # the option's name
    """Write a job that can exist as the configuration of a framework, one of `FORMATS`.

    The text is read again before it is returned: it gives the same job, field by field, or an
    `UnsupportedError` names what differs.
    """
    refuse_diffusion(job.model, "no file of another program is written for one")
    writer = _writer(format)
    own = writer.own(job)
    check_runnable(format, Setting(job.model, job.parallelism, job.training, job.cluster.gpus))
    titles = {"name": job.name, "model.name": job.model.name}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"job{writer.SUFFIX}")
        known = {"cluster.device": _device_name(job)} | own
        known |= {field: title for field, title in titles.items() if title}
        again = _read(writer, file, job, known)
        framework = job.training.framework
        if again.training.framework != framework:
            known["training.framework"] = framework and framework.model_dump(exclude_none=True)
            again = _read(writer, file, job, known)
        carried = known
        # A field that is carried can move a default of another one.
        for _ in range(_ROUNDS):
            left = _differences(job, again)
            if not left:
                break
            carried = carried | left
            again = _read(writer, file, job, carried)
    if left:
        msg = f"{format} cannot say {', '.join(left)} of this job"
        raise UnsupportedError(msg, key="emit", value=format, allowed=list(FORMATS))
    if "training.adapter" in carried:
        raise _without_adapters(format)
    told = {field: carried[field] for field in sorted(carried, key=_importance)}
    return Emitted(format, writer.write(job, told), writer.SUFFIX, told)


def check_model(job: Job, formats: Iterable[str]) -> None:
    """Refuse what a framework has no words for in any layout: architectures, adapters."""
    for name in formats:
        _writer(name).own(job)
        if job.training.adapter is not None and name != "primus":
            raise _without_adapters(name)


def _without_adapters(name: str) -> UnsupportedError:
    # A comment would not keep the framework from training every weight.
    msg = f"{name} files have no words for this job's adapters, and would train every weight"
    return UnsupportedError(msg, key="emit", value=name, allowed=["primus, for its targets"])


_SECTIONS: Final = ("model", "parallelism", "training")


def _importance(field: str) -> tuple[int, str]:
    """Order fields by section: those of the model first, then layout and training."""
    section = field.partition(".")[0]
    place = _SECTIONS.index(section) if section in _SECTIONS else len(_SECTIONS)
    return place, field


_TOLD_ELSEWHERE: Final = {"model.name", "model.moe.num_shared_experts", "training.framework"}
"""Carried fields that change nothing of a run."""


def unsaid(emitted: Emitted, job: Job) -> str:
    """Return one line that names what of model, layout and training the framework is not told.

    Model fields come first; ``""`` where there is nothing. What the training script of DeepSpeed
    brings along counts as told.
    """
    elsewhere = _TOLD_ELSEWHERE | {*_writer(emitted.format).own(job)}
    fields = [
        f"{field.removeprefix('model.')}={json.dumps(value, ensure_ascii=False, default=str)}"
        for field, value in emitted.carried.items()
        if field.partition(".")[0] in _SECTIONS and field not in elsewhere and value is not None
    ]
    title = job.model.name or job.name
    return (
        f"{title}: {', '.join(fields)} cannot be said to {TITLES[emitted.format]}" if fields else ""
    )


def check_target(format: str, file: str | None) -> None:  # noqa: A002  # the option's name
    """Refuse a format that is not known, and a file that could not be made or read again."""
    suffix = _writer(format).SUFFIX
    if file is None:
        return
    if Path(file).suffix != suffix:
        msg = f"emit: the name of a {format} file must end in {suffix}, got {shown(file)}"
        raise ConfigError(msg, key="emit", value=file, allowed=suffix)
    check_place(file, key="emit")


def _writer(name: str) -> Writer:
    if name not in FORMATS:
        msg = f"emit: unknown format {name!r}; known: {', '.join(FORMATS)}"
        raise ConfigError(msg, key="emit", value=name, allowed=list(FORMATS))
    return cast("Writer", import_module(f"{__package__}.{name}"))


def _read(writer: Writer, file: Path, job: Job, carried: Mapping[str, Any]) -> Job:
    file.write_text(writer.write(job, carried), encoding="utf-8")
    try:
        return load_job(file)
    except ProjectorError as error:
        msg = f"this job cannot be written: {error}"
        raise UnsupportedError(msg, key="emit", value=error.key) from error


def _device_name(job: Job) -> Any:
    """Return a shipped device by its name, any other in full."""
    device = job.cluster.device
    known = resources.index("hardware").get(resources.normalise(device.name))
    for stem in [*([known.stem] if known else ()), *resources.shipped("hardware")]:
        if not is_first_order(stem, "cluster.device") and load_device(stem).name == device.name:
            return stem
    return device.model_dump(mode="json", exclude_unset=True, exclude={"source", "sources"})


def _differences(job: Job, again: Job) -> dict[str, Any]:
    """Return the fields of a job in which another one is not its equal, with its values."""
    stated, ours, theirs = dict(_leaves(job)), _in_effect(job), _in_effect(again)
    if job.parallelism.fsdp:
        stated["parallelism.zero_stage"] = job.parallelism.sharding_stage
    found = {
        name: getattr(job, name) for name in _WHOLE if getattr(job, name) != getattr(again, name)
    }
    for field, value in ours.items():
        if field in theirs:
            if theirs[field] != value:
                found[field] = stated[field]
            continue
        # One of the two has nothing where the other has a section.
        section = field
        while section and section not in theirs:
            section = section.rpartition(".")[0]
        where = section or field
        found[where] = attrgetter(where)(job) if section else stated[field]
    return {field: _plain(value) for field, value in found.items()}


_UNREAD: Final = {"name", "notes", "origins", "ignored", "source", "sources"}
"""Names of fields that no projection reads."""


_WHOLE: Final = ("run", "first_order")
"""Sections that no framework knows; their fields only make sense together."""

_ROUNDS: Final = 4


def _leaves(owner: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name in type(owner).model_fields:
        value, field = getattr(owner, name), f"{prefix}{name}"
        if field in _WHOLE:
            continue
        if isinstance(value, BaseModel) and field != "training.framework":
            yield from _leaves(value, f"{field}.")
        elif name not in _UNREAD:
            yield field, value


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _in_effect(job: Job) -> dict[str, Any]:
    """Return the fields of a job, where several values mean the same as one of them."""
    model, split, training = job.model, job.parallelism, job.training
    found = dict(_leaves(job))
    found["parallelism.dp"] = None
    found["parallelism.zero_stage"] = split.sharding_stage
    found["parallelism.etp"] = split.expert_tp
    found["parallelism.sequence_parallel"] = split.splits_sequence
    found["parallelism.tp_comm_overlap"] = split.tp_overlap
    found["training.grad_reduce_dtype"] = training.reduce_dtype
    found["model.num_query_groups"] = model.query_groups
    found["model.kv_channels"] = model.head_dim
    found["model.layer_types"] = model.layer_kinds
    if model.recurrent is not None:
        stated = model.recurrent.chunk_size
        found["model.recurrent.chunk_size"] = [
            stated or chunk for mixer, chunk in CHUNKS.items() if mixer in model.mixers
        ]
    if model.moe is not None:
        found["model.moe.layer_freq"] = model.moe_layers
        early = bool(model.moe.router_pre_softmax)
        alone = model.moe.router_topk == 1 and model.moe.router_score_function != "sigmoid"
        found["model.moe.router_pre_softmax"] = early or alone
    if training.schedule == "auto":
        found["training.schedule"] = "interleaved" if split.vpp > 1 else "1f1b"
    if training.recompute.num_layers is None and training.recompute.method == "uniform":
        found["training.recompute.num_layers"] = 1
    return found


# Parts of a job by the shortest words that give them again.


def model_words(job: Job) -> Any:
    """Return the name of the shipped model that a job has, or the fields of its own."""
    known = resources.index("models").get(resources.normalise(job.model.name))
    if known is not None and same_model(load_model(known.stem), job.model):
        return known.stem
    return job.model.model_dump(mode="json", exclude_unset=True, exclude={"source"})


def same_model(one: ModelConfig, other: ModelConfig) -> bool:
    """Whether two architectures differ at most in name and source."""
    titles = {"name": "", "source": ""}
    return one.model_copy(update=titles) == other.model_copy(update=titles)


def recompute_words(job: Job) -> Any:
    """Return what the backward computes again, in one word or as a mapping."""
    kind = job.training.recompute
    if kind.granularity == "none":
        return "none"
    found: dict[str, Any] = {"granularity": kind.granularity}
    if kind.granularity == "selective":
        return {**found, "modules": [*kind.modules]}
    if kind.layers is not None:
        found["layers"] = [*kind.layers]
    if kind.num_layers is not None:
        found["num_layers"] = kind.num_layers
    return {**found, "method": kind.method}
