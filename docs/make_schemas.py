"""Write schemas/: JSON schemas of job, space, device and other files, and of what --json prints.

With --check only say whether they are current. Those of files come from the configuration classes,
those of outputs from what the commands print for examples, so they allow keys that no example has.
"""

import contextlib
import io
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from projector.cli.main import run
from projector.config._base import Config
from projector.config.device import Device
from projector.config.job import Job
from projector.config.model import ModelConfig
from projector.config.network import Network
from projector.config.space_file import KEYS, KINDS
from projector.report.job_file import field_docstrings
from projector.serving.deployment import Deployment
from projector.serving.load import Scheduler, Traffic

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "schemas"

FILES: Mapping[str, type[Config]] = {
    "job": Job,
    "deployment": Deployment,
    "device": Device,
    "model": ModelConfig,
    "network": Network,
}
NOT_IN_FILES = {"notes", "origins", "ignored"}
KEYS_OF_FILES = (
    "extends",
    "kind",
    "families",
    "scales",
    "attention_family",
    "expert_family",
    "gemm_family",
)

MIXTRAL = ("--config", "examples/mixtral_8x22b_mi355x.yaml")
OUTPUTS = {
    "memory": [("memory", *MIXTRAL), ("memory", "--config", "examples/llama3.1_405b_h100.yaml")],
    "performance": [
        ("performance", *MIXTRAL),
        ("performance", "--config", "examples/llama3.1_70b_fsdp_mi325x.yaml"),
    ],
    "search": [("search", "--config", "examples/llama3.1_8b_fp8_mi325x.yaml", "--top", "3")],
    "serve": [
        ("serve", "--config", "examples/serve_llama70b.yaml"),
        ("serve", "--model", "mixtral_8x7b", "--device", "h100", "--tp", "2"),
    ],
    "plan": [
        ("plan", "--model", "llama3.1_8b", "--tokens", "1T", "--device", "h100", "--gpus", "256")
    ],
    "schedule": [("schedule", "--pp", "4", "--microbatches", "8")],
    "attention": [("attention", "1", "32", "4096", "--gpu", "h100")],
    "collective": [("collective", "all_reduce", "--gpus", "8")],
    "gemm": [("gemm", "4096", "4096", "4096", "--gpu", "h100")],
}
"""Command lines whose outputs a schema is made of."""


