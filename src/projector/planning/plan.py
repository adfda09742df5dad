"""Which cluster, in which layout, trains a model by a deadline or within a budget.

Where none does, it says what would do; every entry of that was projected.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from projector.config.bands import NOTHING
from projector.config.first_order import FIRST_ORDER, TILES
from projector.config.planning import PlanSettings
from projector.envelope import envelope, told
from projector.frames import Frame
from projector.planning import survey as surveys
from projector.planning.choice import MEETS, UNCERTAIN, Choice
from projector.planning.question import Question, ask, days_number, number, stating, usd
from projector.planning.ranking import COST, objective_of, rank, spend_of, status_of, value_of
from projector.planning.words import answer_of, assumptions_of
from projector.planning.worth import Worth, worths
from projector.projection.api import JobLike
from projector.searches.limits import check_top

DEADLINE, BUDGET, GPUS, TOKENS = "deadline_days", "budget_usd", "gpus", "tokens"
HOURLY = "usd_per_gpu_hour"

DIGITS = 3
"""Digits of what is advised; the last is rounded to the safe side."""

TRIES = 4
"""Projections of a shorter run until one keeps the limits."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change of the question that would give it an answer."""

    key: str
    """``deadline_days``, ``budget_usd``, ``usd_per_gpu_hour``, ``gpus`` or ``tokens``."""
    value: float
    choice: Choice

    @property
    def text(self) -> str:
        """The remedy as a sentence."""
        run, name = self.choice.run, self.choice.name
        days = f"{days_number(run.days)} days, up to {days_number(run.days_high)}"
        cost = "" if run.cost_usd is None else f", {usd(run.cost_usd)}"
        begins = {
            DEADLINE: f"A deadline of {days_number(self.value)} days: {name} takes",
            BUDGET: f"A budget of {usd(self.value)}: {name} takes",
            GPUS: f"{name}:",
            HOURLY: f"{self.value:,.2f} USD for an hour of a GPU: {name} takes",
            TOKENS: f"{number(self.value)} tokens: {name} takes",
        }
        return f"{begins[self.key]} {days}{cost}."

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of ``plan --json``."""
        return told(self, "key value text choice")


def remedies(
    surveyor: surveys.Surveyor, ranked: Sequence[Choice], skipped: list[surveys.Skipped]
) -> tuple[Remedy, ...]:
    """Return what would do where no choice keeps the limits with its bands; else nothing."""
    question = surveyor.question
    if any(each.fits and each.status == MEETS for each in ranked):
        return ()
    found: list[Remedy] = []
    fitting = [each for each in ranked if each.fits]
    if question.gpus:
        found += _other_sizes(surveyor, question, skipped, fits=bool(fitting))
    if question.deadline_days is not None and fitting:
        found += _later(question, fitting)
    if question.budget_usd is not None and fitting:
        found += _dearer(question, fitting)
    limited = question.deadline_days is not None or question.budget_usd is not None
    if limited and fitting:
        found += _shorter(question, fitting)
    return tuple(found)


def _other_sizes(
    surveyor: surveys.Surveyor, question: Question, skipped: list[surveys.Skipped], *, fits: bool
) -> Iterator[Remedy]:
    """Search sizes that were not offered; yield the best that keeps the limits."""
    known = set(surveyor.sites)
    surveyor.question = replace(question, gpus=())
    limited = question.deadline_days is not None or question.budget_usd is not None
    for kind in question.kinds:
        if not any(
            each.label == kind.label and each.gpus[1] == question.settings.most_gpus
            for each in skipped
        ):
            if limited or fits:
                surveys.climb(surveyor, kind, [])
            else:
                surveys.fewest_that_fit(surveyor, kind)
    surveyor.question = question
    sites: list[surveys.Site] = [site for key, site in surveyor.sites.items() if key not in known]
    answers = [
        replace(choice, status=MEETS)
        for site in sites
        for choice in site.choices
        if choice.fits and status_of(question, choice) == MEETS
    ]
    for key in known.symmetric_difference(surveyor.sites):
        surveyor.sites.pop(key)
    if answers:
        spend = spend_of(answers)
        fewest = min(answers, key=lambda each: (each.gpus, value_of(each, spend)))
        yield Remedy(GPUS, fewest.gpus, fewest)
        best = min(answers, key=lambda each: value_of(each, spend))
        if best is not fewest:
            yield Remedy(GPUS, best.gpus, best)


def _later(question: Question, fitting: Sequence[Choice]) -> Iterator[Remedy]:
    """Yield the earliest deadline that some choice keeps, within the budget if there is one."""
    without = replace(question, deadline_days=None)
    paid = [each for each in fitting if status_of(without, each) == MEETS]
    if paid:
        fastest = min(paid, key=lambda each: each.run.days_high)
        yield Remedy(DEADLINE, _up(fastest.run.days_high), replace(fastest, status=MEETS))


def _dearer(question: Question, fitting: Sequence[Choice]) -> Iterator[Remedy]:
    """Yield the least budget that some choice keeps, within the deadline if there is one."""
    without = replace(question, budget_usd=None)
    timely = [each for each in fitting if status_of(without, each) == MEETS]
    priced = [each for each in timely if each.run.cost_usd is not None]
    if priced:
        cheapest = min(priced, key=lambda each: each.run.of_high(value_of(each, COST)))
        most_usd = cheapest.run.of_high(value_of(cheapest, COST))
        yield Remedy(BUDGET, _up(most_usd), replace(cheapest, status=MEETS))
        price = cheapest.job.run.cost.usd_per_gpu_hour
        assert question.budget_usd is not None
        if price is not None:
            lower = _down(price * question.budget_usd / most_usd)
            change = {surveys.PRICE: lower}
            trial = surveys.changed(question, cheapest, change) if lower > 0.0 else None
            if trial is not None and status_of(question, trial) == MEETS:
                yield Remedy(HOURLY, lower, replace(trial, status=MEETS))


def _shorter(question: Question, fitting: Sequence[Choice]) -> Iterator[Remedy]:
    """Yield the longest run that the limits allow, projected."""

    def share(each: Choice) -> float:
        run, shares = each.run, [1.0]
        if question.deadline_days is not None:
            shares.append(question.deadline_days / run.days_high)
        if question.budget_usd is not None and run.cost_usd is not None:
            shares.append(question.budget_usd / run.of_high(run.cost_usd))
        return min(shares)

    choice = max(fitting, key=share)
    tokens = question.tokens * share(choice)
    for _ in range(TRIES):
        tokens = _down(tokens)
        if tokens < choice.batch * choice.job.training.seq_length:
            return
        trial = surveys.changed(question, choice, stating(tokens))
        if trial is None:
            return
        if status_of(question, trial) == MEETS:
            yield Remedy(TOKENS, tokens, replace(trial, status=MEETS))
            return
        tokens *= share(trial)


def _rounded(value: float, *, up: bool) -> float:
    """Round to `DIGITS` digits, upwards or downwards; nothing above 0 becomes 0 or less."""
    unit = 10.0 ** (math.floor(math.log10(value)) - DIGITS + 1)
    count = value / unit
    whole = math.ceil(count - 1e-9) if up else math.floor(count + 1e-9)
    return float(f"{whole * unit:.{DIGITS}e}")


_up, _down = partial(_rounded, up=True), partial(_rounded, up=False)


STEPS_ALONE = (
    "the first-order model counts steps alone: no warm-up, failures, checkpoints, stragglers, and "
    "no band"
)


@dataclass(frozen=True, eq=False, repr=False)
class PlanResult(Frame):
    """Clusters and layouts for a run, the best first."""

    question: Question
    choices: tuple[Choice, ...]
    """All that were found, in order."""
    top: int
    skipped: tuple[surveys.Skipped, ...]
    """Clusters that offered no choice, or were not searched, and why."""
    would_do: tuple[Remedy, ...]
    """Where nothing keeps the limits: what would."""
    worths: tuple[Worth, ...]
    """What the assumptions that decide are worth, the largest first."""
    layouts: int
    seconds: float

    @property
    def met(self) -> bool:
        """Whether the first choice fits and keeps the limits, with the bands of both."""
        return bool(self.choices) and self.choices[0].fits and self.choices[0].status == MEETS

    @property
    def uncertain(self) -> bool:
        """Whether a choice fits and keeps the limits with the middle of its band alone."""
        return bool(self.choices) and self.choices[0].fits and self.choices[0].status == UNCERTAIN

    @property
    def listed(self) -> tuple[Choice, ...]:
        """Choices that reports show, in order: no other is both faster and cheaper."""
        return tuple(each for each in self.choices if not each.beaten_by)[: self.top]

    @property
    def beaten(self) -> tuple[Choice, ...]:
        """Choices that are slower and dearer than another, which reports leave out."""
        return tuple(each for each in self.choices if each.beaten_by)

    @property
    def knee(self) -> Choice | None:
        """Where more devices begin to cost much more than the time that they save."""
        return next((choice for choice in self.choices if choice.is_knee), None)

    @property
    def front(self) -> tuple[Choice, ...]:
        """Choices that no other beats in both days and money (or GPU-hours), the fastest first."""
        chosen = [choice for choice in self.choices if choice.on_front]
        return tuple(sorted(chosen, key=lambda choice: choice.run.days))

    @property
    def spend(self) -> str:
        """What the front is drawn against: ``cost_usd``, or ``gpu_hours`` without prices."""
        return spend_of(self.choices)

    @property
    def objective(self) -> str:
        """What the first choice has least of."""
        return objective_of(self.question, self.choices)

    @property
    def answer(self) -> str:
        """The answer in one or two sentences."""
        return answer_of(self.question, self.choices, self.objective)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What may not be as it was meant."""
        if not self.choices:
            return self.question.job.notes
        plain = (STEPS_ALONE,) if self.question.fidelity == FIRST_ORDER else ()
        best = [choice for choice in self.choices if choice.fits] or list(self.choices)
        firsts = {choice.label: choice for choice in reversed(best)}
        of_choices = dict.fromkeys(text for each in firsts.values() for text in each.warnings)
        return (*plain, *of_choices)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the figures rest on."""
        return assumptions_of(self.question, self.choices)

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``projector plan --json`` prints."""
        question = self.question
        first = self.choices[0].job if self.choices else question.job
        training = first.training
        band = self.choices[0].band if self.choices else NOTHING
        return {
            **envelope(self.warnings, band.to_dict()),
            "model": question.job.model.name,
            "tokens": question.tokens,
            "tokens_per_step": training.global_batch_size * training.seq_length,
            **told(training, "global_batch_size seq_length precision"),
            "global_batches": list(question.batches),
            "batch_basis": question.batch_basis,
            "devices": [kind.label for kind in question.kinds],
            **told(question, "devices_basis deadline_days budget_usd fidelity"),
            **told(self, "met answer objective"),
            "choices": [choice.to_dict() for choice in self.listed],
            "considered": len(self.choices),
            "beaten": {each.name: each.beaten_by for each in self.beaten},
            "front": [
                {"device": each.label, "gpus": each.gpus, "knee": each.is_knee}
                for each in self.front
            ],
            "not_chosen": [
                {"device": each.label, "gpus": list(each.gpus), "reason": each.reason}
                for each in self.skipped
            ],
            **told(self, "worths would_do assumptions layouts seconds"),
        }

    @property
    def records(self) -> list[dict[str, Any]]:
        """All choices, the first first."""
        return [choice.to_dict() for choice in self.choices]

    def __repr__(self) -> str:
        return f"PlanResult({self.answer})"

    def _repr_html_(self) -> str:
        from projector.frames import html_table

        rows = [
            {
                "cluster": each.name,
                "layout": each.layout,
                "days": each.run.days,
                "to": each.run.days_high,
                "GPU-hours": each.run.gpu_hours,
                **({} if self.spend != "cost_usd" else {"USD": each.run.cost_usd}),
                "remark": each.remark,
            }
            for each in self.listed
        ]
        return html_table(self.answer, rows)


