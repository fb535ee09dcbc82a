#!/usr/bin/env -S python3 tests/pytorch/harness.py
"""Types of parameters, gradients and state; gradient scaling; autocast."""
import torch
from cases import BF16_MOMENTS, case
from toys import give_bf16_moments, loss_of, mlp, record, train


def adam(model, kind=torch.optim.AdamW, **options):
    return kind(model.parameters(), **{"lr": 3e-3, "weight_decay": 0.05, "fused": True, **options})


def trained(t, dtype=torch.float32, kind=torch.optim.AdamW, bf16_moments=False, amsgrad=False, **options):
    model = mlp(dtype)
    optimizer = adam(model, kind, amsgrad=amsgrad, **options)
    if bf16_moments:
        give_bf16_moments(optimizer, model.parameters(), amsgrad)
    train(t, model, optimizer)
    record(t, model, optimizer)


@case("AdamW fp32", modes="cpu stream direct")
def adamw_in_fp32(t):
    """fp32 parameters train the same"""
    trained(t)


@case("AdamW bf16", modes="cpu stream direct")
def adamw_in_bf16(t):
    """bf16 parameters and state train the same"""
    trained(t, torch.bfloat16)


@case("Adam bf16", modes="stream direct")
def adam_in_bf16(t):
    """bf16 parameters and state train the same with Adam and L2 decay"""
    trained(t, torch.bfloat16, torch.optim.Adam)


@case("AdamW fp16", modes="cpu stream direct")
def adamw_in_fp16(t):
    """fp16 parameters and state train the same"""
    trained(t, torch.float16, eps=1e-4)


@case("AdamW fp64", modes="cpu stream direct")
def adamw_in_fp64(t):
    """fp64 parameters and state train the same"""
    trained(t, torch.float64)


@case("AdamW fp32/bf16 state", modes="cpu stream direct", since=BF16_MOMENTS)
def bf16_moments(t):
    """bf16 moments of fp32 parameters train the same"""
    trained(t, bf16_moments=True)


@case("AdamW amsgrad fp32/bf16 state", modes="cpu stream direct", since=BF16_MOMENTS)
def bf16_moments_amsgrad(t):
    """bf16 moments of fp32 parameters train the same with amsgrad"""
    trained(t, bf16_moments=True, amsgrad=True)


@case("AdamW fp32", "AdamW bf16", "AdamW amsgrad fp64", modes="cpu stream")
def types_in_turn(t):
    """fp32 trains first, bf16 joins, then fp64 with amsgrad, for which staging grows: all step in turn"""
    models = [mlp(dtype) for dtype in (torch.float32, torch.bfloat16, torch.float64)]
    optimizers = [adam(model, amsgrad=model is models[2]) for model in models]
    for present in (1, 2, 3):
        with t.part(f"{present} types"):
            for step in range(4):
                for number in range(present):
                    train(t, models[number], optimizers[number], 1, f"{present}.{step}.{number}: ", first=step)
    for number, (model, optimizer) in enumerate(zip(models, optimizers)):
        record(t, model, optimizer, f"{number}: ")


@case("AdamW fp32", modes="cpu stream")
def autocast_bf16(t):
    """bf16 autocast trains the same"""
    model = mlp()
    optimizer = adam(model)

    def loss(model, step):
        with torch.autocast("cuda", torch.bfloat16):
            return loss_of(model, step)
    train(t, model, optimizer, loss=loss)
    record(t, model, optimizer)


def scaled(t, unscale):
    """fp16 autocast with a scaler; gradients overflow in steps 1 and 4. The scale is small: some steps must not overflow."""
    model = mlp()
    optimizer = adam(model)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, growth_interval=2)
    scales = []
    for step in range(7):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            value = loss_of(model, step)
        scaler.scale(value * (float("inf") if step in (1, 4) else 1.0)).backward()
        if unscale:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    if [later < earlier for earlier, later in zip([1024.0] + scales, scales)] != [step in (1, 4) for step in range(7)]:
        raise AssertionError(f"the scale was to fall in steps 1 and 4 alone: {scales}")
    t.record("scales", torch.tensor(scales))
    t.record_state("gradients", {name: p.grad for name, p in model.named_parameters()})
    record(t, model, optimizer)


@case("AdamW fp32", modes="cpu stream direct")
def grad_scaler(t):
    """fp16 autocast with a GradScaler and overflowing steps trains the same, unscaled gradients included"""
    scaled(t, unscale=False)


@case("AdamW fp32", modes="cpu stream direct")
def grad_scaler_unscaled_first(t):
    """a GradScaler with unscale_ and clipping before the step trains the same through overflowing steps"""
    scaled(t, unscale=True)
