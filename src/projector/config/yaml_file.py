"""Reading YAML defensively: one clear error, no duplicate keys, no bombs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from projector.errors import ConfigError

MAX_FILE_BYTES = 4 * 1024**2
MAX_NODES = 100_000
"""Nodes a document may expand to; a real job has a few hundred."""

FILE_SUFFIXES = (".yaml", ".yml", ".json")
"""Endings by which a name is that of a file."""

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]  # the C loader is chosen at run time
    """Safe loader that refuses a key given twice in one mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is not None and key != "<<" and key in seen:
                msg = f"key {key!r} is given twice (line {key_node.start_mark.line + 1})"
                raise ConfigError(msg, key=key)
            seen.add(key)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def read_text(path: str | Path, *, key: str = "config") -> str:
    """Return the text of a small UTF-8 file, or say why it cannot be read."""
    path = Path(path)
    try:
        if path.is_dir():
            msg = f"{path} is a directory, not a file"
            raise ConfigError(msg, key=key, value=str(path), allowed="a YAML file")
        if path.stat().st_size > MAX_FILE_BYTES:
            size = f"{MAX_FILE_BYTES // 1024**2} MiB"
            msg = f"{path} is larger than {size}, too large for a configuration"
            raise ConfigError(msg, key=key, value=str(path), allowed="a YAML file")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        msg = f"{path} does not exist"
        raise ConfigError(msg, key=key, value=str(path), allowed="an existing file") from None
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        msg = f"{path} cannot be read: {error}"
        raise ConfigError(msg, key=key, value=str(path), allowed="a UTF-8 text file") from None


def parse_yaml(text: str, *, name: str = "<text>") -> Any:
    """Parse one YAML document.

    Raises
    ------
    ConfigError
        For a syntax error (with its line), a key given twice, or a document whose aliases
        expand beyond `MAX_NODES` nodes.
    """
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            if _expanded_size(node) > MAX_NODES:
                msg = (
                    f"{name} expands to more than {MAX_NODES} values, too many for a configuration"
                )
                raise ConfigError(msg, key=name, allowed="a document without nested aliases")
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        msg = f"{name} is not valid YAML: {problem}{where}"
        raise ConfigError(msg, key=name, allowed="a YAML mapping") from None
    except (RecursionError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        msg = f"{name} is not valid YAML: {type(error).__name__}: {error}"
        raise ConfigError(msg, key=name, allowed="a YAML mapping") from None


def read_yaml(path: str | Path, *, key: str = "config") -> dict[str, Any]:
    """Read a YAML file whose top level is a mapping.

    Raises
    ------
    ConfigError
        If the file is missing, a directory, empty, malformed, or not a mapping.
    """
    data = parse_yaml(read_text(path, key=key), name=str(path))
    if data is None:
        msg = f"{path} is empty"
        raise ConfigError(msg, key=key, value=str(path), allowed="a YAML mapping")
    if not isinstance(data, dict):
        msg = f"{path} holds a {type(data).__name__}, not a mapping of keys to values"
        raise ConfigError(msg, key=key, value=str(path), allowed="a YAML mapping")
    return {str(name): value for name, value in data.items()}


def base_of(data: dict[str, Any], path: str | Path) -> Any:
    """Take ``extends`` out of what a file says; a file it names is found from that file's folder.

    Parameters
    ----------
    data : dict
        The mapping of the file, changed in place.
    path : str or Path
        The file.

    Returns
    -------
    object
        A name as given, the path of a file, or None where nothing is extended.
    """
    base = data.pop("extends", None)
    is_file = isinstance(base, str) and base.endswith(FILE_SUFFIXES)
    return str(Path(path).parent / base) if is_file else base


def beside(value: Any, folder: Path) -> Any:
    """Return a file that a job names, or a mapping with one that it extends, from the job's folder.

    What does not lie there stays as it was given, for the working folder.
    """
    if isinstance(value, Mapping) and "extends" in value:
        return {**value, "extends": beside(value["extends"], folder)}
    is_file = isinstance(value, str) and value.endswith(FILE_SUFFIXES)
    return str(folder / value) if is_file and (folder / value).is_file() else value


def _expanded_size(root: yaml.Node) -> int:
    """Count the values a node graph expands to, stopping early; a cycle counts as too many."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: yaml.Node) -> int:
        known = sizes.get(id(node))
        if known is not None:
            return known
        if id(node) in open_nodes:
            return MAX_NODES + 1
        open_nodes.add(id(node))
        total = 1
        if isinstance(node, yaml.SequenceNode):
            total += sum(size(child) for child in node.value)
        elif isinstance(node, yaml.MappingNode):
            total += sum(size(key) + size(value) for key, value in node.value)
        open_nodes.discard(id(node))
        sizes[id(node)] = min(total, MAX_NODES + 1)
        return sizes[id(node)]

    return size(root)
