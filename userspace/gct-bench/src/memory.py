# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Steps of one of the models of tests/hw/src/pageable.py, whose text is the first argument; the
# second one is one of their names. Reads one request per line on standard input, and writes one line
# of JSON for each to standard output.
import json
import statistics
import sys
import time
import types

import torch

# Bytes of one pinned copy, and copies that are timed.
PIECE = 256 << 20
COPIES = 12


def say(**facts):
    print(json.dumps(facts), flush=True)


def step_for(step, seconds):
    """The median of the steps of the last half."""
    times, end = [], time.monotonic() + seconds
    while time.monotonic() < end or not times:
        start = time.monotonic()
        step()
        torch.cuda.synchronize()
        times.append(1e3 * (time.monotonic() - start))
    return dict(ms=statistics.median(times[len(times) // 2:]), steps=len(times))


def wants(step):
    """Bytes that live at the same time within a step, those of them that it only reads, and all
    that PyTorch has taken from the driver."""
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return dict(live=torch.cuda.max_memory_allocated(), read_only=getattr(step, "read_only", 0),
                reserved=torch.cuda.memory_reserved())


def copied(ways):
    """Gigabytes a second of pinned copies, each way on a stream of its own, all at once."""
    pairs = []
    for way in ways:
        ends = [torch.empty(PIECE, dtype=torch.uint8, device="cuda"),
                torch.empty(PIECE, dtype=torch.uint8, pin_memory=True)]
        pairs.append((torch.cuda.Stream(), *(ends if way == "in" else reversed(ends))))
    for count in (2, COPIES):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            for stream, to, source in pairs:
                with torch.cuda.stream(stream):
                    to.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        took = time.perf_counter() - begin
    return COPIES * PIECE / took / 1e9


def link():
    """Both at once have the bandwidth of the slower way each."""
    both = copied(["in", "out"])
    return dict(into=copied(["in"]), out=copied(["out"]), both=both)


def main():
    models = types.ModuleType("pageable")
    exec(sys.argv[1], models.__dict__)
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        with torch.device("cuda"):
            step = models.MODELS[sys.argv[2]]()
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    except torch.OutOfMemoryError as error:
        say(error=repr(error))
        return
    say(ready=True)
    for line in sys.stdin:
        words = line.split()
        try:
            say(**(dict(wants=lambda: wants(step), link=link,
                        value=lambda: dict(bits=step().item().hex()))[words[0]]() if len(words) == 1
                   else step_for(step, float(words[1]))))
        except Exception as error:
            say(error=repr(error))


main()
