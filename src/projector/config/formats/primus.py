"""Primus experiment files: settings of Megatron, torchtitan or MaxText over presets."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from projector.config import resources
from projector.config.formats import primus_files
from projector.config.formats.maxtext import read_maxtext
from projector.config.formats.megatron import translate
from projector.config.formats.megatron_settings.fields import Dialect
from projector.config.formats.read_job import ReadJob
from projector.config.formats.torchtitan import FLAVORS, read_torchtitan
from projector.config.model_file import model_data
from projector.config.yaml_file import parse_yaml
from projector.errors import ConfigError, UnsupportedError

ORIGIN = "Primus preset (assumed)"

_TABLE: Final = resources.settings_of("primus")

_ENVIRONMENT: Final[Mapping[str, tuple[str, str]]] = _TABLE["environment"]
"""Environment variable -> our field and Megatron's setting."""

_DEVICE_VARIABLES: Final[Mapping[str, str]] = _TABLE["device_variables"]
"""Environment variable -> our field, for what Megatron has no setting of."""

_FRAMEWORKS = ("megatron", "torchtitan", "maxtext")


def environment_overrides(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what the documented environment variables set, by dotted field.

    These are ``PRIMUS_TP``, ``PRIMUS_PP``, ``PRIMUS_EP``, ``NNODES``, ``GPUS_PER_NODE``,
    ``PRIMUS_GPU_ARCH`` and ``PRIMUS_GPU_CLOCK_MHZ``; they apply to Primus files only. An empty
    variable counts as not set. So does ``NNODES=1``, because Primus projects from one machine to
    the nodes that the layout needs.
    """
    given = {name: environ.get(name, "").strip() for name in _DEVICE_VARIABLES}
    overrides: dict[str, Any] = {
        _DEVICE_VARIABLES[name]: parse_yaml(text, name=name) if name.endswith("MHZ") else text
        for name, text in given.items()
        if text
    }
    for variable, (field, _) in _ENVIRONMENT.items():
        text = environ.get(variable, "").strip()
        if not text:
            continue
        if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
            msg = f"environment variable {variable} should be an integer >= 1 (got {text!r})"
            raise ConfigError(msg, key=variable, value=text, allowed="an integer >= 1")
        if (variable, int(text)) != ("NNODES", 1):
            overrides[field] = int(text)
    return overrides


def read_primus(data: Mapping[str, Any], *, path: Path) -> ReadJob:
    """Read a parsed Primus experiment; origins name values that it does not state.

    Files that it extends and model files are looked for beside ``path``; a parent folder named like
    a GPU is taken for the device.
    """
    around = primus_files.Surroundings()
    data = primus_files.whole_experiment(data, path, around)
    module = _module(data, path)
    framework = around.substitute(module.get("framework", "megatron"), "framework")
    if framework not in _FRAMEWORKS:
        known = f"{', '.join(_FRAMEWORKS[:-1])} and {_FRAMEWORKS[-1]}"
        msg = f"framework {framework!r} is not supported; only Primus files for {known} are read"
        raise UnsupportedError(msg, key="framework", value=framework, allowed=list(_FRAMEWORKS))
    model = around.substitute(module.get("model"), "model")
    if not isinstance(model, str) or not model:
        msg = f"modules: the trainer's model should be the name of a model file (got {model!r})"
        raise ConfigError(
            msg, key="modules.model", value=model, allowed="for example llama3.1_8B.yaml"
        )
    given = {name: around.substitute(value, name) for name, value in _given(data, module, around)}
    if framework != "megatron":
        if framework == "torchtitan":
            read = read_torchtitan_experiment(given, model=model)
        else:
            read = _maxtext_experiment(given, model, module.get("config"), path, around)
        placed = _placed(read, data, path, tuple(around.warnings))
        return placed._replace(least_nodes=read.least_nodes and placed.least_nodes)
    named = _named_model(model, path, around)
    stated = {**named.settings, **given}
    sources = {name: f"Primus preset {named.file}" for name in named.assumed if name not in given}
    sources |= {name: f"environment variable {variable}" for name, variable in around.used.items()}
    applied = environment_overrides(around.environ)
    for variable, (field, setting) in _ENVIRONMENT.items():
        if field in applied:
            stated[setting] = applied[field]
            sources[setting] = f"environment variable {variable}"
    _vocabulary(stated, named, sources)
    _layout_without_mtp(stated, given, around)
    dialect = Dialect(lambda setting: setting, _defaults(module, path), ORIGIN, "setting")
    read = translate(stated, dialect, base=named.base, sources=sources)
    job = read.data
    job.setdefault("training", {})["framework"] = "primus"
    if named.base is not None:
        job["model"] = {"extends": named.shipped, **job.get("model", {})}
    else:
        job["model"].setdefault("name", named.name)
    return _placed(read, data, path, (*around.warnings, *_differences(named, given)))


def _placed(read: ReadJob, data: Mapping[str, Any], path: Path, notes: tuple[str, ...]) -> ReadJob:
    """Add the name of the experiment, the device that its folder names, what variables set."""
    job, origins = read.data, dict(read.origins)
    around = primus_files.Surroundings()
    name = around.substitute(data.get("exp_name"), "exp_name")
    job["name"] = str(name) if name is not None else path.stem
    cluster = job.setdefault("cluster", {})
    device = _device_from_folder(path)
    if device is not None:
        cluster["device"], folder = device
        origins["cluster.device"] = f"folder name {folder}"
    stated = environment_overrides(around.environ)
    others = job["training"]["framework"] != "primus"
    degrees = {variable: field for variable, (field, _) in _ENVIRONMENT.items() if others}
    for variable, field in {**degrees, **_DEVICE_VARIABLES}.items():
        if field in stated:
            section, _, name = field.partition(".")
            job.setdefault(section, {})[name] = stated[field]
            origins[field] = f"environment variable {variable}"
    notes = (*notes, *read.notes)
    return read._replace(notes=notes, origins=origins, least_nodes="nodes" not in cluster)


def _module(data: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """Return the trainer among the experiment's modules."""
    modules = data.get("modules")
    if not isinstance(modules, Mapping) or not modules:
        msg = f"{path.name}: modules should name a trainer such as pre_trainer (got {modules!r})"
        raise ConfigError(msg, key="modules", value=modules, allowed="a mapping with pre_trainer")
    trainers = [name for name in modules if str(name).endswith("trainer")] or list(modules)
    name = "pre_trainer" if "pre_trainer" in modules else trainers[0]
    module = modules[name]
    if not isinstance(module, Mapping):
        msg = f"modules.{name} should be a mapping (got {module!r})"
        raise ConfigError(msg, key=f"modules.{name}", value=module, allowed="a mapping")
    return module


def _given(
    data: Mapping[str, Any], module: Mapping[str, Any], around: primus_files.Surroundings
) -> list[tuple[str, Any]]:
    """Return the settings that the experiment states; those at its top come last."""
    overrides = module.get("overrides") or {}
    if not isinstance(overrides, Mapping):
        msg = f"overrides should be a mapping of Megatron settings (got {overrides!r})"
        raise ConfigError(msg, key="overrides", value=overrides, allowed="a mapping")
    stray = {
        str(name): value for name, value in data.items() if name not in _TABLE["top_keys"].split()
    }
    if stray:
        around.warnings.append(
            f"{', '.join(stray)}: at the top of the file, where Primus does not look for settings; "
            "projected as overrides of the trainer"
        )
    return [*((str(name), value) for name, value in overrides.items()), *stray.items()]


def _defaults(module: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return what holds where nothing is stated: the trainer's file, or what Primus ships as it."""
    config = str(module.get("config") or "pre_trainer.yaml")
    file = primus_files.preset_file(config, "modules", path)
    known = {**primus_files.PRIMUS_DEFAULTS, **primus_files.trainer(config)}
    if file is None:
        return known
    _, settings = primus_files.preset_settings(file, primus_files.Surroundings())
    return known | {name: value for name, value in settings.items() if value is not None}


class _NamedModel(NamedTuple):
    name: str
    file: str
    shipped: str
    """The shipped architecture of that name or below it, "" without one."""
    base: dict[str, Any] | None
    """Its native mapping, where settings apply over it; without it they describe the model."""
    settings: dict[str, Any]
    assumed: frozenset[str] = frozenset()
    """Settings of the preset that were not read in a file."""


def _named_model(model: str, path: Path, around: primus_files.Surroundings) -> _NamedModel:
    """Return the model of a preset: its file, or a shipped architecture and how it differs."""
    file = Path(model if model.endswith((".yaml", ".yml")) else f"{model}.yaml").name
    name = file.removesuffix(".yaml").removesuffix(".yml")
    shipped = name if primus_files.is_shipped(name) else ""
    at_hand = primus_files.preset_file(model, "models", path)
    if at_hand is not None:
        base, settings = primus_files.preset_settings(at_hand, around)
        return _NamedModel(name, file, str(base["name"]) if base else shipped, base, settings)
    if name in primus_files.BASES:
        # What every preset starts from describes no model: the experiment does.
        return _NamedModel(name, file, "", None, dict(primus_files.BASES[name]))
    if not shipped:
        try:
            resources.find("models", name, key="model")
        except ConfigError as error:
            msg = (
                f"{error.message}. Or put Primus' preset {file} in a folder models beside the "
                "experiment, with what it extends, or leave the experiment in a checkout of Primus"
            )
            raise ConfigError(msg, key="model", value=name, allowed=error.allowed) from None
        raise AssertionError
    found = primus_files.preset(name)
    settings = {**found.run, **found.model}
    return _NamedModel(name, file, shipped, model_data(name), settings, frozenset(settings))


def _differences(named: _NamedModel, given: Mapping[str, Any]) -> tuple[str, ...]:
    """Say where the preset is another architecture than the published one of that name."""
    differs = primus_files.preset(named.name).model if named.assumed else {}
    words = {True: "true", False: "false", None: "null"}
    told = [
        f"{name} {words[value] if value is None or isinstance(value, bool) else value}"
        for name, value in differs.items()
        if name not in given
    ]
    if not told:
        return ()
    title = model_data(named.shipped)["name"]
    return (f"{named.file} is projected as Primus sets it, unlike {title}: {', '.join(told)}",)


def _vocabulary(stated: dict[str, Any], named: _NamedModel, sources: dict[str, str]) -> None:
    """Set the vocabulary of the tokenizer, where its model is shipped; a name holds no size."""
    if any(stated.get(name) is not None for name in ("vocab_size", "padded_vocab_size")):
        return
    tokenizer = stated.get("tokenizer_model")
    owner = resources.known("models", tokenizer) if isinstance(tokenizer, str) else None
    if owner is not None:
        size, source = model_data(owner.stem)["vocab_size"], f"tokenizer {tokenizer}"
        if named.base is not None and size == named.base.get("vocab_size"):
            return
    elif named.base is None and named.shipped:
        size, source = model_data(named.shipped)["vocab_size"], f"vocabulary of {named.shipped}"
    else:
        return
    stated["vocab_size"] = size
    sources["vocab_size"] = source


def _layout_without_mtp(
    stated: dict[str, Any], given: Mapping[str, Any], around: primus_files.Surroundings
) -> None:
    """Leave out MTP modules of a preset that the experiment's pipeline layout has no place for."""
    modules, layout = "mtp_num_layers", stated.get("pipeline_model_parallel_layout")
    if modules in given or not stated.get(modules) or not isinstance(layout, str) or "m" in layout:
        return
    stated[modules] = 0
    around.warnings.append(
        "pipeline_model_parallel_layout has no place (m) for the MTP module of the preset, which "
        "Megatron refuses; projected without it"
    )


def _device_from_folder(path: Path) -> tuple[str, str] | None:
    known = resources.index("hardware")
    for parent in path.absolute().parents:
        device_file = known.get(resources.normalise(parent.name)) if parent.name else None
        if device_file is not None:
            return device_file.stem, parent.name
    return None


# Experiments for torchtitan. What presets set: primus/configs/modules/torchtitan/pre_trainer.yaml
# and the model files beside it, of AMD-AGI/Primus.

_FP8: Final = re.compile(r"[-_]fp8$", re.IGNORECASE)


def read_torchtitan_experiment(settings: Mapping[str, Any], *, model: str) -> ReadJob:
    """Read the sections of torchtitan's settings that an experiment states.

    ``model`` is the preset of an architecture, which ``-fp8`` behind it trains in FP8.
    """
    stem = Path(model).name.removesuffix(".yaml").removesuffix(".yml")
    name = _FP8.sub("", stem)
    narrow = name != stem
    assumed = {
        **_TABLE["torchtitan"],
        **({"model.converters": ["quantize.linear.float8"]} if narrow else {}),
    }
    assumed |= _named(name)
    read = read_torchtitan(settings, name=stem, assumed=assumed, assumed_origin=ORIGIN)
    found = resources.index("models").get(resources.normalise(name))
    missing = dict(read.missing)
    if "model" in missing and found is not None:
        read.data["model"] = found.stem
        del missing["model"]
    if "model" in missing:
        msg = f"{model}: no shipped model has that name; give model=NAME, or model=FILE"
        missing["model"] = ConfigError(msg, key="modules.model", value=model, allowed="a model")
    return read._replace(missing=missing)


def _named(name: str) -> dict[str, str]:
    """Return torchtitan's name and flavour of a preset such as ``llama3.1_8B``."""
    family, _, flavor = name.lower().rpartition("_")
    for known, flavors in FLAVORS.items():
        if flavor in flavors and family.startswith(known):
            return {"model.name": known, "model.flavor": flavor}
    return {"model.name": family or name, "model.flavor": flavor}


def _maxtext_experiment(
    given: Mapping[str, Any], model: str, config: Any, path: Path, around: primus_files.Surroundings
) -> ReadJob:
    """Read an experiment for MaxText over its presets, whose files are read where they lie."""
    name = Path(model).name.removesuffix(".yaml").removesuffix(".yml")
    assumed: dict[str, Any] = {**_TABLE["maxtext"], "model_name": name}
    for kind, preset in (("modules", str(config or "pre_trainer")), ("models", model)):
        file = primus_files.preset_file(preset, kind, path, "maxtext")
        if file is not None:
            assumed |= primus_files.preset_settings(file, around)[1]
    return read_maxtext(given, path=path, assumed=assumed)
