"""Files that ship with the package: where they lie, in the wheel or in a checkout, and tables."""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache, wraps
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from projector.config.yaml_file import (
    FILE_SUFFIXES,
    base_of,
    extended,
    parse_yaml,
    read_text,
    read_yaml,
)
from projector.errors import ConfigError

if TYPE_CHECKING:
    from projector.config._base import Config


Table = TypeVar("Table", bound="Config")

_PACKAGE = Path(__file__).resolve().parents[1]


@cache
def data_dir(kind: str) -> Path:
    """Return the folder of shipped ``hardware`` or ``models``."""
    for folder in (_PACKAGE / "_data" / kind, _PACKAGE.parents[1] / kind):
        if folder.is_dir():
            return folder
    msg = f"the installation is incomplete: no folder of {kind} files was found"
    raise ConfigError(msg, key=kind)


def normalise(name: str) -> str:
    """Fold case and separators, so that ``MI300X``, ``mi300x`` and ``mi-300x`` are one name."""
    return "".join(char for char in name.lower() if char.isalnum() or char == ".").strip(".")


@cache
def _aliases(kind: str) -> dict[str, str]:
    file = data_dir(kind) / "aliases.yaml"
    return {alias: str(stem) for alias, stem in read_yaml(file).items()} if file.is_file() else {}


@cache
def index(kind: str) -> dict[str, Path]:
    """Map the normalised names of shipped files, and their aliases (``aliases.yaml``), to paths."""
    folder = data_dir(kind)
    names = {
        normalise(path.stem): path
        for path in sorted(folder.glob("*.yaml"))
        if path.stem not in _NOT_ENTRIES
    }
    for alias, stem in _aliases(kind).items():
        names.setdefault(normalise(alias), folder / f"{stem}.yaml")
    return names


@cache
def _with_owner(kind: str) -> frozenset[str]:
    """Return the aliases with a slash, such as ``meta-llama/Llama-3.1-70B``, part by part."""
    return frozenset(_parts(alias) for alias in _aliases(kind) if "/" in alias)


def _parts(name: str) -> str:
    return "/".join(normalise(part) for part in re.split(r"[/\\]", name))


def _is_name(kind: str, name: str) -> bool:
    """Whether a text is a name and no path: ``../a100`` is a file that does not exist."""
    is_path = "/" in name or "\\" in name or ".." in name
    return not is_path or _parts(name) in _with_owner(kind)


def shipped_table(kind: type[Table], name: str) -> Callable[[], Table]:
    """Return what reads a table of ``hardware/``, of names, patterns or prices, once."""
    return cache(lambda: kind.parse(read_yaml(data_dir("hardware") / name), path=name))


Read = TypeVar("Read", bound=Callable[..., Any])


def once_by_name(read: Read) -> Read:
    """Keep what is made of shipped names: it takes milliseconds, and functions go by name."""
    known = lru_cache(maxsize=128)(read)

    @wraps(read)
    def reader(source: Any, *key: str, **more: Any) -> Any:
        shipped = isinstance(source, str) and not source.endswith(FILE_SUFFIXES)
        return (known if shipped else read)(source, *key, **more)

    return cast("Read", reader)


def stated_and_base(
    source: Any, kind: str, *, key: str, chain: tuple[str, ...], suffixes: tuple[str, ...]
) -> tuple[dict[str, Any], Any, tuple[str, ...]]:
    """Return what a mapping, a file or a shipped name states, what it extends, and the chain.

    ``chain`` has what extends it already, and gains its name; see `extended`.
    """
    chain = extended(chain, source, key=key)
    if isinstance(source, Mapping):
        data = dict(source)
    elif isinstance(source, Path) or str(source).endswith(suffixes):
        data = read_yaml(source, key=key)
        return data, base_of(data, source), chain
    else:
        data = dict(contents(find(kind, str(source), key=key)))
    return data, data.pop("extends", None), chain


@lru_cache(maxsize=512)
def contents(path: Path) -> Mapping[str, Any]:
    """Return what a shipped file says, read once: many devices and models extend the same."""
    return read_yaml(path)


def shipped(kind: str) -> list[str]:
    """Return the names of the shipped files of one kind, sorted."""
    return sorted({path.stem for path in index(kind).values()})


def known(kind: str, name: str) -> Path | None:
    """Return the shipped file that a name or a name with its owner means, None without one."""
    path = index(kind).get(normalise(name))
    return path if path is not None and _is_name(kind, name) else None


def find(kind: str, name: str, *, key: str) -> Path:
    """Return the shipped file called ``name``."""
    path = known(kind, name)
    if path is not None:
        return path
    names = shipped(kind)
    candidates = {normalise(stem): stem for stem in names}
    candidates |= {alias: path.stem for alias, path in index(kind).items()}
    close = difflib.get_close_matches(normalise(name), candidates, n=4, cutoff=0.4)
    nearest = list(dict.fromkeys(candidates[match] for match in close))
    hint = f"nearest: {', '.join(nearest)}" if nearest else f"known: {', '.join(names)}"
    msg = f"{key}: unknown {_SINGULAR[kind]} {name!r}; {hint}"
    raise ConfigError(msg, key=key, value=name, allowed=nearest or names)


_NOT_ENTRIES = {
    "aliases", "attention", "engines", "exchange_limits", "exchange_proxies", "experts",
    "failures", "gemm", "inference", "left_out", "measured", "memory", "networks", "power",
    "prices", "probe", "recipes", "release_drift", "report_tables", "report_words", "runtime_names",
    "scaling", "software", "table_names", "table_words", "timeline_names", "trace_counters",
    "trace_events", "trace_formats", "trace_names", "trace_operations", "trace_operators",
    "training", "transports", "uncertainty", "uncertainty_left_out",
}  # fmt: skip
_SINGULAR = {
    "hardware": "GPU",
    "hardware/first_order": "first-order device",
    "hardware/nodes": "node",
    "models": "model",
}


_KEY = re.compile(r"^(?=(\w[\w.-]*):\s)", re.MULTILINE)


class Sections(Mapping[str, Any]):
    """The mapping of a YAML file whose top level is a block of keys, each parsed when asked for.

    A job needs one section of twenty. What is wrong in one shows no earlier than its first reader.
    """

    def __init__(self, path: Path) -> None:
        self._name = path.name
        _, *pieces = _KEY.split(read_text(path, key=path.name))
        self._texts = dict(zip(pieces[::2], pieces[1::2], strict=True))
        self._values: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:
            self._values[key] = parse_yaml(self._text(key), name=self._name)[key]
        return self._values[key]

    def _text(self, key: str) -> str:
        """Return a section, behind those with anchors where it may refer to one."""
        text = self._texts[key]
        if "*" not in text:
            return text
        before = takewhile(lambda other: other is not text, self._texts.values())
        return "".join([*(other for other in before if "&" in other), text])

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


@cache
def hardware_table(file: str) -> Mapping[str, Any]:
    """Return a table of ``hardware/``, read once: every variant of a job asks for it."""
    return Sections(data_dir("hardware") / file)


def settings_of(tool: str) -> Mapping[str, Any]:
    """Return what is known of the settings of another tool, from ``hardware/settings/``."""
    return hardware_table(f"settings/{tool}.yaml")


SPELLINGS = settings_of("spellings")
"""Section of a job -> other spellings of its fields."""
