# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Copies, sets and computes in memory that moves meanwhile, and compares it with a model.

All operations and their ranges are random, from a fixed seed, and cross
the pieces in which memory moves. Each line of its input is a number of seconds; it prints the operations
made of each kind, or the bytes that differ. `attributes` prints what libcuda says of the memory, and
`blocked` how long it takes to go on while a stream waits for this thread.
"""

import collections
import ctypes
import random
import sys
import time

import numpy as np

MIB = 1 << 20
# Two pieces and a half.
BUFFERS, BYTES = 12, 40 * MIB
cuda = ctypes.CDLL("libcuda.so.1")
u64, u32, size_t, ptr = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_size_t, ctypes.c_void_p

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry change(.param .u64 p_at, .param .u32 p_words, .param .u32 p_by) {
    .reg .pred %p;
    .reg .u32 %i, %n, %by, %t, %c, %s;
    .reg .u64 %a, %o;
    ld.param.u64 %a, [p_at];
    ld.param.u32 %n, [p_words];
    ld.param.u32 %by, [p_by];
    mov.u32 %t, %tid.x;
    mov.u32 %c, %ctaid.x;
    mov.u32 %s, %ntid.x;
    mad.lo.u32 %i, %c, %s, %t;
    mov.u32 %t, %nctaid.x;
    mul.lo.u32 %s, %s, %t;
again:
    setp.ge.u32 %p, %i, %n;
    @%p bra done;
    mul.wide.u32 %o, %i, 4;
    add.u64 %o, %a, %o;
    red.global.add.u32 [%o], %by;
    add.u32 %i, %i, %s;
    bra again;
done:
    ret;
}
"""


class Copy2D(ctypes.Structure):
    _fields_ = [
        (f"{side}_{name}", kind)
        for side in ("from", "to")
        for name, kind in (("x", size_t), ("y", size_t), ("type", u32), ("host", ptr), ("at", u64),
                           ("array", ptr), ("pitch", size_t))
    ] + [("width", size_t), ("height", size_t)]


class Copy3D(ctypes.Structure):
    _fields_ = [
        (f"{side}_{name}", kind)
        for side in ("from", "to")
        for name, kind in (("x", size_t), ("y", size_t), ("z", size_t), ("lod", size_t),
                           ("type", u32), ("host", ptr), ("at", u64), ("array", ptr),
                           ("reserved", ptr), ("pitch", size_t), ("height", size_t))
    ] + [("width", size_t), ("height", size_t), ("depth", size_t)]


