"""What an exported timeline says of the terms of the step that its activities add to."""

import numpy as np

from projector.trace.events import RankTrace

TERM, EXPOSED = "term", "exposed_ps"


def projected_terms(trace: RankTrace) -> dict[int, dict[str, int]]:
    """Return the ps of each term of the step that the activities of each device add to.

    A projection has a device for each pipeline rank. Files that `write_timeline` did not write give
    nothing.
    """
    known = [row for row, detail in enumerate(trace.details) if EXPOSED in detail]
    terms = sorted({str(trace.details[row][TERM]) for row in known})
    exposed_ps = np.zeros(len(trace.details), np.int64)
    term = np.full(len(trace.details), -1, np.int64)
    for row in known:
        exposed_ps[row] = int(trace.details[row][EXPOSED])
        term[row] = terms.index(str(trace.details[row][TERM]))
    events = trace.events
    rows = np.flatnonzero(events.detail >= 0)
    rows = rows[term[events.detail[rows]] >= 0]
    detail, device = events.detail[rows], events.process[rows]
    result: dict[int, dict[str, int]] = {}
    for number in np.unique(device).tolist():
        sums = np.zeros(len(terms), np.int64)
        mine = detail[device == number]
        np.add.at(sums, term[mine], exposed_ps[mine])
        result[number] = dict(zip(terms, sums.tolist(), strict=True))
    return result
