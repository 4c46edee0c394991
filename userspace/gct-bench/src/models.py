# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Models with random weights for gct-bench: services, whose requests are CUDA graphs, and trainings.
# Reads one request per line on standard input, and writes one line of JSON for each to standard
# output. The first `build` is the first use of the GPU.
import json
import os
import statistics
import sys
import tempfile
import time

import torch
import torchvision
import transformers

DEVICE = "cuda"
# Parameters of Llama 3.2 1B.
LLAMA = dict(
    hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
    num_key_value_heads=8, vocab_size=128256, max_position_embeddings=4096, tie_word_embeddings=True)
PROMPT = 512
# Sequences and tokens of one request to the decoder.
DECODED = 8
TOKENS = 4


def say(**facts):
    print(json.dumps(facts), flush=True)


def llama():
    with torch.device(DEVICE):
        torch.set_default_dtype(torch.bfloat16)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
        torch.set_default_dtype(torch.float32)
    return model


def tokens(*shape):
    return torch.randint(0, 30000, shape, device=DEVICE)


def resnet50():
    """ResNet-50 of torchvision, 4 images of 224 x 224, half precision."""
    model = torchvision.models.resnet50().to(DEVICE).half().eval()
    model = model.to(memory_format=torch.channels_last)
    data = torch.randn(4, 3, 224, 224, device=DEVICE).half()
    data = data.to(memory_format=torch.channels_last)
    return [(lambda: model(data), 1)]


def bert():
    """BERT base of transformers, 4 sequences of 128 tokens, half precision."""
    model = transformers.BertModel(transformers.BertConfig()).to(DEVICE).half().eval()
    data = tokens(4, 128)
    return [(lambda: model(input_ids=data), 1)]


def prefill():
    """Llama of 1.2 billion parameters, a prompt of 512 tokens."""
    model = llama().eval()
    data = tokens(1, PROMPT)
    return [(lambda: model(input_ids=data, use_cache=False, logits_to_keep=1), 1)]


def decode():
    """The same Llama, the next 4 tokens of 8 sequences of 512 tokens, one graph a token."""
    model = llama().eval()
    cache = transformers.StaticCache(config=model.config, max_cache_len=PROMPT + 64)
    data = tokens(DECODED, 1)

    def begin():
        for layer in cache.layers:
            layer.cumulative_length.fill_(PROMPT)

    def step():
        output = model(input_ids=data, past_key_values=cache, use_cache=True)
        data.copy_(output.logits[:, -1:].argmax(-1))

    model(input_ids=tokens(DECODED, PROMPT), past_key_values=cache, use_cache=True)
    return [(begin, 1), (step, TOKENS)]


def detector():
    """RetinaNet of torchvision on ResNet-50, 1 image of 640 x 640, without its last step (the
    choice of boxes, which no graph can hold)."""
    model = torchvision.models.detection.retinanet_resnet50_fpn(weights=None, weights_backbone=None)
    model = model.to(DEVICE).half().eval()
    data = torch.randn(1, 3, 640, 640, device=DEVICE).half()
    return [(lambda: model.head(list(model.backbone(data).values())), 1)]


def whisper():
    """The encoder of Whisper small of transformers, 30 seconds of sound."""
    config = transformers.WhisperConfig(
        d_model=768, encoder_layers=12, encoder_attention_heads=12, encoder_ffn_dim=3072)
    model = transformers.WhisperModel(config).get_encoder().to(DEVICE).half().eval()
    data = torch.randn(1, 80, 3000, device=DEVICE).half()
    return [(lambda: model(data), 1)]


SERVICES = dict(resnet50=resnet50, bert=bert, detector=detector, whisper=whisper, prefill=prefill,
                decode=decode)


