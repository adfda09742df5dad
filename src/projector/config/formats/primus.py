"""Primus experiment files: Megatron settings over a model and trainer presets."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from projector.config import resources
from projector.config.formats.megatron_settings.fields import MEGATRON_DEFAULTS
from projector.config.formats.megatron_settings.settings import Dialect
from projector.config.formats.megatron_settings.translate import Triple, translate
from projector.config.model_file import model_data
from projector.config.yaml_file import parse_yaml, read_yaml
from projector.errors import ConfigError, UnsupportedError

PRIMUS_DEFAULTS: dict[str, Any] = {
    **MEGATRON_DEFAULTS,
    "sequence_parallel": True,
    "use_distributed_optimizer": True,
    "bf16": True,
    "swiglu": True,
    "add_bias_linear": False,
    "untie_embeddings_and_output_weights": True,
    "make_vocab_size_divisible_by": None,
    "moe_token_dispatcher_type": "alltoall",
    "moe_permute_fusion": True,
    "moe_grouped_gemm": True,
}
"""What Primus' trainer and model presets set where an experiment says nothing."""

ORIGIN = "Primus preset (assumed)"

_ENVIRONMENT = {
    "PRIMUS_TP": ("parallelism.tp", "tensor_model_parallel_size"),
    "PRIMUS_PP": ("parallelism.pp", "pipeline_model_parallel_size"),
    "PRIMUS_EP": ("parallelism.ep", "expert_model_parallel_size"),
    "NNODES": ("cluster.nodes", "nnodes"),
    "GPUS_PER_NODE": ("cluster.gpus_per_node", "nproc_per_node"),
}
"""Environment variable -> our field and Megatron's setting."""

_PLACEHOLDER = re.compile(r"\$\{([A-Za-z_]\w*)(?::-?([^{}]*))?\}")
_CHAIN_KEYS = ("extends", "bases", "includes")
_PRESETS: dict[str, dict[str, Any]] = {
    "llama_base": {
        "swiglu": True,
        "add_bias_linear": False,
        "untie_embeddings_and_output_weights": True,
        "position_embedding_type": "rope",
        "normalization": "RMSNorm",
    },
    "language_model": {},
    "primus_megatron_model": {},
    "pre_trainer": {},
}
"""Presets that a model file may start from where their files are not at hand."""

_MAX_CHAIN = 16
_FRAMEWORKS = ("megatron",)


def environment_overrides(environ: Mapping[str, str]) -> dict[str, int]:
    """Return what the documented environment variables set, by dotted field.

    These are ``PRIMUS_TP``, ``PRIMUS_PP``, ``PRIMUS_EP``, ``NNODES`` and ``GPUS_PER_NODE``; they
    apply to Primus files only. An empty variable counts as not set.

    Raises
    ------
    ConfigError
        If one is not a positive integer.
    """
    overrides: dict[str, int] = {}
    for variable, (field, _) in _ENVIRONMENT.items():
        text = environ.get(variable, "").strip()
        if not text:
            continue
        if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
            msg = f"environment variable {variable} should be an integer >= 1 (got {text!r})"
            raise ConfigError(msg, key=variable, value=text, allowed="an integer >= 1")
        overrides[field] = int(text)
    return overrides


def read_primus(data: Mapping[str, Any], *, path: Path) -> Triple:
    """Read a Primus experiment.

    Parameters
    ----------
    data : mapping
        The parsed YAML file.
    path : Path
        Where it lies; model files are looked for beside it, and a parent folder named like a
        GPU is taken for the device.

    Returns
    -------
    tuple
        Native job mapping, warnings, and origins of values that the file does not state.

    Raises
    ------
    ConfigError
        If the file is malformed, or its model is neither shipped nor found.
    UnsupportedError
        For a framework other than Megatron, or a model that is not supported.
    """
    environ = os.environ
    used: dict[str, str] = {}
    module = _module(data)
    framework = _substitute(module.get("framework", "megatron"), "framework", environ, used)
    if framework not in _FRAMEWORKS:
        msg = f"framework {framework!r} is not supported; only Primus files for megatron are read"
        raise UnsupportedError(msg, key="framework", value=framework, allowed=list(_FRAMEWORKS))
    model = _substitute(module.get("model"), "model", environ, used)
    if not isinstance(model, str) or not model:
        msg = f"modules: the trainer's model should be the name of a model file (got {model!r})"
        raise ConfigError(
            msg, key="modules.model", value=model, allowed="for example llama3.1_8B.yaml"
        )
    overrides = module.get("overrides") or {}
    if not isinstance(overrides, Mapping):
        msg = f"overrides should be a mapping of Megatron settings (got {overrides!r})"
        raise ConfigError(msg, key="overrides", value=overrides, allowed="a mapping")

    warnings: list[str] = []
    base, stated = _architecture(model, path, environ, used, warnings)
    for name, value in overrides.items():
        stated[str(name)] = _substitute(value, str(name), environ, used)
    sources = {name: f"environment variable {variable}" for name, variable in used.items()}
    applied = environment_overrides(environ)
    for variable, (field, setting) in _ENVIRONMENT.items():
        if field in applied:
            stated[setting] = applied[field]
            sources[setting] = f"environment variable {variable}"
    dialect = Dialect(lambda setting: setting, PRIMUS_DEFAULTS, ORIGIN, "setting")
    job, further, origins = translate(stated, dialect, base=base, sources=sources)

    job.setdefault("training", {})["framework"] = "primus"
    if base is not None:
        changed = job.get("model", {})
        job["model"] = {"extends": Path(model).name.removesuffix(".yaml"), **changed}
    elif "name" not in job["model"]:
        job["model"]["name"] = Path(model).name.removesuffix(".yaml")
    name = _substitute(data.get("exp_name"), "exp_name", environ, {})
    job["name"] = str(name) if name is not None else path.stem
    cluster = job.setdefault("cluster", {})
    if "nodes" not in cluster:
        cluster["nodes"] = 1
        origins["cluster.nodes"] = "one node, as NNODES is not set"
    device = _device_from_folder(path)
    if device is not None:
        cluster["device"], folder = device
        origins["cluster.device"] = f"folder name {folder}"
    return job, (*warnings, *further), origins


