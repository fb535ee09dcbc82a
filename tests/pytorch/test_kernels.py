#!/usr/bin/env -S python3 tests/pytorch/harness.py
"""The fused kernels of a release, each by itself: every type, Adam and AdamW, with and without amsgrad, and from 2.13 on with
moments in bf16: 16 kernels before, 20 since. What they compute is compared after steps in which decay, the learning rate, a pointer to it and the direction change."""
import os
import pathlib
import re

import torch
from cases import BF16_MOMENTS, RELEASE, case
from toys import give_bf16_moments

TYPES = {"fp32": torch.float32, "fp64": torch.float64, "fp16": torch.float16, "bf16": torch.bfloat16,
         "fp32/bf16 state": torch.float32}
# Blocks with pieces of their own, a tail that no vector fits, and tensors of a few elements.
SHAPES = ((3, 65536), (70001,), (33, 31), (4,), ())


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
        give_bf16_moments(optimizer, params, amsgrad)
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
    since = BF16_MOMENTS if "/" in type_name else (2, 0)
    case(family, modes="cpu stream direct", since=since)(kernel)
    return [family] if RELEASE >= since else []


FAMILIES = sorted(family for kind in (torch.optim.Adam, torch.optim.AdamW) for type_name in TYPES for amsgrad in (False, True)
                  for family in register(kind, type_name, amsgrad))

# As they are written in the kernels' names.
NAMES = re.compile(r"FusedAdamMathFunctor(MP)?I(d|f|N3c104Half|N3c108BFloat16)\w*Li([45])ELNS0_9ADAM_MODEE([01])ELb([01])E")
MANGLED = {"d": "fp64", "f": "fp32", "N3c104Half": "fp16", "N3c108BFloat16": "bf16"}


@case(modes="stream", moves=False)
def names(t):
    """by their names the release's fused kernels are these, each once, and no other"""
    entries = [name for file in os.environ["GPUSIM_PTX"].split(":")
               for name in re.findall(r"\.entry (\w*FusedAdamMathFunctor\w*)", pathlib.Path(file).read_text(encoding="utf-8"))]
    found = []
    for entry in entries:
        moments, dtype, tensors, mode, largest = NAMES.search(entry).groups()
        if (tensors == "5") != (largest == "1"):
            raise AssertionError(f"{entry} has {tensors} lists of tensors")
        found.append(f"{'AdamW' if mode == '1' else 'Adam'}{' amsgrad' if largest == '1' else ''} {MANGLED[dtype]}"
                     f"{'/bf16 state' if moments else ''}")
    if sorted(found) != FAMILIES or len(FAMILIES) != (20 if RELEASE >= BF16_MOMENTS else 16):
        raise AssertionError(f"the release has {sorted(found)}, there are cases of {FAMILIES}")
    t.record("kernels", "\n".join(sorted(found)).encode())