class Service:
    """A model whose requests are graphs, on a stream of each of two priorities."""

    def __init__(self, make):
        with torch.no_grad():
            # The graphs use the memory of the models.
            self.parts = make()
            self.streams = [torch.cuda.Stream(priority=p) for p in (0, -5)]
            self.graphs = [[(self.capture(part, stream), count) for part, count in self.parts]
                           for stream in self.streams]

    def capture(self, part, stream):
        graph = torch.cuda.CUDAGraph()
        # The model's data may still be on their way, on another stream.
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            for _ in range(3):
                part()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, stream=stream):
                part()
            torch.cuda.synchronize()
        return graph

    def once(self, priority):
        stream = self.streams[priority]
        with torch.cuda.stream(stream):
            for graph, count in self.graphs[priority]:
                for _ in range(count):
                    graph.replay()
        stream.synchronize()

    def cost(self, count):
        for _ in range(10):
            self.once(0)
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            self.once(0)
            times.append(time.perf_counter() - begin)
        return dict(us=statistics.median(times) * 1e6)

    def again(self, seconds, start=0.0, priority=0):
        """Requests one after another. Those that end before the start are not measured."""
        times = []
        now = time.time()
        end = max(start, now) + seconds
        while now < end:
            begin = time.perf_counter()
            self.once(priority)
            took = time.perf_counter() - begin
            now = time.time()
            if start <= now < end or not start:
                times.append(round(took * 1e6, 1))
        return dict(times_us=times)

    def serve(self, priority, start, arrivals):
        """Requests arrive so many microseconds after the start, also while others are served.
        Latency counts from the arrival. Those before the start are not measured, and dropped if
        they are over."""
        times = []
        for arrival in arrivals:
            due = start + arrival / 1e6
            if arrival < 0 and time.time() > due:
                continue
            while time.time() < due:
                pass
            self.once(priority)
            if arrival >= 0:
                times.append(round((time.time() - due) * 1e6, 1))
        return dict(times_us=times)


def train_resnet50():
    """ResNet-50, 64 images, mixed precision, SGD."""
    model = torchvision.models.resnet50().to(DEVICE, memory_format=torch.channels_last)
    data = torch.randn(64, 3, 224, 224, device=DEVICE).to(memory_format=torch.channels_last)
    return model, model.parameters(), lambda: model(data).float().square().mean()


def train_bert(sequences=16, length=256):
    """BERT base, 16 sequences of 256 tokens, mixed precision, SGD."""
    config = transformers.BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = transformers.BertModel(config).to(DEVICE)
    data = tokens(sequences, length)
    return model, model.parameters(), lambda: model(
        input_ids=data).last_hidden_state.float().square().mean()


def train_lora():
    """The Llama, LoRA of rank 16 on the attention, 4 sequences of 512 tokens, SGD."""
    import peft
    config = peft.LoraConfig(r=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
    model = peft.get_peft_model(llama(), config)
    data = tokens(4, 512)
    chosen = [weight for weight in model.parameters() if weight.requires_grad]
    return model, chosen, lambda: model(input_ids=data, labels=data, use_cache=False).loss


def train_mobilenet():
    """MobileNet V2 of torchvision, 64 images, mixed precision, SGD."""
    model = torchvision.models.mobilenet_v2().to(DEVICE, memory_format=torch.channels_last)
    data = torch.randn(64, 3, 224, 224, device=DEVICE).to(memory_format=torch.channels_last)
    return model, model.parameters(), lambda: model(data).float().square().mean()


def train_gpt2():
    """GPT-2 of 124 million parameters, 4 sequences of 512 tokens, mixed precision, SGD."""
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config()).to(DEVICE)
    data = tokens(4, PROMPT)
    return model, model.parameters(), lambda: model(
        input_ids=data, labels=data, use_cache=False).loss


class UNet(torch.nn.Module):
    """Two convolutions with a skip a level, three levels down and up, attention at the bottom."""

    def __init__(self, width=128, levels=3):
        super().__init__()

        def block(before, after):
            return torch.nn.Sequential(
                torch.nn.Conv2d(before, after, 3, padding=1), torch.nn.GroupNorm(32, after),
                torch.nn.SiLU(), torch.nn.Conv2d(after, after, 3, padding=1),
                torch.nn.GroupNorm(32, after), torch.nn.SiLU())

        widths = [width << level for level in range(levels)]
        self.begin = torch.nn.Conv2d(4, width, 3, padding=1)
        self.down = torch.nn.ModuleList(
            block(before, after) for before, after in zip([width] + widths, widths))
        self.attention = torch.nn.MultiheadAttention(widths[-1], 8, batch_first=True)
        self.up = torch.nn.ModuleList(
            block(2 * after, before)
            for before, after in reversed(list(zip([width] + widths, widths))))
        self.end = torch.nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, x):
        x = self.begin(x)
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = torch.nn.functional.avg_pool2d(x, 2)
        flat = x.flatten(2).transpose(1, 2)
        x = x + self.attention(flat, flat, flat, need_weights=False)[0].transpose(1, 2).view_as(x)
        for block in self.up:
            x = torch.nn.functional.interpolate(x, scale_factor=2.0)
            x = block(torch.cat([x, kept.pop()], 1))
        return self.end(x)


