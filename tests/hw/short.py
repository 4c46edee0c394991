#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Measures short requests of PyTorch, alone and beside a training: natively, under compute.priority,
# and under it with time slices and atoms that somebody writes. With --launches it measures the
# launches of a lone program in their place, on all processors and on one. With --pairs it starts a
# new program for each window, alone, natively and limited in turns: one program is faster or slower
# than the next by more than a limit costs.
#
#     usage: tests/hw/short.py DIR [--works graph,eager,long] [--rates 100] [--windows 3]
#                                  [--seconds 4] [--ways WAY;...] [--pairs N] [--mps] [--launches]
#                                  [--out FILE]
#
# gctd, gctctl, gct-load and libgct_preload.so are in DIR. Times are from a request's arrival to its
# end in milliseconds: the medians of the windows, with the least and the most of each.
import argparse
import json
import os
import random
import resource
import subprocess
import sys
import time

# The folder stays as it is.
sys.dont_write_bytecode = True
import worth

worth.Program.script = os.path.abspath(__file__)
# What the training's group has, beside a service of compute.priority 0.
WAYS = {
    "priority": {},
    "priority, slice 50us": {"compute.timeslice": "50us"},
    "priority, slice 200us": {"compute.timeslice": "200us"},
    "priority, atoms 100us": {"atom.duration": "100us"},
}
DEFAULTS = {"compute.timeslice": "default", "atom.duration": "off"}


