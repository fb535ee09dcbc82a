#!/usr/bin/env -S python3 tests/pytorch/harness.py
"""OFFLOAD_VERIFY in real training: pieces of the CPU step are done by PyTorch's own kernel as well, and none differs."""
import torch
from cases import case
from toys import mlp, record, train


def verified(t, every):
    """Pieces were compared, all equal: each of the CPU's steps where every piece is asked for."""
    def question(delta):
        totals = delta["totals"]
        row = next(one for one in delta["functions"] if one["launches_cpu"])
        fair = row["verified"] == totals["verified_pieces"] >= (row["launches_cpu"] if every == "all" else 1)
        return fair and totals["verified_bytes"] and not totals["mismatches"] and not totals["unverified_pieces"]
    t.check(f"OFFLOAD_VERIFY={every} compared pieces, and none differed", question)


@case("AdamW fp32", modes="cpu", offload={"OFFLOAD_VERIFY": "all"})
def verify_all(t):
    """AdamW with every piece compared before it is applied trains the same"""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    train(t, model, optimizer, steps=5)
    verified(t, "all")
    record(t, model, optimizer)


@case("Adam amsgrad bf16", modes="cpu", offload={"OFFLOAD_VERIFY": "2"})
def verify_sampled(t):
    """Adam with amsgrad in bf16 and every second piece compared trains the same"""
    model = mlp(torch.bfloat16)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, amsgrad=True, fused=True)
    train(t, model, optimizer, steps=5)
    verified(t, "2")
    record(t, model, optimizer)
