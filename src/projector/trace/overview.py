"""Where the time of a run went: what `TraceAnalysis.summary` is made of."""

from dataclasses import replace
from typing import Any

from projector.arrays import Flags
from projector.trace.activity import Activities
from projector.trace.events import NONE, Trace
from projector.trace.measures.breakdown import breakdown
from projector.trace.measures.clocks import sampled
from projector.trace.measures.communication import communication_rows
from projector.trace.measures.cpu import CPU_PERCENT, cpu_use
from projector.trace.measures.idle import idle_times
from projector.trace.measures.iterations import IterationTimes, iteration_times, throughput
from projector.trace.measures.sharding import sharding_times
from projector.trace.measures.stragglers import rank_spreads, stragglers
from projector.trace.measures.summary import rank_summaries
from projector.trace.measures.times import KernelTimes

_LAUNCHES = ("launch_ps", "launch_end_ps")
_TIMES = ("start_ps", "end_ps", *_LAUNCHES)


def overview(
    trace: Trace,
    everything: Activities,
    in_time: Activities,
    times: KernelTimes,
    where: Flags,
    tokens: float | None,
) -> dict[str, Any]:
    """Return the parts of a summary, as JSON has them.

    Parameters
    ----------
    trace : Trace
        For what was sampled beside the run.
    everything : Activities
        All activities, for what neighbours decide.
    in_time : Activities
        Those of the ranks and iterations that were chosen.
    times : KernelTimes
        Of ``everything``.
    where : bool[everything]
        What was chosen of it, within iterations.
    tokens : float, optional
        Of one iteration of the whole job.
    """
    iterations = iteration_times(everything, times, where)
    alone = on_own_clocks(in_time)
    rate = None if tokens is None else throughput(iterations, tokens)
    return {
        "ranks": [each.to_dict() for each in rank_summaries(alone)],
        "phases": [
            each.to_dict() for each in breakdown(everything, ("phase", "type"), times, where)
        ],
        "iteration_times": [each.to_dict() for each in iterations],
        "throughput": None if rate is None else rate.to_dict(),
        "communication": [each.to_dict() for each in communication_rows(everything, times, where)],
        "stragglers": [each.to_dict() for each in stragglers(everything, times, where, iterations)],
        "rank_spreads": [each.to_dict() for each in rank_spreads(everything, times, where)],
        "gaps": [each.to_dict() for each in idle_times(alone)],
        "sharding": [each.to_dict() for each in sharding_times(everything, where)],
        **_beside(trace, in_time, iterations),
    }


def on_own_clocks(activities: Activities) -> Activities:
    """Return activities at the times of their files, where clocks that drift were aligned.

    What a rank does by itself is then whole nanoseconds, as its file has them.
    """
    columns = {name: getattr(activities, name).copy() for name in _TIMES}
    drifting = [clock for clock in activities.clocks if clock.drift]
    for clock in drifting:
        mine = activities.rank == clock.rank
        for name, values in columns.items():
            known = mine & (values != NONE) if name in _LAUNCHES else mine
            values[known] = clock.own(values[known])
    return replace(activities, **columns) if drifting else activities


def _beside(
    trace: Trace, in_time: Activities, iterations: list[IterationTimes]
) -> dict[str, list[Any]]:
    """Return what was sampled beside the run, while the chosen activities ran."""
    if not trace.samples or not len(in_time):
        return {"cores": [], "sampled": []}
    begin, end = int(in_time.start_ps.min()), int(in_time.end_ps.max())
    cores = [cpu_use(each, begin, end) for each in trace.samples if each.what == CPU_PERCENT]
    others = sampled(trace.samples, iterations, begin, end)
    return {
        "cores": [each.to_dict() for each in cores if each is not None],
        "sampled": [each.to_dict() for each in others],
    }
