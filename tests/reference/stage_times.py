"""Plain-Python stages: an event simulation of layers and one first-come channel."""

import heapq
from collections import deque


def layers_of(runs, backward):
    """Layers in the order they compute, as (compute, gather, reduce)."""
    layers = [layer for count, *layer in runs for _ in range(count)]
    return layers[::-1] if backward else layers


def simulate(layers, ahead=1):
    """Return when the last layer has computed, and when the channel falls silent.

    A layer asks for the gather of the one ``ahead`` of it when it starts to compute (with 0 for
    that of the next one when it has computed) and for its own reduction when it has computed. The
    channel serves requests as they come, one at a time.
    """
    events, waiting = [], deque()
    serial = 0
    gathered, computed, started = set(), set(), set()
    channel_free, channel_end, finish = True, 0.0, 0.0

    def post(at, kind, layer):
        nonlocal serial
        heapq.heappush(events, (at, serial, kind, layer))
        serial += 1

    def serve(now):
        nonlocal channel_free
        if channel_free and waiting:
            channel_free = False
            kind, layer, seconds = waiting.popleft()
            post(now + seconds, kind, layer)

    def ask_for_gather(layer, now):
        if layer < len(layers):
            if layers[layer][1] > 0:
                waiting.append(("gathered", layer, layers[layer][1]))
            else:
                gathered.add(layer)
        serve(now)

    def start_what_can(now):
        layer = len(started)
        if layer < len(layers) and layer in gathered and len(computed) == layer:
            started.add(layer)
            post(now + layers[layer][0], "computed", layer)
            if ahead:
                ask_for_gather(layer + ahead, now)

    for layer in range(max(1, ahead)):
        ask_for_gather(layer, 0.0)
    start_what_can(0.0)
    while events:
        now, _, kind, layer = heapq.heappop(events)
        if kind == "computed":
            computed.add(layer)
            finish = now
            if not ahead:
                ask_for_gather(layer + 1, now)
            if layers[layer][2] > 0:
                waiting.append(("reduced", layer, layers[layer][2]))
                serve(now)
        else:
            channel_free, channel_end = True, now
            if kind == "gathered":
                gathered.add(layer)
            serve(now)
        start_what_can(now)
    return finish, channel_end


def first_forwards(stages, ranks, slowdown):
    """Return how long each stage of one job takes for the first microbatch.

    A stage lists its layers as (compute, gather); ``ranks`` is the rank of each. All ranks gather
    their layers one after the other from time 0 on.
    """
    there, silent = {}, [0.0] * (max(ranks) + 1)
    for s, layers in enumerate(stages):
        for i, (_, gather) in enumerate(layers):
            silent[ranks[s]] += gather
            there[s, i] = silent[ranks[s]]
    durations, now = [], 0.0
    for s, layers in enumerate(stages):
        arrival, working = now, []
        for i, (compute, gather) in enumerate(layers):
            start = max(now, there[s, i]) if gather else now
            working.append((start, start + compute))
            now = start + compute
        end = silent[ranks[s]]
        # What is computed before the channel falls silent; a wait before it is no work.
        beside = (
            min(now, end)
            - arrival
            - sum(
                start - before
                for (start, _), before in zip(
                    working, [arrival, *(e for _, e in working)], strict=False
                )
            )
        )
        now += slowdown * max(0.0, beside)
        durations.append(now - arrival)
    return durations


