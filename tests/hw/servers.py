#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Measures two language-model servers on one GPU: the tokens of both, the time to a request's first
# token, and the time between tokens. Compares one server alone with two by time slices, as clients
# of MPS, with a half of MPS's threads each, and under limits of gctgroup.
#
#     usage: tests/hw/servers.py DIR [--loads 1,8,32] [--ways WAY;...] [--windows 3] [--seconds 5]
#                                [--warm 2] [--out FILE]
#
# gctd, gctctl, gct-load and libgct_preload.so are in DIR. A server has a model of the shape of
# Qwen3-4B with random weights in bfloat16, continuous batching, a KV cache of fixed slots, and CUDA
# graphs for decoding. A load is a number of clients, each of which waits for its answer before it
# asks again, or requests a second (3/s) at random. Prompts have 2048 tokens and answers 256. Times
# are in milliseconds: the medians of the windows, with the least and the most of each.
import argparse
import os
import random
import sys
import time

# The folder stays as it is.
sys.dont_write_bytecode = True
import worth

worth.Program.script = os.path.abspath(__file__)

PROMPT, ANSWER = 2048, 256
LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, INNER, WORDS = 36, 2560, 32, 8, 128, 9728, 151936
BATCHES = [1, 2, 4, 8, 16, 32]

# What starts the servers, and the limits of their groups, which are written before, or "later".
WAYS = {
    "dedicated": ("native", [{}]),
    "time slices": ("native", [{}] * 2),
    "MPS": ("mps", [{}] * 2),
    "MPS, 50% each": ("half", [{}] * 2),
    "no limits": ("turns", [{}] * 2),
    "weights": ("turns", [{"compute.weight": "100"}] * 2),
    "priority": ("turns", [{"compute.priority": "0"}, {"compute.priority": "8"}]),
    "MPS, no limits": ("beside", [{}] * 2),
    "MPS, quotas": ("beside", [{"tpc.quota": "33"}] * 2),
    "MPS, quotas later": ("later", [{"tpc.quota": "33"}] * 2),
    "MPS, weights": ("beside", [{"compute.weight": "100"}] * 2),
    "MPS, priority": ("beside", [{"compute.priority": "0"}, {"compute.priority": "8"}]),
}


