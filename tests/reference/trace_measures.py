"""Plain-Python measures of kernels, each written from its definition, one kernel at a time.

Kernels are lists of ``(start, end, launch, communicates)`` of one device; launch is None where it
is not known. Numbers are whole.
"""

import statistics


def equation_1(launch, ended):
    return max(launch - ended, 0)


def equation_2(start, launch, ended):
    return min(start - launch, start - ended)


def equation_3(start, launch, ended):
    return equation_1(launch, ended) + equation_2(start, launch, ended)


def launch_overheads(kernels):
    """Preparation and call of each compute kernel; None where they are not known.

    The equations hold for kernels one after the other. A kernel that starts while another computes
    has no bubble, and a launch behind the start counts as at the start.
    """
    overheads = []
    ends = []
    for start, end, launch, communicates in kernels:
        if communicates:
            overheads.append(None)
            continue
        if not ends or launch is None:
            overheads.append(None)
        elif max(ends) >= start:
            overheads.append((0, 0))
        else:
            called, ended = min(launch, start), max(ends)
            overheads.append((equation_1(called, ended), equation_2(start, called, ended)))
        ends.append(end)
    return overheads


def overlap_ratio(start, end, communications):
    """Share of a kernel's time steps in which any communication runs."""
    if end == start:
        return None
    covered = [any(s <= t < e for s, e in communications) for t in range(start, end)]
    return sum(covered) / len(covered)


def active_cores(utilisation):
    """Equation 4: how many logical cores are used at all."""
    return sum(1 for percent in utilisation if percent > 0)


def minimum_cores(utilisation):
    """Equation 5: how many cores would do if each were used in full."""
    return sum(percent / 100 for percent in utilisation)


def d50_d0(instances):
    """Equation 9's two durations of ``(duration, overlap)``, by walking along the curve."""
    instances = sorted(instances)
    total = sum(overlap for _, overlap in instances)
    alone = [duration for duration, overlap in instances if overlap == 0]
    d0 = statistics.median(alone) if alone else instances[0][0]
    reached = 0
    for duration, overlap in instances:
        reached += overlap
        if total and reached >= total / 2:
            return duration, d0
    return None, d0


def quantile(values, q):
    """Value at a share of the way through the ordered values, on the line between neighbours."""
    values = sorted(values)
    place = q * (len(values) - 1)
    below = int(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (place - below)


def sums(rows, key):
    """Sum over the rows of each key in each sample; rows are ``(sample, fields, value)``."""
    totals = {}
    for sample, fields, value in rows:
        part = totals.setdefault(key(fields), {})
        part[sample] = part.get(sample, 0) + value
    return totals
