"""A plan in sentences, the same in every report."""

from collections.abc import Sequence

from projector.planning.choice import MEETS, MISSES, UNCERTAIN, Choice
from projector.planning.question import Question, days_number, number, usd
from projector.planning.ranking import COST, DAYS, GPU_HOURS

KEEPS = {MEETS: "yes", UNCERTAIN: "maybe", MISSES: "no"}
"""What reports say about a status: whether a choice keeps the limits."""

OF_RUN = "Run:"
"""How sentences begin that say what a run assumes."""

_SUPERLATIVES = {
    COST: "It is the cheapest",
    DAYS: "It is the fastest",
    GPU_HOURS: "It takes the fewest GPU-hours",
}


def days_text(choice: Choice) -> str:
    """Write the days of a choice with their band."""
    run = choice.run
    if not run.has_band:
        return f"{days_number(run.days)} days"
    low, high = days_number(run.days_low), days_number(run.days_high)
    return f"{days_number(run.days)} days (90 %: {low} to {high})"


def spend_text(choice: Choice) -> str:
    """Write what a choice spends: money where there is a price, and GPU-hours."""
    run = choice.run
    hours = f"{number(run.gpu_hours)} GPU-hours"
    return hours if run.cost_usd is None else f"{usd(run.cost_usd)} ({hours})"


def limits_text(question: Question) -> str:
    """Write what was asked for: ``within 30 days for $2.00 M``."""
    parts = []
    if question.deadline_days is not None:
        parts.append(f"within {question.deadline_days:,g} days")
    if question.budget_usd is not None:
        parts.append(f"for {usd(question.budget_usd)}")
    return " ".join(parts)


def answer_of(question: Question, choices: Sequence[Choice], objective: str) -> str:
    """Return the answer of a plan in one or two sentences."""
    run = f"{question.job.model.name} on {number(question.tokens)} tokens"
    asked = limits_text(question)
    if not choices:
        return f"{run}: nothing fits on any cluster that was tried."
    first = choices[0]
    batch = f", global batch {first.batch:,}" if len(question.batches) > 1 else ""
    takes = f"{first.name} ({first.layout}{batch}) takes {days_text(first)} and {spend_text(first)}"
    risk = "" if first.fits else " Its memory is at risk."
    bands = " with their bands" if first.run.has_band else ""
    if not asked:
        if first.is_knee:
            return f"{run}: {takes}. It is the knee: more GPUs save less time than they cost.{risk}"
        return f"{run}: {takes}.{risk}"
    if first.status == MEETS:
        best = _SUPERLATIVES[objective]
        if first.fits:
            return f"{run} {asked}: {takes}. {best} of those that keep this{bands}."
        return f"{run} {asked}: no cluster whose memory is safe keeps this. {takes}.{risk}"
    if first.status == UNCERTAIN:
        return (
            f"{run} {asked}: only if all goes as expected. {takes}; the upper end of its band is "
            f"beyond.{risk}"
        )
    return f"{run} {asked}: no cluster that was tried keeps this. The nearest: {takes}.{risk}"


def assumptions_of(question: Question, choices: Sequence[Choice]) -> tuple[str, ...]:
    """Return what the figures of a plan rest on, a sentence each."""
    training, ends = question.job.training, sorted({question.batches[0], question.batches[-1]})
    chosen = "the least that loses no time" if len(ends) > 1 else "the same"
    steps = " to ".join(number(each * training.seq_length) for each in ends)
    batch = (
        f"Global batch {' to '.join(map('{:,}'.format, ends))} sequences of "
        f"{training.seq_length:,} tokens, {steps} tokens a step ({question.batch_basis}), {chosen} "
        f"on every cluster; precision {training.precision}."
    )
    found = [batch, f"Devices: {question.devices_basis}."]
    if choices:
        basis = choices[0].band.basis.replace("for 68 % of runs, ", "its band is ")
        found.append(f"Step time: {basis}.")
        found += [f"{OF_RUN} {text}." for text in choices[0].run.assumptions]
        found += _of_others(choices)
    return tuple(found)


def _of_others(choices: Sequence[Choice]) -> list[str]:
    """Return what only runs on other devices than the first assume, such as their prices."""
    known, found = set(choices[0].run.assumptions), []
    labels = dict.fromkeys(each.label for each in choices)
    for label in labels:
        run = next(each.run for each in choices if each.label == label)
        found += [f"On {label}: {text}." for text in run.assumptions if text not in known]
    priced = {each.label for each in choices if each.run.cost_usd is not None}
    if priced and len(priced) < len(labels):
        names = ", ".join(label for label in labels if label not in priced)
        found.append(f"No price of {names}, so that choices are ranked by GPU-hours.")
    return found


def changes_of(choices: Sequence[Choice]) -> tuple[str, ...]:
    """Say at which prices of an hour another device would be the cheaper one."""
    if not choices or choices[0].status != MEETS:
        return ()
    first, found = choices[0], []
    keeping = [each for each in choices if each.fits and each.status == MEETS]
    for label in dict.fromkeys(each.label for each in keeping if each.label != first.label):
        rivals = [each for each in keeping if each.label == label]
        rival = min(rivals, key=lambda each: each.run.gpu_hours)
        ratio = first.run.gpu_hours / rival.run.gpu_hours
        price = first.job.run.cost.usd_per_gpu_hour
        times = f"{ratio:.2f} times that of {first.label}"
        at_most = times if price is None else f"{price * ratio:,.2f} USD"
        found.append(f"{rival.name} costs no more where an hour of a GPU costs at most {at_most}.")
    return tuple(found)
