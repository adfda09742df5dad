"""Reading YAML defensively: one clear error, no duplicate keys, no bombs."""

import codecs
import io
import os
from collections.abc import Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

import yaml

from projector.errors import ConfigError, shown
from projector.files import is_file, read_bounded

MAX_FILE_BYTES = 4 * 1024**2
MAX_NODES = 100_000
"""Nodes a document may expand to; a real job has a few hundred."""

MAX_DEPTH = 64
"""Collections within one another; the deepest that ships has eight."""

MAX_DIGITS = 400
"""Characters of a number; no float has more digits before its point."""

SHALLOW = 800
"""Collections within one another that PyYAML puts together on any stack. It recurses in C: 1000 go
well in a thread of half a MiB, and 30,000 end the process."""

FILE_SUFFIXES = (".yaml", ".yml", ".json")

_COLLECTIONS = (Mapping, list, tuple, set, frozenset)

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]  # the C loader is chosen at run time
    """Safe loader that refuses a key given twice in one mapping."""

    def construct_document(self, node: yaml.Node) -> Any:
        """Return the value of a checked document; most have none but the usual tags."""
        value = self._usual(node)
        return super().construct_document(node) if value is _UNUSUAL else value

    def _usual(self, node: yaml.Node) -> Any:
        """Return a value in a tenth of PyYAML's time, `_UNUSUAL` where it takes PyYAML."""
        tag = node.tag.removeprefix("tag:yaml.org,2002:")
        if tag == "map" and isinstance(node, yaml.MappingNode):
            _check_keys(node)
            mapping = {}
            for key_node, value_node in node.value:
                key, value = self._usual(key_node), self._usual(value_node)
                if value is _UNUSUAL or not isinstance(key, _PLAIN_KEYS):
                    return _UNUSUAL
                mapping[key] = value
            return mapping
        if tag == "seq" and isinstance(node, yaml.SequenceNode):
            values = [*map(self._usual, node.value)]
            return _UNUSUAL if any(value is _UNUSUAL for value in values) else values
        if tag in _PLAIN_TAGS and isinstance(node, yaml.ScalarNode):
            return node.value if tag == "str" else self.yaml_constructors[node.tag](self, node)
        return _UNUSUAL

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        _check_keys(node)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        _check_digits(node)
        return int(super().construct_yaml_int(node))

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        _check_digits(node)
        return float(super().construct_yaml_float(node))


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)


_UNUSUAL = object()
"""Stands for what has a tag of its own, a merged key, or a key that is a collection."""

_PLAIN_TAGS = frozenset({"str", "int", "float", "bool", "null"})
_PLAIN_KEYS = (str, int, float, type(None))


def _check_keys(node: yaml.MappingNode) -> None:
    seen = set()
    for key_node, _ in node.value:
        key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
        if key is not None and key != "<<" and key in seen:
            msg = f"key {key!r} is given twice (line {key_node.start_mark.line + 1})"
            raise ConfigError(msg, key=key)
        seen.add(key)


def _check_digits(node: yaml.ScalarNode) -> None:
    """Refuse long numbers: one in base 60 (1:00:00) takes time as the square of its length."""
    if len(node.value) > MAX_DIGITS:
        line = node.start_mark.line + 1
        msg = f"a number of {len(node.value):,} characters (line {line})"
        raise ConfigError(msg, allowed=f"numbers of at most {MAX_DIGITS} characters")


def read_text(path: str | Path, *, key: str = "config") -> str:
    """Return the text of a small UTF-8 file, or say why it cannot be read."""
    content = read_bounded(path, MAX_FILE_BYTES, key=key, allowed="a configuration")
    try:
        text = content.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        msg = f"{path} cannot be read: {error}"
        raise ConfigError(msg, key=key, value=str(path), allowed="a UTF-8 text file") from None
    return io.StringIO(text, newline=None).read()


def parse_yaml(text: str, *, name: str = "<text>") -> Any:
    """Parse one YAML document."""
    try:
        if len(text) > MAX_NODES or _most_depth(text) > SHALLOW:
            depth = nodes = 0
            for event in yaml.parse(text, Loader=_Loader):
                if isinstance(event, yaml.CollectionEndEvent):
                    depth -= 1
                elif isinstance(event, yaml.NodeEvent):
                    nodes += 1
                    depth += isinstance(event, yaml.CollectionStartEvent)
                if depth > MAX_DEPTH:
                    raise _too_deep(name)
                if nodes > MAX_NODES:
                    raise _too_many(name)
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _check_nodes(node, name)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        msg = f"{name} is not valid YAML: {problem}{where}"
        raise ConfigError(msg, key=name, allowed="a YAML mapping") from None
    except ConfigError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # What PyYAML raises for a value that is none of its tag, such as "!!bool 7".
        msg = f"{name} is not valid YAML: {type(error).__name__}: {error}"
        raise ConfigError(msg, key=name, allowed="a YAML mapping") from None


def read_yaml(path: str | Path, *, key: str = "config") -> dict[str, Any]:
    """Read a YAML file whose top level is a mapping."""
    return yaml_mapping(read_text(path, key=key), path, key=key)


