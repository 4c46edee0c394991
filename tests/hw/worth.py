#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Measures what a number of TPCs is worth to PyTorch: a matrix product, a transformer, a convolution
# and a decoding Llama-like model, natively, with a part of MPS's threads, under masks, under a quota
# on an idle GPU, and under quotas beside each other.
#
#     usage: tests/hw/worth.py DIR [--tpcs 8,16,33,50] [--beside 8,16,33] [--windows 3] [--out FILE]
#
# gctd, gctctl, gct-load and libgct_preload.so are in DIR. Numbers are iterations a second.
import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time

TPCS_OF_GPC, GPCS = 9, 8


def works():
    import torch

    torch.manual_seed(0)
    cuda = dict(device="cuda", dtype=torch.bfloat16)

    def gemm():
        a, b = torch.randn(4096, 4096, **cuda), torch.randn(4096, 4096, **cuda)
        return lambda: torch.mm(a, b)

    def transformer():
        layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, dropout=0.0)
        model = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).to(**cuda).eval()
        data = torch.randn(64, 256, 1024, **cuda)
        return lambda: model(data)

    def conv():
        data = torch.randn(64, 256, 56, 56, **cuda).to(memory_format=torch.channels_last)
        model = torch.nn.Conv2d(256, 256, 3, padding=1).to(**cuda).to(memory_format=torch.channels_last)
        return lambda: model(data)

    def llama():
        width, heads, past, batch = 2048, 16, 1024, 16
        linear = lambda i, o: torch.nn.Linear(i, o, bias=False).to(**cuda)
        layers = [
            dict(qkv=linear(width, 3 * width), out=linear(width, width), up=linear(width, 2 * 5632),
                 down=linear(5632, width),
                 keys=torch.randn(batch, heads, past, width // heads, **cuda),
                 values=torch.randn(batch, heads, past, width // heads, **cuda))
            for _ in range(8)
        ]
        data = torch.randn(batch, 1, width, **cuda)

        def step():
            x = data
            for layer in layers:
                y = torch.nn.functional.rms_norm(x, (width,))
                q, k, v = layer["qkv"](y).view(batch, 1, 3, heads, -1).permute(2, 0, 3, 1, 4)
                layer["keys"][:, :, -1:] = k
                layer["values"][:, :, -1:] = v
                y = torch.nn.functional.scaled_dot_product_attention(q, layer["keys"], layer["values"])
                x = x + layer["out"](y.transpose(1, 2).reshape(batch, 1, width))
                gate, up = layer["up"](torch.nn.functional.rms_norm(x, (width,))).chunk(2, -1)
                x = x + layer["down"](torch.nn.functional.silu(gate) * up)
            return x

        for _ in range(3):
            step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return graph.replay

    return dict(gemm=gemm, transformer=transformer, conv=conv, llama=llama)


def facts():
    """What the program sees of its GPU."""
    import torch

    props = torch.cuda.get_device_properties(0)
    return dict(sms=props.multi_processor_count, gpu=props.name, torch=torch.__version__)


def rate(work, start, seconds, ahead):
    """How often a second `work` ends, in a window; so many of them and one more are in flight."""
    import torch

    end, ends, events = start + seconds, [], []
    while True:
        work()
        event = torch.cuda.Event()
        event.record()
        events.append(event)
        if len(events) > ahead:
            events.pop(0).synchronize()
            now = time.time()
            if now >= end:
                break
            if now >= start:
                ends.append(now)
    torch.cuda.synchronize()
    return (len(ends) - 1) / (ends[-1] - ends[0]) if len(ends) > 2 else len(ends) / seconds


def serve_lines(answer_to):
    """Answers each line of the input, by a function of its words, with a line of JSON."""
    for line in sys.stdin:
        try:
            answer = answer_to(*line.split())
        except Exception as error:
            answer = dict(error=repr(error))
        print(json.dumps(answer), flush=True)


def child():
    import torch

    torch.set_grad_enabled(False)
    made = {}

    def answer_to(word, *rest):
        if word == "build":
            if not made:
                made.update((name, make()) for name, make in works().items())
                for work in made.values():
                    for _ in range(5):
                        work()
                torch.cuda.synchronize()
            return facts()
        if word == "mask":
            return dict(error=ctypes.CDLL(None).gctgroup_restrict(rest[0].encode()))
        return dict(rate=rate(made[word], *map(float, rest), 3))

    serve_lines(answer_to)


class Program:
    """A child, started by `command` in an environment."""

    script = os.path.abspath(__file__)

    def __init__(self, command, **env):
        command = command + [sys.executable, self.script, "child"]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                      env={**os.environ, **env})
        self.tell("build")

    def tell(self, line):
        self.child.stdin.write(line + "\n")
        self.child.stdin.flush()

    def hear(self):
        while True:
            line = self.child.stdout.readline()
            if not line:
                return dict(error=f"it ended: {self.child.wait()}")
            if line.startswith("{"):
                return json.loads(line)

    def ask(self, line):
        self.tell(line)
        return self.hear()


class Bed:
    def __init__(self, folder):
        self.folder = os.path.realpath(folder)
        self.dir = tempfile.mkdtemp()
        mps = os.path.join(self.dir, "mps")
        os.makedirs(mps)
        self.mps = dict(CUDA_MPS_PIPE_DIRECTORY=mps, CUDA_MPS_LOG_DIRECTORY=mps)
        self.no_mps = dict(CUDA_MPS_PIPE_DIRECTORY=os.path.join(self.dir, "none"))
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env={**os.environ, **self.mps}, check=True)
        os.environ["GCTGROUP_DIR"] = self.dir
        self.gctd = subprocess.Popen([self.path("gctd")], stderr=open(os.path.join(self.dir, "gctd.log"), "w"))
        while not self.ctl("version"):
            time.sleep(0.05)
        tpcs = subprocess.run([self.path("gct-load"), "tpcs"], capture_output=True, text=True, check=True,
                              env={**os.environ, "LD_PRELOAD": self.path("libgct_preload.so"),
                                   "GCTGROUP_SOCKET": ""})
        self.tpcs = [int(tpc) for tpc in tpcs.stdout.strip().split(",")]

    def path(self, name):
        return os.path.join(self.folder, name)

    def ctl(self, *words):
        run = subprocess.run([self.path("gctctl"), "--user", *words], capture_output=True, text=True)
        return run.stdout if run.returncode == 0 else ""

    def native(self):
        return Program([], **self.no_mps)

    def percent(self, tpcs):
        """The least whole percentage of MPS with as many SMs: 132 SMs have 16 at 13%, 32 at 25%."""
        return -(-100 * tpcs // len(self.tpcs))

    def part_of_mps(self, tpcs):
        return Program([], CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=str(self.percent(tpcs)), **self.mps)

    def masked(self, tpcs, **env):
        mask = ",".join(map(str, tpcs))
        return Program([], LD_PRELOAD=self.path("libgct_preload.so"), GCTGROUP_SOCKET="",
                       GCTGROUP_TPC_MASK=mask, **{**self.no_mps, **env})

    def limited(self, group, options, env):
        run = [self.path("gctctl"), "run", "--preload", self.path("libgct_preload.so"), "--group", group]
        return Program(run + options + ["--"], **env)

    def gpcs(self):
        """The TPCs of each GPC, the largest GPC first; then those of no GPC."""
        gpcs = [[tpc for tpc in self.tpcs if tpc // TPCS_OF_GPC == gpc] for gpc in range(GPCS)]
        apart = [tpc for tpc in self.tpcs if tpc >= TPCS_OF_GPC * GPCS]
        return sorted(gpcs, key=len, reverse=True), apart

    def by_unit(self, unit, count):
        """`count` TPCs, `unit` of one GPC at a time."""
        gpcs, apart = self.gpcs()
        order = []
        for turn in range(0, TPCS_OF_GPC, unit):
            whole = [gpc[turn:turn + unit] for gpc in gpcs if len(gpc) >= turn + unit]
            order += [tpc for part in whole for tpc in part]
        rest = [tpc for gpc in gpcs for tpc in gpc if tpc not in order]
        return (order + rest + apart)[:count]

    def end(self):
        self.gctd.kill()
        subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, env={**os.environ, **self.mps})


def measured(args, measure):
    """Measures on a bed of `args.folder`, and writes what was found to `args.out`."""
    bed = Bed(args.folder)
    try:
        found = measure(bed, args)
        if args.out:
            with open(args.out, "w") as out:
                json.dump(dict(command=sys.argv, found=found), out)
    finally:
        bed.end()


def rank(times, quantile):
    return sorted(times)[int((len(times) - 1) * quantile)] if times else float("nan")


WORKS = ["gemm", "transformer", "conv", "llama"]


class Table:
    """Iterations a second, by row and work, one for each window."""

    def __init__(self, seconds):
        self.seconds, self.rows, self.facts = seconds, {}, {}

    def begin(self, programs):
        for row, program in programs.items():
            self.facts[row] = program.hear()
            print(row, self.facts[row], flush=True)

    def window(self, programs):
        """Runs each work in a window, in all programs at the same time."""
        for work in WORKS:
            start = time.time() + 0.15
            for program in programs.values():
                program.tell(f"{work} {start} {self.seconds}")
            for row, program in programs.items():
                answer = program.hear()
                rates = self.rows.setdefault(row, {}).setdefault(work, [])
                rates.append(answer.get("rate", answer.get("error")))

    def text(self):
        lines = ["| | SMs | " + " | ".join(WORKS) + " |", "|" + "---|" * (len(WORKS) + 2)]
        show = lambda rate: f"{rate:.0f}" if isinstance(rate, float) else str(rate)[:60]
        for row, works in self.rows.items():
            cells = [", ".join(map(show, works[work])) for work in WORKS]
            lines.append(" | ".join([f"| {row}", str(self.facts.get(row, {}).get("sms", "")), *cells]) + " |")
        return "\n".join(lines)


def end(programs):
    for program in programs.values():
        program.child.stdin.close()
    for program in programs.values():
        program.child.wait()


def limits(bed, table, args):
    """Each number of TPCs as a part of MPS, a mask and a quota, beside the whole GPU; then pairs."""
    native = dict(native=bed.native())
    table.begin(native)
    guide = dict(guide=bed.limited("guide", ["--quota", "20", "--memory", "10G"], bed.no_mps))
    table.begin(guide)
    for _ in range(args.windows):
        table.window(native)
        table.window(guide)
    end(guide)
    bed.ctl("rm", "guide")
    for n in args.tpcs:
        programs = {f"mps {n}": bed.part_of_mps(n), f"mask {n}": bed.masked(bed.by_unit(4, n)),
                    f"quota {n}": bed.limited(f"q{n}", ["--quota", str(n)], bed.no_mps)}
        table.begin(programs)
        for _ in range(args.windows):
            for row, program in {**native, **programs}.items():
                table.window({row: program})
        end(programs)
        bed.ctl("rm", f"q{n}")
    for n in args.beside:
        pair = [n, len(bed.tpcs) - n]
        for group in (f"of{m}x{at}" for at, m in enumerate(pair)):
            bed.ctl("create", group)
            bed.ctl("set", group, f"tpc.quota={group[2:-2]}")
        mps = {f"mps {m} of {n}+{pair[1]} ({at})": bed.part_of_mps(m) for at, m in enumerate(pair)}
        ours = {f"quota {m} of {n}+{pair[1]} ({at})": bed.limited(f"of{m}x{at}", [], bed.mps)
                for at, m in enumerate(pair)}
        table.begin({**mps, **ours})
        for _ in range(args.windows):
            table.window(mps)
            table.window(ours)
        end({**mps, **ours})
        for at, m in enumerate(pair):
            print(bed.ctl("get", f"of{m}x{at}/0", "tpc.reserved"), flush=True)
            bed.ctl("rm", f"of{m}x{at}")
    end(native)


def shapes(bed, table, args):
    """Masks of as many TPCs in other shapes."""
    for n in args.tpcs:
        programs = {f"mps {n}": bed.part_of_mps(n), f"mask {n}": bed.masked(bed.by_unit(8, n))}
        table.begin(programs)
        for _ in range(args.windows):
            table.window({f"mps {n}": programs[f"mps {n}"]})
            for shape, unit in dict(gpcs=8, halves=4, pairs=2, singles=1).items():
                mask = ",".join(map(str, bed.by_unit(unit, n)))
                programs[f"mask {n}"].ask(f"mask {mask}")
                table.window({f"mask {n} {shape}": programs[f"mask {n}"]})
        end(programs)
        sms = subprocess.run([bed.path("gct-load"), "sms", "--blocks", "4000", "--cycles", "200000"],
                             capture_output=True, text=True,
                             env={**os.environ, **bed.mps, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(bed.percent(n))})
        print("SMs of MPS", n, sms.stdout.strip()[:1500], flush=True)


def main():
    numbers = lambda text: [int(number) for number in text.split(",") if number]
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--tpcs", type=numbers, default=[8, 16, 33, 50])
    parser.add_argument("--beside", type=numbers, default=[8, 16, 33], help="quotas beside one of the rest")
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--shapes", action="store_true", help="masks of other shapes in place of limits")
    parser.add_argument("--out")
    args = parser.parse_args()
    bed, table = Bed(args.folder), Table(args.seconds)
    try:
        (shapes if args.shapes else limits)(bed, table, args)
    finally:
        print(table.text(), flush=True)
        if args.out:
            with open(args.out, "w") as out:
                json.dump(dict(command=sys.argv, tpcs=bed.tpcs, facts=table.facts, rows=table.rows), out)
        bed.end()


if __name__ == "__main__":
    child() if sys.argv[1:] == ["child"] else main()
