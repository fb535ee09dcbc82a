#!/usr/bin/env -S python3 tests/pytorch/harness.py
"""A tensor that is larger than a launch of PyTorch's kernel reaches: 2,240 blocks of 65,536 elements."""
import hashlib

import torch
from cases import case

ELEMENTS = 2240 * 65_536 + 200_000


# Pieces of the usual size, of which this tensor fills hundreds, and native code for the kernels.
@case("AdamW fp32", modes="cpu stream",
      environment={"GPUSIM_GRANULARITY": "2MiB", "GPUSIM_ENGINE": "native", "GPUSIM_THREADS": "2"})
def larger_than_a_launch(t):
    """one tensor larger than a launch"""
    pattern = torch.randn(1 << 16, generator=torch.Generator().manual_seed(5))
    parameter = torch.nn.Parameter(pattern.repeat(ELEMENTS // len(pattern) + 1)[:ELEMENTS].cuda())
    parameter.grad = parameter.detach() * 0.5
    optimizer = torch.optim.AdamW([parameter], lr=1e-2, fused=True)
    for _ in range(3):
        optimizer.step()
    t.check("a step takes two launches, of which no second one begins a step", lambda delta:
            sum(row["launches"] for row in delta["functions"]) == 6 and delta["totals"]["steps"] == 3)
    t.check("all of the state moved but for the ends of the tensors",
            lambda delta: delta["totals"]["moved_out_bytes"] > 2 * 4 * (ELEMENTS - 2 * 524_288))
    # A gigabyte and a half of values: their hashes are kept.
    for name, tensor in (("parameter", parameter), ("exp_avg", optimizer.state[parameter]["exp_avg"]),
                         ("exp_avg_sq", optimizer.state[parameter]["exp_avg_sq"])):
        t.record(name, hashlib.sha256(tensor.detach().cpu().numpy()).digest())
