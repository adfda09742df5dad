"""Plain-Python rollout: one decode step at a time, one sequence at a time."""


def steps_of(tokens, slots):
    """Return (sequences, mean position) of each decode step; the prompt gives the first token."""
    waiting, running, steps = [length - 1 for length in tokens], [], []
    while True:
        running = [(done, length) for done, length in running if done < length]
        while waiting and len(running) < slots:
            length = waiting.pop(0)
            if length:
                running.append((0, length))
        if not running:
            return steps
        steps.append((len(running), sum(done for done, _ in running) / len(running)))
        running = [(done + 1, length) for done, length in running]
