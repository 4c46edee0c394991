# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Fails unless the named module sees the expected number of SMs, and multiplies matrices correctly
# with kernels as large as the device.
import sys

module, sms = sys.argv[1], int(sys.argv[2])


def seen(count):
    assert count == sms, f"{module} sees {count} SMs, not {sms}"


def right(product, a, b):
    wrong = (product.double() - a.double() @ b.double()).abs().max().item()
    assert wrong < 0.5, f"off by {wrong}"


if module == "torch":
    import torch

    seen(torch.cuda.get_device_properties(0).multi_processor_count)
    # Shapes for which cuBLAS chooses kernels of one block per SM, and splits along K.
    for m, n, k in [(4096, 4096, 4096), (256, 256, 65536), (1000, 3000, 5000)]:
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16) / k**0.5
        b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
        for _ in range(5):
            product = a @ b
        right(product, a, b)

elif module == "triton":
    import torch
    import triton
    import triton.language as tl

    seen(triton.runtime.driver.active.utils.get_device_properties(0)["multiprocessor_count"])

    @triton.jit
    def meet(count, out):
        # All programs wait for each other, as stream-K's do for their neighbours.
        tl.atomic_add(count, 1)
        while tl.atomic_add(count, 0) < tl.num_programs(0):
            pass
        tl.store(out + tl.program_id(0), 1)

    for _ in range(20):
        count = torch.zeros(1, device="cuda", dtype=torch.int32)
        out = torch.zeros(sms, device="cuda", dtype=torch.int32)
        # 32 warps: two programs fill an SM.
        meet[(sms,)](count, out, num_warps=32)
        assert out.sum().item() == sms

    @triton.jit
    def persistent(a, b, c, M, N, K, SMS: tl.constexpr, BLOCK: tl.constexpr):
        across = tl.cdiv(N, BLOCK)
        for tile in range(tl.program_id(0), tl.cdiv(M, BLOCK) * across, SMS):
            rows = (tile // across) * BLOCK + tl.arange(0, BLOCK)
            columns = (tile % across) * BLOCK + tl.arange(0, BLOCK)
            total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
            for start in range(0, K, BLOCK):
                depth = start + tl.arange(0, BLOCK)
                left = tl.load(a + rows[:, None] * K + depth[None, :])
                right = tl.load(b + depth[:, None] * N + columns[None, :])
                total += tl.dot(left, right)
            tl.store(c + rows[:, None] * N + columns[None, :], total)

    a = torch.randn(2048, 2048, device="cuda", dtype=torch.float16) / 2048**0.5
    b = torch.randn(2048, 2048, device="cuda", dtype=torch.float16)
    c = torch.empty(2048, 2048, device="cuda", dtype=torch.float32)
    persistent[(sms,)](a, b, c, 2048, 2048, 2048, SMS=sms, BLOCK=64)
    right(c, a, b)

elif module == "jax":
    import jax
    import jax.numpy as jnp
    import numpy

    seen(jax.devices()[0].core_count)
    a = jax.random.normal(jax.random.key(0), (2048, 2048)) / 2048**0.5
    product = jax.jit(lambda x: jnp.matmul(x, x, precision="highest"))(a)
    exact = numpy.asarray(a, dtype=numpy.float64) @ numpy.asarray(a, dtype=numpy.float64)
    assert abs(numpy.asarray(product) - exact).max() < 0.01
