"""What a reader of a foreign file hands on, and the settings of a file with sections."""

import difflib
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

from projector.config._base import put
from projector.config.first_order import devices_of_a_node
from projector.config.formats.values import Converter, flag, integer, number, word, words
from projector.config.parallelism import ParallelismConfig
from projector.errors import ConfigError, UnsupportedError, shown

_T = TypeVar("_T")

_READERS: Final[Mapping[str, Converter]] = {
    "integer": integer,
    "number": number,
    "flag": flag,
    "word": word,
}

CARRIED: Final = "projector"
"""What carries fields of ours in the JSON files of another tool; see `detect`."""

Derived = Mapping[str, tuple[Any, str]]
"""Dotted field -> its value and where that comes from."""


class ReadJob(NamedTuple):
    """A job as a file of another tool describes it.

    A reader does not see the overrides of the user. What only they can decide stands in ``missing``
    and ``least_nodes`` and is settled by `projector.config.load` behind them.
    """

    data: dict[str, Any]
    """The native layout."""
    notes: tuple[str, ...] = ()
    """Warnings: what the file states and the projection does not follow."""
    origins: Mapping[str, str] = {}
    """Dotted field -> where its value came from, if the file does not state it."""
    ignored: tuple[str, ...] = ()
    """Settings of the file, as it writes them, that cannot change a projection."""
    missing: Mapping[str, ConfigError] = {}
    """Dotted field that the file leaves open -> the error where no override gives it either."""
    least_nodes: bool = False
    """Whether the file leaves the nodes open: the least number that holds the layout is taken."""
    derive: Callable[[dict[str, Any]], Derived] | None = None
    """Fields that follow from others: called with the native layout behind overrides and nodes,
    such as the batch of a file that states that of a rank. Given fields stay; ``notes`` warn."""


class Unsupported(NamedTuple):
    """A setting that makes another model than any that can be projected."""

    what: str
    """What is not supported, with its verb."""
    instead: str
    """What is."""
    without_effect: tuple[Any, ...] = ()
    """Values that leave the model as it is, besides 0, false, null and none."""


# The settings of a file with sections.

MOST_NESTED = 16
"""Sections within sections; no tool has more than five."""

MOST_NAMED = 8
"""Unknown settings that one warning names; it counts the rest."""

MOST_COMPARED = 100
"""Characters of an unknown setting that are compared with those of known ones."""


