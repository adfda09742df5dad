"""Numbers of a result in plain Python, one job at a time."""

GIB = 2**30


def allocator(activations, rank, device):
    """Return pinned, idle and usable bytes; ``rank`` and ``device`` are mappings."""
    stated = device["stated"]
    if stated is not None:
        pinned = stated * (activations + rank["static"])
        return pinned, pinned, max(0.0, device["left"] / (1.0 + stated))
    comes_and_goes = activations + rank["transient"]
    pinned = idle = 0.0
    if device["fixed"]:
        pinned = device["pinned_share"] * comes_and_goes
        idle = device["idle_share"] * comes_and_goes + rank["embedding"]
    idle += rank["unplaced"]
    room = device["left"] - (activations + rank["static"])
    return pinned, max(pinned, min(idle, room)), max(0.0, device["left"] - pinned)


def limit(breakdown_s, step_s, pp, microbatches, busiest_s, ending_s):
    """Return the place of the largest term (the bubble is 6), 12 for few microbatches, or 13."""
    bubble_s = breakdown_s[6]
    if pp > 1 and bubble_s / step_s > 0.1 and microbatches < 4 * pp:
        return 12
    largest = breakdown_s.index(max(breakdown_s))
    return 13 if largest == 6 and busiest_s - ending_s > 0.5 * bubble_s else largest


def result(job, family, step, rank, device):
    """Return the numbers of one job by name; all arguments are mappings."""
    step_s, peak = step["step"], step["peak"]
    needed = family["flop_per_sequence"] * job["global_batch"]
    devices_of_a_stage = family["gpus"] // family["pp"]
    repeated = devices_of_a_stage * job["microbatches"] * family["recompute_flop"]
    tflops = needed / step_s / family["gpus"] / 1e12
    mfu = tflops / family["peak_tflops"]
    late_s = step["busiest"] - step["ending"]
    _, idle, usable = allocator(peak - rank["static"], rank, device)
    return {
        "iteration_ms": step_s / 1e-3,
        "model_flop": needed,
        "recompute_flop": repeated,
        "tokens_per_s_per_gpu": float(job["global_batch"] * family["seq"])
        / step_s
        / family["gpus"],
        "tflops_per_gpu": tflops,
        "mfu": mfu,
        "hfu": mfu * (1.0 + repeated / needed),
        "bubble_fraction": max(0.0, step["last"] / step["busiest"] - 1.0),
        "usable_gib": usable / GIB,
        "allocator_gib": idle / GIB,
        "peak_gib": peak / GIB,
        "peak_gib_low": peak * family["low"] / GIB,
        "peak_gib_high": peak * family["high"] / GIB,
        "headroom_gib": (usable - peak) / GIB,
        "breakdown_ms": [seconds / 1e-3 for seconds in step["breakdown"]],
        "limit": limit(
            step["breakdown"],
            step_s,
            family["pp"],
            job["microbatches"],
            step["busiest"],
            step["ending"],
        ),
        "late_percent": round(100.0 * late_s / (step["ending"] or 1.0)),
    }
