#!/usr/bin/env -S python3 tests/pytorch/harness.py
"""Types of parameters and state, gradient scaling, autocast."""
import torch
from cases import case
from toys import mlp, record, train


@case("AdamW fp32", modes="cpu stream direct")
def adamw_in_fp32(t):
    """AdamW on fp32 parameters trains the same"""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    train(t, model, optimizer)
    record(t, model, optimizer)
