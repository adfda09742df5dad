"""Which operation of the models each activity of a trace is, and what is neither.

Matching goes from what is certain to what is likely. Names of the models themselves come first
(our own timelines, annotations, modules), then matrix products by their extents, attention by the
type of its kernels, the backward by its link to the forward, collectives by kind, group and bytes,
the optimizer by its phase. What is left stands between two products, where the models have few
operations to choose from. Nothing is forced: what fits nowhere stays unmatched, with its time.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from projector.arrays import Flags, Ints
from projector.trace import activity
from projector.trace.activity import FORWARD
from projector.trace.groups import Groups
from projector.trace.groups import group as group_rows
from projector.trace.work import Work, Works
from projector.validate.traces import products as of_products
from projector.validate.traces.expected import Expected, ExpectedRow, Name

UNMATCHED, BY_NAME, BY_EXTENTS, BY_KIND, BY_LINK, BY_PLACE = range(6)
"""How an activity was matched."""

WAYS = ("unmatched", "name", "extents", "kind", "link", "place")


@dataclass(frozen=True, slots=True)
class Matching:
    """What each activity is."""

    names: tuple[Name, ...]
    """Operations of the models."""
    of: Ints
    """int64[activities]: row of ``names``; -1 where nothing matches."""
    way: Ints
    """int64[activities]: position in `WAYS`."""
    tokens: float
    """Tokens of a micro-batch of the trace over those of the job."""
    scale: Mapping[str, float]
    """Phase of the models -> runs of the trace over those of the job."""
    parts: Mapping[Name, float]
    """Products of the trace that make one run of an operation; 1 where it is not said."""


class _Group(NamedTuple):
    phase: int
    recompute: bool
    phases: tuple[str, ...]


_GROUPS = (
    _Group(FORWARD, False, ("forward",)),
    _Group(activity.BACKWARD, False, ("backward", "weight")),
    _Group(activity.BACKWARD, True, ("recompute",)),
)


class _Matcher:
    def __init__(
        self, activities: activity.Activities, works: Works, expected: Expected, iterations: int
    ) -> None:
        self.activities = activities
        self.works = works
        self.expected = expected
        self.iterations = iterations
        self.names = expected.names
        self.place = {name: number for number, name in enumerate(self.names)}
        self.of = np.full(len(activities), -1, np.int64)
        self.way = np.zeros(len(activities), np.int64)
        self.tokens = 1.0
        self.scale: dict[str, float] = {}
        self.parts: dict[Name, float] = {}

    def put(self, rows: Ints, name: Name | None, way: int) -> None:
        """Say what some activities are, unless they are known already."""
        if name is None or name not in self.place:
            return
        rows = rows[self.of[rows] < 0]
        self.of[rows] = self.place[name]
        self.way[rows] = way

    def in_group(self, group: _Group) -> Flags:
        """Return the activities that compute in a phase, recomputation apart."""
        table = self.activities
        return np.asarray(
            (table.klass == activity.COMPUTE)
            & (table.phase == group.phase)
            & (table.recompute == group.recompute)
        )

    def phases(self, group: _Group) -> tuple[str, ...]:
        """Return the phases of the models that a group is, or that it repeats.

        A recomputation that the job does not have repeats the forward.
        """
        if group.recompute and not any(name.phase == "recompute" for name in self.names):
            return ("forward",)
        return group.phases


def match(
    activities: activity.Activities, works: Works, expected: Expected, iterations: int
) -> Matching:  # fmt: skip
    """Match what one rank did in some whole iterations with what the models expect of a step."""
    matcher = _Matcher(activities, works, expected, max(iterations, 1))
    _by_name(matcher)
    of_products.match_collectives(matcher.activities, expected, matcher.of, matcher.way, BY_KIND)
    for group in _GROUPS:
        _by_extents(matcher, group)
        _attention(matcher, group)
    table = matcher.activities
    rows = np.flatnonzero((table.phase == activity.OPTIMIZER) & (table.klass == activity.COMPUTE))
    matcher.put(rows, Name("optimizer", "optimizer"), BY_KIND)
    # What the backward is linked to must be known first.
    _by_place(matcher, _GROUPS[0])
    _by_link(matcher)
    for group in _GROUPS[1:]:
        _by_place(matcher, group)
    return Matching(
        matcher.names, matcher.of, matcher.way, matcher.tokens, matcher.scale, matcher.parts
    )


def _by_name(matcher: _Matcher) -> None:
    """Match what bears a name of the models, or that of a module that is one of their layers.

    The name is that of the operation around the launch, or stands in that of the kernel, as our own
    timelines have it.
    """
    table = matcher.activities
    labels = {name.label for name in matcher.names}
    of_operation = [of_products.label_of(text, labels) for text in table.operations]
    of_kernel = [of_products.label_in(text, labels) for text in table.names]
    same = group_rows(table.operation, table.name)
    order = tuple(dict.fromkeys(name.label for name in matcher.names))
    found, weight = np.full(same.count, -1, np.int64), np.zeros(same.count, np.bool_)
    for number, (operation, name) in enumerate(
        zip(same.keys[0].tolist(), same.keys[1].tolist(), strict=True)
    ):
        label = of_kernel[name] or (of_operation[operation] if operation >= 0 else None)
        if label is not None:
            found[number] = order.index(label)
            weight[number] = "weight" in table.names[name].split(label)[-1]
    of_row, says_weight = found[same.of], weight[same.of]
    exchanges = np.flatnonzero((table.klass == activity.COMMUNICATION) & (of_row >= 0))
    for number in np.unique(of_row[exchanges]).tolist():
        _put_collective(matcher, exchanges[of_row[exchanges] == number], order[number])
    for group in _GROUPS:
        rows = np.flatnonzero(matcher.in_group(group) & (of_row >= 0))
        for number in np.unique(of_row[rows]).tolist():
            own = rows[of_row[rows] == number]
            told = own[says_weight[own]]
            matcher.put(told, Name(order[number], "weight"), BY_NAME)
            others = own[~says_weight[own]]
            # Where names tell weight gradients, what has no such name is of the input.
            left_out = "weight" if len(told) else ""
            _put_label(matcher, others, order[number], group, BY_NAME, left_out)


def _put_collective(matcher: _Matcher, rows: Ints, label: str) -> None:
    table = matcher.activities
    for group in _GROUPS:
        chosen = (table.phase[rows] == group.phase) & (table.recompute[rows] == group.recompute)
        for phase in matcher.phases(group):
            matcher.put(rows[chosen], Name(label, phase), BY_NAME)
    matcher.put(rows, Name(label, "step"), BY_NAME)


def _put_label(
    matcher: _Matcher, rows: Ints, label: str, group: _Group, way: int, left_out: str = ""
) -> None:
    """Say which label some activities of a phase are; extents tell the two gradients apart.

    ``left_out`` is a phase of which they are not.
    """
    found = [Name(label, phase) for phase in matcher.phases(group) if phase != left_out]
    names = [name for name in found if name in matcher.place]
    if len(names) <= 1:
        matcher.put(rows, names[0] if names else None, way)
        return
    gemms = [row for row in matcher.expected.rows if row.name in names and row.kind == "gemm"]
    if gemms:
        works = matcher.works
        of_gemm = np.array([*(work.kind == "gemm" for work in works.works), False])[works.of]
        of_work = np.where((works.main & of_gemm)[rows], works.of[rows], -1)
        for number in np.unique(of_work[of_work >= 0]).tolist():
            fitting = _gradients(works.works[number], gemms, matcher.tokens)
            here = rows[of_work == number]
            for turn, name in enumerate(fitting):
                matcher.put(here[turn :: len(fitting)], name, way)
        rows = rows[of_work < 0]
    # Casts, transposes and sums around a product are part of its operation.
    matcher.put(rows, names[0], way)


def _gradients(work: Work, rows: Sequence[ExpectedRow], scale: float) -> list[Name]:
    """Return which gradients of one layer a product may be; none where its extents fit neither.

    What it sums over tells them apart: the tokens, or the width of the output, of which it may be a
    piece. Where the tokens are as many as a width both may fit, and take turns.
    """
    weight = next((row for row in rows if row.name.phase == "weight"), None)
    if weight is None or len(rows) == 1:
        return [rows[0].name]
    key = weight.key
    assert key is not None
    tokens = round(key.k * scale)
    pairs = ((work.m, work.n), (work.n, work.m))
    fits = {
        "weight": work.k == tokens and any(a == key.n and b <= key.m for a, b in pairs),
        "backward": work.k <= key.m and (key.n, tokens) in pairs,
    }
    return [row.name for row in rows if fits[row.name.phase]]


def _by_extents(matcher: _Matcher, group: _Group) -> None:
    phases = matcher.phases(group)
    linear = (row for row in matcher.expected.rows if row.kind == "gemm" and not row.in_kernel)
    rows = [row for row in linear if row.name.phase in phases]
    table, works = matcher.activities, matcher.works
    chosen = matcher.in_group(group) & (works.of >= 0)
    main = chosen & works.main
    if not rows or not main.any():
        return
    seen: dict[Work, float] = {}
    numbers, counts = np.unique(works.of[main], return_counts=True)
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        if works.works[number].kind == "gemm":
            seen[works.works[number]] = count / matcher.iterations
    products = of_products.Products(rows, seen)
    if group.phase == FORWARD:
        matcher.tokens = float(products.tokens)
    matcher.scale |= dict.fromkeys(phases, products.scale)
    matcher.parts |= products.parts_of_names()
    alike: dict[Any, list[int]] = {}
    for number in numbers.tolist():
        if works.works[number].kind == "gemm":
            alike.setdefault(products.key_of(works.works[number]), []).append(number)
    for members in alike.values():
        parts = products.of(works.works[members[0]])
        if parts:
            here = np.flatnonzero(chosen & np.isin(works.of, members))
            here = here[np.argsort(table.start_ps[here], kind="stable")]
            _in_turn(matcher, here, parts, group)


def _in_turn(
    matcher: _Matcher, here: Ints, parts: Sequence[of_products.Part], group: _Group
) -> None:
    """Say which part each of some equal products is: the only one, or by turns.

    A link to a forward that is known decides; else the parts take turns in the order in which
    their layers run, the other way round in the backward.
    """
    if len(parts) == 1:
        matcher.put(here, parts[0].row.name, BY_EXTENTS)
        return
    if group.phase == activity.BACKWARD and not group.recompute:
        _by_forward(matcher, here, [part.row for part in parts])
    cycle = [part.row.name for part in parts for _ in range(part.times)]
    if group.phase == activity.BACKWARD and not group.recompute:
        cycle.reverse()
    turn = np.maximum(np.cumsum(matcher.works.main[here]) - 1, 0) % len(cycle)
    for number, name in enumerate(cycle):
        matcher.put(here[turn == number], name, BY_EXTENTS)


def _by_forward(matcher: _Matcher, here: Ints, rows: Iterable[ExpectedRow]) -> None:
    """Match gradients with the layers of the forwards that they are linked to."""
    forward = matcher.activities.forward[here]
    linked = here[forward >= 0]
    of_forward = matcher.of[forward[forward >= 0]]
    for row in rows:
        for phase in ("forward", "recompute"):
            number = matcher.place.get(Name(row.name.label, phase), -2)
            matcher.put(linked[of_forward == number], row.name, BY_LINK)


def _attention(matcher: _Matcher, group: _Group) -> None:
    phases = matcher.phases(group)
    names = [
        row.name
        for row in matcher.expected.rows
        if row.category == "compute_attention" and row.name.phase in phases and not row.in_kernel
    ]
    if names:
        rows = np.flatnonzero(
            matcher.in_group(group) & (matcher.activities.type == activity.ATTENTION)
        )
        matcher.put(rows, names[0], BY_KIND)


def _by_link(matcher: _Matcher) -> None:
    """Match what else the backward does with the operations of its forward."""
    table = matcher.activities
    rows = np.flatnonzero(matcher.in_group(_GROUPS[1]) & (table.forward >= 0) & (matcher.of < 0))
    if not len(rows):
        return
    of_forward = matcher.of[table.forward[rows]]
    for number in np.unique(of_forward[of_forward >= 0]).tolist():
        label = matcher.names[number].label
        _put_label(matcher, rows[of_forward == number], label, _GROUPS[1], BY_LINK)


def _by_place(matcher: _Matcher, group: _Group) -> None:
    """Match what stands between two products with what the models have between these two."""
    table = matcher.activities
    rows = np.flatnonzero(matcher.in_group(group) & (table.type != activity.COLLECTIVE))
    labels = tuple(dict.fromkeys(name.label for name in matcher.names))
    of_label = np.array([labels.index(name.label) for name in matcher.names] + [-1], np.int64)
    is_anchor = np.isin(matcher.of[rows], [matcher.place[name] for name in _anchors(matcher)])
    here = np.where(is_anchor, of_label[matcher.of[rows]], -1)
    # Where another phase comes between, a pass through the model ends.
    begins = np.diff(np.cumsum(table.klass == activity.COMPUTE)[rows], prepend=-1) > 1
    passes = np.cumsum(begins.astype(np.int64))
    previous, following = _last(here, passes), _last(here[::-1], -passes[::-1])[::-1]
    unknown = np.flatnonzero((matcher.of[rows] < 0) & (table.type[rows] != activity.GEMM))
    if not len(unknown):
        return
    same = group_rows(
        previous[unknown], following[unknown], table.operation[rows[unknown]],
        table.name[rows[unknown]],
    )  # fmt: skip
    candidates, places = _candidates(matcher, group, labels, same)
    gap = np.cumsum((is_anchor | begins).astype(np.int64))[unknown]
    place = _in_order(places[same.of], gap)
    label = np.where(place >= 0, candidates[same.of, np.maximum(place, 0)], -1)
    for number in np.unique(label[label >= 0]).tolist():
        chosen = rows[unknown[label == number]]
        _put_label(matcher, chosen, labels[number], group, BY_PLACE)


def _candidates(
    matcher: _Matcher, group: _Group, labels: Sequence[str], same: Groups
) -> tuple[Ints, Ints]:
    """Return the labels that each kind of activity may be, in order, and which of them it is.

    Kinds agree in the label before, that behind, the operation and the name of the kernel. The
    first result is int64[kinds, most]: rows of ``labels``, -1 behind the last; the second that of
    `_place_in`.
    """
    table = matcher.activities
    between = _between(matcher, group, set(labels))
    most = max(1, *(len(each) for each in between.values())) if between else 1
    candidates = np.full((same.count, most), -1, np.int64)
    places = np.full(same.count, -2, np.int64)
    columns = (column.tolist() for column in same.keys)
    for number, (before, after, operation, name) in enumerate(zip(*columns, strict=True)):
        pair = (labels[before] if before >= 0 else "", labels[after] if after >= 0 else "")
        own = between.get(pair, ())
        candidates[number, : len(own)] = [labels.index(label) for label in own]
        texts = (table.operations[operation] if operation >= 0 else "", table.names[name])
        places[number] = _place_in(own, texts)
    return candidates, places


MOST_CANDIDATES = 3
"""Where more operations stand between two products, those that no name tells stay unmatched."""


def _place_in(candidates: Sequence[str], texts: Iterable[str]) -> int:
    """Return which of the operations between two products an operator is, -1 if unknown.

    -2 where there is none, or too many to guess among.
    """
    for text in texts:
        kind = of_products.kind_of_operator(text) if text else None
        for place, label in enumerate(candidates):
            if kind and label.endswith(kind):
                return place
    if len(candidates) == 1:
        return 0
    return -1 if candidates and len(candidates) <= MOST_CANDIDATES else -2


def _in_order(place: Ints, gap: Ints) -> Ints:
    """Return the places of activities whose gaps the models run through in order.

    What no name tells follows what ran before it in the same gap, or comes with the first that is
    known; a later operation is never followed by an earlier one.
    """
    base = gap * (MOST_CANDIDATES + 64)
    known = np.where(place >= 0, base + place, -1)
    running = np.maximum.accumulate(known)
    first = np.where(running >= base, running - base, 0)
    return np.where(place == -2, -1, np.where(place >= 0, np.maximum(place, first), first))


def _anchors(matcher: _Matcher) -> set[Name]:
    return {row.name for row in matcher.expected.rows if row.kind in ("gemm", "attention")}


def _last(values: Ints, passes: Ints) -> Ints:
    """Return the last value of a pass that is not -1 before each entry; -1 before the first."""
    number = np.arange(len(values))
    at = np.maximum.accumulate(np.where(values >= 0, number, -1))
    begin = np.maximum.accumulate(np.where(np.diff(passes, prepend=passes[:1] - 1) > 0, number, 0))
    return np.where(at >= begin, values[at], -1)


_Between = Mapping[tuple[str, str], tuple[str, ...]]


def _between(matcher: _Matcher, group: _Group, known: set[str]) -> _Between:
    """Return the labels that stand between each two products, in the order of a phase."""
    expected = matcher.expected
    phases = matcher.phases(group)
    present = {row.name.label for row in expected.rows if row.name.phase in phases}
    anchors = {name.label for name in _anchors(matcher)}
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    chains: list[tuple[str, ...]] = []
    for layer in expected.layers:
        chains += [layer + following for following in expected.layers]
        chains += [expected.before + layer, layer + expected.after]
        chains += [expected.after + expected.before + layer]
    for chain in chains:
        order = [label for label in chain if label in known and label in present | anchors]
        if group.phase == activity.BACKWARD and not group.recompute:
            order.reverse()
        _note(order, anchors, found)
    for (before, _), labels in list(found.items()):
        # One layer may be several products, between which what follows it may begin.
        if before:
            found.setdefault((before, before), labels)
    return found


def _note(
    order: Sequence[str], anchors: set[str], found: dict[tuple[str, str], tuple[str, ...]]
) -> None:
    """Add what stands between each two anchors of a chain; of its ends one side is open."""
    before, gathered = "", list[str]()
    for label in order:
        if label in anchors:
            pair = (before, label)
            if len(gathered) >= len(found.get(pair, ())):
                found[pair] = tuple(gathered)
            before, gathered = label, list[str]()
        else:
            gathered.append(label)
    if before and len(gathered) >= len(found.get((before, ""), ())):
        found[before, ""] = tuple(gathered)
