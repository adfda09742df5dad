"""One replica under a load: requests that wait, share steps, hold pages of a cache and leave.

The scheduler is that of continuous batching (vLLM V1): each step first gives every running request
its tokens, in the order of their admission, then admits from the head of the queue while tokens,
sequences and pages are left. A running request without a page takes those of the one admitted
last, which goes back to the head of the queue and computes all its tokens again.

Shapes
    n         requests, in the order of their arrival
    b, c      batches and contexts of the table of decode steps
    t         tokens of the table of steps with prompts
    p, x      tokens of a part of a prompt, and tokens cached before it
Units
    times s in float64; tokens, pages and units of cache in int64. A unit is one page of one layer.
"""

import math
from typing import NamedTuple

import numpy as np

from projector.arrays import Floats, Ints
from projector.kernels._jit import helper, inlined, kernel

CHUNKED, WHOLE, FIRST = 0, 1, 2
"""Prompts: cut and beside decode; uncut and beside decode; uncut and in steps of their own."""

OK, STUCK = 0, 1
"""Status: a request can never run with the given pages."""


class Requests(NamedTuple):
    """A load on one replica."""

    arrival_s: Floats
    """float64[n], ascending; of a closed loop only the first ``concurrency`` are read."""
    input_tokens: Ints
    """int64[n], at least 1."""
    output_tokens: Ints
    """int64[n], at least 1."""
    prefix_tokens: Ints
    """int64[n]: of the prompt, cached when the request is admitted; less than all of it."""


class Limits(NamedTuple):
    """Limits of a scheduler."""

    max_seqs: int
    max_tokens: int
    """Of a step."""
    chunk_tokens: int
    """Of one prompt in a step."""
    prompts: int
    """CHUNKED, WHOLE or FIRST."""
    reserve: int
    """1: a request holds the pages of its whole length from its admission on, and is never
    preempted."""
    page_tokens: int
    units: int
    """Units of cache of the replica."""
    layers: int
    """Layers that keep every token."""
    windowed: int
    """Layers that keep a window."""
    window_pages: int
    """Most pages of such a layer for a sequence."""
    concurrency: int
    """0: requests arrive at their times. Otherwise one arrives when one ends."""
    overlaps: int
    """1: a step is planned when the one before it begins, with what has arrived by then."""


class StepTable(NamedTuple):
    """Times of steps, interpolated linearly between the points and beyond the last."""

    batch: Ints
    """int64[b], ascending, at least two points, as all that follow."""
    context: Ints
    """int64[c]: mean of the tokens cached for a sequence of the batch."""
    decode_s: Floats
    """float64[b, c]: steps of decode alone, whole."""
    decode_attention_s: Floats
    """float64[b, c]: attention in these."""
    tokens: Ints
    """int64[t]"""
    base_s: Floats
    """float64[t]: a step with prompts without attention and host, by all its new tokens."""
    chunk: Ints
    """int64[p]"""
    past: Ints
    """int64[x]"""
    chunk_attention_s: Floats
    """float64[p, x]"""
    beside_s: Floats
    """float64[b]: what sequences that decode beside prompts add to the base: the head's rows, and
    the gaps of their kernels."""
    host_s: float
    """What the host needs to launch the kernels of a step with prompts, which takes no less."""
    host_beside_s: float
    """The same where sequences decode beside the prompts."""
    overhead_s: float
    """Between steps with prompts, whatever they hold."""
    sequence_s: float
    """The same for each sequence of the step."""


class Served(NamedTuple):
    """What became of the requests."""

    admitted_s: Floats
    """float64[n]: start of the first step that held the request."""
    first_s: Floats
    """float64[n]: end of the step that gave the first token."""
    finish_s: Floats
    """float64[n]"""
    preemptions: Ints
    """int64[n]"""
    arrival_s: Floats
    """float64[n]: as given, or in a closed loop the end of the request before."""
    totals: Floats
    """float64[TOTALS]: see the codes below."""


END, BUSY, STEPS, PROMPT_STEPS, PROMPT_S, BATCH_S, PEAK_UNITS, COMPUTED = range(8)
"""Totals: end of the last step, time in steps, steps, those with prompts and their time, integral
of running requests over time, most units held, tokens computed (those computed again too)."""

TOTALS = 8


class _State(NamedTuple):
    running: Ints
    """int64[max_seqs]: requests in the order of admission."""
    part: Ints
    """int64[max_seqs]: tokens of each in the present step."""
    computed: Ints
    """int64[n]: tokens in the cache."""
    generated: Ints
    held: Ints
    """int64[n]: units."""
    space: Ints
    """int64[n]: tokens that these have room for."""
    stack: Ints
    """int64[n]: preempted requests, the head of the queue last."""
    tally: Ints
    """int64[6]: see the codes below."""