def call(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    if status:
        raise SystemExit(f"{name}: error {status}")


def address(array):
    return array.ctypes.data


class Memory:
    def __init__(self, rng):
        self.rng = rng
        self.at, self.model = [], []
        for _ in range(BUFFERS):
            at = u64()
            call("cuMemAlloc_v2", ctypes.byref(at), size_t(BYTES))
            call("cuMemsetD8_v2", at, ctypes.c_ubyte(0), size_t(BYTES))
            self.at.append(at.value)
            self.model.append(np.zeros(BYTES, np.uint8))
        self.host = np.frombuffer(rng.randbytes(BYTES), np.uint8).copy()
        pinned = ptr()
        call("cuMemAllocHost_v2", ctypes.byref(pinned), size_t(BYTES))
        self.pinned = np.ctypeslib.as_array((ctypes.c_ubyte * BYTES).from_address(pinned.value))
        self.pinned[:] = self.host
        self.stream = ptr()
        call("cuStreamCreate", ctypes.byref(self.stream), u32(1))
        module, self.function = ptr(), ptr()
        call("cuModuleLoadData", ctypes.byref(module), PTX)
        call("cuModuleGetFunction", ctypes.byref(self.function), module, b"change")
        self.graphs = [self.captured() for _ in range(4)]

    def wait(self):
        call("cuStreamSynchronize", self.stream)

    def some(self, align=1, most=BYTES):
        """A buffer, an offset and a length."""
        b = self.rng.randrange(BUFFERS)
        length = max(align, self.rng.randrange(1, min(most, BYTES)) // align * align)
        offset = self.rng.randrange(0, BYTES - length + 1) // align * align
        return b, offset, length

    def other(self, b, length):
        """A range of another buffer."""
        c = (b + 1 + self.rng.randrange(BUFFERS - 1)) % BUFFERS
        return c, self.rng.randrange(0, BYTES - length + 1)

    # Each operation, and what it does to the model.

    def to_device(self):
        b, o, n = self.some()
        source = self.rng.choice([self.host, self.pinned])
        name = self.rng.choice(["cuMemcpyHtoD_v2", "cuMemcpy", "cuMemcpyHtoDAsync_v2", "cuMemcpyAsync"])
        to, start = u64(self.at[b] + o), self.rng.randrange(0, BYTES - n + 1)
        wrap = u64 if name in ("cuMemcpy", "cuMemcpyAsync") else ptr
        rest = [self.stream] if name.endswith(("Async", "Async_v2")) else []
        call(name, to, wrap(address(source) + start), size_t(n), *rest)
        self.wait()
        self.model[b][o:o + n] = source[start:start + n]
        return name

    def to_host(self):
        b, o, n = self.some()
        into = np.zeros(n, np.uint8)
        name = self.rng.choice(["cuMemcpyDtoH_v2", "cuMemcpy", "cuMemcpyDtoHAsync_v2", "cuMemcpyAsync"])
        wrap = u64 if name in ("cuMemcpy", "cuMemcpyAsync") else ptr
        rest = [self.stream] if name.endswith(("Async", "Async_v2")) else []
        call(name, wrap(address(into)), u64(self.at[b] + o), size_t(n), *rest)
        self.wait()
        self.compare(into, self.model[b][o:o + n], name)
        return name

    def between(self):
        b, o, n = self.some()
        c, p = self.other(b, n)
        name = self.rng.choice(["cuMemcpyDtoD_v2", "cuMemcpy", "cuMemcpyDtoDAsync_v2", "cuMemcpyAsync"])
        rest = [self.stream] if name.endswith(("Async", "Async_v2")) else []
        call(name, u64(self.at[c] + p), u64(self.at[b] + o), size_t(n), *rest)
        call("cuCtxSynchronize")
        self.model[c][p:p + n] = self.model[b][o:o + n]
        return name + " between"

    def set(self):
        width, kind = self.rng.choice([(1, ctypes.c_ubyte), (2, ctypes.c_ushort), (4, u32)])
        b, o, n = self.some(width)
        name = f"cuMemsetD{8 * width}"
        value = self.rng.randrange(1 << (8 * width))
        if self.rng.random() < 0.5:
            call(name + "Async", u64(self.at[b] + o), kind(value), size_t(n // width), self.stream)
            name += "Async"
        else:
            call(name + "_v2", u64(self.at[b] + o), kind(value), size_t(n // width))
        call("cuCtxSynchronize")
        of = np.frombuffer(value.to_bytes(width, "little"), np.uint8)
        self.model[b][o:o + n] = np.tile(of, n // width)
        return name

    def set_2d(self):
        b = self.rng.randrange(BUFFERS)
        pitch, rows = self.rng.randrange(1, 2 * MIB) // 512 * 512 + 512, self.rng.randrange(1, 16)
        width, value = self.rng.randrange(1, pitch), self.rng.randrange(256)
        o = self.rng.randrange(0, BYTES - pitch * rows)
        call("cuMemsetD2D8_v2", u64(self.at[b] + o), size_t(pitch), ctypes.c_ubyte(value), size_t(width),
             size_t(rows))
        call("cuCtxSynchronize")
        for row in range(rows):
            self.model[b][o + row * pitch:o + row * pitch + width] = value
        return "cuMemsetD2D8"

    def copy_2d(self):
        b = self.rng.randrange(BUFFERS)
        pitch, rows = self.rng.randrange(1, 2 * MIB) // 512 * 512 + 512, self.rng.randrange(1, 16)
        width = self.rng.randrange(1, pitch)
        o = self.rng.randrange(0, BYTES - pitch * rows)
        c, p = self.other(b, pitch * rows)
        kind = self.rng.choice([2, 4])
        copy = Copy2D(from_type=kind, from_at=self.at[b] + o, from_pitch=pitch, to_type=kind,
                      to_at=self.at[c] + p, to_pitch=pitch, width=width, height=rows)
        source = self.model[b][o:o + pitch * rows].copy()
        if self.rng.random() < 0.5:
            copy.from_type, copy.from_host = 1, address(self.host)
            source = self.host
        name = self.rng.choice(["cuMemcpy2DUnaligned_v2", "cuMemcpy2DAsync_v2"])
        rest = [self.stream] if "Async" in name else []
        call(name, ctypes.byref(copy), *rest)
        call("cuCtxSynchronize")
        for row in range(rows):
            self.model[c][p + row * pitch:p + row * pitch + width] = source[row * pitch:row * pitch + width]
        return name + (" to device" if copy.from_type == 1 else f" type {kind}")

    def copy_3d(self):
        b = self.rng.randrange(BUFFERS)
        pitch, rows, depth = 64 << 10, self.rng.randrange(1, 16), self.rng.randrange(1, 16)
        high, width = rows + self.rng.randrange(3), self.rng.randrange(1, 64 << 10)
        extent = pitch * high * depth
        o = self.rng.randrange(0, BYTES - extent)
        c, p = self.other(b, extent)
        copy = Copy3D(from_type=2, from_at=self.at[b] + o, from_pitch=pitch, from_height=high, to_type=2,
                      to_at=self.at[c] + p, to_pitch=pitch, to_height=high, width=width, height=rows,
                      depth=depth)
        call("cuMemcpy3D_v2", ctypes.byref(copy))
        call("cuCtxSynchronize")
        shape = (depth, high, pitch)
        source = self.model[b][o:o + extent].reshape(shape)[:, :rows, :width].copy()
        self.model[c][p:p + extent].reshape(shape)[:, :rows, :width] = source
        return "cuMemcpy3D"

    def launch(self):
        b, o, n = self.some(4)
        by = self.rng.randrange(1 << 32)
        self.add(b, o, n, by)
        call("cuCtxSynchronize")
        self.model[b][o:o + n].view(np.uint32)[:] += np.uint32(by)
        return "cuLaunchKernel"

    def add(self, b, o, n, by):
        values = [u64(self.at[b] + o), u32(n // 4), u32(by)]
        pointers = (ptr * 3)(*(ctypes.cast(ctypes.byref(v), ptr) for v in values))
        call("cuLaunchKernel", self.function, u32(264), u32(1), u32(1), u32(256), u32(1), u32(1), u32(0),
             self.stream, pointers, None)

    def captured(self):
        """A graph of all kinds of nodes, and what it does to the model."""
        b, o, n = self.some(4, 20 * MIB)
        c, p = self.other(b, n)
        o, p, by = o & ~3, p & ~3, self.rng.randrange(1 << 32)
        start = self.rng.randrange(0, BYTES - n + 1)
        into = np.ctypeslib.as_array((ctypes.c_ubyte * n).from_address(self.lend(n)))
        call("cuStreamBeginCapture_v2", self.stream, u32(0))
        call("cuMemcpyHtoDAsync_v2", u64(self.at[b] + o), ptr(address(self.pinned) + start), size_t(n),
             self.stream)
        call("cuMemsetD8Async", u64(self.at[b] + o), ctypes.c_ubyte(by & 255), size_t(n // 2), self.stream)
        self.add(b, o, n, by)
        call("cuMemcpyDtoDAsync_v2", u64(self.at[c] + p), u64(self.at[b] + o), size_t(n), self.stream)
        call("cuMemcpyDtoHAsync_v2", ptr(address(into)), u64(self.at[c] + p), size_t(n), self.stream)
        graph, made = ptr(), ptr()
        call("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        call("cuGraphInstantiateWithFlags", ctypes.byref(made), graph, u64(0))

        def replay():
            call("cuGraphLaunch", made, self.stream)
            self.wait()
            part = self.model[b][o:o + n]
            part[:] = self.pinned[start:start + n]
            part[:n // 2] = by & 255
            part.view(np.uint32)[:] += np.uint32(by)
            self.model[c][p:p + n] = part
            self.compare(into, part, "graph")
            return "cuGraphLaunch"

        return replay

    def lend(self, n):
        at = ptr()
        call("cuMemAllocHost_v2", ctypes.byref(at), size_t(n))
        return at.value

    def graph(self):
        return self.rng.choice(self.graphs)()

    def compare(self, seen, expected, what):
        wrong = int(np.count_nonzero(seen != expected))
        if wrong:
            first = int(np.argmax(seen != expected))
            raise SystemExit(f"{what}: {wrong} of {len(seen)} bytes differ, the first at {first}")

    def verify(self):
        for at, model in zip(self.at, self.model):
            into = np.zeros(BYTES, np.uint8)
            call("cuMemcpyDtoH_v2", ptr(address(into)), u64(at), size_t(BYTES))
            self.compare(into, model, "the whole buffer")


    def blocked(self):
        """Goes on in another stream, and allocates, while a stream waits for this thread. Returns
        the milliseconds until the GPU has done all."""
        flag = np.ctypeslib.as_array((u32 * 1).from_address(self.lend(4)))
        flag[0] = 0
        other = ptr()
        call("cuStreamCreate", ctypes.byref(other), u32(1))
        begun = time.monotonic()
        call("cuStreamWaitValue32_v2", other, u64(address(flag)), u32(1), u32(0))
        for _ in range(3):
            self.launch_only()
            at = u64()
            call("cuMemAlloc_v2", ctypes.byref(at), size_t(BYTES))
        flag[0] = 1
        call("cuCtxSynchronize")
        return 1e3 * (time.monotonic() - begun)

    def launch_only(self):
        b, o, n = self.some(4)
        self.add(b, o, n, 1)
        self.wait()
        self.model[b][o:o + n].view(np.uint32)[:] += np.uint32(1)


def attributes(at):
    """Returns what libcuda says of an address: a status and a value for each attribute."""
    said = {}
    for attribute in range(1, 22):
        value = (ctypes.c_ubyte * 64)()
        status = cuda.cuPointerGetAttribute(value, u32(attribute), u64(at))
        said[attribute] = (status, int.from_bytes(bytes(value[:8]), "little"))
    return said


def main():
    call("cuInit", u32(0))
    context = ptr()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    memory = Memory(random.Random(1))
    names = [memory.to_device, memory.to_host, memory.between, memory.set, memory.set_2d, memory.copy_2d,
             memory.copy_3d, memory.launch, memory.graph]
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "attributes":
            base, size = u64(), size_t()
            call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), u64(memory.at[0] + 5))
            said = attributes(memory.at[0])
            # Addresses and numbers differ, and what cuMemAlloc's memory has besides: IPC (10), RDMA
            # (15), the mapping (18, 19), and decompression by a copy engine (21).
            said = {k: v[0] if k in (1, 3, 4, 7, 10, 11, 15, 18, 19, 20, 21) else v for k, v in said.items()}
            print(base.value == memory.at[0], size.value, said, flush=True)
            continue
        if line.strip() == "blocked":
            print(f"{memory.blocked():.0f}", flush=True)
            continue
        made, end = collections.Counter(), time.monotonic() + float(line)
        while time.monotonic() < end:
            made[memory.rng.choice(names)()] += 1
        memory.verify()
        print(sum(made.values()), dict(sorted(made.items())), flush=True)


if __name__ == "__main__":
    main()
