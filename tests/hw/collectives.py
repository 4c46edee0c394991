# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# NCCL on all GPUs of this machine beside other work, with one process per GPU. The first process
# prints `ok`, or the program fails.
#
#     collectives.py training           all-reduces on their own stream beside matrix products, as
#                                       in data parallelism
#     collectives.py communicators N    N concurrent communicators, which the GPUs start in
#                                       different orders

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def training(rank, world):
    side = torch.cuda.Stream()
    weight = torch.randn(1024, 1024, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    x = torch.randn(512, 1024, device="cuda", generator=torch.Generator("cuda").manual_seed(rank))
    for step in range(30):
        gradient = torch.full((1 << 18,), float(rank + step), device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            dist.all_reduce(gradient)
        for _ in range(4):
            x = torch.tanh(x @ weight)
        torch.cuda.current_stream().wait_stream(side)
        total = sum(r + step for r in range(world))
        assert bool((gradient == float(total)).all()), f"step {step}"
    assert bool(torch.isfinite(x).all())


def communicators(rank, world, count):
    groups = [dist.new_group(list(range(world))) for _ in range(count)]
    streams = [torch.cuda.Stream() for _ in range(count)]
    for step in range(12):
        data = [torch.full((1 << 16,), float(n + rank), device="cuda") for n in range(count)]
        torch.cuda.synchronize()
        order = list(range(count))
        # The first rounds create the communicators, one after the other.
        if step >= 2:
            shift = (rank * count // world) % count
            order = order[shift:] + order[:shift]
        for n in order:
            with torch.cuda.stream(streams[n]):
                dist.all_reduce(data[n], group=groups[n])
            if step < 2:
                torch.cuda.synchronize()
        torch.cuda.synchronize()
        for n in range(count):
            total = sum(n + r for r in range(world))
            assert bool((data[n] == float(total)).all()), f"step {step}, communicator {n}"


def run(rank, world, arguments):
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world)
    if arguments[0] == "training":
        training(rank, world)
    else:
        communicators(rank, world, int(arguments[1]))
    torch.cuda.synchronize()
    dist.destroy_process_group()
    if rank == 0:
        print("ok", flush=True)


if __name__ == "__main__":
    world = torch.cuda.device_count()
    assert world > 1, "two GPUs are needed"
    mp.spawn(run, args=(world, sys.argv[1:]), nprocs=world)
