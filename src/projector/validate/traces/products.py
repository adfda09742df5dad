"""Which matrix products of a trace are which linear layers of the models, by their extents.

A product is known by what it sums over, its two other extents in either order, and how many are
batched: ``Y = X W``, its input gradient and its weight gradient share three extents and sum over
different ones. A layer of the models may be several products of the trace (Q, K and V apart, gate
and up apart), which share two extents and add up in the third. Where extents leave a choice, the
order in which the layers run decides.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from projector.trace.work import Work
from projector.validate.traces.expected import ExpectedRow, Name

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

    Parameters
    ----------
    rows : sequence of ExpectedRow
        Of the phase, in the order of the table.
    seen : mapping
        Work of the trace -> how often a step runs it.
    """

    def __init__(self, rows: Sequence[ExpectedRow], seen: Mapping[Work, float]) -> None:
        """Match all of them."""
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
        self.scale = max(self._scales(), key=self._explained)
        self._match()
        self.grouped = self._match_grouped(seen)

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
        """Match every row, with the runs that are assumed."""
        self.parts = {
            extents: [Part(row) for row in self.by_extents[extents]]
            for extents in self.count
            if extents in self.by_extents
        }
        self._match_parts()
        self._match_near()

    def _scales(self) -> list[float]:
        """Return how much more often the trace may run everything, the job's own runs first.

        A product that is one layer runs as often as this says, or more often if it is a piece of
        others besides.
        """
        ratios = {
            times / sum(row.runs for row in self.by_extents[extents])
            for extents, times in self.count.items()
            if extents in self.by_extents
        }
        return [1.0, *sorted(ratios)]

    def _explained(self, scale: float) -> tuple[float, float]:
        """Return the time of the rows that are matched under a scale, and what is left over."""
        self.scale = scale
        self._match()
        known = {id(part.row) for parts in self.parts.values() for part in parts}
        matched_s = sum(row.runs * row.time_s for row in self.rows if id(row) in known)
        left = self._left()
        size = {extents: extents.summed * extents.low * extents.high for extents in left}
        return matched_s, -scale * sum(
            abs(times) * size[extents] for extents, times in left.items()
        )

    def _left(self) -> dict[Extents, float]:
        """Return how often products run beyond the layers that they are already."""
        left = {}
        for extents, times in self.count.items():
            used = sum(part.row.runs * part.times for part in self.parts.get(extents, ()))
            left[extents] = times / self.scale - used
        return left

    def _match_parts(self) -> None:
        """Find the layers that are several products."""
        known = {id(part.row) for parts in self.parts.values() for part in parts}
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

    def _match_near(self) -> None:
        """Match what differs a little in one extent, as a padded vocabulary does."""
        known = {id(part.row) for parts in self.parts.values() for part in parts}
        open_rows = [row for row in self.rows if id(row) not in known]
        for extents in self.count:
            if extents in self.parts:
                continue
            near = [row for row in open_rows if _is_near(extents, extents_of(row, self.tokens))]
            if near:
                self.parts[extents] = [Part(row) for row in near]

    def _match_grouped(self, seen: Mapping[Work, float]) -> dict[Work, ExpectedRow]:
        """Match products of experts, whose tokens the routing decides, by their weights."""
        found: dict[Work, ExpectedRow] = {}
        experts = [row for row in self.rows if row.key is not None and row.key.expert]
        for work in seen:
            if _extents(work) in self.parts:
                continue
            for row in experts:
                if _same_weights(work, row):
                    found[work] = row
                    break
        return found


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
    if extents.batch != expected.batch:
        return False
    unequal = [
        abs(here / there - 1.0)
        for here, there in zip(extents[:3], expected[:3], strict=True)
        if here != there
    ]
    return len(unequal) <= 1 and all(share <= NEAR for share in unequal)


def _same_weights(work: Work, row: ExpectedRow) -> bool:
    """Whether a product of experts has the weights of a row, whatever its tokens."""
    layout = layout_of(row)
    if row.name.phase == "weight":
        return sorted((work.m, work.n)) == sorted((layout.kept, layout.divided))
    other = layout.divided if row.name.phase != "backward" else layout.kept
    return work.k == layout.summed and other in (work.m, work.n)
