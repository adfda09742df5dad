"""The controls of the page: their legal values, and what they say of a job or a deployment.

The state of a tab is what the command line takes: overrides of a base, dotted field -> value. A
control stands at a place among its choices. Numbers of hardware are moved by factors, so that they
follow another device. ``hardware/report_words.yaml`` lists the controls.
"""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, get_args
from urllib.parse import parse_qsl, urlencode

from projector.config import resources
from projector.config._base import values_of
from projector.config.load import load_job, parse_override
from projector.config.names import in_full
from projector.config.training import RecomputeConfig
from projector.errors import ConfigError
from projector.report.figures.words import HARDWARE, multiple
from projector.report.job_file import job_mapping
from projector.report.terminal.grid import assignments
from projector.schedule.registry import SCHEDULES
from projector.serving.api import read_case
from projector.serving.deployment import CACHE_TYPES

Overrides = dict[str, Any]

DEFAULT_JOB: Mapping[str, Any] = resources.hardware_table("report_words.yaml")["app_job"]
"""Held where no job file is given."""

FACTORS = [0.25, 0.35, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0]

FEW = 8
"""Of fewer legal numbers each has a place; of more the powers of two."""

_NAMED: Mapping[str, Callable[[], Iterable[Any]]] = {
    "model": lambda: resources.shipped("models"),
    "cluster.device": lambda: resources.shipped("hardware"),
    "training.schedule": lambda: ("auto", *SCHEDULES),
    "training.recompute": lambda: values_of(RecomputeConfig, "granularity"),
    "kv_cache_bytes": lambda: dict.fromkeys(CACHE_TYPES.values()),
}
"""Field -> its values, where its type alone does not list them."""


class Control(NamedTuple):
    """One control."""

    field: str
    """Dotted; those of several that move together are joined by ``+``."""
    label: str
    kind: str
    """``menu``, ``range``, or ``factor``: a range of multiples of what hardware has."""
    usual: list[Any]
    """Choices that its schema allows, without those that only a file or a link has."""
    own: Any
    """What the base has."""

    def write(self, value: Any) -> str:
        """Return a choice as the page shows it."""
        if self.kind == "factor":
            return multiple(value)
        if self.field == "kv_cache_bytes":
            return ", ".join(name for name, size in CACHE_TYPES.items() if size == value)
        if value is None or value is False:
            return "off" if value is False else "at the knee"
        return value if isinstance(value, str) else f"{value:,}"


class Standing(NamedTuple):
    """What the controls of a tab offer, where they stand, and overrides that no control has."""

    choices: dict[str, list[Any]]
    places: list[int]
    extras: Overrides


def _control(field: str, entry: Any, read: Any, names: Overrides) -> Control:
    """Return a control from its entry in the table; ``read`` is the base."""
    label, *ends = (entry,) if isinstance(entry, str) else entry
    if field.startswith(HARDWARE):
        return Control(field, label, "factor", FACTORS, 1.0)
    *sections, name = field.split(".")
    owner = read.traffic if sections == ["load"] else getattr(read, "deployment", read)
    for section in sections:
        owner = getattr(owner, section, owner)
    own, info = names.get(field, getattr(owner, name)), type(owner).model_fields[name]
    if not ends:
        listed = _NAMED[field]() if field in _NAMED else get_args(info.annotation)
        return Control(field, label, "menu", [*listed], own)
    low, high = map(int, ends)
    for bound in info.metadata:
        low = max(low, getattr(bound, "ge", low), getattr(bound, "gt", low - 1) + 1)
        high = min(high, getattr(bound, "le", high))
    powers = (1 << power for power in range(31) if low <= 1 << power <= high)
    usual = range(low, high + 1) if high - low < FEW else powers
    left_open = [None] if info.default is None else []
    return Control(field, label, "range", [*left_open, *usual], own)


