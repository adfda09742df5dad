"""Which sizes of which clusters are searched, and the layouts that they offer.

Bounds that no layout can beat spare a plan the search of hopeless sizes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from projector.config.first_order import TILES
from projector.config.first_order_job import AnyJob
from projector.config.prices import load_prices
from projector.errors import ConfigError, ProjectorError
from projector.planning.choice import Choice
from projector.planning.question import BATCH, ClusterKind, Question, days_number, usd
from projector.planning.ranking import status_of
from projector.searches.exploration import THREADS
from projector.sweeps.copies import in_copies
from projector.sweeps.workers import can_copy
from projector.units import DAY, HOUR


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of one kind of cluster, whatever its size and layout.

    A run takes at least the FLOP of its model at the dense peak of its precision (MFU 1), and all
    devices together hold at least one copy of weights, gradients and optimizer states.
    """

    gpus_per_node: int
    run_flop: float
    """FLOP of the whole run, as MFU counts them."""
    peak_flop_per_s: float
    state_bytes: float
    """One copy of weights, gradients and optimizer states."""
    usable_bytes: float
    """What one device may hold."""

    @property
    def gpu_hours(self) -> float:
        """Least GPU-hours of the run."""
        return self.run_flop / self.peak_flop_per_s / HOUR

    def days(self, gpus: int) -> float:
        """Least days on so many devices."""
        return self.gpu_hours * HOUR / gpus / DAY

    def nodes_to_hold(self) -> int:
        """Return the least nodes that hold one copy of the states."""
        return max(1, math.ceil(self.state_bytes / self.usable_bytes / self.gpus_per_node))

    def nodes_within(self, days: float) -> int:
        """Return the least nodes that could end within so many days."""
        return max(1, math.ceil(self.days(1) / days / self.gpus_per_node))


def bounds_of(question: Question, job: AnyJob) -> Bounds:
    """Return the bounds of a question on the kind of cluster that a job runs on."""
    flop, peak = question.model.flop_and_peak(job)
    try:
        state_bytes, usable_bytes = question.model.states_and_room(job)
    except ProjectorError:
        # A bound that cannot be had spares nothing, and refuses nothing.
        state_bytes, usable_bytes = 0.0, 1.0
    return Bounds(
        gpus_per_node=job.cluster.gpus_per_node,
        run_flop=question.tokens / job.training.seq_length * flop,
        peak_flop_per_s=peak,
        state_bytes=state_bytes,
        usable_bytes=usable_bytes,
    )


Progress = Callable[[int, int, int], None]
"""Called with the sizes done, the sizes expected and the layouts projected so far."""

MOST_DOUBLINGS = 24
"""Steps of a ladder; more would leave 64 bits."""

PRICE = "run.cost.usd_per_gpu_hour"

GAIN = 0.99
"""Days of the doubled size over those of the size before, from which on more devices do not help.
"""


@dataclass(frozen=True, slots=True)
class Site:
    """One size of one kind of cluster, searched."""

    kind: ClusterKind
    nodes: int
    gpus: int
    choices: tuple[Choice, ...]
    """The fastest layout that fits, and before it a faster one at risk that noise cannot explain;
    none where nothing fits or nothing is legal."""
    legal: int
    refusal: ProjectorError | None = None
    """What makes the run impossible there, such as failures that come faster than it gets on."""

    @property
    def best(self) -> Choice | None:
        """The fastest that fits."""
        return next((choice for choice in self.choices if choice.fits), None)

    @property
    def reason(self) -> str:
        """Why there is no choice."""
        if self.choices:
            return ""
        if self.refusal is not None:
            return self.refusal.message
        if not self.legal:
            return "no legal layout: the degrees and the global batch do not divide so many GPUs"
        return f"none of {self.legal:,} legal layouts fits into memory"