def _module(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the trainer among the experiment's modules."""
    modules = data.get("modules")
    if not isinstance(modules, Mapping) or not modules:
        msg = f"modules should name a trainer such as pre_trainer (got {modules!r})"
        raise ConfigError(msg, key="modules", value=modules, allowed="a mapping with pre_trainer")
    trainers = [name for name in modules if str(name).endswith("trainer")] or list(modules)
    name = "pre_trainer" if "pre_trainer" in modules else trainers[0]
    module = modules[name]
    if not isinstance(module, Mapping):
        msg = f"modules.{name} should be a mapping (got {module!r})"
        raise ConfigError(msg, key=f"modules.{name}", value=module, allowed="a mapping")
    return module


def _substitute(value: Any, name: str, environ: Mapping[str, str], used: dict[str, str]) -> Any:
    """Fill in ``${VAR:default}``; the result has the type that YAML gives its text."""
    if isinstance(value, list):
        return [_substitute(item, name, environ, used) for item in value]
    if not isinstance(value, str) or "${" not in value:
        return value

    def fill(match: re.Match[str]) -> str:
        variable, default = match[1], match[2]
        if environ.get(variable):
            used[name] = variable
            return environ[variable]
        if default is None:
            msg = f"{name} needs the environment variable {variable}, which is not set"
            raise ConfigError(msg, key=name, value=value, allowed=f"${{{variable}:default}}")
        return default

    text = _PLACEHOLDER.sub(fill, value)
    if "${" in text:
        msg = f"{name}: {value!r} is not of the form ${{VARIABLE:default}}"
        raise ConfigError(msg, key=name, value=value, allowed="${VARIABLE:default}")
    try:
        return parse_yaml(text, name=name)
    except ConfigError:
        return text


def _architecture(
    model: str, path: Path, environ: Mapping[str, str], used: dict[str, str], warnings: list[str]
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Return a shipped architecture, or the settings of the model file and its presets."""
    name = Path(model).name.removesuffix(".yaml").removesuffix(".yml")
    if resources.normalise(name) in resources.index("models"):
        return model_data(name), {}
    for candidate in _model_files(model, path):
        if candidate.is_file():
            return None, _chain(candidate, environ, used, warnings, 0)
    resources.find("models", name, key="model")  # raises, with the nearest names
    return None, {}


def _model_files(model: str, path: Path) -> Iterator[Path]:
    """Yield where Primus' model file may lie: beside the experiment, or in a checkout."""
    file = Path(model if model.endswith((".yaml", ".yml")) else f"{model}.yaml")
    yield path.parent / file
    yield path.parent / file.name
    yield path.parent / "models" / file.name
    for parent in path.absolute().parents:
        yield parent / "primus" / "configs" / "models" / "megatron" / file.name


def _chain(
    file: Path, environ: Mapping[str, str], used: dict[str, str], warnings: list[str], depth: int
) -> dict[str, Any]:
    """Read a model file and what it extends; later files outrank earlier ones."""
    if depth > _MAX_CHAIN:
        msg = f"{file}: 'extends' goes in a circle"
        raise ConfigError(msg, key="extends", value=str(file), allowed="a chain of files")
    data = read_yaml(file, key="model")
    settings: dict[str, Any] = {}
    for key in _CHAIN_KEYS:
        parents = data.pop(key, None) or []
        for parent in [parents] if isinstance(parents, str) else parents:
            beside = file.parent / str(parent)
            stem = Path(str(parent)).name.removesuffix(".yaml")
            if beside.is_file():
                settings |= _chain(beside, environ, used, warnings, depth + 1)
            elif stem in _PRESETS:
                settings |= _PRESETS[stem]
            elif stem != "module_base":
                warnings.append(f"{file.name}: preset {parent} was not found and was left out")
    for name, value in data.items():
        settings[name] = _substitute(value, name, environ, used)
    return settings


def _device_from_folder(path: Path) -> tuple[str, str] | None:
    known = resources.index("hardware")
    for parent in path.absolute().parents:
        device_file = known.get(resources.normalise(parent.name)) if parent.name else None
        if device_file is not None:
            return device_file.stem, parent.name
    return None