def service(torch, work):
    """A function that runs one request, and one that waits for its end."""
    width, layers, batch = dict(long=(2048, 8, 16)).get(work, (1024, 6, 1))
    layer = torch.nn.TransformerEncoderLayer(width, 16, 4 * width, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    model = model.to(device="cuda", dtype=torch.bfloat16).eval()
    data = torch.randn(batch, 128, width, device="cuda", dtype=torch.bfloat16)
    step = lambda: model(data)
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    if work != "eager":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        # What the graph reads lives as long as it.
        step = lambda kept=(model, data): graph.replay()
    for _ in range(20):
        step()
    torch.cuda.synchronize()
    return step


def training(torch):
    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    model = model.to(device="cuda", dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randn(32, 512, 1024, device="cuda", dtype=torch.bfloat16)

    def step():
        optimizer.zero_grad(set_to_none=True)
        model(data).square().mean().backward()
        optimizer.step()

    return step


def serve(torch, step, start, seconds, rate, seed):
    """Latencies of Poisson arrivals."""
    rng, due, times = random.Random(seed), start, []
    while True:
        due += rng.expovariate(rate)
        if due > start + seconds:
            return times
        pause = due - time.time() - 3e-4
        if pause > 0:
            time.sleep(pause)
        while time.time() < due:
            pass
        step()
        torch.cuda.synchronize()
        times.append(time.time() - due)


def child():
    import torch

    made = {}

    def answer_to(word, *rest):
        if word == "build":
            torch.ones(1, device="cuda")
            return worth.facts()
        if word == "train":
            if word not in made:
                made[word] = training(torch)
            return dict(rate=worth.rate(made[word], *map(float, rest), 2))
        work, *window = rest
        with torch.no_grad():
            if work not in made:
                made[work] = service(torch, work)
            times = serve(torch, made[work], *map(float, window))
        return dict(times=[round(time * 1e3, 4) for time in times])

    worth.serve_lines(answer_to)


class Requests:
    """The samples, by row and window."""

    def __init__(self, args):
        self.args, self.rows = args, {}

    def window(self, name, server, work, rate, trainer=None):
        start = time.time() + 0.5
        if trainer:
            trainer.tell(f"train {start - 0.3} {self.args.seconds + 0.3}")
        seed = len(self.rows.get((name, work, rate), [])) + 1
        answer = server.ask(f"serve {work} {start} {self.args.seconds} {rate} {seed}")
        steps = trainer.hear().get("rate") if trainer else None
        window = dict(times=answer.get("times", []), error=answer.get("error"), steps=steps)
        self.rows.setdefault((name, work, rate), []).append(window)

    def warm(self, server, works, trainer=None):
        """Builds all that the windows need, and lets the predictions settle."""
        if trainer:
            trainer.ask(f"train {time.time()} 1")
        for work in works:
            server.ask(f"serve {work} {time.time() + 0.1} 0.5 200 0")

    def text(self):
        lines = ["| way | work | a second | p50 | p99 | steps/s |", "|---|---|---|---|---|---|"]

        def spread(values):
            values = sorted(value for value in values if value is not None)
            if not values:
                return "-"
            middle = values[len(values) // 2]
            return f"{middle:.2f} ({values[0]:.2f} to {values[-1]:.2f})"

        for (name, work, rate), windows in self.rows.items():
            p50, p99 = ([worth.rank(window["times"], q) for window in windows] for q in (0.5, 0.99))
            steps = [window["steps"] for window in windows]
            lines.append(f"| {name} | {work} | {rate} | {spread(p50)} | {spread(p99)} | {spread(steps)} |")
            errors = [window["error"] for window in windows if window["error"]]
            if errors:
                lines.append(f"|   {errors[0]} |")
        return "\n".join(lines)

    def answers(self):
        return {" / ".join(map(str, key)): windows for key, windows in self.rows.items()}


def launches(bed, args):
    """Launches of a lone program, as gct-load counts them, with its switches of context."""
    bed.ctl("create", "lone")
    library = dict(LD_PRELOAD=bed.path("libgct_preload.so"), GCTGROUP_STATS=os.path.join(bed.dir, "stats"))
    limited = [bed.path("gctctl"), "run", "--preload", library["LD_PRELOAD"], "--group", "lone", "--"]
    ways = {
        "native": ([], {}, None),
        "library alone": ([], {**library, "GCTGROUP_SOCKET": ""}, None),
        "no limit": (limited, library, "8"),
        "priority": (limited, library, "0"),
    }
    works = {
        "closed": ["launches", "--waits", "20000", "--queued", "1000"],
        "200/s": ["idle", "--rate", "200", "--seconds", "2"],
        "2000/s": ["idle", "--rate", "2000", "--seconds", "2"],
    }
    found = {}
    for _ in range(args.windows):
        for one in (False, True):
            for work, words in works.items():
                for way, (command, env, priority) in ways.items():
                    if priority:
                        bed.ctl("set", "lone", f"compute.priority={priority}")
                    pin = ["taskset", "-c", "1"] if one else []
                    before = resource.getrusage(resource.RUSAGE_CHILDREN)
                    run = subprocess.run(pin + command + [bed.path("gct-load"), *words], text=True,
                                         capture_output=True, env={**os.environ, **bed.no_mps, **env})
                    after = resource.getrusage(resource.RUSAGE_CHILDREN)
                    try:
                        answer = json.loads(run.stdout.strip().splitlines()[-1])
                    except (IndexError, ValueError):
                        answer = dict(error=run.stderr[-300:])
                    answer["switches"] = [after.ru_nvcsw - before.ru_nvcsw, after.ru_nivcsw - before.ru_nivcsw]
                    answer["cpu"] = round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 3)
                    if "GCTGROUP_STATS" in env and os.path.exists(env["GCTGROUP_STATS"]):
                        with open(env["GCTGROUP_STATS"]) as stats:
                            kept = [line.split() for line in stats if line.startswith(("faults", "missed"))]
                        answer["stats"] = {words[0]: words[1] for words in kept}
                        os.remove(env["GCTGROUP_STATS"])
                    key = f"{work}, {'one processor' if one else 'all'}, {way}"
                    found.setdefault(key, []).append(answer)
    bed.ctl("rm", "lone")
    for key, answers in found.items():
        print(key, json.dumps(answers), flush=True)
    return found


def pairs(bed, args):
    """Requests of programs that are alone, each time a new one."""
    requests = Requests(args)
    env = bed.mps if args.mps else bed.no_mps
    bed.ctl("create", "service")
    bed.ctl("set", "service", "compute.priority=0")
    ways = {
        "alone, native": lambda: worth.Program([], **env),
        "alone, priority": lambda: bed.limited("service", [], env),
    }
    for _ in range(args.pairs):
        for name, start in ways.items():
            server = start()
            server.hear()
            requests.warm(server, args.works)
            for work in args.works:
                for rate in args.rates:
                    requests.window(name, server, work, rate)
            worth.end(dict(server=server))
    print(requests.text(), flush=True)
    return requests.answers()


def measure(bed, args):
    requests = Requests(args)
    env = bed.mps if args.mps else bed.no_mps
    stock, beside = ("MPS", "MPS") if args.mps else ("native", "time slices")
    native, trainer = (worth.Program([], **env) for _ in range(2))
    for program in (native, trainer):
        program.hear()
    for group, priority in (("service", "0"), ("batch", "8")):
        bed.ctl("create", group)
        bed.ctl("set", group, f"compute.priority={priority}")
    server, batch = bed.limited("service", [], env), None
    server.hear()
    cases = [(work, rate) for work in args.works for rate in args.rates]
    requests.warm(native, args.works, trainer)
    requests.warm(server, args.works)
    for _ in range(args.windows):
        for work, rate in cases:
            requests.window(f"alone, {stock}", native, work, rate)
            requests.window("alone, priority", server, work, rate)
            requests.window(beside, native, work, rate, trainer)
    worth.end(dict(native=native, trainer=trainer))
    batch = bed.limited("batch", [], env)
    batch.hear()
    requests.warm(server, args.works, batch)
    for _ in range(args.windows):
        for way, limits in WAYS.items():
            if args.ways and way not in args.ways:
                continue
            for file, value in limits.items():
                bed.ctl("set", "batch", f"{file}={value}")
            for work, rate in cases:
                requests.window(way, server, work, rate, batch)
            for file in limits:
                bed.ctl("set", "batch", f"{file}={DEFAULTS[file]}")
    print(bed.ctl("get", "service/0", "compute.stat")[-1500:], flush=True)
    worth.end(dict(server=server, batch=batch))
    print(requests.text(), flush=True)
    return requests.answers()


def main():
    names = lambda text: [name for name in text.split(",") if name]
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--works", type=names, default=["graph", "eager", "long"])
    parser.add_argument("--rates", type=lambda text: list(map(float, text.split(","))), default=[100.0])
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--ways", type=lambda text: text.split(";"), help="names of ways, with ; between them")
    parser.add_argument("--pairs", type=int, help="so many programs natively and limited, alone, in turns")
    parser.add_argument("--mps", action="store_true", help="the programs are clients of MPS, natively, too")
    parser.add_argument("--launches", action="store_true", help="launches of a lone program only")
    parser.add_argument("--out")
    args = parser.parse_args()
    worth.measured(args, launches if args.launches else pairs if args.pairs else measure)


if __name__ == "__main__":
    child() if sys.argv[1:] == ["child"] else main()
