# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Starts JAX, which takes a part of the memory that it sees at once, and answers questions about it,
# one a line: `limit` prints the MiB of its pool, `product` checks a matrix product, `allocate MIB`
# makes an array that stays.
import sys

import jax
import jax.numpy as jnp
import numpy

kept = []
device = jax.devices()[0]
jnp.zeros(1).block_until_ready()

for line in sys.stdin:
    question = line.split()
    if question[0] == "limit":
        print(device.memory_stats()["bytes_limit"] >> 20, flush=True)
    elif question[0] == "product":
        a = jax.random.normal(jax.random.key(0), (2048, 2048)) / 2048**0.5
        product = numpy.asarray(jax.jit(lambda x: jnp.matmul(x, x, precision="highest"))(a))
        exact = numpy.asarray(a, dtype=numpy.float64) @ numpy.asarray(a, dtype=numpy.float64)
        print("exact" if abs(product - exact).max() < 0.01 else "wrong", flush=True)
    elif question[0] == "allocate":
        try:
            kept.append(jnp.ones(int(question[1]) << 18, jnp.float32).block_until_ready())
            print("done", flush=True)
        except jax.errors.JaxRuntimeError as error:
            print("out of memory" if "RESOURCE_EXHAUSTED" in str(error) else error, flush=True)
    else:
        break
