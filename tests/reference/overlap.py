"""Plain-Python exposure of collectives behind the compute of their segment, row by row."""


def exposed(rows):
    """Return what of each row lengthens the step.

    A row is a mapping: workload, forward, segment (-1 is the whole layer), compute, time, exposed,
    partner, ranks, local (those of a domain), and three slowdowns.
    """
    times = []
    for row in rows:
        if row["compute"] or row["exposed"] >= 1.0:
            times.append(row["time"])
            continue
        mates = [
            other
            for other in rows
            if (other["workload"], other["forward"]) == (row["workload"], row["forward"])
        ]
        if row["segment"] >= 0:
            beside = compute_of(mates, row["segment"])
        else:
            # What no collective of a segment has claimed.
            beside = sum(
                compute_of(mates, segment) * (1.0 - claimed(mates, segment)) for segment in range(8)
            )
        within, network, longer = row["slowdown"]
        always = row["exposed"] * row["time"]
        hidden = min(row["time"] - always, row["partner"] * beside / (1.0 + longer))
        hidden = max(hidden, 0.0)
        # Rank after rank round the ring: which hop leaves the domain?
        ring = [rank // row["local"] for rank in range(row["ranks"])]
        hops = [
            network if a != b else within for a, b in zip(ring, [*ring[1:], ring[0]], strict=True)
        ]
        slowed = sum(hops) / len(hops) * hidden * (1.0 + longer)
        times.append(row["time"] - hidden + slowed)
    return times


def compute_of(rows, segment):
    return sum(row["time"] for row in rows if row["compute"] and row["segment"] == segment)


def claimed(rows, segment):
    return sum(
        row["partner"]
        for row in rows
        if not row["compute"] and row["exposed"] < 1.0 and row["segment"] == segment
    )
