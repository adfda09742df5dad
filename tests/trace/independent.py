"""Totals of a trace, straight from its JSON: plain Python and exact decimals, nothing of ours.

Run it with the path of a Kineto trace to see them. Stamps are microseconds with three decimals, so
that times 1,000 they are whole nanoseconds.
"""

import gzip
import json
import sys
from decimal import Decimal
from pathlib import Path

ON_DEVICE = {"kernel": "kernels", "gpu_memcpy": "copies", "gpu_memset": "fills"}


def read(path):
    """Return the complete events of a trace, numbers as they are written."""
    data = Path(path).read_bytes()
    data = gzip.decompress(data) if str(path).endswith(".gz") else data
    events = json.loads(data, parse_float=Decimal)["traceEvents"]
    return [event for event in events if event.get("ph") == "X" and "dur" in event]


def nanoseconds(microseconds):
    value = Decimal(microseconds) * 1000
    assert value == value.to_integral_value(), microseconds
    return int(value)


def span(event):
    start = nanoseconds(event["ts"])
    return start, start + nanoseconds(event["dur"])


def is_communication(name):
    return "nccl" in name or "all_reduce" in name


def covered(spans):
    """Return the length that some spans cover together, walking along their ends."""
    total, reached = 0, None
    for start, end in sorted(spans):
        if reached is None or start > reached:
            total += end - start
            reached = end
        elif end > reached:
            total += end - reached
            reached = end
    return total


def overlap(span_, others):
    """Return how much of a span others cover."""
    start, end = span_
    return covered([(max(s, start), min(e, end)) for s, e in others if s < end and e > start])


def totals(path):
    """Return counts and nanoseconds of one trace of one device."""
    events = read(path)
    device = [event for event in events if event.get("cat") in ON_DEVICE]
    spans = {"compute": [], "communication": [], "memcpy": []}
    for event in device:
        spans[class_of(event)].append(span(event))
    computing, communicating = spans["compute"], spans["communication"]
    everything = [each for some in spans.values() for each in some]
    whole = max(e for _, e in everything) - min(s for s, _ in everything)
    busy = covered(everything)
    found = dict.fromkeys(ON_DEVICE.values(), 0)
    for event in device:
        found[ON_DEVICE[event["cat"]]] += 1
    return {
        **found,
        "span_ns": whole,
        "busy_ns": busy,
        "idle_ns": whole - busy,
        "compute_ns": covered(computing),
        "communication_ns": covered(communicating),
        "memcpy_ns": covered(spans["memcpy"]),
        "exposed_communication_ns": covered(computing + communicating) - covered(computing),
        "exposed_memcpy_ns": busy - covered(computing + communicating),
        "overlapped_ns": sum(overlap(each, communicating) for each in computing),
        **launch_totals(events, device),
        "recomputed": recomputed(events, device),
    }


def class_of(event):
    if event["cat"] == "gpu_memcpy":
        return "memcpy"
    return "communication" if is_communication(event["name"]) else "compute"


def launches(events):
    """Return the call that launched what has a correlation."""
    return {
        event["args"]["correlation"]: event
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver")
        and "correlation" in event.get("args", {})
    }


def launch_totals(events, device):
    """Return bubbles between kernels that compute, and equations 1 and 2 where launches are."""
    calls = launches(events)
    rows = [
        (*span(event), event["args"]["correlation"])
        for event in device
        if class_of(event) == "compute"
    ]
    rows.sort(key=lambda row: row[:2])
    bubbles = preparation = call = 0
    ended = None
    for start, end, correlation in rows:
        if ended is not None and start > ended:
            bubbles += start - ended
            if correlation in calls:
                launch = min(span(calls[correlation])[0], start)
                preparation += max(launch - ended, 0)
                call += min(start - launch, start - ended)
        ended = end if ended is None else max(ended, end)
    return {"bubbles_ns": bubbles, "preparation_ns": preparation, "call_ns": call}


def recomputed(events, device):
    """Return how many activities a forward launched that runs within the backward's engine.

    A forward is a call of a module, or an operator that records for the backward: one with a
    sequence number that names no thread of a forward.
    """
    calls = launches(events)
    engine, forward = {}, {}
    for event in events:
        args, thread = event.get("args", {}), (event.get("pid"), event.get("tid"))
        name, category = event["name"], event.get("cat")
        if category == "cpu_op" and name.startswith("autograd::engine::evaluate_function"):
            engine.setdefault(thread, []).append(span(event))
        elif category == "cpu_op" and "Sequence number" in args:
            if int(args.get("Fwd thread id", 0)) == 0:
                forward.setdefault(thread, []).append(span(event))
        elif category == "python_function" and name.startswith("nn.Module"):
            forward.setdefault(thread, []).append(span(event))
    count = 0
    for event in device:
        launch = calls.get(event["args"]["correlation"])
        if launch is None:
            continue
        thread, (at, _) = (launch["pid"], launch["tid"]), span(launch)
        count += any(
            begin <= start and end <= finish and start <= at < end
            for begin, finish in engine.get(thread, ())
            if begin <= at < finish
            for start, end in forward.get(thread, ())
        )
    return count


if __name__ == "__main__":
    sys.stdout.write(json.dumps(totals(sys.argv[1]), indent=2) + "\n")