def train_unet():
    """A diffusion U-Net of 10 million parameters, 8 latent images of 64 x 64, mixed precision,
    SGD."""
    model = UNet().to(DEVICE)
    data, noise = (torch.randn(8, 4, 64, 64, device=DEVICE) for _ in range(2))
    return model, model.parameters(), lambda: (model(data + noise) - noise).float().square().mean()


TRAININGS = dict(resnet50=train_resnet50, mobilenet=train_mobilenet, bert=train_bert,
                 gpt2=train_gpt2, lora=train_lora, unet=train_unet)


def training(name):
    """Builds a training by its name, or by MODEL-SEQUENCESxLENGTH; the diffusion; or a service whose
    requests come one after another, closed-MODEL."""
    if name == "diffusion":
        return Diffusion()
    if name.startswith("closed-"):
        return Closed(SERVICES[name.removeprefix("closed-")])
    model, _, sizes = name.partition("-")
    make = TRAININGS[model]
    return Training((lambda: make(*map(int, sizes.split("x")))) if sizes else make)


class Training:
    def __init__(self, make):
        model, weights, self.loss = make()
        model.train()
        self.optimizer = torch.optim.SGD(weights, 1e-5)
        for _ in range(3):
            self.step()
        torch.cuda.synchronize()

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = self.loss()
        loss.backward()
        self.optimizer.step()

    def serve(self, start, seconds):
        """Steps of which both the one before and itself ended in the window. One step is queued
        while another runs."""
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
        return dict(launches_per_second=rate, ends_us=[round((e - start) * 1e6) for e in ends])

    def cost(self, count):
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            self.step()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
        return dict(us=statistics.median(times) * 1e6)


class Diffusion(Training):
    """Denoising steps of that U-Net with 40 million parameters, 16 latent images of 64 x 64, half
    precision. No step is a graph, as in many pipelines."""

    def __init__(self):
        self.model = UNet(width=256).to(DEVICE).half().eval()
        self.data = torch.randn(16, 4, 64, 64, device=DEVICE).half()
        for _ in range(3):
            self.step()
        torch.cuda.synchronize()

    def step(self):
        with torch.no_grad():
            self.model(self.data)


class Closed(Training):
    """Requests of a service, each behind the end of the one before."""

    def __init__(self, make):
        service = Service(make)
        self.step = lambda: service.once(0)
        self.step()


def stream():
    """Adds two vectors of 256 MiB: bound by memory."""
    a, b = (torch.randn(64 << 20, device=DEVICE) for _ in range(2))
    c = torch.empty_like(a)
    return lambda: torch.add(a, b, out=c)


def cached():
    """Adds two vectors of 4 MiB: bound by the L2 cache."""
    a, b = (torch.randn(1 << 20, device=DEVICE) for _ in range(2))
    c = torch.empty_like(a)

    def step():
        for _ in range(50):
            torch.add(a, b, out=c)

    return step


def matmul():
    """Multiplies matrices of 4096 rows and columns, half precision: bound by arithmetic."""
    a, b = (torch.randn(4096, 4096, device=DEVICE).half() for _ in range(2))
    c = torch.empty_like(a)
    return lambda: torch.matmul(a, b, out=c)


LOOPS = dict(stream=stream, cached=cached, matmul=matmul)


class Loop(Training):
    """Steps of one kernel."""

    def __init__(self, make):
        self.step = make()
        self.step()
        torch.cuda.synchronize()


def hashed(like, seed):
    """Numbers from -1 to 1 in the shape of a tensor. PyTorch's random numbers would depend on the
    number of SMs."""
    x = torch.arange(like.numel(), device=DEVICE) + (seed << 32)
    for _ in range(3):
        x = (x ^ (x >> 29)) * 0x1B873593 & 0xFFFFFFFFFFFF
    return ((x >> 16) / 2.0 ** 31 - 1).view_as(like)


