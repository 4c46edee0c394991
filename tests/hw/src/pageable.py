# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Trains a transformer, runs one, or makes images, and says how long its steps take.

Its argument is `train`, `infer` or `image`. Each line of its input is a number of seconds. It steps for so
long and prints the median of the steps of the last half, in milliseconds, and how many steps it
made. `value` prints the result of a step: for `infer` and `image` its bits, which must not depend on
anything.
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


class Encoder(nn.Module):
    """The shape of T5 XXL's encoder: 24 layers, 4.6 billion parameters."""

    class Layer(nn.Module):
        def __init__(self, width=4096, inner=10240):
            super().__init__()
            self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
            self.qkv = nn.Linear(width, 3 * width, bias=False)
            self.out = nn.Linear(width, width, bias=False)
            self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
            self.down = nn.Linear(inner, width, bias=False)

        def forward(self, x):
            q, k, v = heads(self.qkv(self.before(x)))
            x = x + self.out(whole(F.scaled_dot_product_attention(q, k, v)))
            y = self.between(x)
            return x + self.down(F.gelu(self.gate(y)) * self.up(y))

    def __init__(self, width=4096, layers=24):
        super().__init__()
        self.words = nn.Embedding(32128, width)
        self.layers = nn.Sequential(*(self.Layer(width) for _ in range(layers)))

    def forward(self, text):
        return self.layers(self.words(text))


def heads(x):
    """Splits the output of one product into queries, keys and values of heads of 64."""
    batch, length, width = x.shape
    return x.view(batch, length, 3, width // 192, 64).permute(2, 0, 3, 1, 4)


def whole(x):
    """Joins what heads have seen."""
    return x.transpose(1, 2).flatten(2)


class Denoiser(nn.Module):
    """The shape of the transformer of Stable Diffusion 3.5 medium: 24 blocks in which text and image
    have weights of their own and see each other, 2 billion parameters."""

    class Stream(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm = nn.LayerNorm(width, elementwise_affine=False)
            self.modulation = nn.Linear(width, 6 * width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def begin(self, x, time):
            self.parts = self.modulation(F.silu(time))[:, None].chunk(6, 2)
            return heads(self.qkv(self.norm(x) * (1 + self.parts[0]) + self.parts[1]))

        def end(self, x, seen):
            x = x + self.parts[2] * self.out(seen)
            y = self.norm(x) * (1 + self.parts[3]) + self.parts[4]
            return x + self.parts[5] * self.down(F.gelu(self.up(y), approximate="tanh"))

    def __init__(self, width=1536, layers=24):
        super().__init__()
        self.image, self.text = nn.Linear(64, width), nn.Linear(4096, width)
        self.time = nn.Linear(256, width)
        self.blocks = nn.ModuleList(
            nn.ModuleList(self.Stream(width) for _ in range(2)) for _ in range(layers))
        self.last = nn.Linear(width, 64)

    def forward(self, image, text, time):
        image, text, time = self.image(image), self.text(text), self.time(time)
        length = image.shape[1]
        for of_image, of_text in self.blocks:
            pairs = zip(of_image.begin(image, time), of_text.begin(text, time))
            seen = whole(F.scaled_dot_product_attention(*(torch.cat(p, 2) for p in pairs)))
            image = of_image.end(image, seen[:, :length])
            text = of_text.end(text, seen[:, length:])
        return self.last(image)


class Decoder(nn.Module):
    """The shape of its decoder, from 16 channels of 128 x 128 to an image of 1024 x 1024."""

    class Residual(nn.Module):
        def __init__(self, before, after):
            super().__init__()
            self.parts = nn.Sequential(
                nn.GroupNorm(32, before), nn.SiLU(), nn.Conv2d(before, after, 3, padding=1),
                nn.GroupNorm(32, after), nn.SiLU(), nn.Conv2d(after, after, 3, padding=1))
            self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

        def forward(self, x):
            return self.skip(x) + self.parts(x)

    def __init__(self, widths=(512, 512, 256, 128)):
        super().__init__()
        parts = [nn.Conv2d(16, widths[0], 3, padding=1)]
        for level, (before, after) in enumerate(zip(widths[:1] + widths, widths)):
            parts += [self.Residual(before, after), self.Residual(after, after)]
            if level + 1 < len(widths):
                parts += [nn.Upsample(scale_factor=2.0), nn.Conv2d(after, after, 3, padding=1)]
        parts += [nn.GroupNorm(32, widths[-1]), nn.SiLU(), nn.Conv2d(widths[-1], 3, 3, padding=1)]
        self.parts = nn.Sequential(*parts)

    def forward(self, x):
        return self.parts(x)


def image():
    """A step encodes a text and an empty one, denoises 28 times, and decodes an image of 1024 x
    1024: what Stable Diffusion 3.5 medium does, with random weights of its sizes in 16 bits."""
    torch.set_default_dtype(torch.bfloat16)
    encoder, denoiser, decoder = Encoder(), Denoiser(), Decoder()
    words = torch.randint(0, 32128, (2, 256))
    noise = torch.randn(1, 4096, 64)
    times = torch.randn(28, 1, 256)
    torch.set_default_dtype(torch.float32)

    def step():
        with torch.no_grad():
            text, x = encoder(words), noise
            for time in times:
                guided, free = denoiser(x.expand(2, -1, -1), text, time).chunk(2)
                x = x - (free + 4.5 * (guided - free)) / 28
            latent = x.view(1, 64, 64, 16, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(1, 16, 128, 128)
            return decoder(latent).float().square().mean()

    weights = [w for part in (encoder, denoiser, decoder) for w in part.parameters()]
    step.read_only = sum(weight.nbytes for weight in weights)
    return step


MODELS = {"train": training, "infer": inference, "image": image}


def main():
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        with torch.device("cuda"):
            step = MODELS[sys.argv[1]]()
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