_RUNNING, _STACKED, _NEXT, _FREE, _ARRIVED, _SENT = range(6)


@inlined
def _interval(grid: Ints, x: float) -> tuple[int, float]:
    """Return the point below ``x`` and the share of the way to the next."""
    low, high = 0, len(grid) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if grid[middle] <= x:
            low = middle
        else:
            high = middle
    return low, (x - grid[low]) / (grid[low + 1] - grid[low])


@inlined
def _line(grid: Ints, value: Floats, x: float) -> float:
    at, share = _interval(grid, x)
    found: float = value[at] + share * (value[at + 1] - value[at])
    return found


@inlined
def _surface(rows: Ints, columns: Ints, value: Floats, x: float, y: float) -> float:
    at, share = _interval(rows, x)
    low = _line(columns, value[at], y)
    return low + share * (_line(columns, value[at + 1], y) - low)


@inlined
def _units(limits: Limits, tokens: int) -> int:
    pages = (tokens + limits.page_tokens - 1) // limits.page_tokens
    return limits.layers * pages + limits.windowed * min(pages, limits.window_pages)


@inlined
def _take(held: Ints, space: Ints, tally: Ints, limits: Limits, request: int, tokens: int) -> bool:
    """Hold what ``tokens`` cached tokens need; leave all as it is where that is not free."""
    if tokens <= space[request]:
        return True
    units = _units(limits, tokens)
    if units - held[request] > tally[_FREE]:
        return False
    tally[_FREE] -= units - held[request]
    held[request] = units
    space[request] = (tokens + limits.page_tokens - 1) // limits.page_tokens * limits.page_tokens
    return True


@inlined
def _release(held: Ints, space: Ints, tally: Ints, request: int) -> None:
    tally[_FREE] += held[request]
    held[request] = space[request] = 0


@helper
def _preempt_last(state: _State, served: Served) -> None:
    count = state.tally
    count[_RUNNING] -= 1
    request = state.running[count[_RUNNING]]
    _release(state.held, state.space, count, request)
    state.computed[request] = 0
    state.stack[count[_STACKED]] = request
    count[_STACKED] += 1
    served.preemptions[request] += 1


@helper
def _give_running(
    state: _State, requests: Requests, limits: Limits, served: Served
) -> tuple[int, bool]:
    """Give every running request its tokens; return the tokens left and whether all got pages."""
    # Arrays of a tuple are counted again at every use, which would take most of the time here.
    tally, running, parts, held = state.tally, state.running, state.part, state.held
    computed, generated, inputs = state.computed, state.generated, requests.input_tokens
    space = state.space
    left = limits.max_tokens
    undisturbed = True
    slot = 0
    while slot < tally[_RUNNING]:
        request = running[slot]
        past = computed[request]
        need = inputs[request] + generated[request] - past
        part = min(need, left)
        if need > 1:
            part = min(part, limits.chunk_tokens)
        while part > 0 and not _take(held, space, tally, limits, request, past + part):
            _preempt_last(state, served)
            undisturbed = False
            if tally[_RUNNING] == slot:
                part = 0
        if tally[_RUNNING] == slot:
            break
        parts[slot] = part
        left -= part
        slot += 1
    return left, undisturbed


@helper
def _admit(
    state: _State, requests: Requests, limits: Limits, served: Served, left: int, now_s: float
) -> int:
    """Admit from the head of the queue; return how many."""
    count = state.tally
    admitted = 0
    while left > 0 and count[_RUNNING] < limits.max_seqs:
        stacked = count[_STACKED] > 0
        if stacked:
            request = state.stack[count[_STACKED] - 1]
        elif count[_NEXT] < count[_ARRIVED]:
            request = count[_NEXT]
        else:
            break
        prefix = requests.prefix_tokens[request]
        whole = requests.input_tokens[request] + state.generated[request]
        need = whole - prefix
        part = need
        if limits.prompts == CHUNKED:
            part = min(need, limits.chunk_tokens, left)
        elif need > left and admitted > 0:
            break
        pages_for, asked = prefix + part, whole
        if limits.reserve == 1:
            pages_for = asked = requests.input_tokens[request] + requests.output_tokens[request]
        if _units(limits, asked) > count[_FREE]:
            break
        _take(state.held, state.space, count, limits, request, pages_for)
        if stacked:
            count[_STACKED] -= 1
        else:
            count[_NEXT] += 1
            served.admitted_s[request] = now_s
        state.computed[request] = prefix
        state.running[count[_RUNNING]] = request
        state.part[count[_RUNNING]] = part
        count[_RUNNING] += 1
        left -= part
        admitted += 1
    return admitted


