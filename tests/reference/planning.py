"""Plain-Python layout of weight gradients: every rank looks at its own list and at the clock."""


def lay_out(sequences, placement, times, latency, activation, w_share, limit, patience):
    """Place the W's of every rank; return its operations with their spans, None if one waits.

    ``sequences[r]`` lists the F and B of rank r as (kind, chunk, microbatch); ``times[kind]`` and
    ``activation`` are lists by virtual stage; ``latency(stage, target)`` is 0 within a rank.
    """
    home = {stage: rank for rank, row in enumerate(placement) for stage in row}
    last = len(home) - 1
    arrived = {}  # (kind, stage, microbatch): time
    todo = [list(tasks) for tasks in sequences]
    weights = [[] for _ in sequences]  # W's that wait, as (microbatch, chunk)
    held = [0.0] * len(sequences)
    clock = [0] * len(sequences)
    done = [[] for _ in sequences]

    def arrival(rank):
        """When the next F or B of a rank can run: None while that is not known."""
        kind, chunk, m = todo[rank][0]
        stage = placement[rank][chunk]
        if kind == "F":
            if held[rank] + activation[stage] > limit[rank] + 1e-9:
                return None
            if stage == 0:
                return 0
        return arrived.get((kind, stage, m))

    def decide(rank, now):
        """What a rank would do at this time: an operation, the time to look again, or nothing."""
        ready = arrival(rank) if todo[rank] else None
        if ready is not None and ready <= now:
            return todo[rank][0]
        if weights[rank]:
            m, chunk = min(weights[rank])
            duration = times["W"][placement[rank][chunk]]
            if ready is None or 4 * (ready - now) >= patience * duration:
                return ("W", chunk, m)
        return ready

    while any(todo) or any(weights):
        # The rank that can act first acts, all others look again afterwards.
        options = []
        for rank in range(len(sequences)):
            if not todo[rank] and not weights[rank]:
                continue
            now, choice = clock[rank], decide(rank, clock[rank])
            while isinstance(choice, int):
                now, choice = choice, decide(rank, choice)
            if choice is not None:
                options.append((now, rank, choice))
        if not options:
            return None
        now, rank, (kind, chunk, m) = min(options, key=lambda option: option[:2])
        stage = placement[rank][chunk]
        end = now + times[kind][stage]
        done[rank].append((kind, chunk, m, now, end))
        clock[rank] = end
        if kind == "W":
            weights[rank].remove((m, chunk))
            held[rank] -= activation[stage] * w_share
            continue
        todo[rank].pop(0)
        if kind == "F":
            held[rank] += activation[stage]
            kind, target = ("F", stage + 1) if stage < last else ("B", stage)
        else:
            weights[rank].append((m, chunk))
            held[rank] -= activation[stage] * (1 - w_share)
            target = stage - 1
        if target >= 0:
            delay = latency(stage, target) if home[target] != rank else 0
            arrived[kind, target, m] = end + delay
    return done
