"""Plain-Python sharded step: an event simulation of layers and one first-come channel."""

import heapq
from collections import deque


def layers_of(runs, backward):
    """Layers in the order they compute, as (compute, gather, reduce)."""
    layers = [layer for count, *layer in runs for _ in range(count)]
    return layers[::-1] if backward else layers


def simulate(layers):
    """Return when the last layer has computed, and when the channel falls silent.

    A layer asks for the gather of the next one when it starts to compute and for its own
    reduction when it has computed. The channel serves requests as they come, one at a time.
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
            ask_for_gather(layer + 1, now)

    ask_for_gather(0, 0.0)
    start_what_can(0.0)
    while events:
        now, _, kind, layer = heapq.heappop(events)
        if kind == "computed":
            computed.add(layer)
            finish = now
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
