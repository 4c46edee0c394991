# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Answers questions about the memory that it sees, one a line, in MiB.
import sys

import torch

torch.zeros(1, device="cuda")
kept = []

for line in sys.stdin:
    question = line.split()
    free, total = (bytes >> 20 for bytes in torch.cuda.mem_get_info())
    if question[0] == "info":
        print(total, free, flush=True)
    elif question[0] == "allocate":
        try:
            kept.append(torch.empty(int(question[1]) << 20, dtype=torch.uint8, device="cuda"))
            print("done", flush=True)
        except torch.OutOfMemoryError:
            print("out of memory", flush=True)
    elif question[0] == "drop":
        kept.pop()
        torch.cuda.empty_cache()
        print("done", flush=True)
    elif question[0] == "nvml":
        try:
            import pynvml

            pynvml.nvmlInit()
            seen = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0))
            # NVML counts what the driver reserves, cuMemGetInfo does not.
            agrees = abs((seen.free >> 20) - free) <= 2 and seen.total >> 20 >= total
        except ImportError:
            agrees = True
        print("agrees" if agrees else f"{seen.total >> 20} {seen.free >> 20}", flush=True)
    else:
        break