@dataclass(frozen=True, slots=True)
class Skipped:
    """Sizes of a kind of cluster that were not searched, or offered nothing."""

    label: str
    gpus: tuple[int, int]
    reason: str

    @property
    def name(self) -> str:
        """The clusters in words."""
        low, high = self.gpus
        if low == 1:
            return f"{self.label}, any size"
        size = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        return f"{size} x {self.label}"


class Surveyor:
    """Searches sizes of clusters for one question, each once."""

    def __init__(self, question: Question, progress: Progress | None = None) -> None:
        self.question = question
        self.sites: dict[tuple[str, int], Site] = {}
        self.layouts = 0
        self.expected = 0
        self.progress = progress
        self._jobs: dict[str, AnyJob] = {}
        self._bounds: dict[str, Bounds] = {}

    def job_on(self, kind: ClusterKind) -> AnyJob:
        """Return the job of the question on one node of a kind of cluster."""
        if kind.label not in self._jobs:
            overrides = {**kind.overrides, "cluster.nodes": 1, "parallelism.dp": None}
            if kind.label in self.question.prices:
                overrides[PRICE] = self.question.prices[kind.label]
            question = self.question
            overrides = {**question.changes, **overrides}
            self._jobs[kind.label] = question.model.load(question.source, overrides)
        return self._jobs[kind.label]

    def bounds(self, kind: ClusterKind) -> Bounds:
        """Return what no cluster of a kind can beat."""
        if kind.label not in self._bounds:
            self._bounds[kind.label] = bounds_of(self.question, self.job_on(kind))
        return self._bounds[kind.label]

    def site(self, kind: ClusterKind, nodes: int) -> Site:
        """Return one size, searched."""
        key = kind.label, nodes
        if key not in self.sites:
            self.sites[key] = self._searched(kind, nodes)
            if self.progress is not None:
                done = len(self.sites)
                self.progress(done, max(self.expected, done), self.layouts)
        return self.sites[key]

    def _searched(self, kind: ClusterKind, nodes: int) -> Site:
        """Search the global batches that divide no larger one; take a smaller that costs nothing.

        More microbatches never make a token slower, so that the others need no search.
        """
        question = self.question
        sites = [self.with_batch(kind, nodes, batch) for batch in question.longest_batches]
        site = min(sites, key=lambda each: each.best.run.days if each.best else math.inf)
        if (best := site.best) is None:
            return site
        slowest_days, least = (1.0 + question.settings.batch_slack) * best.run.days, best.batch
        for batch in reversed([each for each in question.batches if each < least]):
            trial = changed(question, best, {BATCH: batch})
            if trial is None or trial.run.days > slowest_days:
                break
            least = batch
        if least == best.batch:
            return site
        smaller = self.with_batch(kind, nodes, least)
        same = smaller.best and status_of(question, smaller.best) == status_of(question, best)
        return smaller if same else site

    def with_batch(self, kind: ClusterKind, nodes: int, batch: int) -> Site:
        """Search one size with one global batch."""
        job = self.job_on(kind)
        gpus = nodes * job.cluster.gpus_per_node
        try:
            if batch != job.training.global_batch_size:
                job = self.question.model.load(job, {BATCH: batch})
            legal, found = self.question.model.offers(job, nodes)
        except ProjectorError as error:
            # Layouts that cannot be are counted by the search; what is left concerns the run.
            return Site(kind, nodes, gpus, (), 0, error)
        self.layouts += legal
        # As the user named a device; one that came with the job stays out of texts.
        stated: dict[str, Any] = {
            key: str(getattr(value, "name", value)) for key, value in kind.overrides.items()
        }
        if len(self.question.batches) > 1:
            stated[BATCH] = batch
        choices = [
            replace(
                each,
                label=kind.label,
                overrides={**stated, "cluster.nodes": each.job.cluster.nodes, **each.overrides},
            )
            for each in found
        ]
        return Site(kind, nodes, gpus, tuple(choices), legal)


def changed(question: Question, choice: Choice, changes: Mapping[str, Any]) -> Choice | None:
    """Project a choice with some fields changed; return None where its run cannot be."""
    try:
        job = question.model.load(choice.job, changes)
        return replace(choice, job=job, run=question.model.run(job))
    except ProjectorError:
        return None


