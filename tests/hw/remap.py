#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Measures memory of cuMemCreate that is mapped at one address from the GPU's memory and from the
# host's in turns: what mapping costs, alone, beside running kernels and beside copies, whether it
# waits for them or slows them, what memory costs to take, and how fast kernels, copies and matrix
# products reach the host's.
#
#     usage: tests/hw/remap.py        # needs PyTorch
import ctypes
import threading
import time

import torch

DEVICE, HOST = 1, 2  # CU_MEM_LOCATION_TYPE_DEVICE and CU_MEM_LOCATION_TYPE_HOST (cuda.h)
PINNED, READ_WRITE = 1, 3  # CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_ACCESS_FLAGS_PROT_READWRITE
MIB = 1 << 20
cuda = ctypes.CDLL("libcuda.so.1")
U64 = ctypes.c_uint64


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", Location),
                ("win32", ctypes.c_void_p), ("flags", U64), ("reserved", U64 * 4)]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


def call(name, *arguments):
    error = getattr(cuda, name)(*arguments)
    if error:
        raise SystemExit(f"{name} answers {error}")


def create(size, where):
    handle = U64()
    properties = Properties(type=PINNED, location=Location(where, 0))
    call("cuMemCreate", ctypes.byref(handle), U64(size), ctypes.byref(properties), U64(0))
    return handle


def reserve(size):
    at = U64()
    call("cuMemAddressReserve", ctypes.byref(at), U64(size), U64(2 * MIB), U64(0), U64(0))
    return at


def timed(work):
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e6


def place(at, size, handle):
    """Maps a handle, and lets the GPU use it. Returns the microseconds of both."""
    access = Access(Location(DEVICE, 0), READ_WRITE)
    return (timed(lambda: call("cuMemMap", at, U64(size), U64(0), handle, U64(0))),
            timed(lambda: call("cuMemSetAccess", at, U64(size), ctypes.byref(access), ctypes.c_size_t(1))))


def unmap(at, size):
    return timed(lambda: call("cuMemUnmap", at, U64(size)))


def spread(values):
    values = sorted(values)
    return f"{values[len(values) // 2]:.0f} ({values[0]:.0f} to {values[-1]:.0f})"


def multiply(matrix, times):
    for _ in range(times):
        torch.mm(matrix, matrix)


def mapping(matrix):
    print("| MiB | beside | map, us | access, us | unmap, us | the kernels were still running |")
    print("|---|---|---|---|---|---|")
    for mib in (2, 16, 64, 256):
        size, at = mib * MIB, reserve(mib * MIB)
        handles = [create(size, DEVICE) for _ in range(2)]
        for kernels in (0, 20):
            rows, running = [], 0
            for turn in range(12):
                multiply(matrix, kernels)
                rows.append((*place(at, size, handles[turn % 2]), unmap(at, size)))
                event = torch.cuda.Event()
                event.record()
                running += not event.query()
                torch.cuda.synchronize()
            times = " | ".join(spread(column) for column in zip(*rows))
            print(f"| {mib} | {'kernels' if kernels else 'nothing'} | {times} | {running} of {len(rows)} |", flush=True)
        for handle in handles:
            call("cuMemRelease", handle)


def pieces():
    """What memory of each size costs to take, to map alone and beside copies of as much, and to give back."""
    print("| MiB | of the | create, us | map, us | access, us | the same beside copies | unmap, us | release, us |")
    print("|---|---|---|---|---|---|---|---|")
    for mib in (2, 16, 32, 64):
        size = mib * MIB
        at, other, source = reserve(size), reserve(size), reserve(size)
        place(other, size, create(size, HOST))
        place(source, size, create(size, DEVICE))
        for name, where in (("GPU", DEVICE), ("host", HOST)):
            rows = []
            for _ in range(12):
                handles = []
                took = [timed(lambda: handles.append(create(size, where)))]
                took += place(at, size, handles[0])
                gone = unmap(at, size)
                for _ in range(8):
                    call("cuMemcpyDtoDAsync_v2", other, source, ctypes.c_size_t(size), None)
                took.append(place(at, size, handles[0])[1])
                torch.cuda.synchronize()
                unmap(at, size)
                rows.append((*took, gone, timed(lambda: call("cuMemRelease", handles[0]))))
            print(f"| {mib} | {name} | {' | '.join(spread(column) for column in zip(*rows))} |", flush=True)


