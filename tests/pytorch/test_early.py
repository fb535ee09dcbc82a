#!/usr/bin/env -S python3 tests/pytorch/harness.py
"""State that `stream` copies up before its step, in a program that loads, halves and zeroes it between steps."""
import copy

import torch
from cases import case
from toys import record, train


@case("AdamW fp32", modes="stream")
def touched(t):
    """state that load_state_dict exchanges, a kernel halves and a foreach kernel scales is stepped as it is then"""
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(3)), torch.nn.Linear(1024, 32)).to("cuda")

    def loss(model, step):
        torch.manual_seed(step)
        return model(torch.randn(4, 1024).to("cuda")).square().mean()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    train(t, model, optimizer, steps=6, loss=loss)
    saved = copy.deepcopy(optimizer.state_dict())
    train(t, model, optimizer, steps=3, first=6, name="on ", loss=loss)
    optimizer.load_state_dict(saved)
    train(t, model, optimizer, steps=5, first=9, name="loaded ", loss=loss)
    states = [optimizer.state[p]["exp_avg"] for p in model.parameters()]
    states[0].mul_(0.5)
    train(t, model, optimizer, steps=5, first=14, name="halved ", loss=loss)
    torch._foreach_mul_(states, 0.25)
    train(t, model, optimizer, steps=3, first=19, name="scaled ", loss=loss)
    t.check("state was copied up early and used", lambda delta: delta["totals"]["early_bytes_used"] > 0)
    record(t, model, optimizer)


@case("AdamW fp32", modes="stream")
def divided(t):
    """state that an earlier group of the step has as its gradient, and divides, is stepped as it is then"""
    first, second = (torch.nn.Parameter(torch.linspace(-1, 1, 1 << 20).to("cuda")) for _ in range(2))
    optimizer = torch.optim.AdamW([{"params": [first]}, {"params": [second]}], lr=3e-3, fused=True)
    scale, found_inf = torch.full((), 2.0).to("cuda"), torch.zeros(()).to("cuda")
    first.grad, second.grad = torch.ones_like(first), torch.ones_like(second)
    for step in range(10):
        if step == 6:
            first.grad = optimizer.state[second]["exp_avg"]
            optimizer.grad_scale, optimizer.found_inf = scale, found_inf
        optimizer.step()
    t.check("state was copied up early and used", lambda delta: delta["totals"]["early_bytes_used"] > 0)
    for name, p in (("first", first), ("second", second)):
        t.record(name, p)
        for key in ("exp_avg", "exp_avg_sq"):
            t.record(f"{name} {key}", optimizer.state[p][key])