def check_sizes(surveyor: Surveyor) -> None:
    """Refuse sizes that are no whole nodes of a kind of cluster."""
    for kind in surveyor.question.kinds:
        per_node = surveyor.job_on(kind).cluster.gpus_per_node
        for gpus in surveyor.question.gpus:
            if gpus % per_node:
                below = gpus // per_node * per_node
                nearest = [size for size in (below, below + per_node) if size]
                msg = (
                    f"gpus: {gpus} is no multiple of the {per_node} GPUs of a node of "
                    f"{kind.label}; nearest: {' or '.join(map(str, nearest))}"
                )
                raise ConfigError(msg, key="gpus", value=gpus, allowed=nearest)


def survey(surveyor: Surveyor) -> list[Skipped]:
    """Search the sizes that matter into `Surveyor.sites`; return what was not searched, and why."""
    question = surveyor.question
    check_sizes(surveyor)
    skipped: list[Skipped] = []
    kinds: list[ClusterKind] = []
    refusal: ProjectorError | None = None
    for kind in question.kinds:
        try:
            surveyor.bounds(kind)
        except ProjectorError as error:
            refusal = error
            skipped.append(Skipped(kind.label, (1, question.settings.most_gpus), error.message))
        else:
            kinds.append(kind)
    if not kinds and refusal is not None:
        raise refusal
    kinds = _affordable(surveyor, kinds, skipped)
    each = len(question.gpus) or question.settings.sizes
    surveyor.expected = each * len(kinds)
    return skipped + _side_by_side(surveyor, kinds)


def _side_by_side(surveyor: Surveyor, kinds: Sequence[ClusterKind]) -> list[Skipped]:
    """Search sizes of kinds here and, where it can be copied, beside it in copies of this process.

    The first size goes before: what it loads and learns the copies have.
    """
    question = surveyor.question
    parts = min(len(kinds), THREADS) if question.fidelity == TILES and can_copy() else 1
    if parts > 1 and not question.gpus:
        bounds = surveyor.bounds(kinds[0])
        first = _first_size(question, bounds)
        if first * bounds.gpus_per_node <= question.settings.most_gpus:
            surveyor.site(kinds[0], first)
    calls = [partial(_apart, copy(surveyor), kinds[part::parts]) for part in range(1, parts)]
    with in_copies(calls) as answers:
        skipped = {kind.label: _sizes_of(surveyor, kind) for kind in kinds[::parts]}
        for answer in answers:
            sites, layouts, of_kind = answer()
            surveyor.sites |= sites
            surveyor.layouts += layouts
            skipped |= of_kind
    rank = {kind.label: place for place, kind in enumerate(kinds)}
    surveyor.sites = dict(sorted(surveyor.sites.items(), key=lambda entry: rank[entry[0][0]]))
    return [each for kind in kinds for each in skipped[kind.label]]


_Sites = dict[tuple[str, int], Site]


def _apart(
    surveyor: Surveyor, kinds: Sequence[ClusterKind]
) -> tuple[_Sites, int, dict[str, list[Skipped]]]:
    """Return sites of kinds, layouts that were projected, and what was not searched of a kind."""
    surveyor.sites, surveyor.layouts, surveyor.progress = {}, 0, None
    skipped = {kind.label: _sizes_of(surveyor, kind) for kind in kinds}
    return surveyor.sites, surveyor.layouts, skipped


def _sizes_of(surveyor: Surveyor, kind: ClusterKind) -> list[Skipped]:
    skipped: list[Skipped] = []
    if surveyor.question.gpus:
        _given_sizes(surveyor, kind, skipped)
    else:
        climb(surveyor, kind, skipped)
    return skipped