class Stated:
    """Settings by dotted name, and the native job that a reader makes of them."""

    def __init__(
        self,
        data: Mapping[str, Any],
        tool: str,
        moved: Mapping[str, str] | None = None,
        *,
        prefix: str = "",
        assumed: Mapping[str, Any] | None = None,
        assumed_origin: str = "",
    ) -> None:
        """Take the sections of a file.

        ``moved`` maps other names of settings to those looked for, ``prefix`` goes before all.
        ``assumed`` has settings of presets, which hold where the file says nothing.
        """
        self.tool = tool
        """Whose settings they are, for messages and origins."""
        self.values: dict[str, Any] = {}
        """Dotted name, as the newest release writes it -> value. Nulls are left out."""
        self.job: dict[str, Any] = {}
        self.notes: list[str] = []
        """What is projected otherwise than stated."""
        self.origins: dict[str, str] = {}
        """Dotted field -> where its value came from, if not from the file."""
        self.missing: dict[str, ConfigError] = {}
        """Dotted field that nothing states -> the error where no override gives it."""
        self._spelt: dict[str, str] = {}
        self._used: set[str] = set()
        for written, value in _flat(data, tool):
            name = prefix + (moved or {}).get(written, written)
            if value is not None and name not in self.values:
                self.values[name] = value
                self._spelt[name] = written
        given = {} if assumed is None else assumed
        self._assumed = {name: given[name] for name in given if name not in self.values}
        self._assumed_origin = assumed_origin
        self.values |= self._assumed

    def spell(self, name: str) -> str:
        """Return a setting as the file writes it."""
        return self._spelt.get(name, name)

    def has(self, name: str) -> bool:
        """Whether a setting is stated; it then counts as taken over."""
        self._used.add(name)
        return name in self.values

    def get(self, name: str, convert: Callable[[str, Any], _T], default: Any = None) -> _T:
        """Return a setting as ``convert`` reads it."""
        found: _T = convert(self.spell(name), self.values[name]) if self.has(name) else default
        return found

    def integer(self, name: str, default: int, *, least: int = 1) -> int:
        """Return a whole number."""
        found = self.get(name, integer, default)
        if found < least:
            self.fail(name, f"an integer >= {least}")
        return found

    def number(self, name: str, default: float) -> float:
        """Return a number."""
        return self.get(name, number, default)

    def on(self, name: str, *, default: bool = False) -> bool:
        """Whether a switch is on."""
        return self.get(name, flag, default)

    def word(self, name: str, default: str = "") -> str:
        """Return a name."""
        return self.get(name, word, default)

    def words(self, name: str) -> list[str]:
        """Return names, given one by one or in one text."""
        return self.get(name, words, [])

    def choice(self, name: str, meanings: Mapping[str, Any], default: str) -> Any:
        """Return what the name means that a setting is set to."""
        text = self.word(name, default)
        if text not in meanings:
            self.fail(name, f"one of {', '.join(meanings)}", list(meanings))
        return meanings[text]

    def put(self, target: str, value: Any, *names: str, origin: str = "") -> None:
        """Set a dotted field; without one of ``names`` in the file it has an origin of its own."""
        put(self.job, target, value)
        held = [name for name in names if name in self.values]
        if not held:
            self.origins[target] = origin or f"{self.tool} default"
        elif all(name in self._assumed for name in held):
            self.origins[target] = self._assumed_origin

    def take(self, rows: Mapping[str, Mapping[str, Any]], prefix: str = "") -> None:
        """Set fields by rows of ``hardware/settings/``: setting -> its field and how it is read.

        A row has what ``reads`` the setting, the ``least`` value, the ``default`` where the tool's
        may differ from ours, and what values mean; what has no meaning sets nothing.
        """
        for setting, row in rows.items():
            name, default = prefix + setting, row.get("default")
            if not self.has(name) and default is None:
                continue
            value = self.get(name, _READERS[row["reads"]], default)
            if "least" in row and value < row["least"]:
                self.fail(name, f"an integer >= {row['least']}")
            if row["reads"] == "word" and "means" in row:
                value = self.choice(name, row["means"], default or "")
            elif "means" in row:
                value = row["means"].get(value)
            if value is not None:
                self.put(row["field"], value, name)

    def warn(self, text: str) -> None:
        """Add a warning, once."""
        if text not in self.notes:
            self.notes.append(text)

    def unmodelled(self, table: Mapping[str, Any], prefix: str = "") -> None:
        """Warn of settings that change a run and are not modelled, as ``table`` lists them.

        It has what is projected instead, or that and the values without effect, by name.
        """
        for setting, row in table["unmodelled"].items():
            own = {"note": row} if isinstance(row, str) else row
            name, usual = prefix + setting, table["without_effect"]
            if self.has(name) and self.values[name] not in own.get("without_effect", usual):
                self.warn(f"{self.spell(name)} is not modelled: {own['note']}")

    def fail(self, name: str, allowed: str, listed: Any = None) -> NoReturn:
        """Raise `ConfigError`: a setting is not what is allowed."""
        value, key = self.values.get(name), self.spell(name)
        msg = f"{key} should be {allowed} (got {shown(value)})"
        raise ConfigError(msg, key=key, value=value, allowed=allowed if listed is None else listed)

    def refusal(self, name: str, why: str, allowed: Any) -> UnsupportedError:
        """Return the error of a setting that is legal and not supported."""
        value = self.values.get(name)
        key = self.spell(name)
        return UnsupportedError(
            f"{key} {shown(value)}: {why}", key=key, value=value, allowed=allowed
        )

    def _about_unknown(self, names: list[str]) -> str:
        """Return one warning about all unknown settings, with the known ones they resemble."""
        told = []
        for name in names[:MOST_NAMED]:
            close = difflib.get_close_matches(name[:MOST_COMPARED], self._used, n=1, cutoff=0.85)
            hint = f" (did you mean {close[0]}?)" if close else ""
            told.append(f"{name[:MOST_COMPARED]}{hint}")
        if len(names) > MOST_NAMED:
            told.append(f"and {len(names) - MOST_NAMED} more")
        count = "an unknown setting" if len(names) == 1 else f"{len(names)} unknown settings"
        verb = "was" if len(names) == 1 else "were"
        return f"{count} of {self.tool} {verb} ignored: {', '.join(told)}"

    def ask_for(self, field: str, how: str) -> None:
        """Make a field that no file of this kind states one that an override has to give."""
        msg = f"a file of {self.tool} does not say {field}; give {how}"
        self.missing[field] = ConfigError(msg, key=field, allowed=how)

    def read_job(
        self,
        harmless: Collection[str],
        *,
        derive: Callable[[dict[str, Any]], Derived] | None = None,
        least_nodes: bool = False,
    ) -> ReadJob:
        """Return what was made of the file; ``derive`` and ``least_nodes`` are as in `ReadJob`.

        ``harmless`` has settings that cannot change a projection, or beginnings of them that end
        with a point or an underscore.
        """
        self.ask_for("cluster.device", "cluster.device=h100 (projector hardware lists them)")
        prefixes = tuple(name for name in harmless if name.endswith((".", "_")))
        ignored: list[str] = []
        unknown: list[str] = []
        for name in self.values:
            if name in self._used or name in self._assumed:
                continue
            known = name in harmless or name.startswith(prefixes)
            (ignored if known else unknown).append(self.spell(name))
        if unknown:
            self.warn(self._about_unknown(unknown))
        return ReadJob(
            self.job,
            tuple(self.notes),
            self.origins,
            tuple(ignored),
            self.missing,
            least_nodes,
            derive,
        )


