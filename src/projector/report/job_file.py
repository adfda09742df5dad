"""The commented job file that ``projector init`` writes."""

import ast
import inspect
import textwrap
from itertools import pairwise
from typing import Any

import yaml
from pydantic import BaseModel

from projector.config.cluster import ClusterConfig
from projector.config.device import load_device
from projector.config.first_order import FirstOrderConfig
from projector.config.model_file import load_model
from projector.config.parallelism import ParallelismConfig
from projector.config.run import RunConfig
from projector.config.training import TrainingConfig

WIDTH = 92
"""Columns of the comments."""


_HEADER = """\
# A training job. Lines such as '# name: value' show defaults; take the sign away to change one.
# Any field can also be set on the command line: parallelism.tp=4
#   projector performance --config FILE
"""

_MODEL = """Architecture: a shipped name (`projector models` lists them), a file (YAML or Hugging
Face config.json), or a mapping."""


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


def job_file(model: str = "llama3.1_8b", device: str = "mi300x", nodes: int = 1) -> str:
    """Return a job file with every field explained, its default behind a comment sign.

    Parameters
    ----------
    model, device : str
        Names as a job file gives them.
    nodes : int
        Hosts.

    Raises
    ------
    ConfigError
        For an unknown model or device.
    """
    architecture = load_model(model)
    chip = load_device(device)
    cluster = ClusterConfig.parse({"device": device, "nodes": nodes}, path="cluster")
    seq_length = min(8192, architecture.max_position_embeddings)
    stated = {
        "micro_batch_size": 1,
        "global_batch_size": 16 * cluster.gpus,
        "seq_length": seq_length,
    }
    filled = {"network": chip.network, "gpus_per_node": cluster.gpus_per_node}
    sections = [
        _HEADER,
        _line("model", model, _comment(_MODEL, "")),
        "parallelism:\n" + _note_on_dp(cluster.gpus) + _fields(ParallelismConfig, {}, {}),
        "training:\n" + _fields(TrainingConfig, stated, {}),
        "cluster:\n" + _fields(ClusterConfig, {"device": device, "nodes": nodes}, filled),
        "run:\n" + _fields(RunConfig, {}, {}),
        "first_order:\n" + _fields(FirstOrderConfig, {}, {}),
    ]
    return "\n".join(sections)


def _note_on_dp(gpus: int) -> str:
    return (
        _comment(f"tp * pp * cp must divide the {gpus} GPUs; the rest is data parallelism.", "  ")
        + "\n"
    )


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
    lines = textwrap.wrap(plain, WIDTH - len(indent) - 2)
    return "".join(f"{indent}# {line}\n" for line in lines)


def _scalar(value: Any) -> str:
    if isinstance(value, tuple):
        value = list(value)
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000).strip()
    return text.removesuffix("...").strip()