def project_plan(
    model: Any = None,
    tokens: float | str | None = None,
    *,
    job: JobLike | None = None,
    devices: Any = None,
    gpus: Any = None,
    deadline_days: float | None = None,
    budget_usd: float | None = None,
    usd_per_gpu_hour: float | Mapping[str, float] | None = None,
    overrides: Mapping[str, Any] | None = None,
    top: int = 10,
    fidelity: str = TILES,
    settings: PlanSettings | None = None,
    formats: Sequence[str] = (),
    global_batch: Any = None,
    progress: surveys.Progress | None = None,
) -> PlanResult:
    """Rank clusters and layouts for a training run.

    Every size of every kind of cluster is searched for its fastest layout, and its run projected.
    Model, tokens and sequence are the same everywhere. Of several global batches each size takes
    the fastest, or a smaller one that adds at most ``settings.batch_slack`` of the days.

    Args:
        model (str, mapping or ModelConfig, optional): An architecture; sequence and global batch
            follow rules of `PlanSettings` unless they are stated.
        tokens (float or str, optional): Tokens to train: a number, or a text such as ``15.6T``.
            Left out, the job states them.
        job (Job, mapping, str or Path, optional): Instead of a model: anything that `load_job`
            reads.
        devices (str or sequence, optional): What to choose from: names, files or mappings of
            devices; ``NAME@NETWORK`` sets another network. By default the device of the job, or
            those of `PlanSettings`.
        gpus (int or sequence of int, optional): Sizes to choose from, each whole nodes; chosen by
            the question when left out.
        deadline_days (float, optional): Days that the run may take.
        budget_usd (float, optional): USD that it may cost; needs prices.
        usd_per_gpu_hour (float or mapping, optional): Price of an hour of a GPU: one for all, or by
            name as in ``devices``.
        overrides (mapping, optional): Dotted field of the job -> value.
        top (int): Choices that reports show; the result has all.
        fidelity (str): ``tiles``, or ``first-order`` for closed forms, which also take devices
            without compute units; these know neither bands nor failures.
        settings (PlanSettings, optional): Defaults to use instead of the shipped ones.
        formats (sequence of str): Formats of `emit_job`: only what their frameworks can run is
            offered.
        global_batch (int, str or sequence of int, optional): Sequences of a step to choose from: a
            range ``512..2048``, which is doubled from its lower end, or several. Left out, the job
            or ``overrides`` state it, or rules of `PlanSettings` give a range.
        progress (callable, optional): Called after each size with sizes done, sizes expected and
            layouts projected.

    Raises:
        ConfigError: For anything that describes no question: the message names key and remedy. A
            question without an answer raises nothing: `PlanResult.met` is false.
    """
    began = time.perf_counter()
    check_top(top)
    question = ask(
        model,
        tokens,
        job=job,
        devices=devices,
        gpus=gpus,
        deadline_days=deadline_days,
        budget_usd=budget_usd,
        usd_per_gpu_hour=usd_per_gpu_hour,
        overrides=overrides,
        fidelity=fidelity,
        settings=settings or PlanSettings(),
        formats=formats,
        global_batch=global_batch,
    )
    surveyor = surveys.Surveyor(question, progress)
    skipped = surveys.survey(surveyor)
    sites = list(surveyor.sites.values())
    ranked = rank(question, [choice for site in sites for choice in site.choices])
    skipped += [
        surveys.Skipped(site.kind.label, (site.gpus, site.gpus), site.reason)
        for site in sites
        if not site.choices
    ]
    refusals = [site.refusal for site in sites if site.refusal is not None]
    if refusals and not ranked:
        raise refusals[0]
    would_do = remedies(surveyor, ranked, skipped)
    return PlanResult(
        question=question,
        choices=ranked,
        top=top,
        skipped=tuple(skipped),
        would_do=would_do,
        worths=worths(surveyor, ranked),
        layouts=surveyor.layouts,
        seconds=time.perf_counter() - began,
    )
