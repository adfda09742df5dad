"""A plan in sentences, the same in every report."""

from collections.abc import Sequence

from projector.planning.choice import MEETS, MISSES, UNCERTAIN, Choice
from projector.planning.question import Question, days_number, number, usd
from projector.planning.ranking import COST, DAYS, GPU_HOURS, spend_of, value_of

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
    return f"{days_number(run.days)} days ({low} to {high})"


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
    training, batches = question.job.training, question.batches
    several = len(batches) > 1
    span = f"{batches[0]:,} to " if several else ""
    steps = f"{number(batches[0] * training.seq_length)} to " if several else ""
    chosen = "the least that loses no time" if several else "the same"
    batch = (
        f"Global batch {span}{batches[-1]:,} sequences of {training.seq_length:,} tokens, {steps}"
        f"{number(question.tokens_per_step)} tokens a step ({question.batch_basis}), {chosen} on "
        f"every cluster; precision {training.precision}."
    )
    found = [batch, f"Devices: {question.devices_basis}."]
    if choices:
        known = "its band is " if choices[0].run.has_band else ""
        found.append(f"Step time: {known}{choices[0].band.basis}.")
        found += [f"{OF_RUN} {text}." for text in choices[0].run.assumptions]
        found += _of_others(choices)
    return tuple(found)


def _of_others(choices: Sequence[Choice]) -> list[str]:
    """Return what only runs on other devices than the first assume, such as their prices."""
    known, found = set(choices[0].run.assumptions), []
    for label in dict.fromkeys(each.label for each in choices):
        run = next(each.run for each in choices if each.label == label)
        found += [f"On {label}: {text}." for text in run.assumptions if text not in known]
    priced = {each.label for each in choices if each.run.cost_usd is not None}
    labels = dict.fromkeys(each.label for each in choices)
    if priced and len(priced) < len(labels):
        names = ", ".join(label for label in labels if label not in priced)
        found.append(f"No price of {names}, so that choices are ranked by GPU-hours.")
    return found


def changes_of(question: Question, choices: Sequence[Choice]) -> tuple[str, ...]:
    """Return what would change the first choice: other deadlines, other prices."""
    if not choices or choices[0].status != MEETS:
        return ()
    first, found = choices[0], []
    fitting = [each for each in choices if each.fits]
    spend = spend_of(choices)
    if question.deadline_days is not None:
        found += _other_deadlines(first, fitting, spend)
    found += _other_prices(first, fitting)
    return tuple(found)


def _other_deadlines(first: Choice, fitting: Sequence[Choice], spend: str) -> list[str]:
    """Say from which deadlines on another choice is the cheapest."""
    found = []
    spent = value_of(first, spend)
    later = [each for each in fitting if value_of(each, spend) < spent]
    if later:
        soonest = min(later, key=lambda each: each.run.days_high)
        found.append(
            f"From {days_number(soonest.run.days_high)} days on: {soonest.name} at "
            f"{spend_text(soonest)}."
        )
    sooner = [each for each in fitting if each.run.days_high < first.run.days_high]
    if sooner:
        cheapest = min(sooner, key=lambda each: value_of(each, spend))
        found.append(
            f"Below {days_number(first.run.days_high)} days: {cheapest.name} at "
            f"{spend_text(cheapest)}, up to {days_number(cheapest.run.days_high)} days."
        )
    return found


def _other_prices(first: Choice, fitting: Sequence[Choice]) -> list[str]:
    """Say at which prices of an hour another device is the cheaper one."""
    found = []
    for label in dict.fromkeys(each.label for each in fitting):
        rivals = [each for each in fitting if each.label == label and each.status == MEETS]
        if label == first.label or not rivals:
            continue
        rival = min(rivals, key=lambda each: each.run.gpu_hours)
        ratio = first.run.gpu_hours / rival.run.gpu_hours
        price = first.job.run.cost.usd_per_gpu_hour
        at_most = f"{ratio:.2f} times that of {first.label}"
        if price is not None:
            at_most = f"{price * ratio:,.2f} USD"
        found.append(f"{rival.name} costs no more where an hour of a GPU costs at most {at_most}.")
    return found
