"""Traces of real runs: reading, aligning and measuring them.

A reader makes `events.RankTrace` of a file, `activity.align` makes `activity.Activities` of those,
and everything in ``measures`` looks at activities alone. Times are int64 picoseconds from the zero
of a trace, as they are in schedules, so that sums and differences are exact.
"""
