"""Earliest starts and the bound of a rank by plain lists."""


def done(ready, duration):
    """When operations are all done that are ready at times [kind][number], one at a time."""
    latest_first = sorted(((time, k) for k in range(3) for time in ready[k]), reverse=True)
    work, last = 0, []
    for time, k in latest_first:
        work += duration[k]
        last.append(time + work)
    return max(last)


def pass_over(sequence, first, last, duration, latency, step, visits, start):
    """Visits left; ``start`` [stage][kind][number] is replaced."""
    for stage, kind, number in sequence:
        visits -= 1
        if visits < 0:
            return visits
        source = stage + (-step, step, len(start))[kind]
        least = start[stage][kind][number]
        if 0 <= source < len(start):
            arrival = start[source][kind][number] + duration[source][kind]
            least = max(least, arrival + latency[kind][stage])
        counts = zip(first[stage][kind][number], last[stage][kind][number], strict=True)
        ready = [start[stage][k][low:high] for k, (low, high) in enumerate(counts)]
        if any(ready):
            least = max(least, done(ready, duration[stage]))
        start[stage][kind][number] = least
    return visits


def least_objective(thresholds, start, work, tail, visits):
    """Bound, and visits left."""
    bound = 0
    for threshold in thresholds:
        visits -= 1
        if visits < 0:
            break
        chosen = [place for place, time in enumerate(start) if time >= threshold]
        for count in range(1, len(chosen) + 1):
            first = chosen[:count]
            end = threshold + sum(work[place] for place in first)
            bound = max(bound, end + tail[first[-1]])
    return bound, visits