class Tab:
    """The controls of one tab over a base, and what they stand for."""

    def __init__(
        self, name: str, read: Callable[[Overrides], Any], command: str, names: Overrides
    ) -> None:
        """Make the controls.

        ``read`` returns the base with overrides, a job or a deployment with its load; ``command``
        begins the command line; ``names`` are values of fields that the base has as sections.
        """
        self.name, self.read, self.command, base = name, read, command, read({})
        table = resources.hardware_table("report_words.yaml")["app_controls"][name]
        self.groups = {
            title: [_control(field, entry, base, names) for field, entry in group.items()]
            for title, group in table.items()
        }
        self.controls = [control for group in self.groups.values() for control in group]

    def parse(self, text: str) -> Overrides:
        """Read overrides as the command line takes them; fields of a job may be short."""
        try:
            parts = shlex.split(text)
        except ValueError as error:
            raise ConfigError(f"{text}: {error}", key="overrides", value=text) from None
        found = dict(map(parse_override, parts))
        return in_full(found) if self.name == "train" else found

    def settle(self, overrides: Overrides) -> Standing:
        """Return where the controls stand for overrides; an unusual value becomes a choice."""
        standing, numbers = Standing({}, [], dict(overrides)), self._numbers(overrides)
        for control in self.controls:
            value, own = control.own, numbers.get(control.field, {})
            stated = {round(overrides.get(path, own[path]) / own[path], 4) for path in own}
            if len(stated) == 1:
                value = stated.pop()
                for path in own:
                    standing.extras.pop(path, None)
            elif not isinstance(overrides.get(control.field), Mapping):
                value = standing.extras.pop(control.field, value)
            choices = list(dict.fromkeys([*control.usual, control.own, value]))
            if control.kind != "menu":
                choices.sort(key=lambda each: each or 0)
            standing.choices[control.field] = choices
            standing.places.append(choices.index(value))
        return standing

    def collect(
        self, choices: Mapping[str, Sequence[Any]], places: Iterable[Any], extras: Overrides
    ) -> Overrides:
        """Return the overrides that controls at some places stand for, beside others."""
        pairs = zip(self.controls, places, strict=True)
        moved = {each.field: choices[each.field][int(place)] for each, place in pairs
                 if choices[each.field][int(place)] != each.own}  # fmt: skip
        found = {field: value for field, value in moved.items() if not field.startswith(HARDWARE)}
        for field, numbers in self._numbers(found | extras).items():
            if field in moved:
                found |= {path: float(f"{own * moved[field]:.6g}") for path, own in numbers.items()}
        return found | extras

    def _numbers(self, overrides: Overrides) -> dict[str, dict[str, float]]:
        """Return, by field of a factor, the dotted numbers of the hardware that overrides name."""
        machines = ("cluster.device", "cluster.network")
        read = self.read({name: overrides[name] for name in machines if name in overrides})
        cluster = getattr(read, "deployment", read).cluster
        found: dict[str, dict[str, float]] = {}
        for field in (control.field for control in self.controls if control.kind == "factor"):
            found[field] = {}
            for path in field.split("+"):
                value = attrgetter(path.removeprefix("cluster."))(cluster)
                by_type = value if isinstance(value, Mapping) else {"": value}
                found[field] |= {f"{path}.{kind}".rstrip("."): by_type[kind] for kind in by_type}
        return found


def tabs_of(source: str | Path | Mapping[str, Any] | None) -> dict[str, Tab]:
    """Return the tab of a job, or of the default one, and that of serving its model."""
    # The cluster decides dp; a stated one would contradict every other layout.
    job = load_job(load_job(DEFAULT_JOB if source is None else source), {"parallelism.dp": None})
    file = source if isinstance(source, str | Path) else "job.yaml"
    stated = job_mapping(job)
    model, device = stated["model"], stated["cluster"]["device"]
    names = {"model": model if isinstance(model, str) else job.model.name}
    names["cluster.device"] = device if isinstance(device, str) else job.cluster.device.name
    more = {"training.recompute": job.training.recompute.granularity}
    load, tp = {"context": 4096, "output": 512}, job.cluster.gpus_per_node
    start = {"model": job.model, "device": job.cluster.device, "tp": tp, "load": load}
    served = names
    if job.model.diffusion is not None:  # It generates no tokens.
        served = names | {"model": DEFAULT_JOB["model"]}
        start["model"] = served["model"]
    told = {**served, "tp": tp, **{f"load.{name}": tokens for name, tokens in load.items()}}
    command = f"performance --config {shlex.quote(str(file))}"
    return {
        "train": Tab("train", lambda changes: load_job(job, changes), command, names | more),
        "serve": Tab("serve", lambda changes: read_case(start, changes),
                     f"serve {assignments(told)}", served),
    }  # fmt: skip


def link_of(tab: str, **parts: Overrides | None) -> str:
    """Return the query of a link: the tab in front, and each part as the command line takes it."""
    told = {name: assignments(part) for name, part in parts.items() if part is not None}
    kept = {name: text for name, text in told.items() if text or name == "pin"}
    return "?" + urlencode(kept | ({} if tab == "train" else {"tab": tab}), safe="=,.:")


def state_of(query: str | None, tabs: Mapping[str, Tab]) -> dict[str, Overrides]:
    """Read the query of a link: tab, or ``pin`` for what is pinned -> its overrides."""
    parts = dict(parse_qsl((query or "").removeprefix("?"), keep_blank_values=True))
    owners = {**tabs, "pin": tabs["train"]}
    return {name: owners[name].parse(text) for name, text in parts.items() if name in owners}
