# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Trains a transformer, or runs one, and says how long its steps take.

Its argument is `train` or `infer`. Each line of its input is a number of seconds. It steps for so
long and prints the median of the steps of the last half, in milliseconds, and how many steps it
made. `value` prints the result of a step: for `infer` its bits, which must not depend on anything.
"""

import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = width // 64
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.before(x)).split(width, 2)
        q, k, v = (p.view(batch, length, self.heads, 64).transpose(1, 2) for p in parts)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Model(nn.Module):
    def __init__(self, width, layers, words=16384):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, x):
        x = self.words(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def training():
    """200 million parameters, their gradients and Adam's state, and the activations: 7 GiB."""
    model = Model(1024, 16)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    text = torch.randint(0, 16384, (8, 513), device="cuda")

    def step():
        loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        adam.step()
        adam.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def inference():
    """1.2 billion parameters in 16 bits: 2.4 GiB, and as much for making them."""
    model = Model(2048, 24).to(torch.bfloat16)
    text = torch.randint(0, 16384, (8, 256), device="cuda")

    def step():
        with torch.no_grad():
            return model(text).float().logsumexp(-1).sum()

    step.read_only = sum(weight.nbytes for weight in model.parameters())
    return step


def main():
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        with torch.device("cuda"):
            step = {"train": training, "infer": inference}[sys.argv[1]]()
        value = step().item()
        for _ in range(2):
            step()
        torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        print("out of memory", flush=True)
        return
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "value":
            print(value.hex(), flush=True)
            continue
        times, end = [], time.monotonic() + float(line)
        while time.monotonic() < end:
            start = time.monotonic()
            step()
            torch.cuda.synchronize()
            times.append(1e3 * (time.monotonic() - start))
        late = times[len(times) // 2 :]
        print(f"{statistics.median(late):.1f} {len(times)}", flush=True)


if __name__ == "__main__":
    main()