def _affordable(
    surveyor: Surveyor, kinds: list[ClusterKind], skipped: list[Skipped]
) -> list[ClusterKind]:
    """Leave out kinds whose run is too expensive at the peak rate, unless all are."""
    question = surveyor.question
    if question.budget_usd is None:
        return kinds
    most = question.settings.most_gpus
    unpriced = [kind for kind in kinds if not _has_price(surveyor.job_on(kind))]
    skipped += [Skipped(kind.label, (1, most), _NO_PRICE) for kind in unpriced]
    kinds = [kind for kind in kinds if kind not in unpriced]
    if not kinds:
        names = ", ".join(kind.label for kind in unpriced)
        msg = f"budget_usd needs a price, and nothing is known of {names}: --usd-per-gpu-hour X"
        raise ConfigError(msg, key="usd_per_gpu_hour", allowed="a price above 0")
    least_usd = {
        kind.label: surveyor.bounds(kind).gpu_hours
        * (surveyor.job_on(kind).run.cost.usd_per_gpu_hour or 0.0)
        for kind in kinds
    }
    within = [kind for kind in kinds if least_usd[kind.label] <= question.budget_usd]
    if not within:
        return kinds
    for kind in kinds:
        if kind not in within:
            reason = f"{usd(least_usd[kind.label])} even at the peak rate: over the budget"
            skipped.append(Skipped(kind.label, (1, most), reason))
    return within


_NO_PRICE = "no price; --usd-per-gpu-hour NAME=X gives one"


def _has_price(job: AnyJob) -> bool:
    cost, device = job.run.cost, job.cluster.device.name
    if cost.usd_per_gpu_hour is not None or cost.owned.capex_usd_per_gpu is not None:
        return True
    if cost.prices != "listed":
        return False
    table = load_prices()
    return device in (
        table.capex_usd_per_gpu if cost.owned.enabled else table.rental_usd_per_gpu_hour
    )


