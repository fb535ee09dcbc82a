#!/usr/bin/env -S python3 tests/pytorch/harness.py
"""Which parameters step: groups, parameters without a gradient, frozen and unfrozen layers, groups added on the way."""
import torch
from cases import case
from toys import loss_of, mlp, record, train


def two_groups(model):
    return [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
            {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0, "lr": 1e-2}]


@case("AdamW fp32", modes="cpu stream direct")
def groups(t):
    """parameter groups with their own decay and learning rate"""
    model = mlp()
    optimizer = torch.optim.AdamW(two_groups(model), lr=3e-3, fused=True)
    train(t, model, optimizer)
    record(t, model, optimizer)


def without_gradients(model, chosen):
    for name, parameter in model.named_parameters():
        if chosen(name):
            parameter.grad = None


@case("AdamW fp32", modes="cpu stream direct")
def small_without_gradient(t):
    """small parameters without a gradient in some steps, while the big one steps"""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)

    def change(step):
        without_gradients(model, lambda name: step % 3 == 2 and name != "0.weight")
    train(t, model, optimizer, 8, change=change)
    record(t, model, optimizer)


@case("AdamW fp32", modes="cpu stream direct")
def big_without_gradient(t):
    """the big parameter without a gradient in some steps; what a step left out comes home"""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)

    def change(step):
        without_gradients(model, lambda name: step in (3, 4, 8) and name == "0.weight")
    train(t, model, optimizer, 11, change=change)
    t.check("state that steps left out came home", lambda delta: delta["totals"]["moved_home_bytes"] > 0)
    record(t, model, optimizer)


@case("AdamW fp32", modes="cpu stream")
def frozen(t):
    """a layer that is frozen, unfrozen and frozen again"""
    model = mlp()
    optimizer = torch.optim.AdamW(two_groups(model), lr=3e-3, fused=True)
    for phase, trainable in enumerate((False, True, False, True)):
        model[3].requires_grad_(trainable)
        model[2].requires_grad_(not trainable)
        train(t, model, optimizer, 3, f"phase {phase}: ", first=3 * phase)
    record(t, model, optimizer)


@case("AdamW fp32", modes="cpu stream")
def unfrozen_big(t):
    """a big layer that joins later"""
    model = mlp()
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    train(t, model, optimizer, 3, "frozen: ")
    model[0].requires_grad_(True)
    with t.part("unfrozen"):
        train(t, model, optimizer, 5, "unfrozen: ", first=3)
    record(t, model, optimizer)


@case("AdamW fp32", modes="cpu stream")
def group_added(t):
    """add_param_group after some steps"""
    model, later = mlp(), mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    train(t, model, optimizer, 4, "before: ")
    optimizer.add_param_group({"params": later.parameters(), "lr": 1e-3, "weight_decay": 0.3})

    both = torch.nn.ModuleList([model, later])

    def loss(both, step):
        return sum(loss_of(one, step) for one in both)
    with t.part("after"):
        train(t, both, optimizer, 5, "after: ", first=4, loss=loss)
    record(t, both, optimizer)