def _flat(data: Mapping[str, Any], tool: str) -> list[tuple[str, Any]]:
    """Return settings by dotted name, those of a section before those of its own sections."""
    found: list[tuple[str, Any]] = []
    waiting = [("", data, 0)]
    while waiting:
        prefix, section, depth = waiting.pop()
        if depth > MOST_NESTED:
            msg = f"{prefix[:60]}: sections of {tool} are nested more than {MOST_NESTED} deep"
            raise ConfigError(msg, key=prefix, allowed=f"at most {MOST_NESTED} levels")
        inner = []
        for name, value in section.items():
            dotted = f"{prefix}.{name}" if prefix else str(name)
            if isinstance(value, Mapping):
                inner.append((dotted, value, depth + 1))
            else:
                found.append((dotted, value))
        waiting += reversed(inner)
    return found


# Degrees of a file, and the devices of a job.


def gpus_per_node(data: Mapping[str, Any]) -> int | None:
    """Return the devices of a node of a native layout; None where its cluster cannot be read."""
    try:
        return devices_of_a_node(section_of(data, "cluster"))
    except ConfigError:
        return None


def data_parallel(data: Mapping[str, Any]) -> int | None:
    """Return the data-parallel degree of a native layout; None where it does not come out even."""
    try:
        split = ParallelismConfig.parse(section_of(data, "parallelism"), path="parallelism")
    except ConfigError:
        return None
    if split.dp is not None:
        return split.dp
    nodes, size = section_of(data, "cluster").get("nodes"), gpus_per_node(data)
    if size is None or not isinstance(nodes, int):
        return None
    dp, rest = divmod(nodes * size, split.tp * split.pp * split.cp)
    return None if rest or dp < 1 else dp


def nodes_for(gpus: int, data: Mapping[str, Any]) -> dict[str, int]:
    """Return the fields of a cluster that hold this many devices, in whole nodes."""
    size = gpus_per_node(data)
    if size is None:
        return {}
    if gpus < size and section_of(data, "cluster").get("gpus_per_node") is None:
        return {"cluster.nodes": 1, "cluster.gpus_per_node": gpus}
    return {"cluster.nodes": -(-gpus // size)}


def nodes_of_ranks(ranks: int, data: Mapping[str, Any]) -> dict[str, int]:
    """Return the fields of a cluster that hold this many data-parallel ranks.

    Nothing where there is no such number, or where nodes or other degrees are given otherwise.
    """
    split = data.get("parallelism") or {}
    degrees = [split.get(name) or 1 for name in ("tp", "pp", "cp")]
    given = (data.get("cluster") or {}).get("nodes")
    if not ranks or given or not all(isinstance(degree, int) for degree in degrees):
        return {}
    return nodes_for(ranks * math.prod(degrees), data)


def section_of(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section of a native job, an empty one where it is missing or a name."""
    section = data.get(name)
    return section if isinstance(section, Mapping) else {}