def file_schema(kind: type[Config]) -> dict[str, Any]:
    """Return the schema of a file that a class describes, with the docstrings of its fields."""
    schema = kind.model_json_schema()
    classes = dict(_classes(kind, set()))
    for name, definition in [(kind.__name__, schema), *schema.get("$defs", {}).items()]:
        _document(definition, classes[name])
    schema.setdefault("$defs", {})["Sourced"] = {
        "description": "A value with its source, or a number with a suffix such as 8k.",
        "anyOf": [
            {"type": "string", "pattern": "^[-+.0-9_eE]+ ?[kKMGBT]?$"},
            {
                "type": "object",
                "properties": {"value": {}, "source": {"type": "string"}},
                "required": ["value"],
            },
        ],
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _classes(kind: type[BaseModel], seen: set[type]) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield a class and those that it and its fields are made of, by name."""
    if kind in seen:
        return
    seen.add(kind)
    yield kind.__name__, kind
    for field in kind.model_fields.values():
        for each in _models_in(field.annotation):
            yield from _classes(each, seen)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _models_in(inner)


def _document(schema: dict[str, Any], kind: type[BaseModel]) -> None:
    """Say in one class's schema what its reader takes beyond the bare types."""
    docs: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if issubclass(owner, BaseModel) and owner is not BaseModel:
            docs |= field_docstrings(owner)
    read_first = {
        name
        for each in kind.__pydantic_decorators__.field_validators.values()
        if each.info.mode == "before"
        for name in each.info.fields
    }
    properties = {
        name: _loosened(shape, text=name in read_first)
        for name, shape in schema["properties"].items()
        if name not in NOT_IN_FILES or (name == "notes" and kind is ModelConfig)
    }
    for name, shape in properties.items():
        if name in docs:
            shape["description"] = docs[name].replace("``", "")
    for alias, name in getattr(kind, "aliases", {}).items():
        properties.setdefault(alias, {**properties[name], "description": f"Same as {name}."})
    for key in KEYS_OF_FILES if issubclass(kind, ModelConfig | Device | Network) else ():
        properties.setdefault(key, {})
    schema["properties"] = properties
    schema.pop("required", None)


def _loosened(shape: dict[str, Any], *, text: bool = False) -> dict[str, Any]:
    """Return a shape that also takes values with their sources, and text where that is read.

    A section may be a name, a file or a short form.
    """
    bare = {key: value for key, value in shape.items() if key not in {"default", "title"}}
    # The default of a whole section says what its fields say.
    kept = {} if isinstance(shape.get("default", {}), dict) else {"default": shape["default"]}
    if "additionalProperties" in bare and isinstance(bare["additionalProperties"], dict):
        bare["additionalProperties"] = _loosened(bare["additionalProperties"])
    either = [bare, {"$ref": "#/$defs/Sourced"}]
    if text or "$ref" in bare:
        either.append({"type": ["string", "boolean", "null"]})
    return {**kept, "anyOf": either}


def space_schema(job: dict[str, Any], deployment: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a space: a base, axes over its fields, and constraints."""
    kinds = {kind: {"type": "string" if kind == "expression" else "array"} for kind in KINDS}
    values = {
        "description": "Values of an axis: a list, or a mapping with one of these keys.",
        "anyOf": [
            {"type": "array"},
            {"type": "object", "properties": kinds, "additionalProperties": False},
        ],
    }
    axes = {
        "type": "object",
        "description": "Dotted field, or tied fields with commas between them, and its values.",
        "properties": {name: {"$ref": "#/$defs/Axis"} for name in _dotted(job, deployment)},
        "additionalProperties": {"$ref": "#/$defs/Axis"},
    }
    base = {
        "description": "A job or a serving file (with a load): a file beside this or a mapping",
        "type": ["string", "object"],
    }
    shapes = {"base": base, "axes": axes, "best_of": axes, "constraints": {"type": "array"}}
    return {
        "$schema": job["$schema"],
        "title": "Space",
        "type": "object",
        "properties": {key: shapes[key] for key in KEYS},
        "required": ["base"],
        "additionalProperties": False,
        "$defs": {"Axis": values},
    }


def _dotted(job: dict[str, Any], deployment: dict[str, Any]) -> list[str]:
    """Return the dotted fields of the sections that a space varies most."""
    names = {
        "parallelism": "ParallelismConfig",
        "training": "TrainingConfig",
        "model": "ModelConfig",
    }
    names |= {"cluster": "ClusterConfig", "cluster.device": "Device"}
    fields = [
        f"{section}.{field}"
        for section, owner in names.items()
        for field in job["$defs"][owner]["properties"]
    ]
    serving = [
        f"{section}.{field}"
        for section, owner in (("load", Traffic), ("scheduler", Scheduler))
        for field in owner.model_fields
    ]
    own = [name for name in deployment["properties"] if name in Deployment.model_fields]
    return [*fields, *own, *serving]


def output_schema(lines: list[tuple[str, ...]]) -> dict[str, Any]:
    """Return the schema of what command lines print with --json."""
    shapes = []
    for line in lines:
        text = io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.chdir(ROOT):
            code = run([*line, "--json", "--quiet"])
        assert code in {0, 3}, line
        shapes.append(_shape(json.loads(text.getvalue())))
    schema = shapes[0]
    for other in shapes[1:]:
        schema = _either(schema, other)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


KINDS_OF_JSON = {bool: "boolean", int: "number", float: "number", str: "string", type(None): "null"}


def _shape(value: Any) -> dict[str, Any]:
    """Return the schema of one value."""
    if isinstance(value, dict):
        if any("." in key for key in value):
            return {"type": ["object"]}  # of fields of a job, which are its own matter
        shapes = {key: _shape(each) for key, each in value.items()}
        return {"type": ["object"], "properties": shapes, "required": sorted(shapes)}
    if isinstance(value, list):
        items: dict[str, Any] = {}
        for each in value:
            items = _either(items, _shape(each)) if items else _shape(each)
        return {"type": ["array"], "items": items}
    return {"type": [KINDS_OF_JSON[type(value)]]}


def _either(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of what either describes; keys that both need are needed."""
    if not one or not other:
        return one or other
    merged: dict[str, Any] = {"type": sorted({*one["type"], *other["type"]})}
    if "properties" in one or "properties" in other:
        mine, others = one.get("properties", {}), other.get("properties", {})
        merged["properties"] = {
            key: _either(mine.get(key, {}), others.get(key, {})) for key in sorted({*mine, *others})
        }
        needed = [set(each["required"]) for each in (one, other) if "required" in each]
        merged["required"] = sorted(set.intersection(*needed))
    if "items" in one or "items" in other:
        merged["items"] = _either(one.get("items", {}), other.get("items", {}))
    return merged


def schemas() -> dict[str, dict[str, Any]]:
    """Return every schema, by name."""
    made = {name: file_schema(kind) for name, kind in FILES.items()}
    made["space"] = space_schema(made["job"], made["deployment"])
    served = made["deployment"]["properties"]
    served |= {"device": made["job"]["$defs"]["ClusterConfig"]["properties"]["device"]}
    for key, kind in {"load": Traffic, "scheduler": Scheduler}.items():
        section = file_schema(kind)
        made["deployment"]["$defs"] |= section.pop("$defs")
        made["deployment"]["$defs"][kind.__name__] = section
        served[key] = {"$ref": f"#/$defs/{kind.__name__}"}
    return made | {f"{name}_output": output_schema(lines) for name, lines in OUTPUTS.items()}


def texts() -> dict[Path, str]:
    """Return what each file of schemas/ holds."""
    return {
        TARGET / f"{name}.json": json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
        for name, schema in schemas().items()
    }


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        found = {path: path.read_text(encoding="utf-8") for path in TARGET.glob("*.json")}
        sys.exit(found != texts())
    TARGET.mkdir(exist_ok=True)
    for path, text in texts().items():
        path.write_text(text, encoding="utf-8")