@helper
def _prompt_step_s(
    table: StepTable, sequences: int, decoding: int, context: int, tokens: int, chunks_s: float
) -> float:
    busy_s = _line(table.tokens, table.base_s, float(tokens)) + chunks_s
    after_s = table.overhead_s + sequences * table.sequence_s
    if decoding == 0:
        return max(busy_s, table.host_s) + after_s
    batch, mean = float(decoding), context / decoding
    busy_s += _line(table.batch, table.beside_s, batch)
    busy_s += _surface(table.batch, table.context, table.decode_attention_s, batch, mean)
    return max(busy_s, table.host_beside_s) + after_s


@helper
def _survey(state: _State, table: StepTable) -> tuple[int, int, int, int, float]:
    """Return what the step holds.

    Sequences; those that decode, and their cached tokens; all new tokens; attention of prompts.
    """
    sequences, decoding, context, tokens, chunks_s = 0, 0, 0, 0, 0.0
    running, parts, computed = state.running, state.part, state.computed
    chunk, past_grid, attention_s = table.chunk, table.past, table.chunk_attention_s
    for slot in range(state.tally[_RUNNING]):
        part = parts[slot]
        past = computed[running[slot]]
        tokens += part
        sequences += part > 0
        if part == 1 and past > 0:
            decoding += 1
            context += past
        elif part > 0:
            chunks_s += _surface(chunk, past_grid, attention_s, float(part), float(past))
    return sequences, decoding, context, tokens, chunks_s


@helper
def _most_steps(state: _State, requests: Requests, limits: Limits) -> int:
    """Return how many steps of decode alone follow before a request ends or lacks a page."""
    count, free = state.tally[_RUNNING], state.tally[_FREE]
    running, held = state.running, state.held
    computed, generated = state.computed, state.generated
    inputs, outputs = requests.input_tokens, requests.output_tokens
    steps, room = 1 << 62, free
    for slot in range(count):
        request = running[slot]
        done = generated[request]
        if done == 0 or inputs[request] + done - computed[request] > 1:
            return 1  # a part of a prompt that has one token
        steps = min(steps, outputs[request] - done)
        room += held[request]
    each = (limits.layers + limits.windowed) * count
    pages = (steps + limits.page_tokens - 1) // limits.page_tokens
    if limits.reserve == 1 or each * pages <= free:
        return steps
    low, high = 1, steps + 1
    while high - low > 1:
        middle = (low + high) // 2
        needed = 0
        for slot in range(count):
            needed += _units(limits, computed[running[slot]] + middle)
        if needed <= room:
            low = middle
        else:
            high = middle
    return low


@helper
def _stretch(
    table: StepTable, batch: int, context: int, steps: int, now_s: float, until_s: float
) -> tuple[int, float, float]:
    """Run steps of decode alone up to the first that ends at ``until_s`` or later.

    Returns the steps, and begin and end of the last. All sequences grow by one token a step, so
    their mean context does.
    """
    at, share = _interval(table.batch, float(batch))
    low_s, high_s = table.decode_s[at], table.decode_s[at + 1]
    grid = table.context
    mean = context / batch
    column, _ = _interval(grid, mean)
    last = len(grid) - 2
    done, begin_s = 0, now_s
    while done < steps:
        begin_s = now_s
        y = mean + done
        while column < last and y >= grid[column + 1]:
            column += 1
        way = (y - grid[column]) / (grid[column + 1] - grid[column])
        low = low_s[column] + way * (low_s[column + 1] - low_s[column])
        high = high_s[column] + way * (high_s[column + 1] - high_s[column])
        now_s += low + share * (high - low)
        done += 1
        if now_s >= until_s:
            break
    return done, begin_s, now_s


