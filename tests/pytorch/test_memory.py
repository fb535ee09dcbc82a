#!/usr/bin/env -S python3 tests/pytorch/harness.py
"""The caching allocator and shapes: caches emptied, pools, statistics; tensors of no, one and many elements, very many
tensors, other memory formats."""
import gc

import torch
from cases import case
from toys import mlp, record, train


def adamw(parameters, **options):
    return torch.optim.AdamW(parameters, **{"lr": 3e-3, "fused": True, **options})


@case("AdamW fp32", modes="cpu stream direct")
def cache_emptied(t):
    """empty_cache between the steps"""
    model = mlp()
    optimizer = adamw(model.parameters())

    def change(step):
        garbage = [torch.randn(1 << 20, device="cuda") for _ in range(3)]
        del garbage
        torch.cuda.empty_cache()
    train(t, model, optimizer, 6, change=change)
    record(t, model, optimizer)


@case("AdamW fp32", modes="cpu stream direct")
def pool(t):
    """a model and its optimizer in a MemPool"""
    memory = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(memory):
        model = mlp()
        optimizer = adamw(model.parameters())
        train(t, model, optimizer, 5)
        record(t, model, optimizer)


@case("AdamW fp32", modes="cpu stream direct", environment={"CASE": "statistics"})  # in a process of its own
def statistics(t):
    """memory statistics and the memory snapshot say the same"""
    gc.disable()  # when it runs depends on how many objects Python has made, those of the harness included
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history(max_entries=1000, stacks="python")
    model = mlp()
    optimizer = adamw(model.parameters())
    train(t, model, optimizer, 5)
    torch.cuda.synchronize()
    for name, value in torch.cuda.memory_stats().items():
        t.record(f"memory_stats.{name}", value)
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        t.record(name, getattr(torch.cuda, name)())
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    segments = sorted(((segment["total_size"], segment["allocated_size"], segment["segment_type"],
                        [(block["size"], block["state"]) for block in segment["blocks"]])
                       for segment in snapshot["segments"]), key=str)
    t.record("segments", str(segments).encode())
    t.record("actions", str([(entry["action"], entry["size"]) for entry in snapshot["device_traces"][0]]).encode())
    record(t, model, optimizer)


@case("AdamW fp32", modes="cpu stream direct")
def nothing_and_one(t):
    """parameters of no and of one element beside a big one"""
    model = torch.nn.ParameterList([torch.zeros(0), torch.randn(()), torch.randn(1), torch.randn(1, 1, 1),
                                    torch.randn(512, 384), torch.zeros(3, 0), torch.randn(3)]).to("cuda")
    optimizer = adamw(model.parameters())

    def loss(parameters, step):
        x = torch.linspace(-1, 1 + step, 384, device="cuda")
        out = (parameters[4] @ x).square().mean() * parameters[1] + parameters[2].sum() * parameters[3].sum()
        return out + parameters[0].sum() + parameters[5].sum() + parameters[6].square().sum()
    train(t, model, optimizer, 6, loss=loss)
    record(t, model, optimizer)


@case("AdamW fp32", modes="cpu stream direct")
def many_tensors(t):
    """600 tiny tensors, more than a launch takes, between big ones"""
    torch.manual_seed(3)
    tiny = [torch.nn.Parameter(torch.randn(1 + i % 29, device="cuda")) for i in range(600)]
    big = [torch.nn.Parameter(torch.randn(196_608, device="cuda")) for _ in range(2)]
    parameters = tiny[:300] + big[:1] + tiny[300:] + big[1:]
    optimizer = adamw(parameters)
    for step in range(4):
        generator = torch.Generator().manual_seed(step)
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator).cuda()
        optimizer.step()
    t.check("a step takes several launches",
            lambda delta: sum(row["launches"] for row in delta["functions"]) >= 3 * 4)
    t.record_state("parameters", list(torch.cat([p.detach() for p in parameters]).split(50_000)))
    for key in ("exp_avg", "exp_avg_sq", "step"):
        t.record(key, torch.cat([optimizer.state[p][key].reshape(-1) for p in parameters]))


@case("AdamW fp32", modes="cpu stream direct")
def channels_last(t):
    """convolutions in channels_last"""
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.ReLU(), torch.nn.Conv2d(64, 352, 3, stride=2),
                                torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(352, 10))
    model = model.to("cuda", memory_format=torch.channels_last)
    optimizer = adamw(model.parameters())

    def loss(model, step):
        generator = torch.Generator().manual_seed(step)
        images = torch.randn(2, 3, 8, 8, generator=generator).to("cuda", memory_format=torch.channels_last)
        return torch.nn.functional.cross_entropy(model(images), torch.tensor([step % 10, 3], device="cuda"))
    train(t, model, optimizer, 5, loss=loss)
    state = optimizer.state[model[2].weight]["exp_avg"]
    if not state.is_contiguous(memory_format=torch.channels_last) or state.is_contiguous():
        raise AssertionError(f"the state is not in channels_last: strides {state.stride()}")
    record(t, model, optimizer)
