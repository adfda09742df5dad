"""Plain-Python end of a step."""


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