def slowing(matrix):
    """Matrix products a second, alone and beside a thread that does nothing but map."""
    size, at, ended, remaps = 16 * MIB, reserve(16 * MIB), threading.Event(), 0
    handles = [create(size, DEVICE) for _ in range(2)]

    def remap():
        nonlocal remaps
        torch.zeros(1, device="cuda")
        while not ended.is_set():
            place(at, size, handles[remaps % 2])
            unmap(at, size)
            remaps += 1

    def rate():
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < 1:
            multiply(matrix, 20)
            torch.cuda.synchronize()
            count += 20
        return count / (time.perf_counter() - start)

    rate()
    alone = rate()
    thread = threading.Thread(target=remap)
    thread.start()
    beside = rate()
    ended.set()
    thread.join()
    print(f"products a second: {alone:.0f} alone, {beside:.0f} beside {remaps} remaps of 16 MiB", flush=True)


class Floats:
    def __init__(self, at, *shape):
        self.__cuda_array_interface__ = dict(shape=shape, typestr="<f4", data=(at.value, False), version=3)


def host_memory():
    """The host's memory at the address of the GPU's."""
    size = 256 * MIB
    at, other, count = reserve(size), reserve(size), size // 4
    device, host = create(size, DEVICE), create(size, HOST)
    place(at, size, device)
    place(other, size, host)
    floats = torch.as_tensor(Floats(at, count), device="cuda")
    numbers = torch.arange(count, device="cuda", dtype=torch.float32)
    floats.copy_(numbers)

    def rate(what, work, moved):
        work()
        torch.cuda.synchronize()
        took = timed(lambda: ([work() for _ in range(3)], torch.cuda.synchronize())) / 3
        print(f"{what}: {moved / took / 1e3:.1f} GB/s", flush=True)

    copy = lambda to, source: call("cuMemcpyDtoDAsync_v2", to, source, ctypes.c_size_t(size), None)
    rate("copies to the host's memory", lambda: copy(other, at), size)
    rate("copies to the GPU's memory", lambda: copy(at, other), size)
    torch.cuda.synchronize()
    unmap(at, size)
    unmap(other, size)
    place(at, size, host)
    rate("a kernel reads the host's memory in place", floats.sum, size)
    rate("a kernel reads and writes it", lambda: floats.mul_(1.0), 2 * size)
    print("the bytes are right:", bool((floats == numbers).all()))
    rows = []
    for turn in range(20):
        torch.cuda.synchronize()
        rows.append((unmap(at, size), *place(at, size, (device, host)[turn % 2])))
    for name, part in (("GPU", rows[::2]), ("host", rows[1::2])):
        times = ", ".join(f"{what} {spread(column)}" for what, column in zip(("unmap", "map", "access"), zip(*part)))
        print(f"256 MiB give place to the {name}'s, us: {times}", flush=True)


def tensor(where, rows, columns):
    """Numbers of 16 bits in memory of their own."""
    size = -(-2 * rows * columns // (2 * MIB)) * 2 * MIB
    at = reserve(size)
    place(at, size, create(size, where))
    return torch.as_tensor(Floats(at, rows, columns // 2), device="cuda").view(torch.bfloat16).normal_()


def products():
    """Matrix products of which one matrix lies on the host."""
    width = 4096
    weights = {where: tensor(where, width, width) for where in (DEVICE, HOST)}
    print("| rows | all on the GPU, ms | weights, 32 MiB, on the host | rows there | result there |")
    print("|---|---|---|---|---|")
    for count in (1, 64, 256, 1024, 4096, 16384):
        rows, results = ({where: tensor(where, count, width) for where in (DEVICE, HOST)} for _ in range(2))

        def took(a, b, c):
            work = lambda: torch.mm(rows[a], weights[b].t(), out=results[c])
            run = lambda: timed(lambda: (work(), torch.cuda.synchronize())) / 1e3
            work()
            return f"{sorted(run() for _ in range(9))[4]:.2f}"

        places = (DEVICE, DEVICE, DEVICE), (DEVICE, HOST, DEVICE), (HOST, DEVICE, DEVICE), (DEVICE, DEVICE, HOST)
        print(f"| {count} | {' | '.join(took(*place) for place in places)} |", flush=True)


def main():
    torch.zeros(1, device="cuda")
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    multiply(matrix, 20)
    torch.cuda.synchronize()
    mapping(matrix)
    pieces()
    slowing(matrix)
    host_memory()
    products()


if __name__ == "__main__":
    main()