class Model:
    """A decoder with grouped-query attention, and the slots of its KV cache."""

    def __init__(self, torch):
        self.torch, cuda = torch, dict(device="cuda", dtype=torch.bfloat16)
        weight = lambda *shape: torch.randn(*shape, **cuda).mul_(0.02)
        self.layers = [
            dict(qkv=weight((HEADS + 2 * KV_HEADS) * HEAD, WIDTH), out=weight(WIDTH, HEADS * HEAD),
                 up=weight(2 * INNER, WIDTH), down=weight(WIDTH, INNER))
            for _ in range(LAYERS)
        ]
        self.words = weight(WORDS, WIDTH)
        slots, length = BATCHES[-1], PROMPT + ANSWER
        self.keys, self.values = (torch.zeros(LAYERS, slots, KV_HEADS, length, HEAD, **cuda) for _ in range(2))
        angle = torch.outer(torch.arange(length), 1e6 ** -(torch.arange(0, HEAD, 2) / HEAD)).repeat(1, 2)
        self.cos, self.sin = angle.cos().to(**cuda), angle.sin().to(**cuda)
        self.token = torch.zeros(slots, dtype=torch.long, device="cuda")
        self.place = torch.full((slots,), PROMPT, dtype=torch.long, device="cuda")
        self.rows = torch.arange(slots, device="cuda")
        self.ahead = torch.arange(length, device="cuda")
        self.graphs = {}

    def turned(self, x, cos, sin):
        left, right = x.chunk(2, -1)
        return x * cos + self.torch.cat((-right, left), -1) * sin

    def layer(self, layer, x, attend):
        f = self.torch.nn.functional
        y = f.linear(f.rms_norm(x, (WIDTH,)), layer["qkv"])
        x = x + f.linear(attend(y), layer["out"])
        gate, up = f.linear(f.rms_norm(x, (WIDTH,)), layer["up"]).chunk(2, -1)
        return x + f.linear(f.silu(gate) * up, layer["down"])

    def likeliest(self, x):
        f = self.torch.nn.functional
        return f.linear(f.rms_norm(x, (WIDTH,)), self.words).argmax(-1)

    def prefill(self, slot, prompt):
        """Reads a prompt into a slot, and leaves its first token there."""
        f = self.torch.nn.functional
        cos, sin = self.cos[:PROMPT], self.sin[:PROMPT]
        x = self.words[prompt]
        for at, layer in enumerate(self.layers):

            def attend(y, at=at):
                q, k, v = y.view(PROMPT, -1, HEAD).transpose(0, 1).split((HEADS, KV_HEADS, KV_HEADS))
                q, k = self.turned(q, cos, sin), self.turned(k, cos, sin)
                self.keys[at, slot, :, :PROMPT] = k
                self.values[at, slot, :, :PROMPT] = v
                y = f.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, enable_gqa=True)
                return y[0].transpose(0, 1).reshape(PROMPT, -1)

            x = self.layer(layer, x, attend)
        self.token[slot] = self.likeliest(x[-1])
        self.place[slot] = PROMPT

    def decode(self, batch):
        """Adds a token to each of the first slots."""
        torch = self.torch
        place, rows = self.place[:batch], self.rows[:batch]
        cos, sin = (table[place][:, None] for table in (self.cos, self.sin))
        hidden = (self.ahead[None] > place[:, None])[:, None, None]
        x = self.words[self.token[:batch]]
        for at, layer in enumerate(self.layers):

            def attend(y, at=at):
                q, k, v = y.view(batch, -1, HEAD).split((HEADS, KV_HEADS, KV_HEADS), 1)
                q, k = self.turned(q, cos, sin), self.turned(k, cos, sin)
                keys, values = self.keys[at, :batch], self.values[at, :batch]
                keys[rows, :, place] = k
                values[rows, :, place] = v
                q = q.reshape(batch, KV_HEADS, HEADS // KV_HEADS, HEAD)
                scores = torch.matmul(q, keys.transpose(-1, -2)).mul_(HEAD**-0.5)
                scores = scores.masked_fill_(hidden, float("-inf")).softmax(-1)
                return torch.matmul(scores, values).reshape(batch, -1)

            x = self.layer(layer, x, attend)
        self.token[:batch] = self.likeliest(x)
        place += 1
        place.clamp_(max=PROMPT + ANSWER - 1)

    def capture(self):
        torch = self.torch
        for batch in reversed(BATCHES):
            self.decode(batch)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.decode(batch)
            self.graphs[batch] = graph


class Server:
    """Continuous batching: one prompt at most between two tokens of the others."""

    def __init__(self, model, load, rng):
        self.model, self.rng = model, rng
        self.rate = float(load[:-2]) if load.endswith("/s") else None
        clients = BATCHES[-1] if self.rate else int(load)
        self.left = [0] * clients  # tokens that a slot's answer lacks
        self.last = [0.0] * clients
        self.asked = [] if self.rate else [time.time()] * clients
        self.next = time.time()
        self.first, self.between, self.tokens = [], [], 0

    def arrive(self):
        """Takes the requests that have come meanwhile."""
        while self.rate and self.next <= time.time():
            self.asked.append(self.next)
            self.next += self.rng.expovariate(self.rate)

    def read_prompt(self, torch, window):
        asked, slot = self.asked.pop(0), self.left.index(0)
        self.model.prefill(slot, torch.randint(WORDS, (PROMPT,), device="cuda"))
        torch.cuda.synchronize()
        now = self.last[slot] = time.time()
        # The first answers have any length, so that the clients do not ask together for ever.
        self.left[slot] = (ANSWER if asked >= window[0] else self.rng.randint(2, ANSWER)) - 1
        if window[0] <= asked and now < window[1]:
            self.first.append((now - asked) * 1e3)
        self.tokens += window[0] <= now < window[1]

    def speak(self, torch, window):
        busy = [slot for slot, left in enumerate(self.left) if left]
        batch = next(batch for batch in BATCHES if batch > busy[-1])
        self.model.graphs[batch].replay()
        self.model.token[:batch].tolist()
        now = time.time()
        for slot in busy:
            if window[0] <= now < window[1]:
                self.between.append((now - self.last[slot]) * 1e3)
                self.tokens += 1
            self.last[slot] = now
            self.left[slot] -= 1
            if not self.left[slot] and not self.rate:
                self.asked.append(now)

    def run(self, torch, window):
        while time.time() < window[1]:
            self.arrive()
            if self.asked and 0 in self.left:
                self.read_prompt(torch, window)
            if any(self.left):
                self.speak(torch, window)
            elif not self.asked:
                time.sleep(min(1e-3, max(0, self.next - time.time())))
        return dict(tokens=self.tokens / (window[1] - window[0]), first=[round(t, 3) for t in self.first],
                    between={q: round(worth.rank(self.between, q), 3) for q in (0.5, 0.9, 0.99, 1)})


def child():
    import torch

    torch.set_grad_enabled(False)
    made = []

    def answer_to(word, *rest):
        if word == "build":
            made.append(Model(torch))
            made[0].prefill(0, torch.randint(WORDS, (PROMPT,), device="cuda"))
            made[0].capture()
            torch.cuda.synchronize()
            return worth.facts()
        load, (start, seconds, seed) = rest[0], map(float, rest[1:])
        server = Server(made[0], load, random.Random(seed))
        return server.run(torch, (start, start + seconds))

    worth.serve_lines(answer_to)


class Table:
    """The windows of each way, load and server."""

    def __init__(self, args):
        self.args, self.rows = args, {}

    def window(self, way, load, servers, seed):
        # The servers speak with clients for a while before the window.
        start = time.time() + self.args.warm
        for at, server in enumerate(servers):
            server.tell(f"serve {load} {start} {self.args.seconds} {2 * seed + at}")
        for at, server in enumerate(servers):
            self.rows.setdefault((way, load, at), []).append(server.hear())

    def of(self, key):
        good = [window for window in self.rows.get(key, []) if "tokens" in window]
        return good and dict(
            tokens=[window["tokens"] for window in good],
            first50=[worth.rank(window["first"], 0.5) for window in good],
            first99=[worth.rank(window["first"], 0.99) for window in good],
            between50=[window["between"]["0.5"] for window in good],
            between99=[window["between"]["0.99"] for window in good],
        )

    def text(self):
        lines = ["| load | way | server | tokens/s | first token p50 | p99 | between tokens p50 | p99 |",
                 "|" + "---|" * 8]
        middle = lambda values: sorted(values)[len(values) // 2]

        def spread(values):
            form = "{:.0f}" if middle(values) >= 100 else "{:.1f}"
            return " ".join([form.format(middle(values)), f"({form.format(min(values))} to {form.format(max(values))})"])

        for way, load, at in self.rows:
            values = self.of((way, load, at))
            errors = [window["error"] for window in self.rows[(way, load, at)] if "error" in window]
            cells = [spread(values[name]) for name in values] if values else []
            lines.append(f"| {load} | {way} | {at} | " + " | ".join(cells + errors[:1]) + " |")
        return "\n".join(lines)


def start(bed, programs, limits):
    """Starts a server for each group of limits."""
    if programs == "native":
        return [bed.native() for _ in limits]
    if programs == "mps":
        return [worth.Program([], **bed.mps) for _ in limits]
    if programs == "half":
        return [bed.part_of_mps(len(bed.tpcs) // 2) for _ in limits]
    for at, _ in enumerate(limits):
        bed.ctl("create", f"llm{at}")
    if programs != "later":
        write(bed, limits)
    env = bed.no_mps if programs == "turns" else bed.mps
    return [bed.limited(f"llm{at}", [], env) for at, _ in enumerate(limits)]


def write(bed, limits):
    for at, files in enumerate(limits):
        for file, value in files.items():
            bed.ctl("set", f"llm{at}", f"{file}={value}")


def measure(bed, args):
    table = Table(args)
    for way in args.ways:
        programs, limits = WAYS[way]
        servers = start(bed, programs, limits)
        for server in servers:
            print(way, server.hear(), flush=True)
        if programs == "later":
            write(bed, limits)
        for load in args.loads:
            for seed in range(args.windows):
                table.window(way, load, servers, seed)
        worth.end(dict(enumerate(servers)))
        for at, _ in enumerate(servers):
            bed.ctl("rm", f"llm{at}")
        print(table.text(), flush=True)
    return {" / ".join(map(str, key)): windows for key, windows in table.rows.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--loads", type=lambda text: text.split(","), default=["1", "8", "32"])
    parser.add_argument("--ways", type=lambda text: text.split(";"), default=list(WAYS))
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--warm", type=float, default=2.0, help="seconds before each window")
    parser.add_argument("--out")
    args = parser.parse_args()
    worth.measured(args, measure)


if __name__ == "__main__":
    child() if sys.argv[1:] == ["child"] else main()
