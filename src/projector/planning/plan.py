"""Which cluster, in which layout, trains a model by a deadline or within a budget."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from projector.config.bands import NOTHING
from projector.config.planning import PlanSettings
from projector.envelope import envelope
from projector.planning.advice import Remedy, remedies
from projector.planning.choice import MEETS, UNCERTAIN, Choice
from projector.planning.fidelity import FIRST_ORDER, TILES
from projector.planning.question import Question, ask
from projector.planning.ranking import objective_of, rank, spend_of
from projector.planning.survey import Progress, Skipped, Surveyor, survey
from projector.planning.words import answer_of, assumptions_of
from projector.projection.api import JobLike
from projector.searches.checks import check_top

STEPS_ALONE = (
    "the first-order model counts steps alone: no warm-up, failures, checkpoints, stragglers, and "
    "no band"
)


@dataclass(frozen=True, eq=False, repr=False)
class PlanResult:
    """Clusters and layouts for a run, the best first."""

    question: Question
    choices: tuple[Choice, ...]
    """All that were found, in order."""
    top: int
    """Choices that reports show."""
    skipped: tuple[Skipped, ...]
    """Clusters that offered no choice, or were not searched, and why."""
    would_do: tuple[Remedy, ...]
    """Where nothing keeps the limits: what would."""
    layouts: int
    """Legal layouts that were projected."""
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
        question, job = self.question, self.question.job
        band = self.choices[0].band if self.choices else NOTHING
        return {
            **envelope(self.warnings, band.to_dict()),
            "model": job.model.name,
            "tokens": question.tokens,
            "tokens_per_step": question.tokens_per_step,
            "global_batch_size": job.training.global_batch_size,
            "seq_length": job.training.seq_length,
            "precision": job.training.precision,
            "batch_basis": question.batch_basis,
            "devices": [kind.label for kind in question.kinds],
            "devices_basis": question.devices_basis,
            "deadline_days": question.deadline_days,
            "budget_usd": question.budget_usd,
            "fidelity": question.fidelity,
            "met": self.met,
            "answer": self.answer,
            "objective": self.objective,
            "choices": [choice.to_dict() for choice in self.choices[: self.top]],
            "considered": len(self.choices),
            "front": [
                {"device": each.label, "gpus": each.gpus, "knee": each.is_knee}
                for each in self.front
            ],
            "not_chosen": [
                {"device": each.label, "gpus": list(each.gpus), "reason": each.reason}
                for each in self.skipped
            ],
            "would_do": [each.to_dict() for each in self.would_do],
            "assumptions": list(self.assumptions),
            "layouts": self.layouts,
            "seconds": self.seconds,
        }

    def __repr__(self) -> str:
        """Give the answer in one line."""
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
            for each in self.choices[: self.top]
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
    progress: Progress | None = None,
) -> PlanResult:
    """Rank clusters and layouts for a training run.

    Every size of every kind of cluster is searched for its fastest layout, and its run projected.
    Model, global batch and sequence are the same everywhere, so that every row trains the same.

    Parameters
    ----------
    model : str, mapping or ModelConfig, optional
        An architecture; sequence and global batch follow rules of `PlanSettings` unless
        ``overrides`` state them.
    tokens : float or str, optional
        Tokens to train: a number, or a text such as ``15.6T``. Left out, the job states them.
    job : Job, mapping, str or Path, optional
        Instead of a model: anything that `load_job` reads.
    devices : str or sequence, optional
        What to choose from: names, files or mappings of devices; ``NAME@NETWORK`` sets another
        network. By default the device of the job, or those of `PlanSettings`.
    gpus : int or sequence of int, optional
        Sizes to choose from, each whole nodes; chosen by the question when left out.
    deadline_days : float, optional
        Days that the run may take.
    budget_usd : float, optional
        USD that it may cost; needs prices.
    usd_per_gpu_hour : float or mapping, optional
        Price of an hour of a GPU: one for all, or by name as in ``devices``.
    overrides : mapping, optional
        Dotted field of the job -> value.
    top : int
        Choices that reports show; the result has all.
    fidelity : str
        ``tiles``, or ``first-order`` for closed forms, which also take devices without compute
        units; these know neither bands nor failures.
    settings : PlanSettings, optional
        Defaults to use instead of the shipped ones.
    progress : callable, optional
        Called after each size with sizes done, sizes expected and layouts projected.

    Raises
    ------
    ConfigError
        For anything that describes no question: the message names key and remedy. A question
        without an answer raises nothing: `PlanResult.met` is false.
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
    )
    surveyor = Surveyor(question, progress)
    skipped = survey(surveyor)
    sites = list(surveyor.sites.values())
    ranked = rank(question, [choice for site in sites for choice in site.choices])
    skipped += [
        Skipped(site.kind.label, (site.gpus, site.gpus), site.reason)
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
        layouts=surveyor.layouts,
        seconds=time.perf_counter() - began,
    )