def time_replicas(pipelines, sent, chosen):
    """Return the times of kinds and stages of replicas by name, from the definitions.

    A pipeline is its kinds of stages, each a list of runs (count, layer, forward, backward, input
    gradient, weight gradient), the kind of each stage and its rank. ``sent[sharing][layer]`` says
    gather, reduce and the copies of both.
    """
    found = {}
    for pipeline, share, name, splits, *rest in chosen:
        kinds, stages, ranks = pipelines[pipeline]
        zero = 3 if name == "keeps_weights" else int(name[5])
        overlaps, frees = "overlaps" in name, name == "zero_3"
        layers = [
            [
                (f, *((i, w) if splits else (b, None)), *sent[share][layer])
                for count, layer, f, b, i, w in runs
                for _ in range(count)
            ]
            for runs in kinds
        ]
        timed = [time_kind(own, zero, overlaps, frees, *rest) for own in layers]
        first = [timed[kind]["forward_s"] for kind in stages]
        plain = [sum(layer[0] for layer in layers[kind]) for kind in stages]
        if zero in {1, 2}:
            *_, slowdown, longer = rest
            own = [[(each[0], each[3] * longer) for each in layers[kind]] for kind in stages]
            behind = first_forwards(own, ranks, slowdown)
            first = [
                max(later, alone) if any(gather for _, gather in stage) else alone
                for later, alone, stage in zip(behind, plain, own, strict=True)
            ]
        exposed = [later - alone for later, alone in zip(first, plain, strict=True)]
        for column in timed[0]:
            found.setdefault(column, []).extend(each[column] for each in timed)
        found.setdefault("first_forward_s", []).extend(first)
        found.setdefault("exposed_first_s", []).extend(exposed)
    return found


def time_kind(layers, zero, overlaps, frees, ahead_f, ahead_b, slowdown, longer):
    """Return the times of one kind of stage that do not depend on the stages before.

    Weights are needed by a forward and a gradient of the input. Gradients of weights, which a W
    makes where there is one, are copied and sent.
    """
    apart = any(each[2] is not None for each in layers)
    regathers = frees or zero < 3

    def passed(phase, *, last=False):
        gathers = zero == 3 and (phase == "f" or ("b" in phase and regathers))
        reduces = "w" in phase and (zero >= 2 or (last and overlaps))
        own = []
        for f, b, w, gather, reduce, gather_copy, reduce_copy in layers:
            compute = {"f": f, "bw": b, "b": b, "w": w}[phase]
            if phase == "f" or ("b" in phase and regathers):
                compute += gather_copy
            if "w" in phase:
                compute += reduce_copy
            own.append((compute, gather if gathers else 0.0, reduce if reduces else 0.0))
        if phase == "f":
            return _passed(own, ahead_f, slowdown, longer)
        return _passed(own[::-1], ahead_b, slowdown, longer)

    def sending(phase):
        """Return what each of the operations takes, and the last, and what that leaves."""
        (every, tail), (last, left) = passed(phase), passed(phase, last=True)
        return (every + tail, last + left, 0.0) if zero >= 2 else (every, last, left)

    plain_f, plain_b = sum(each[0] for each in layers), sum(each[1] for each in layers)
    plain_w = sum(each[2] for each in layers) if apart else 0.0
    forward, _ = passed("f")
    if apart:
        weight, last_weight, left = sending("w")
        backward = last = passed("b")[0]
    else:
        weight = last_weight = 0.0
        backward, last, left = sending("bw")
    return {
        "forward_s": forward,
        "backward_s": backward,
        "last_backward_s": last,
        "weight_s": weight,
        "last_weight_s": last_weight,
        "exposed_each_s": forward - plain_f + backward - plain_b + weight - plain_w,
        "exposed_last_s": last - plain_b + last_weight - plain_w,
        "tail_s": left,
        "reduce_after_s": sum(each[4] for each in layers) if zero < 2 and not overlaps else 0.0,
        "gather_after_s": sum(each[3] for each in layers) if zero == 0 else 0.0,
    }


def _passed(layers, ahead, slowdown, longer):
    """Return how long layers take, slowed down by what hides behind them, and what is left."""
    plain, sent = sum(each[0] for each in layers), sum(each[1] + each[2] for each in layers)
    if not sent:
        return plain, 0.0
    beside = [(compute, gather * longer, reduce * longer) for compute, gather, reduce in layers]
    duration, end = simulate(beside, ahead)
    tail = max(0.0, end - duration) / longer
    exposed = max(0.0, duration - plain) / longer
    return plain + exposed + slowdown * longer * max(0.0, sent - exposed - tail), tail
