"""Which matrix products of a trace are which linear layers of the models, by their extents.

A product is known by what it sums over, its two other extents in either order, and how many are
batched: ``Y = X W``, its input gradient and its weight gradient share three extents and sum over
different ones. A layer of the models may be several products of the trace (Q, K and V apart, gate
and up apart), which share two extents and add up in the third. Where extents leave a choice, the
order in which the layers run decides.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Ints
from projector.config._base import Config
from projector.config.recurrence import WEIGHTS
from projector.config.resources import shipped_table
from projector.trace.activity import BACKWARD, COMMUNICATION, FORWARD, Activities
from projector.trace.groups import group as group_rows
from projector.trace.names import Pattern
from projector.trace.work import Work
from projector.validate.traces.expected import DATA_PARALLEL, PIPELINE, Expected, ExpectedRow, Name

NEAR = 0.05
"""One extent may differ by this share, as vocabularies are padded."""


class Extents(NamedTuple):
    """What tells products apart."""

    summed: int
    low: int
    high: int
    batch: int

    @staticmethod
    def of(m: int, n: int, k: int, batch: int) -> "Extents":
        """Return the extents of a product of [m, k] and [k, n]."""
        return Extents(k, min(m, n), max(m, n), batch)


@dataclass(frozen=True, slots=True)
class Part:
    """That a product is a layer, or so many of the products that make one run of it."""

    row: ExpectedRow
    times: int = 1


class Layout(NamedTuple):
    """The extents of a row, by what they are: tokens, and those of the weights."""

    summed: int
    kept: int
    """The extent of the output that no part divides."""
    divided: int
    """The extent that several products may have between them; the summed one of a gradient."""
    tokens: int


def layout_of(row: ExpectedRow, tokens: Fraction = Fraction(1)) -> Layout:
    """Return the extents of a row, its tokens scaled.

    Of the forward and of the gradient of the weights the output's width is divided, of the gradient
    of the input what is summed over.
    """
    key = row.key
    assert key is not None
    if row.name.phase == "weight":
        summed = int(key.k * tokens)
        return Layout(summed, key.n, key.m, summed)
    m = int(key.m * tokens)
    if row.name.phase == "backward":
        return Layout(key.k, key.n, key.k, m)
    return Layout(key.k, m, key.n, m)


def extents_of(row: ExpectedRow, tokens: Fraction = Fraction(1)) -> Extents:
    """Return the extents of a row, its tokens scaled."""
    key, layout = row.key, layout_of(row, tokens)
    assert key is not None
    if row.name.phase == "weight":
        return Extents.of(key.m, key.n, layout.tokens, key.batch)
    return Extents.of(layout.tokens, key.n, key.k, key.batch)


class Products:
    """Which products each linear layer of one phase of the trace is.

    Rows are those of the phase, in the order of the table; `seen` tells how often a step runs each
    work.
    """

    def __init__(self, rows: Sequence[ExpectedRow], seen: Mapping[Work, float]) -> None:
        self.rows = rows
        self.tokens = _tokens_scale(rows, seen)
        """Tokens of the trace over those of the job."""
        self.by_extents: dict[Extents, list[ExpectedRow]] = defaultdict(list)
        for row in rows:
            self.by_extents[extents_of(row, self._scale(row))].append(row)
        self.count: dict[Extents, float] = defaultdict(float)
        for work, times in seen.items():
            self.count[_extents(work)] += times
        self.scale = 1.0
        """Runs of the trace over those of the job."""
        self.parts: dict[Extents, list[Part]] = {}
        # How much more often the trace may run everything, the job's own runs first. A product
        # that is one layer runs as often as this says, or more often if it is a piece of others
        # besides.
        ratios = {
            times / sum(row.runs for row in self.by_extents[extents])
            for extents, times in self.count.items()
            if extents in self.by_extents
        }
        self.scale = max([1.0, *sorted(ratios)], key=self._explained)
        self._match()
        experts = [row for row in self.rows if row.key is not None and row.key.expert]
        found = {
            work: next((row for row in experts if _tokens_of(work, row, layout_of(row))), None)
            for work in seen
            if _extents(work) not in self.parts
        }
        self.grouped = {work: row for work, row in found.items() if row is not None}

    def key_of(self, work: Work) -> Work | Extents:
        """Return what products have in common that may be the same layers."""
        return work if work in self.grouped else _extents(work)

    def of(self, work: Work) -> list[Part]:
        """Return what a product may be, in the order in which the model runs it."""
        if work in self.grouped:
            return [Part(self.grouped[work])]
        parts = self.parts.get(_extents(work), [])
        place = {id(row): number for number, row in enumerate(self.rows)}
        return sorted(parts, key=lambda part: place[id(part.row)])

    def parts_of_names(self) -> dict[Name, float]:
        """Return how many products make one run of each operation."""
        taken: dict[int, int] = defaultdict(int)
        for parts in self.parts.values():
            for part in parts:
                taken[id(part.row)] += part.times
        runs: dict[Name, float] = defaultdict(float)
        products: dict[Name, float] = defaultdict(float)
        for row in self.rows:
            if taken[id(row)]:
                runs[row.name] += row.runs
                products[row.name] += row.runs * taken[id(row)]
        return {name: products[name] / runs[name] for name in runs}

    def _scale(self, row: ExpectedRow) -> Fraction:
        assert row.key is not None
        return Fraction(1) if row.key.expert else self.tokens

    def _match(self) -> None:
        self.parts = {
            extents: [Part(row) for row in self.by_extents[extents]]
            for extents in self.count
            if extents in self.by_extents
        }
        self._match_parts()
        known = self._known()
        open_rows = [row for row in self.rows if id(row) not in known]
        for extents in self.count:
            if extents in self.parts:
                continue
            near = [row for row in open_rows if _is_near(extents, extents_of(row, self.tokens))]
            if near:
                self.parts[extents] = [Part(row) for row in near]

    def _explained(self, scale: float) -> tuple[float, float]:
        """Return the time of the rows that are matched under a scale, and what is left over."""
        self.scale = scale
        self._match()
        known = self._known()
        matched_s = sum(row.runs * row.time_s for row in self.rows if id(row) in known)
        left = self._left()
        size = {extents: extents.summed * extents.low * extents.high for extents in left}
        return matched_s, -scale * sum(
            abs(times) * size[extents] for extents, times in left.items()
        )

    def _known(self) -> set[int]:
        return {id(part.row) for parts in self.parts.values() for part in parts}

    def _left(self) -> dict[Extents, float]:
        left = {}
        for extents, times in self.count.items():
            used = sum(part.row.runs * part.times for part in self.parts.get(extents, ()))
            left[extents] = times / self.scale - used
        return left

    def _match_parts(self) -> None:
        known = self._known()
        for row in self.rows:
            if id(row) in known:
                continue
            layout, left = layout_of(row, self._scale(row)), self._left()
            pieces = {
                extents: (size, round(left[extents] / row.runs))
                for extents in self.count
                if (size := _piece(extents, row, layout)) and left[extents] > 0.5 * row.runs
            }
            chosen = _adding_up(pieces, layout.divided)
            for extents, times in chosen.items():
                self.parts.setdefault(extents, []).append(Part(row, times))


def _extents(work: Work) -> Extents:
    return Extents.of(work.m, work.n, work.k, work.batch)


def _tokens_scale(rows: Iterable[ExpectedRow], seen: Mapping[Work, float]) -> Fraction:
    """Return the tokens of the trace over those of the job, which most FLOP agree on.

    A run may have other micro-batches or sequences than the job; its weights are the same.
    """
    votes: dict[Fraction, float] = defaultdict(float)
    for row in rows:
        key = row.key
        if key is None or key.expert:
            continue
        layout = layout_of(row)
        for work, times in seen.items():
            if work.grouped or work.batch != key.batch:
                continue
            tokens = _tokens_of(work, row, layout)
            if tokens:
                flop = 2.0 * work.m * work.n * work.k * times
                votes[Fraction(tokens, layout.tokens)] += flop
    if not votes or votes[Fraction(1)] >= 0.5 * max(votes.values()):
        return Fraction(1)
    return max(votes, key=lambda scale: votes[scale])


def _tokens_of(work: Work, row: ExpectedRow, layout: Layout) -> int:
    """Return the tokens of a product that has the weights of a row, 0 if it has others."""
    if row.name.phase == "weight":
        is_same = sorted((work.m, work.n)) == sorted((layout.kept, layout.divided))
        return work.k if is_same else 0
    other = layout.divided if row.name.phase != "backward" else layout.kept
    if work.k != layout.summed:
        return 0
    if work.n == other:
        return work.m
    return work.n if work.m == other else 0


def _piece(extents: Extents, row: ExpectedRow, layout: Layout) -> int:
    """Return the extent of a product that may be a piece of a row's; 0 if it cannot."""
    assert row.key is not None
    if extents.batch != row.key.batch:
        return 0
    pair = (extents.low, extents.high)
    if row.name.phase == "backward":
        is_piece = pair == tuple(sorted((layout.tokens, layout.kept)))
        return extents.summed if is_piece and extents.summed < layout.summed else 0
    if extents.summed != layout.summed:
        return 0
    for kept, size in (pair, pair[::-1]):
        if kept == layout.kept and size < layout.divided:
            return size
    return 0


