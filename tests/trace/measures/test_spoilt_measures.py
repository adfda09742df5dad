"""Spoilt traces: whatever could be read is measured, and its times still add up."""

import json
import os

import pytest

from mutilations import read_mutilated
from projector.trace.analysis import TraceAnalysis

MUTILATIONS = int(os.environ.get("PROJECTOR_MUTILATIONS", "40"))
"""How many spoilt traces are measured; tried with 1,800."""


@pytest.mark.parametrize("chunk", range(4))
def test_what_could_be_read_is_measured(chunk, tmp_path):
    for seed in range(chunk, MUTILATIONS, 4):
        trace = read_mutilated(seed, tmp_path)
        if trace is None:
            continue
        analysis = TraceAnalysis(trace)
        summary = analysis.summary(tokens=1000)
        for result in (summary, analysis.operations(), analysis.launch(), analysis.overlap()):
            json.dumps(result.to_dict(), allow_nan=False)
        for row in summary.to_dict()["ranks"]:
            parts = ("compute_ns", "exposed_communication_ns", "exposed_memcpy_ns", "idle_ns")
            assert row["busy_ns"] + row["idle_ns"] == row["span_ns"]
            assert sum(row[name] for name in parts) == row["span_ns"]
