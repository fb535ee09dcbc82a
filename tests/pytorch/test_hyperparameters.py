#!/usr/bin/env -S python3 tests/pytorch/harness.py
"""What an optimizer is told: kind, amsgrad, maximize, decay; learning rates and betas that change."""
import torch
from cases import case
from toys import mlp, record, train


def each(t, kind, amsgrad, decays, **options):
    """maximize x decay, each with an optimizer of its own."""
    for maximize in (False, True):
        for decay in decays:
            name = f"{'maximize' if maximize else 'minimize'}, decay {decay}: "
            with t.part(name):
                model = mlp()
                optimizer = kind(model.parameters(), lr=2e-3, weight_decay=decay, amsgrad=amsgrad, maximize=maximize,
                                 fused=True, **options)
                train(t, model, optimizer, 4, name)
                record(t, model, optimizer, name)
                del model, optimizer
                torch.cuda.empty_cache()


@case("AdamW fp32", modes="cpu stream direct")
def adamw(t):
    """AdamW with and without decay and maximize"""
    each(t, torch.optim.AdamW, False, (0.0, 0.1))


@case("AdamW amsgrad fp32", modes="cpu stream direct")
def adamw_amsgrad(t):
    """AdamW with amsgrad, with and without decay and maximize"""
    each(t, torch.optim.AdamW, True, (0.0, 0.1))


@case("Adam fp32", modes="cpu stream direct")
def adam(t):
    """Adam without decay, with and without maximize"""
    each(t, torch.optim.Adam, False, (0.0,))


@case("Adam fp32", modes="stream direct")
def adam_l2(t):
    """Adam with L2 decay, with and without maximize"""
    each(t, torch.optim.Adam, False, (0.1,))


@case("Adam amsgrad fp32", modes="stream direct")
def adam_amsgrad(t):
    """Adam with amsgrad, with and without L2 decay and maximize"""
    each(t, torch.optim.Adam, True, (0.0, 0.1))


def rate(step):
    """Warm-up, then down."""
    return 1e-3 * (step + 1) if step < 3 else 3e-3 / step


@case("AdamW fp32", modes="cpu stream")
def lr_float(t):
    """a learning rate that a scheduler changes in every step"""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)

    def change(step):
        if step:
            scheduler.step()
    train(t, model, optimizer, 7, change=change)
    record(t, model, optimizer)


def lr_tensor(t, device):
    model = mlp()
    lr = torch.tensor(1e-3, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)
    train(t, model, optimizer, 7, change=lambda step: lr.fill_(rate(step)))
    record(t, model, optimizer)


@case("AdamW fp32", modes="cpu stream direct")
def lr_cuda_tensor(t):
    """a learning rate in a CUDA tensor that changes in every step"""
    lr_tensor(t, "cuda")


@case("AdamW fp32", modes="cpu stream")
def lr_cpu_tensor(t):
    """a learning rate in a CPU tensor that changes in every step"""
    lr_tensor(t, "cpu")


@case("AdamW fp32", modes="cpu stream")
def betas(t):
    """betas that change in every step"""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)

    def change(step):
        optimizer.param_groups[0]["betas"] = (0.85 + 0.02 * step, 0.9 + 0.0137 * step)
    train(t, model, optimizer, 7, change=change)
    record(t, model, optimizer)


@case("AdamW fp32", modes="cpu stream")
def decay_and_eps(t):
    """decay and eps that change in every step, decay down to nothing"""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)

    def change(step):
        optimizer.param_groups[0].update(weight_decay=0.02 * (step % 3), eps=10.0 ** -(4 + step))
    train(t, model, optimizer, 7, change=change)
    record(t, model, optimizer)
