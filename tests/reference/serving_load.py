"""Plain-Python replica under a load: one step at a time, one request at a time."""

import bisect
import math
from types import SimpleNamespace


def line(grid, values, x):
    at = min(max(bisect.bisect_right(list(grid), x) - 1, 0), len(grid) - 2)
    way = (x - grid[at]) / (grid[at + 1] - grid[at])
    return values[at] * (1.0 - way) + values[at + 1] * way


def surface(rows, columns, values, x, y):
    return line(rows, [line(columns, row, y) for row in values], x)


class Replica:
    def __init__(self, requests, limits, table):
        self.limits, self.table = limits, table
        self.requests = [
            SimpleNamespace(
                arrival=arrival, prompt=int(prompt), output=int(output), prefix=int(prefix),
                computed=0, made=0, pages=0, preempted=0,
                admitted=math.nan, first=math.nan, finish=math.nan,
            )
            for arrival, prompt, output, prefix in zip(*requests, strict=True)
        ]  # fmt: skip
        self.waiting, self.running = [], []
        self.coming = list(self.requests)
        if limits.concurrency:
            for request in self.coming[limits.concurrency :]:
                request.arrival = math.inf
        self.now = self.planned = 0.0
        self.busy = self.batch_time = self.prompt_time = 0.0
        self.steps = self.prompt_steps = self.peak = self.computed = 0

    # Units of cache: one page of one layer.
    def units(self, tokens):
        pages = math.ceil(tokens / self.limits.page_tokens)
        kept = min(pages, self.limits.window_pages)
        return self.limits.layers * pages + self.limits.windowed * kept

    def free(self):
        return self.limits.units - sum(request.pages for request in self.running)

    def fits(self, request, tokens):
        return self.units(tokens) - request.pages <= self.free()

    def preempt_last(self):
        victim = self.running.pop()
        victim.pages = 0
        victim.preempted += 1
        self.waiting.insert(0, victim)

    def give_running(self, step, left):
        calm = True
        for request in list(self.running):
            if request not in self.running:
                continue
            need = request.prompt + request.made - request.computed
            part = min(need, left)
            if need > 1:
                part = min(part, self.limits.chunk_tokens)
            if part == 0:
                continue
            while request in self.running and not self.fits(request, request.computed + part):
                self.preempt_last()
                calm = False
            if request not in self.running:
                break
            request.pages = max(request.pages, self.units(request.computed + part))
            step.append((request, part))
            left -= part
        return left, calm

    def admit(self, step, left):
        count = 0
        while self.waiting and left > 0 and len(self.running) < self.limits.max_seqs:
            request = self.waiting[0]
            request.computed = request.prefix
            need = request.prompt + request.made - request.prefix
            part = need
            if self.limits.prompts == 0:
                part = min(need, left, self.limits.chunk_tokens)
            elif need > left and count:
                break
            whole = request.prompt + request.output
            asked = whole if self.limits.reserve else request.prompt + request.made
            if self.units(asked) > self.free():
                break
            del self.waiting[0]
            request.pages = self.units(whole if self.limits.reserve else request.prefix + part)
            if math.isnan(request.admitted):
                request.admitted = self.now
            self.running.append(request)
            step.append((request, part))
            left -= part
            count += 1
        return count

    def plan(self):
        step, budget = [], self.limits.max_tokens
        if self.limits.prompts == 2:
            if self.admit(step, budget):
                return step
            self.give_running(step, budget)
            return step
        left, calm = self.give_running(step, budget)
        if calm:
            self.admit(step, left)
        return step

    def seconds(self, step):
        table = self.table
        decode = [request.computed for request, part in step if part == 1 and request.computed]
        parts = [
            (part, request.computed) for request, part in step if part > 1 or not request.computed
        ]
        mean = sum(decode) / len(decode) if decode else 0.0
        if not parts:
            return surface(table.batch, table.context, table.decode_s, len(decode), mean)
        busy = line(table.tokens, table.base_s, sum(part for _, part in step))
        for part, past in parts:
            busy += surface(table.chunk, table.past, table.chunk_attention_s, part, past)
        host = table.host_s
        if decode:
            attention = table.decode_attention_s
            busy += surface(table.batch, table.context, attention, len(decode), mean)
            busy += line(table.batch, table.beside_s, len(decode))
            host = table.host_beside_s
        return max(busy, host) + table.overhead_s + len(step) * table.sequence_s

    def run(self):
        while True:
            late = self.limits.overlaps and self.running
            while self.coming and self.coming[0].arrival <= (self.planned if late else self.now):
                self.waiting.append(self.coming.pop(0))
            if not self.running and not self.waiting:
                if not self.coming:
                    return
                self.now = self.coming[0].arrival
                continue
            self.one_step()

    def one_step(self):
        self.planned = self.now
        step = self.plan()
        seconds = self.seconds(step)
        self.now += seconds
        self.busy += seconds
        self.steps += 1
        if any(part > 1 or not request.computed for request, part in step):
            self.prompt_steps += 1
            self.prompt_time += seconds
        self.batch_time += seconds * len(self.running)
        self.peak = max(self.peak, self.limits.units - self.free())
        for request, part in step:
            self.computed += part
            request.computed += part
            if request.computed == request.prompt + request.made:
                request.made += 1
                if request.made == 1:
                    request.first = self.now
            if request.made == request.output:
                request.finish = self.now
                self.running.remove(request)
                request.pages = 0
                unsent = [each for each in self.coming if each.arrival == math.inf]
                if unsent:
                    unsent[0].arrival = self.now


def serve(requests, limits, table):
    replica = Replica(requests, limits, table)
    replica.run()
    return replica
