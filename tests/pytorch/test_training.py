#!/usr/bin/env -S python3 tests/pytorch/harness.py
"""What a training loop does around the step: gradients zeroed, accumulated, clipped; averages of parameters and state."""
import torch
from cases import case
from toys import loss_of, mlp, record, train


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05, fused=True)


@case("AdamW fp32", modes="cpu stream direct")
def gradients_to_none(t):
    """zero_grad(set_to_none=True)"""
    zeroed(t, True)


@case("AdamW fp32", modes="cpu stream direct")
def gradients_to_zero(t):
    """zero_grad(set_to_none=False)"""
    zeroed(t, False)


def zeroed(t, set_to_none):
    model = mlp()
    optimizer = adamw(model)
    for step in range(5):
        optimizer.zero_grad(set_to_none=set_to_none)
        loss_of(model, step).backward()
        optimizer.step()
    t.record_state("gradients", {name: p.grad for name, p in model.named_parameters()})
    record(t, model, optimizer)


def accumulated(t, parts):
    model = mlp()
    optimizer = adamw(model)
    for step in range(4):
        optimizer.zero_grad()
        for part in range(parts):
            (loss_of(model, step * parts + part) / parts).backward()
        optimizer.step()
    record(t, model, optimizer)


@case("AdamW fp32", modes="cpu stream")
def accumulation_1(t):
    """gradients of 1 batch a step"""
    accumulated(t, 1)


@case("AdamW fp32", modes="cpu stream")
def accumulation_2(t):
    """gradients of 2 batches accumulated"""
    accumulated(t, 2)


@case("AdamW fp32", modes="cpu stream")
def accumulation_8(t):
    """gradients of 8 batches accumulated"""
    accumulated(t, 8)


@case("AdamW fp32", modes="cpu stream direct")
def clipping(t):
    """clip_grad_norm_ before the step"""
    model = mlp()
    optimizer = adamw(model)
    norms = []
    train(t, model, optimizer, 5, change=lambda step: norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
    t.record("norms", torch.stack(norms))
    if not any(norm > 0.5 for norm in norms):
        raise AssertionError(f"nothing was clipped: {norms}")
    record(t, model, optimizer)


@case("AdamW fp32", modes="cpu stream direct")
def average_of_parameters(t):
    """an exponential average of the parameters"""
    model = mlp()
    optimizer = adamw(model)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    for step in range(6):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
        average.update_parameters(model)
    t.record_state("average", average.state_dict())
    record(t, model, optimizer)


@case("AdamW fp32", modes="cpu stream direct")
def average_of_state(t):
    """an exponential average of the state, by kernels that read it: it comes home for them"""
    model = mlp()
    optimizer = adamw(model)
    averages = {}
    for step in range(8):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
        if step % 4 == 2:
            for name, parameter in model.named_parameters():
                for key in ("exp_avg", "exp_avg_sq"):
                    state = optimizer.state[parameter][key]
                    averages.setdefault(f"{name}.{key}", torch.zeros_like(state)).lerp_(state, 0.25)
    t.check("state that kernels read came home", lambda delta: delta["totals"]["moved_home_bytes"] > 0)
    t.check("the touches were seen", lambda delta: delta["totals"]["foreign_touches"] > 0)
    t.record_state("averages", averages)
    record(t, model, optimizer)


@case("AdamW fp32", modes="cpu stream")
def averages_in_every_step(t):
    """an average of the state in every step from the fourth on"""
    model = mlp()
    optimizer = adamw(model)
    big = model[0].weight
    average = torch.zeros_like(big)

    def change(step):
        if step >= 3:
            average.lerp_(optimizer.state[big]["exp_avg"], 0.5)
    train(t, model, optimizer, 7, change=change)
    t.record("average", average)
    record(t, model, optimizer)
