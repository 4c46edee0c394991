# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# PyTorch programs for gct-bench: inference with a transformer, and training of a larger one. Reads
# one request per line on standard input, and writes one line of JSON for each to standard output.
# The first request for a model is the first use of the GPU.
import json
import random
import statistics
import sys
import time

import torch

DEVICE = "cuda"


def say(**facts):
    print(json.dumps(facts), flush=True)


def encoder(width, heads, hidden, layers):
    layer = torch.nn.TransformerEncoderLayer(width, heads, hidden, batch_first=True, dropout=0.0)
    return torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(DEVICE)


class Inference:
    """Six layers, 4 sequences of 128 tokens, half precision; launch by launch and as a graph."""

    def __init__(self):
        self.model = encoder(1024, 16, 4096, 6).half().eval()
        self.data = torch.randn(4, 128, 1024, device=DEVICE).half()
        self.streams = [torch.cuda.Stream(priority=p) for p in (0, -5)]
        self.graphs = [self.capture(stream) for stream in self.streams]

    def capture(self, stream):
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.stream(stream):
            for _ in range(5):
                self.model(self.data)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, stream=stream):
                self.model(self.data)
            graph.replay()
            torch.cuda.synchronize()
        return graph

    def once(self, how, priority):
        stream = self.streams[priority]
        with torch.no_grad(), torch.cuda.stream(stream):
            if how == "graph":
                self.graphs[priority].replay()
            else:
                self.model(self.data)
        stream.synchronize()

    def serve(self, how, priority, rate, start, seconds, seed):
        """Requests arrive at random; their latency counts from their arrival."""
        rng = random.Random(seed)
        end = start + seconds
        due = time.time()
        times = []
        while due < end:
            while time.time() < due:
                pass
            if time.time() >= end:
                break
            self.once(how, priority)
            now = time.time()
            if now >= start:
                times.append((now - due) * 1e6)
            due += rng.expovariate(rate)
        times.sort()
        rank = lambda q: times[int((len(times) - 1) * q)]
        return dict(launches=len(times), p50_us=rank(0.5), p95_us=rank(0.95), p99_us=rank(0.99))

    def cost(self, how, count):
        for _ in range(10):
            self.once(how, 0)
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            self.once(how, 0)
            times.append(time.perf_counter() - begin)
        return dict(us=statistics.median(times) * 1e6)


class Training:
    """Four layers, 16 sequences of 512 tokens, SGD."""

    def __init__(self):
        torch.backends.cuda.matmul.allow_tf32 = True
        self.model = encoder(2048, 16, 8192, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-4)
        self.data = torch.randn(16, 512, 2048, device=DEVICE)
        for _ in range(3):
            self.step()
        torch.cuda.synchronize()

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        (self.model(self.data) ** 2).mean().backward()
        self.optimizer.step()

    def serve(self, start, seconds):
        """Steps of which both the one before and itself ended in the window."""
        end = start + seconds
        events = []
        ends = []
        while True:
            self.step()
            event = torch.cuda.Event()
            event.record()
            events.append(event)
            if len(events) > 1:
                events.pop(0).synchronize()
                now = time.time()
                if now >= end:
                    break
                if now >= start:
                    ends.append(now)
        torch.cuda.synchronize()
        rate = (len(ends) - 1) / (ends[-1] - ends[0]) if len(ends) > 1 else 0.0
        return dict(launches_per_second=rate)

    def cost(self, count):
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            self.step()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
        return dict(us=statistics.median(times) * 1e6)


KINDS = dict(inference=Inference, training=Training)


def answer(words, parts):
    verb, words = words[0], words[1:]
    if verb == "build":
        parts.update((name, KINDS[name]()) for name in words)
        return dict(built=words)
    if verb == "infer":
        how, priority, rate, start, seconds, seed = words
        return parts["inference"].serve(
            how, int(priority), float(rate), float(start), float(seconds), int(seed))
    if verb == "train":
        return parts["training"].serve(*map(float, words))
    if verb == "cost-train":
        return parts["training"].cost(int(words[0]))
    if verb == "cost-infer":
        return parts["inference"].cost(words[0], int(words[1]))
    raise ValueError(verb)


def main():
    torch.manual_seed(0)
    parts = {}
    say(ready=True, torch=torch.__version__, cuda=torch.version.cuda)
    for line in sys.stdin:
        try:
            say(**answer(line.split(), parts))
        except Exception as error:
            say(error=repr(error))


main()