def _given_sizes(surveyor: Surveyor, kind: ClusterKind, skipped: list[Skipped]) -> None:
    question, bounds = surveyor.question, surveyor.bounds(kind)
    hopeless: list[int] = []
    for gpus in question.gpus:
        nodes = gpus // bounds.gpus_per_node
        if nodes < bounds.nodes_to_hold():
            skipped.append(Skipped(kind.label, (gpus, gpus), _TOO_SMALL))
        elif question.deadline_days is not None and bounds.days(gpus) > question.deadline_days:
            hopeless.append(gpus)
        else:
            surveyor.site(kind, nodes)
    if hopeless and not any(label == kind.label for label, _ in surveyor.sites):
        # Something must be near.
        surveyor.site(kind, hopeless.pop() // bounds.gpus_per_node)
    for gpus in hopeless:
        reason = f"{days_number(bounds.days(gpus))} days even at the peak rate: after the deadline"
        skipped.append(Skipped(kind.label, (gpus, gpus), reason))


_TOO_SMALL = "cannot hold weights, gradients and optimizer states once"


def climb(surveyor: Surveyor, kind: ClusterKind, skipped: list[Skipped]) -> None:
    """Search doubled sizes until the question is answered, then sizes between.

    With a deadline these are the sizes from the least that could keep it to the first that does
    with its band, and one more. With a budget alone they end at the first that is too expensive.
    Otherwise there are as many as the settings say.
    """
    question, bounds = surveyor.question, surveyor.bounds(kind)
    first = _first_size(question, bounds)
    _skip_small(question, kind, bounds, first, skipped)
    sites: list[Site] = []
    beyond = 0
    is_open = question.deadline_days is None and question.budget_usd is None
    enough = question.settings.sizes if is_open else MOST_DOUBLINGS
    for nodes in (first << power for power in range(MOST_DOUBLINGS)):
        gpus = nodes * bounds.gpus_per_node
        if gpus > question.settings.most_gpus:
            break
        site = surveyor.site(kind, nodes)
        if not site.choices:
            if sites and not site.legal:
                break
            continue
        sites.append(site)
        beyond += _is_beyond(question, site)
        if len(sites) >= enough or _stalls(sites):
            break
        # One size more than a deadline needs shows what it would save; a budget may also be left
        # for a while by small clusters, which recompute more.
        if beyond >= 2 and (question.deadline_days is not None or _costs_more(sites)):
            break
    _refine(surveyor, kind, sites)


def _first_size(question: Question, bounds: Bounds) -> int:
    """Return the nodes that the ladder of sizes begins with."""
    first = _power_of_two(bounds.nodes_to_hold())
    if question.deadline_days is None:
        return first
    return max(first, _power_of_two(bounds.nodes_within(question.deadline_days)))


def fewest_that_fit(surveyor: Surveyor, kind: ClusterKind) -> None:
    """Search doubled sizes until a layout fits, then halve the gap; others may fit too."""
    bounds = surveyor.bounds(kind)
    low, high = bounds.nodes_to_hold() - 1, _power_of_two(bounds.nodes_to_hold())
    while surveyor.site(kind, high).best is None:
        low, high = high, 2 * high
        if high * bounds.gpus_per_node > surveyor.question.settings.most_gpus:
            return
    _halve(
        (low, high),
        surveyor.question.settings.halvings,
        lambda nodes: surveyor.site(kind, nodes).best is not None,
    )


def _skip_small(
    question: Question, kind: ClusterKind, bounds: Bounds, first: int, skipped: list[Skipped]
) -> None:
    per_node = bounds.gpus_per_node
    holding = min(_power_of_two(bounds.nodes_to_hold()), first)
    if holding > 1:
        skipped.append(Skipped(kind.label, (per_node, (holding - 1) * per_node), _TOO_SMALL))
    if holding < first:
        most = (first - 1) * per_node
        reason = f"{days_number(bounds.days(most))} days or more even at the peak rate"
        deadline = question.deadline_days
        if deadline is None:
            reason = "smaller than what was asked for"
        elif bounds.days(most) <= deadline:
            least = 100.0 * bounds.days(most) / deadline
            reason = f"in time only with an MFU of {least:.0f} % or more"
        skipped.append(Skipped(kind.label, (holding * per_node, most), reason))


def _is_beyond(question: Question, site: Site) -> bool:
    """Whether a size keeps the deadline, or without one leaves the budget."""
    best = site.best
    if best is None:
        return False
    if question.deadline_days is not None:
        return best.run.days_high <= question.deadline_days
    if question.budget_usd is not None and best.run.cost_usd is not None:
        return best.run.of_high(best.run.cost_usd) > question.budget_usd
    return False


def _stalls(sites: list[Site]) -> bool:
    """Whether the last doubling made the run no shorter."""
    if len(sites) < 2:
        return False
    before, after = (site.choices[-1].run.days for site in sites[-2:])
    return after > GAIN * before


def _costs_more(sites: list[Site]) -> bool:
    """Whether the last doubling took more GPU-hours."""
    before, after = (site.choices[-1].run.gpu_hours for site in sites[-2:])
    return after > before


def _refine(surveyor: Surveyor, kind: ClusterKind, sites: list[Site]) -> None:
    """Search sizes between the last before and the first beyond what was asked for."""
    question = surveyor.question
    beyond = [_is_beyond(question, site) for site in sites]
    edge = next((i for i in range(1, len(sites)) if beyond[i] and not beyond[i - 1]), None)
    if edge is None:
        return
    _halve(
        (sites[edge - 1].nodes, sites[edge].nodes),
        question.settings.refinements,
        lambda nodes: _is_beyond(question, surveyor.site(kind, nodes)),
    )


def _halve(ends: tuple[int, int], tries: int, is_beyond: Callable[[int], bool]) -> None:
    """Look at numbers of nodes between two, where something begins to hold."""
    low, high = ends
    for _ in range(tries):
        middle = (low + high) // 2
        if middle in (low, high):
            return
        low, high = (low, middle) if is_beyond(middle) else (middle, high)


def _power_of_two(number: int) -> int:
    return 1 << max(0, math.ceil(math.log2(max(number, 1))))
