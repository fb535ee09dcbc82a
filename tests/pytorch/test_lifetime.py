#!/usr/bin/env -S python3 tests/pytorch/harness.py
"""Optimizers that come, go and are overwritten: several at once, deleted and re-created, loaded; parameters and state
written from outside."""
import copy
import gc

import torch
from cases import case
from toys import BIG, loss_of, mlp, record, train


def adamw(model, **options):
    return torch.optim.AdamW(model.parameters(), **{"lr": 3e-3, "fused": True, **options})


def take_turns(one, other, steps=5, rests=()):
    """Two models with an optimizer each that step in turn, as adversarial training does; the other rests in some steps."""
    for step in range(steps):
        for number, (model, optimizer) in enumerate((one, other)):
            if number == 1 and step in rests:
                continue
            optimizer.zero_grad()
            loss_of(model, 2 * step + number).backward()
            optimizer.step()


def record_both(t, one, other):
    record(t, *one, "one: ")
    record(t, *other, "other: ")


def alternate(t, one, other):
    take_turns(one, other)
    record_both(t, one, other)


@case("AdamW fp32", modes="cpu stream direct")
def two_of_a_kind(t):
    """two optimizers of the same kind step in turn"""
    models = mlp(), mlp()
    alternate(t, *((model, adamw(model)) for model in models))


@case("AdamW fp32", "Adam fp32", modes="cpu stream direct")
def two_kinds(t):
    """two optimizers of different kinds step in turn"""
    one, other = mlp(), mlp()
    alternate(t, (one, adamw(one)), (other, torch.optim.Adam(other.parameters(), lr=1e-3, fused=True)))


@case("AdamW fp32", "AdamW bf16", modes="cpu stream direct")
def two_types(t):
    """two optimizers of different types step in turn"""
    one, other = mlp(), mlp(torch.bfloat16)
    alternate(t, (one, adamw(one)), (other, adamw(other)))


@case("AdamW fp32", modes="cpu stream direct")
def one_of_two_rests(t):
    """one of two optimizers rests for some steps: its state comes home and moves again"""
    models = mlp(), mlp()
    one, other = ((model, adamw(model)) for model in models)
    take_turns(one, other, 12, rests=(4, 5, 6))
    t.check("state that rested came home", lambda delta: delta["totals"]["moved_home_bytes"] > 0)
    record_both(t, one, other)


@case("AdamW fp32", modes="cpu stream direct")
def recreated(t):
    """an optimizer is deleted and re-created: activations that re-use its state's memory are on the device again"""
    model = mlp()
    optimizer = adamw(model)
    train(t, model, optimizer, 4, "before: ")
    t.check("the state was on the host", lambda delta: delta["totals"]["moved_bytes"] > 1_000_000)
    del optimizer
    gc.collect()
    # The allocator hands its blocks out again: as activations, which live over the next steps.
    kept = [torch.randn(BIG, device="cuda") for _ in range(4)]
    before = t.delta()
    optimizer = adamw(model, lr=1e-3)
    for step in range(4, 9):
        optimizer.zero_grad()
        loss = loss_of(model, step) + sum((model[0].weight * tensor).mean() for tensor in kept)
        loss.backward()
        optimizer.step()
    t.check("the freed state's pieces came home",
            lambda delta: delta["totals"]["moved_home_bytes"] - before["totals"]["moved_home_bytes"] > 1_000_000)
    t.check("the new state moved",
            lambda delta: delta["totals"]["moved_out_bytes"] - before["totals"]["moved_out_bytes"] > 1_000_000)
    t.record_state("kept", kept)
    record(t, model, optimizer)


@case("AdamW fp32", modes="cpu stream direct")
def recreated_at_once(t):
    """an optimizer is replaced at once: its state's memory becomes the new one's state"""
    model = mlp()
    optimizer = adamw(model)
    train(t, model, optimizer, 4, "before: ")
    optimizer = adamw(model, lr=1e-3)
    with t.part("after"):
        train(t, model, optimizer, 6, "after: ", first=4)
    record(t, model, optimizer)


@case("AdamW fp32", modes="cpu stream direct")
def loaded(t):
    """load_state_dict after some steps goes back to the state that was saved"""
    model = mlp()
    optimizer = adamw(model)
    train(t, model, optimizer, 3, "to be saved: ")
    saved = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model.state_dict())
    t.record_state("saved", saved)
    train(t, model, optimizer, 3, "to be dropped: ", first=3)
    optimizer.load_state_dict(saved[0])
    model.load_state_dict(saved[1])
    t.record_state("loaded", optimizer.state_dict())
    with t.part("after"):
        train(t, model, optimizer, 5, "after: ", first=3)
    record(t, model, optimizer)


@case("AdamW fp32", modes="cpu stream direct")
def parameters_overwritten(t):
    """parameters are overwritten after some steps, the state goes on"""
    model = mlp()
    optimizer = adamw(model)
    train(t, model, optimizer, 4, "before: ")
    before = t.delta()  # where this model has the memory of an earlier optimizer's state, that has come home
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.05)
    train(t, model, optimizer, 4, "after: ", first=4)
    t.check("no state came home", lambda delta: delta["totals"]["moved_home_bytes"] == before["totals"]["moved_home_bytes"])
    record(t, model, optimizer)


@case("AdamW fp32", modes="cpu stream direct")
def state_overwritten(t):
    """state is overwritten after some steps: by copies and by kernels, whole and in part"""
    model = mlp()
    optimizer = adamw(model)
    train(t, model, optimizer, 4, "before: ")
    big = optimizer.state[model[0].weight]
    big["exp_avg"].copy_(torch.randn(BIG) * 0.01)
    big["exp_avg_sq"].view(-1)[70_000:120_000].fill_(1e-3)
    train(t, model, optimizer, 4, "after: ", first=4)
    t.check("what was written came home", lambda delta: delta["totals"]["moved_home_bytes"] > 0)
    record(t, model, optimizer)


@case("AdamW fp32", modes="cpu stream direct")
def reset(t):
    """the state is emptied after some steps, as when an optimizer is reset"""
    model = mlp()
    optimizer = adamw(model)
    train(t, model, optimizer, 4, "before: ")
    optimizer.state.clear()
    with t.part("after"):
        train(t, model, optimizer, 6, "after: ", first=4)
    record(t, model, optimizer)