class Speaker:
    """The Llama with weights and prompts that are the same in every process. It always says the
    likeliest token."""

    def __init__(self):
        # Within a graph fused attention does not say the same twice.
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_cudnn_sdp(False)
        self.model = llama().eval()
        for seed, (name, weight) in enumerate(self.model.named_parameters()):
            if "norm" not in name:
                weight.data.copy_(hashed(weight, seed) * 0.035)
        self.cache = transformers.StaticCache(config=self.model.config, max_cache_len=PROMPT + 256)
        self.data = tokens(DECODED, 1)
        self.prompts = (hashed(self.data.expand(DECODED, PROMPT), 0) * 30000).long().abs()
        self.stream = torch.cuda.Stream()
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.no_grad(), torch.cuda.stream(self.stream):
            self.begin()
            for _ in range(3):
                self.next(self.data)
            torch.cuda.synchronize()
            with torch.cuda.graph(self.graph, stream=self.stream):
                self.next(self.data)
            torch.cuda.synchronize()

    def next(self, words):
        output = self.model(input_ids=words, past_key_values=self.cache, use_cache=True,
                            logits_to_keep=1)
        self.data.copy_(output.logits[:, -1:].argmax(-1))

    def begin(self):
        # The cache has no layers before its first use.
        for layer in self.cache.layers:
            if layer.is_initialized:
                layer.reset()
        self.next(self.prompts)

    def speak(self, count, start):
        while time.time() < start:
            pass
        began, said = time.perf_counter(), []
        with torch.no_grad(), torch.cuda.stream(self.stream):
            self.begin()
            for _ in range(count):
                said.extend(self.data.flatten().tolist())
                self.graph.replay()
            torch.cuda.synchronize()
        return dict(said=said, us=(time.perf_counter() - began) * 1e6 / count)


def traced(once, steps):
    """The kernels of some steps, in the order of their starts: a number for the name, grid, block
    and nanoseconds. None of the first step, in which the profiler starts."""
    once()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps + 1):
            once()
            torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profile.export_chrome_trace(file.name)
        events = json.load(open(file.name))["traceEvents"]
    kernels = sorted((e for e in events if e.get("cat") == "kernel"), key=lambda e: e["ts"])
    numbers = {}
    found = [[numbers.setdefault(e["name"], len(numbers)), *e["args"]["grid"], *e["args"]["block"],
              round(e["dur"] * 1000)] for e in kernels]
    a_step, rest = divmod(len(found), steps + 1)
    if rest or not found:
        raise ValueError(f"{len(found)} kernels in {steps + 1} steps are no whole number a step")
    return dict(kernels=found[a_step:], a_step=a_step)


def answer(words, parts):
    verb, words = words[0], words[1:]
    if verb == "sms":
        return dict(sms=torch.cuda.get_device_properties(0).multi_processor_count)
    if verb == "build-speaker":
        parts["speaker"] = Speaker()
        return dict(built=words)
    if verb == "build-loops":
        parts.update(("training " + name, Loop(LOOPS[name])) for name in words)
        return dict(built=words)
    if verb == "speak":
        return parts["speaker"].speak(int(words[0]), float(words[1]))
    if verb == "build-services":
        # A second instance of a model has a number: MODEL-2.
        parts.update((name, Service(SERVICES[name.partition("-")[0]])) for name in words)
        return dict(built=words)
    if verb == "build-trainings":
        parts.update(("training " + name, training(name)) for name in words)
        return dict(built=words)
    if verb == "infer":
        name, priority, start, arrivals = words
        return parts[name].serve(
            int(priority), float(start), [int(arrival) for arrival in arrivals.split(",")])
    if verb == "train":
        return parts["training " + words[0]].serve(*map(float, words[1:]))
    if verb == "trace":
        part = parts[words[0]]
        return traced(lambda: part.once(0), int(words[1]))
    if verb == "trace-train":
        return traced(parts["training " + words[0]].step, int(words[1]))
    if verb == "cost-train":
        return parts["training " + words[0]].cost(int(words[1]))
    if verb == "again":
        name, seconds, *rest = words
        return parts[name].again(*map(float, [seconds, *rest[:1]]), *map(int, rest[1:]))
    if verb == "cost":
        return parts[words[0]].cost(int(words[1]))
    raise ValueError(verb)


def main():
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    parts = {}
    say(ready=True, torch=torch.__version__, transformers=transformers.__version__)
    for line in sys.stdin:
        try:
            say(**answer(line.split(), parts))
        except Exception as error:
            say(error=repr(error))


main()