@helper
def _finish_step(
    state: _State, requests: Requests, limits: Limits, served: Served, steps: int, now_s: float
) -> None:
    """Add the step's tokens, and take the requests out that have all of theirs."""
    tally, running, parts, held = state.tally, state.running, state.part, state.held
    computed, generated, totals = state.computed, state.generated, served.totals
    space = state.space
    inputs, outputs = requests.input_tokens, requests.output_tokens
    if steps > 1:
        for slot in range(tally[_RUNNING]):
            request = running[slot]
            _take(held, space, tally, limits, request, computed[request] + parts[slot] * steps)
    totals[PEAK_UNITS] = max(totals[PEAK_UNITS], limits.units - tally[_FREE])
    kept, added = 0, 0
    for slot in range(tally[_RUNNING]):
        request = running[slot]
        part = parts[slot] * steps
        need = inputs[request] + generated[request] - computed[request]
        computed[request] += part
        added += part
        if part >= need:
            generated[request] += steps
            if generated[request] == 1:
                served.first_s[request] = now_s
        if generated[request] < outputs[request]:
            running[kept] = request
            kept += 1
            continue
        served.finish_s[request] = now_s
        _release(held, space, tally, request)
        if limits.concurrency > 0 and tally[_SENT] < len(inputs):
            served.arrival_s[tally[_SENT]] = now_s
            tally[_SENT] += 1
    totals[COMPUTED] += added
    tally[_RUNNING] = kept


@helper
def _arrive(state: _State, served: Served, until_s: float) -> float:
    """Move all that have arrived into the queue; return when the next arrives."""
    count = state.tally
    total = len(served.arrival_s)
    while count[_ARRIVED] < total and served.arrival_s[count[_ARRIVED]] <= until_s:
        count[_ARRIVED] += 1
    return served.arrival_s[count[_ARRIVED]] if count[_ARRIVED] < total else np.inf


@helper
def _plan_step(
    state: _State, requests: Requests, limits: Limits, served: Served, now_s: float
) -> bool:
    """Fill the step; return whether steps alike follow until something ends or arrives."""
    count = state.tally
    if limits.prompts == FIRST:
        before = count[_RUNNING]
        if _admit(state, requests, limits, served, limits.max_tokens, now_s) > 0:
            state.part[:before] = 0
            return False
    left, undisturbed = _give_running(state, requests, limits, served)
    admitted = 0
    if undisturbed and limits.prompts != FIRST:
        admitted = _admit(state, requests, limits, served, left, now_s)
    return undisturbed and admitted == 0


@kernel(python_us=math.inf)
def serve_requests(requests: Requests, limits: Limits, table: StepTable, served: Served) -> int:
    """Serve all requests on one replica.

    requests, limits, table. See their classes.
    served : Served. Output, overwritten.
    Returns OK, or STUCK where a request needs more units than there are.

    Steps of decode alone that follow one another with the same requests are one loop over times.
    """
    total = len(requests.input_tokens)
    totals = served.totals
    totals[:] = 0.0
    state = _State(
        np.zeros(limits.max_seqs, np.int64), np.zeros(limits.max_seqs, np.int64),
        np.zeros(total, np.int64), np.zeros(total, np.int64), np.zeros(total, np.int64),
        np.zeros(total, np.int64), np.zeros(total, np.int64), np.zeros(6, np.int64),
    )  # fmt: skip
    count = state.tally
    count[_FREE] = limits.units
    for request in range(total):
        # One by one: to assign all takes numba 1 s more to compile.
        served.arrival_s[request], served.preemptions[request] = requests.arrival_s[request], 0
        longest = requests.input_tokens[request] + requests.output_tokens[request]
        if _units(limits, longest) > limits.units:
            return STUCK
    if limits.concurrency > 0:
        count[_SENT] = min(limits.concurrency, total)
        served.arrival_s[count[_SENT] :] = np.inf
    now_s = planned_s = 0.0
    while True:
        overlaps = limits.overlaps == 1 and count[_RUNNING] > 0
        next_s = _arrive(state, served, planned_s if overlaps else now_s)
        waiting = count[_STACKED] > 0 or count[_NEXT] < count[_ARRIVED]
        if count[_RUNNING] == 0 and not waiting:
            if next_s == np.inf:
                break
            now_s = next_s
            continue
        lasting = _plan_step(state, requests, limits, served, now_s)
        begin_s = planned_s = now_s
        steps = 1
        sequences, decoding, context, tokens, chunks_s = _survey(state, table)
        if decoding == tokens:
            if lasting:
                steps = _most_steps(state, requests, limits)
            waiting = count[_STACKED] > 0 or count[_NEXT] < count[_ARRIVED]
            until_s = np.inf if waiting else next_s
            steps, planned_s, now_s = _stretch(table, decoding, context, steps, now_s, until_s)
        else:
            now_s += _prompt_step_s(table, sequences, decoding, context, tokens, chunks_s)
            totals[PROMPT_STEPS] += 1.0
            totals[PROMPT_S] += now_s - begin_s
        totals[STEPS] += steps
        totals[BUSY] += now_s - begin_s
        totals[BATCH_S] += (now_s - begin_s) * count[_RUNNING]
        _finish_step(state, requests, limits, served, steps, now_s)
    totals[END] = now_s
    return OK