def yaml_mapping(text: str, path: str | Path, *, key: str = "config") -> dict[str, Any]:
    """Return the mapping in the text of a YAML file."""
    data = parse_yaml(text, name=str(path))
    if data is None:
        raise ConfigError(f"{path} is empty", key=key, value=str(path), allowed="a YAML mapping")
    if not isinstance(data, dict):
        msg = f"{path} holds a {type(data).__name__}, not a mapping of keys to values"
        raise ConfigError(msg, key=key, value=str(path), allowed="a YAML mapping")
    return {str(name): value for name, value in data.items()}


def check_nesting(data: Any, *, name: str, most: int = MAX_NODES) -> None:
    """Refuse plain data of Python or JSON that is too deep to be walked through, or a circle.

    Mappings, lists, tuples and sets are looked into, whatever else they hold; it may have ``most``
    of them. Messages call it ``name``.
    """
    found, within = 0, [data] if isinstance(data, _COLLECTIONS) else []
    for _ in range(MAX_DEPTH):
        found += len(within)
        if found > most:
            raise _too_many(name)
        inner = (
            value
            for outer in within
            for value in (outer.values() if isinstance(outer, Mapping) else outer)
            if isinstance(value, _COLLECTIONS)
        )
        within = list(islice(inner, most + 1))
        if not within:
            return
    raise _too_deep(name)


MOST_EXTENDS = 8
"""Files and names that extend one another."""


def extended(chain: tuple[str, ...], name: Any, *, key: str) -> tuple[str, ...]:
    """Return a chain of what extends what, a name longer; ``key`` is the section, for messages."""
    if isinstance(name, Mapping):
        called = str(name.get("name", "a mapping"))
    elif isinstance(name, str | Path):
        called = os.path.normpath(name) if str(name).endswith(FILE_SUFFIXES) else str(name)
    else:
        called = shown(name)
    longer = (*chain, called)
    circle = called in chain and not isinstance(name, Mapping)
    if circle or len(chain) > MOST_EXTENDS:
        what = "goes in a circle" if circle else f"goes over more than {MOST_EXTENDS} steps"
        msg = f"{f'{key}: ' if key else ''}'extends' {what}: {' -> '.join(longer)}"
        allowed = f"at most {MOST_EXTENDS} names, each once"
        raise ConfigError(msg, key=f"{key}.extends".strip("."), value=called, allowed=allowed)
    return longer


def base_of(data: dict[str, Any], path: str | Path) -> Any:
    """Take ``extends`` out of what a file says, files from its own folder; None without one."""
    base = data.pop("extends", None)
    is_file = isinstance(base, str) and base.endswith(FILE_SUFFIXES)
    return str(Path(path).parent / base) if is_file else base


def beside(value: Any, folder: Path) -> Any:
    """Return a file that a job names, or a mapping with one that it extends, from the job's folder.

    What does not lie there stays as it was given, for the working folder.
    """
    if isinstance(value, Mapping) and "extends" in value:
        return {**value, "extends": beside(value["extends"], folder)}
    named = isinstance(value, str) and value.endswith(FILE_SUFFIXES)
    return str(folder / value) if named and is_file(folder / value) else value


def _most_depth(text: str) -> int:
    """Return a bound on the nesting of a text: blocks stand further right, but for lists."""
    longest = max(map(len, text.splitlines()), default=0)
    return text.count("[") + text.count("{") + 2 * (longest + 1)


def _check_nodes(root: yaml.Node, name: str) -> None:
    """Refuse a document whose aliases make it too deep or too large; a circle has no end."""
    known: dict[int, tuple[int, int]] = {}
    begun: set[int] = set()

    def measure(node: yaml.Node, outside: int) -> tuple[int, int]:
        """Return the values that a node expands to, and the collections within one another."""
        if id(node) in known:
            return known[id(node)]
        if id(node) in begun:
            raise _too_many(name)
        if outside > MAX_DEPTH:
            raise _too_deep(name)
        begun.add(id(node))
        values, depth = 1, 0
        is_list = isinstance(node, yaml.SequenceNode)
        for child in node.value if is_list else chain.from_iterable(node.value):
            if isinstance(child, yaml.CollectionNode):
                size, inside = measure(child, outside + 1)
                values, depth = values + size, max(depth, inside)
            else:
                values += 1
        depth += 1
        if depth > MAX_DEPTH:
            raise _too_deep(name)
        if values > MAX_NODES:
            raise _too_many(name)
        known[id(node)] = values, depth
        return known[id(node)]

    if isinstance(root, yaml.CollectionNode):
        measure(root, 0)


def _too_deep(name: str) -> ConfigError:
    msg = f"{name} nests more than {MAX_DEPTH} lists and mappings, too deep for a configuration"
    return ConfigError(msg, key=name, allowed=f"at most {MAX_DEPTH} levels")


def _too_many(name: str) -> ConfigError:
    msg = f"{name} expands to more than {MAX_NODES} values, too many for a configuration"
    return ConfigError(msg, key=name, allowed="a document without nested aliases")
