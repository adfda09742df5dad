"""The local search for zero-bubble orders in plain Python, on the texts of `zero_bubble`."""

from .zero_bubble import objectives

MASK = 2**32 - 1


def numbers(seed):
    """Marsaglia's xorshift with 32 bits and the shifts 13, 17, 5."""
    while True:
        seed ^= seed << 13 & MASK
        seed ^= seed >> 17
        seed ^= seed << 5 & MASK
        yield seed


def is_legal(text, size, w_share, limit):
    """F, B and W of each microbatch in turn, and never more than the limit."""
    f = b = w = 0
    for letter in text:
        f, b, w = f + (letter == "F"), b + (letter == "B"), w + (letter == "W")
        if not f >= b >= w:
            return False
        if letter == "F" and size * (f - b) + size * w_share * (b - w) > limit:
            return False
    return True


def anneal(
    texts, times, to_next, to_previous, period, size, w_share, limit, threshold, moves, seed
):
    """Best texts and their objective after some moves, with the random numbers of the kernel."""
    draw = numbers(seed)
    each = len(texts[0])

    def value(candidate):
        found = objectives(candidate, times, to_next, to_previous)
        return None if found is None else found[period]

    texts = list(texts)
    current = best = value(texts)
    kept = list(texts)
    for step in range(moves):
        rank, source = divmod(next(draw) % (len(texts) * each), each)
        distance = 1 + next(draw) % 3
        target = source + distance if next(draw) % 2 == 0 else source - distance
        share = next(draw) / 2**32
        if not 0 <= target < each or texts[rank][source] == texts[rank][target]:
            continue
        worse = int(threshold * (1.0 - step / moves) * share)
        letters = list(texts[rank])
        letters.insert(target, letters.pop(source))
        candidate = [*texts[:rank], "".join(letters), *texts[rank + 1 :]]
        if not is_legal(candidate[rank], size[rank], w_share, limit[rank]):
            continue
        found = value(candidate)
        if found is None or found > current + worse:
            continue
        texts, current = candidate, found
        if current < best:
            best, kept = current, list(texts)
    return kept, best
