#!/usr/bin/env -S python3 tests/pytorch/harness.py
"""The 20 fused kernels of a release, each by itself: every type, Adam and AdamW, with and without amsgrad, with moments in bf16.
What they compute is compared after steps in which decay, the learning rate, a pointer to it and the direction change."""
import torch
from cases import case

TYPES = {"fp32": torch.float32, "fp64": torch.float64, "fp16": torch.float16, "bf16": torch.bfloat16,
         "fp32/bf16 state": torch.float32}
# Blocks with pieces of their own, a tail that no vector fits, and tensors of a few elements.
SHAPES = ((3, 65536), (70001,), (33, 31), (4,), ())
STATES = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")


def parameters(dtype):
    generator = torch.Generator().manual_seed(7)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to("cuda", dtype)) for shape in SHAPES]


def gradients(step, dtype):
    """Small and large ones, zeros, and one that isn't a number."""
    generator = torch.Generator().manual_seed(100 + step)
    result = [torch.randn(shape, generator=generator) * 10.0 ** (step - 3) for shape in SHAPES]
    result[0][0, ::7] = 0
    result[1][5 + step] = float("nan")
    return [gradient.to("cuda", dtype) for gradient in result]


def steps(t, kind, type_name, amsgrad):
    dtype = TYPES[type_name]
    params = parameters(dtype)
    optimizer = kind(params, lr=3e-3, eps=1e-4, weight_decay=0.1, amsgrad=amsgrad, fused=True)
    if type_name == "fp32/bf16 state":
        for parameter in params:
            optimizer.state[parameter]["step"] = torch.zeros((), device="cuda")
            for name in STATES[:3 if amsgrad else 2]:
                optimizer.state[parameter][name] = torch.zeros_like(parameter, dtype=torch.bfloat16)
    group = optimizer.param_groups[0]
    changes = ({}, {}, {"lr": 1e-3}, {"weight_decay": 0.0}, {"maximize": True},
               {"lr": torch.tensor(2e-3, device="cuda"), "weight_decay": 0.01})
    for step, change in enumerate(changes):
        group.update(change)
        for parameter, gradient in zip(params, gradients(step, dtype)):
            parameter.grad = gradient
        optimizer.step()
    t.record_state("parameters", [parameter.data for parameter in params])
    t.record_state("state", [optimizer.state[parameter] for parameter in params])


def register(kind, type_name, amsgrad):
    family = f"{kind.__name__}{' amsgrad' if amsgrad else ''} {type_name}"

    def kernel(t):
        steps(t, kind, type_name, amsgrad)
    kernel.__name__ = family.lower().replace(" ", "_").replace("/", "_with_")
    kernel.__doc__ = f"{family}: its state moves, and every bit stays the same"
    case(family, modes="cpu stream direct")(kernel)


for kind in (torch.optim.Adam, torch.optim.AdamW):
    for type_name in TYPES:
        for amsgrad in (False, True):
            register(kind, type_name, amsgrad)
