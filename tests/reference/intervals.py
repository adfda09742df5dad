"""Plain-Python sets of intervals, as the sets of instants that they cover."""


def instants(intervals):
    """Return every whole instant that some half-open intervals cover."""
    return {t for start, end in intervals for t in range(start, end)}


def runs(covered):
    """Return a set of instants as intervals that neither meet nor are empty."""
    starts = sorted(t for t in covered if t - 1 not in covered)
    ends = sorted(t + 1 for t in covered if t + 1 not in covered)
    return list(zip(starts, ends, strict=True))


def union(intervals):
    return runs(instants(intervals))


def intersection(a, b):
    return runs(instants(a) & instants(b))


def difference(a, b):
    return runs(instants(a) - instants(b))


def cover(intervals, by):
    """Return how many instants of each interval a set covers."""
    return [len(instants([each]) & instants(by)) for each in intervals]
