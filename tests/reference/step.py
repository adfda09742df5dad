"""Plain-Python sharded step: an event simulation of layers and one first-come channel."""

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


def end_step(ranks, held, stages, optimizer_s, tied_s, overhead_s, microbatches, apart, late):
    """Return the step, its breakdown and its ranks, from the definition.

    ``ranks`` lists (start, end, last backward of each chunk, start, end and busy without
    transfers) in ps; ``stages`` are mappings.
    """
    ps = 1e-12
    finish, ends = [], []
    for rank, (start, end, last, *_) in enumerate(ranks):
        mine = [stages[stage] for stage in held[rank]]
        sent = 0.0
        for _, stage in sorted(zip(last, range(len(mine)), strict=True)):
            sent = max(sent, last[stage] * ps) + mine[stage]["tail"]
        if not any(stage["tail"] for stage in mine):
            sent = 0.0
        done = max(end * ps, sent) + sum(stage["reduce_after"] for stage in mine)
        done += tied_s if rank in {0, len(ranks) - 1} else 0.0
        begin = start * ps if apart else 0.0
        finish.append(done - begin)
        ends.append(end * ps - begin)
    ending = finish.index(max(finish))
    after = [
        update + sum(stages[stage]["gather_after"] for stage in held[rank])
        for rank, update in enumerate(optimizer_s)
    ]
    updating = after.index(max(after))
    busy = [rank[5] for rank in ranks]
    start, end, _, alone_start, alone_end, own_busy = ranks[ending]
    span = end - (start if apart else 0)
    idle = min(span, alone_end - (alone_start if apart else 0))
    mine = [stages[stage] for stage in held[ending]]
    breakdown = [
        sum(microbatches * stage["categories"][term] for stage in mine) for term in range(6)
    ]
    exposed = sum(
        stage["first"] + stage["last"] + (microbatches - 1) * stage["each"] for stage in mine
    )
    gathers = sum(stages[stage]["gather_after"] for stage in held[updating])
    breakdown += [
        (idle - own_busy) * ps,
        (span - idle) * ps,
        exposed + finish[ending] - ends[ending] + gathers,
        optimizer_s[updating],
        sum(microbatches * stage["launch"] for stage in mine) + overhead_s,
        late * sum(breakdown[:3]),
    ]
    times = (
        finish[ending] + after[updating] + overhead_s + breakdown[-1],
        max(ends),
        max(busy) * ps,
        own_busy * ps,
    )
    return times, breakdown, (ending, busy.index(max(busy)))
