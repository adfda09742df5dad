"""The clock that a device sustains under a load of GEMMs, and what it computes meanwhile."""

import time

from projector.measure.keys import OperationKey
from projector.measure.machine import clock_mhz
from projector.measure.operators import prepare_operation
from projector.measure.pace import Samples, Settled
from projector.measure.runners import Bench
from projector.measure.task import ClockProgram, OperationProgram, Outcome
from projector.measure.vendor import Sampler

EXTENT = 8192
CPU_EXTENT = 1024
"""Extent of the square GEMM: large enough to keep a whole device busy."""

SAMPLES = 20


def run(bench: Bench, program: ClockProgram, sampler: Sampler) -> Outcome:
    """Keep a device busy for some seconds; clock and rate are those of the second half.

    Returns
    -------
    Outcome
        ``time`` of one GEMM; ``clock_mhz`` and ``power_w`` where the vendor's library reads them,
        of a CPU what Linux says; ``flop_per_s`` that the load reached; ``extent`` of the GEMM.
    """
    extent = EXTENT if bench.watch.has_events else CPU_EXTENT
    key = OperationKey(
        label="clock", phase="forward", kind="gemm", dtype=program.dtype,
        m=extent, n=extent, k=extent,
    )  # fmt: skip
    prepared = prepare_operation(bench, OperationProgram(key=key))
    runner = prepared.runner
    one_s = max(1e-9, sum(runner.sample(1).values()))
    runs = int(bench.ranks.agree(max(1.0, program.seconds / SAMPLES / one_s)))
    samples, clocks = Samples(Settled(runs, settled=True)), []
    end = time.perf_counter() + program.seconds
    while not samples.seconds or time.perf_counter() < end:
        start = time.perf_counter()
        samples.seconds.append(runner.sample(runs))
        samples.spans.append((start, time.perf_counter()))
        clocks.append(None if bench.watch.has_events else clock_mhz())
    half = len(samples.seconds) // 2
    samples.seconds, samples.spans = samples.seconds[half:], samples.spans[half:]
    load = sampler.load(samples.spans)
    clock = load.clock_mhz if bench.watch.has_events else clocks[-1]
    times = samples.timings(clock_mhz=clock, power_w=load.power_w)
    numbers = {
        "flop_per_s": 2.0 * extent**3 / times["time"].median_s,
        "extent": float(extent),
        "seconds": program.seconds,
    }
    numbers |= {} if clock is None else {"clock_mhz": clock}
    numbers |= {} if load.power_w is None else {"power_w": load.power_w}
    return Outcome(status="ok", times=times, numbers=numbers, backend=prepared.backend)