def _adding_up(pieces: Mapping[Extents, tuple[int, int]], whole: int) -> dict[Extents, int]:
    """Return how often each piece is taken so that they add up to the whole; empty if none do.

    All that is there is tried first, then fewer of each, the larger pieces first.
    """
    names = sorted(pieces, key=lambda extents: -pieces[extents][0])
    most = {extents: min(pieces[extents][1], whole // pieces[extents][0]) for extents in names}
    if sum(most[extents] * pieces[extents][0] for extents in names) == whole:
        return {extents: times for extents, times in most.items() if times}

    def search(place: int, rest: int) -> dict[Extents, int] | None:
        if rest == 0:
            return {}
        if place == len(names):
            return None
        extents = names[place]
        size = pieces[extents][0]
        for times in range(min(most[extents], rest // size), -1, -1):
            found = search(place + 1, rest - times * size)
            if found is not None:
                return {extents: times, **found} if times else found
        return None

    return search(0, whole) or {}


def _is_near(extents: Extents, expected: Extents) -> bool:
    pairs = zip(extents[:3], expected[:3], strict=True)
    unequal = [abs(here / there - 1.0) for here, there in pairs if here != there]
    return extents.batch == expected.batch and len(unequal) <= 1 and max(unequal, default=0) <= NEAR


class LabelPattern(Pattern):
    """A regular expression, and the label that it stands for."""

    label: str


class OperationNames(Config):
    """``hardware/trace_operations.yaml``."""

    modules: list[LabelPattern]
    kernels: list[LabelPattern]
    operators: list[LabelPattern]
    groups: list[LabelPattern]
    """Of names of process groups; labels are terms of the step."""
    collectives: list[LabelPattern]
    sources: dict[str, str]


load_operation_names = shipped_table(OperationNames, "trace_operations.yaml")


_PREFIXES = re.compile(r"^(nn\.Module:\s*|forward:|backward:|recompute:|f_|b_)")
_PATH = re.compile(r"[./ :]+")


def label_of(text: str, labels: Iterable[str]) -> str | None:
    """Return the label of the models that the name of an operation, module or range is.

    Names are such as ``attention.qkv``, ``layers.3.self_attn.q_proj`` or ``nn.Module: q_proj``.
    """
    known = dict.fromkeys(labels)
    plain = _PREFIXES.sub("", text)
    if plain in known:
        return plain
    for part in reversed([part for part in _PATH.split(plain) if part and not part.isdigit()]):
        for pattern in load_operation_names().modules:
            label = _known(pattern.label, known)
            if label and re.search(pattern.pattern, part, re.IGNORECASE):
                return label
    return None


def _known(label: str, labels: Iterable[str]) -> str | None:
    """Return a label that a job has; one that begins with a dot is of any recurrent mixer."""
    named = [f"{mixer}{label}" for mixer in WEIGHTS] if label[0] == "." else [label]
    return next((each for each in named if each in labels), None)


def label_in(text: str, labels: Iterable[str]) -> str | None:
    """Return the label that stands as a word in a kernel's name, or that a library calls so."""
    known = dict.fromkeys(labels)
    found = next((word for word in text.split() if "." in word and word in known), None)
    patterns = load_operation_names().kernels if _known(".in", known) else []
    fitting = (each for each in patterns if re.search(each.pattern, text))
    return found or next(filter(None, (_known(each.label, known) for each in fitting)), None)


def kind_of_operator(text: str) -> str | None:
    """Return the last part of a label that an operator's name speaks of, such as ``norm``."""
    return _first(load_operation_names().operators, text) or None


def _first(patterns: Iterable[LabelPattern], text: str) -> str:
    """Return the label of the first pattern that fits, nothing without one."""
    return next((p.label for p in patterns if re.search(p.pattern, text, re.IGNORECASE)), "")


_SEPARATORS = re.compile(r"[^a-z0-9]+")


def collective_of(text: str) -> str:
    """Return the operation of the models that a collective or its kernel is; empty if unknown."""
    return _first(load_operation_names().collectives, _SEPARATORS.sub("", text.lower()))


ALIKE = math.log(1.25)
"""Buffers are alike up to this logarithm of their ratio: frameworks pad and quantise them."""

EQUAL = 1e-9
"""Costs nearer than this are equal."""

_OF_DATA_PARALLEL = {
    "dp.param_all_gather": ("all_gather",),
    "dp.grad_reduce": ("reduce_scatter", "all_reduce"),
    "dp.tied_embeddings": ("all_reduce",),
}
_EXCHANGES = {"bulk_dispatch": "dispatch", "bulk_combine": "combine"}


def match_collectives(
    activities: Activities, expected: Expected, of: Ints, way: Ints, by: int
) -> None:
    """Write into ``of`` and ``way`` what the collectives of a rank are that are not known yet.

    Each is known by its kind and its group. Where that leaves a choice, the phase and the bytes
    decide; of equal ones those of data parallelism, which run at any time, come last. What is still
    equal, as of attention and MLP of a layer, takes turns in the order of the model.
    """
    names = {name: number for number, name in enumerate(expected.names)}
    rows = np.flatnonzero((activities.klass == COMMUNICATION) & (of < 0))
    columns = (
        activities.name, activities.operation, activities.group, activities.bytes,
        activities.detail, activities.phase, np.asarray(activities.recompute, np.int64),
    )  # fmt: skip
    if not len(rows):
        return
    same = group_rows(*(column[rows] for column in columns))
    keys = zip(*(column.tolist() for column in same.keys), strict=True)
    turns: dict[tuple[int, ...], list[int]] = {}
    place = {id(row): number for number, row in enumerate(expected.rows)}
    for number, (name, operation, group, size, detail, phase, again) in enumerate(keys):
        about = activities.details[detail] if detail >= 0 else {}
        texts = (str(about.get("collective", "")), activities.names[name],
                 activities.operations[operation] if operation >= 0 else "")  # fmt: skip
        kind = next((word for text in texts if (word := collective_of(text))), "")
        group_text = activities.groups[group] if group >= 0 else ""
        equal = _best(
            expected.rows, kind, f"{group_text} {about.get('group_description', '')}",
            _ranks(about), size, _phases(phase, again=bool(again)), expected,
        )  # fmt: skip
        if equal:
            turns.setdefault(tuple(place[id(row)] for row in equal), []).append(number)
    for numbers, members in turns.items():
        here = rows[np.isin(same.of, members)]
        here = here[np.argsort(activities.start_ps[here], kind="stable")]
        equal = [expected.rows[number] for number in numbers]
        cycle = np.array([names[row.name] for row in _cycle(equal, expected)], np.int64)
        of[here] = cycle[np.arange(len(here)) % len(cycle)]
        way[here] = by


def _cycle(equal: Sequence[ExpectedRow], expected: Expected) -> list[ExpectedRow]:
    """Return equal collectives in the order in which one pass through the model runs them.

    Those of the layers run as often as there are layers, those of the ends once; the backward runs
    the other way round.
    """
    if len(equal) == 1:
        return list(equal)
    ends = (expected.before, expected.after)
    before, after = ([row for row in equal if row.name.label in labels] for labels in ends)
    outside = {id(row) for row in (*before, *after)}
    within = [row for row in equal if id(row) not in outside]
    passes = min((row.runs for row in (*before, *after)), default=0.0)
    layers = round(within[0].runs / passes) if within and passes else 1
    cycle = [*before, *within * layers, *after]
    return cycle if equal[0].group == FORWARD else cycle[::-1]


def _ranks(about: Any) -> int:
    members = about.get("group_ranks", ())
    try:
        return len(members) if not isinstance(members, int) else members
    except TypeError:
        return 0


def _phases(phase: int, *, again: bool) -> tuple[str, ...]:
    if phase == FORWARD:
        return ("forward",)
    if phase == BACKWARD:
        return ("recompute", "forward") if again else ("backward", "weight")
    return ("forward", "backward", "weight")


def _best(
    rows: Iterable[ExpectedRow], kind: str, group: str, ranks: int, size: int,
    phases: Sequence[str], expected: Expected,
) -> list[ExpectedRow]:  # fmt: skip
    """Return the collectives of the models that are nearest, several where nothing tells which."""
    # The term of the step whose process group has a name; empty if none is recognised.
    category = _first(load_operation_names().groups, group)
    least, best = math.inf, list[ExpectedRow]()
    for row in rows:
        if row.kind not in ("collective", "exchange") or not _can_be(row, kind, ranks, expected):
            continue
        if category and category != row.category:
            continue
        cost = _cost(row, size, phases)
        if cost < least - EQUAL:
            least, best = cost, [row]
        elif cost <= least + EQUAL:
            best.append(row)
    return best


def _can_be(row: ExpectedRow, kind: str, ranks: int, expected: Expected) -> bool:
    if row.category == DATA_PARALLEL and row.key is None:
        degrees = expected.performance.degrees
        sizes = {degrees["dp"], degrees["dp"] * degrees["cp"], expected.performance.gpus}
        if row.name.label == "dp.tied_embeddings":
            sizes = {2}  # The first and the last stage.
        return kind in _OF_DATA_PARALLEL[row.name.label] and (not ranks or ranks in sizes)
    if row.category == PIPELINE and row.key is None:
        return kind == "send_recv"
    assert row.key is not None
    operation = _EXCHANGES.get(row.key.operation, row.key.operation)
    return kind == operation and (not ranks or ranks == row.key.ranks)


def _cost(row: ExpectedRow, size: int, phases: Sequence[str]) -> float:
    """Return how unlikely a collective is a row: another phase, other bytes."""
    if row.key is None:
        return 1.0 if row.category == DATA_PARALLEL else 0.0
    cost = 0.0 if row.name.phase in phases else 4.0
    if size > 0 and row.bytes > 0.0:
        apart = abs(math.log(size / row.bytes))
        cost += 0.1 * apart if apart <= ALIKE else 2.0 + apart
    return cost
