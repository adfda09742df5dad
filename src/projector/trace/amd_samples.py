"""Samples of rocm-smi and of amd-smi (``monitor``, ``metric``), as CSV or JSON.

Tools that were asked once after the other leave outputs one behind the other, with headings and
lines for people between them. ``amd-smi -w`` writes a time into each row. Nothing else does: there
a line with the time stands before each output, as ``date +%s.%N`` writes it.
"""

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Floats, Ints
from projector.trace.events import Problem
from projector.trace.profiler_tables import load_formats, open_text, plain

_DEVICES = ("gpu", "device")
_TIME = "timestamp"
_STAMP = re.compile(r"\s*(\d{9,10}(?:\.\d+)?|\d{18,19})\s*")
_JSON_DEVICE = re.compile(r'"(?:card\d+|gpu|gpu_data)"\s*:')
_DOCUMENT = re.compile(r"^\s*[\[{]", re.MULTILINE)
_LIST = re.compile(r"\[[^\]\n]*\]")
"""Activities of several engines, which some releases of amd-smi write without quotation marks."""
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_DIE = re.compile(r"_\d+_clk$")


class _Row(NamedTuple):
    time_ns: int
    """0 where no time stands beside it."""
    device: str
    values: Mapping[str, Sequence[float]]
    """By quantity, as ``events.Samples.what``; clocks of several dies are several."""


@dataclass(frozen=True, slots=True)
class AmdSamples:
    """Rows of a file, in its order."""

    time_ns: Ints
    devices: tuple[str, ...]
    values: Mapping[str, Floats]
    """float64[rows] by quantity, NaN where a row does not tell it; the mean over dies."""


def is_amd(head: str) -> bool:
    """Whether the begin of a file is that of an output of rocm-smi or amd-smi."""
    known = load_formats().amd_sampled
    if _JSON_DEVICE.search(head):
        return True
    return any(
        line.split(",")[0].strip().lower() in (_TIME, *_DEVICES)
        and any(_heading(name) in known for name in line.split(","))
        for line in head.splitlines()
    )


def read_amd(path: Path, problems: list[Problem]) -> AmdSamples:
    """Return the samples of a file; rows without a time are left out, and told."""
    with open_text(path) as stream:
        text = stream.read()
    rows = list(_of_json(text, path, problems) if "{" in text else _of_csv(text, path, problems))
    timed = [row for row in rows if row.time_ns]
    if len(timed) < len(rows):
        told = f"{len(rows) - len(timed):,} of {len(rows):,} rows without a time, left out; write "
        told += "the time before each output, with date +%s.%N"
        problems.append(Problem(str(path), "", told))
    whats = dict.fromkeys(what for row in timed for what, found in row.values.items() if found)
    return AmdSamples(
        np.array([row.time_ns for row in timed], np.int64),
        tuple(row.device for row in timed),
        {
            what: np.array([np.mean(row.values.get(what, np.nan)) for row in timed])
            for what in whats
        },
    )


def _heading(name: str) -> str:
    """Return a heading as the table has it: ``gfx_0_clk`` of a die is ``gfxclk``."""
    return plain(_DIE.sub("_clk", name.strip()))


def _of_csv(text: str, path: Path, problems: list[Problem]) -> Iterator[_Row]:
    headings: list[str] = []
    time_ns = 0
    whole = _LIST.sub(lambda found: found[0].replace(",", ";"), text)
    for line, row in enumerate(csv.reader(whole.splitlines(), skipinitialspace=True), 1):
        fields = [field.strip() for field in row]
        if fields and fields[0].lower() in (_TIME, *_DEVICES):
            headings = [field.lower() for field in fields]
        elif len(fields) == 1 and _STAMP.fullmatch(fields[0]):
            time_ns = stamp_ns(fields[0])
        elif headings and len(fields) == len(headings):
            yield _row(dict(zip(headings, fields, strict=True)), time_ns)
        elif headings and len(fields) > 1:
            told = f"a row of {len(fields)} fields, not {len(headings)}, left out"
            problems.append(Problem(str(path), f"line {line:,}", told))


def _of_json(text: str, path: Path, problems: list[Problem]) -> Iterator[_Row]:
    """Yield the rows of documents one behind the other, with lines of text between them."""
    decoder = json.JSONDecoder()
    place, time_ns = 0, 0
    while (found := _DOCUMENT.search(text, place)) is not None:
        between = text[place : found.end() - 1].splitlines()
        stamps = [line for line in between if _STAMP.fullmatch(line)]
        time_ns = stamp_ns(stamps[-1]) if stamps else 0
        try:
            document, place = decoder.raw_decode(text, found.end() - 1)
        except (ValueError, RecursionError):
            where = f"character {found.end():,}"
            problems.append(Problem(str(path), where, "no JSON from here on, left out"))
            return
        for entry in _entries(document):
            yield _row(entry, time_ns)


def _entries(document: Any) -> Iterator[dict[str, Any]]:
    """Yield what a document tells of each device, by names as the CSV has them."""
    if isinstance(document, dict) and isinstance(document.get("gpu_data"), list):
        document = document["gpu_data"]
    if isinstance(document, dict):
        document = [
            {"device": name} | entry
            for name, entry in document.items()
            if name.startswith("card") and isinstance(entry, dict)
        ]
    for entry in document:
        if isinstance(entry, dict) and not entry.keys().isdisjoint(_DEVICES):
            yield dict(_flat(entry, ""))


def _flat(entry: Mapping[str, Any], section: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    for name, told in entry.items():
        value = told["value"] if isinstance(told, dict) and "value" in told else told
        if not isinstance(value, dict):
            yield (f"{section}_clk" if name == "clk" else name), value
        elif depth < _DEEPEST:
            yield from _flat(value, name, depth + 1)


_DEEPEST = 3
"""Sections within each other; `clock`, `gfx_0` are two."""


def _row(fields: Mapping[str, Any], time_ns: int) -> _Row:
    device = next((str(fields[name]) for name in _DEVICES if name in fields), "")
    told = _STAMP.fullmatch(str(fields.get(_TIME, "")))
    values: dict[str, list[float]] = {}
    for name, value in fields.items():
        known = load_formats().amd_sampled.get(_heading(name))
        number = None if known is None else _NUMBER.search(str(value))
        amount = float(number[0]) * known.factor if known and number else math.nan
        if known and math.isfinite(amount):
            values.setdefault(known.value, []).append(amount)
    return _Row(stamp_ns(told[0]) if told else time_ns, device.removeprefix("card"), values)


def stamp_ns(text: str) -> int:
    """Return seconds or nanoseconds since 1970 in ns; 0 if they are of no time that can be."""
    whole, _, part = text.strip().partition(".")
    stamp = int(whole) if len(whole) > 10 else int(whole + part[:9].ljust(9, "0"))
    return stamp if stamp < LAST_NS else 0


LAST_NS = 4_000_000_000_000_000_000
"""In the year 2096; larger stamps are damaged."""
