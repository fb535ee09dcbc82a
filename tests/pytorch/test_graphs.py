#!/usr/bin/env -S python3 tests/pytorch/harness.py
"""Optimizer steps that are captured in a CUDA graph after state has moved: replays work on it where it lies."""
import torch
from cases import case

ELEMENTS = 200_000  # toys.py says how much is useful


def made():
    generator = torch.Generator().manual_seed(7)
    params = [torch.nn.Parameter(torch.randn(ELEMENTS, generator=generator).cuda()) for _ in range(3)]
    for parameter in params:
        parameter.grad = torch.empty_like(parameter)
    return params, torch.optim.AdamW(params, lr=1e-2, fused=True, capturable=True)


def new_gradients(params, number):
    """Into the same memory, which the graph reads."""
    for i, parameter in enumerate(params):
        generator = torch.Generator().manual_seed(100 * number + i)
        parameter.grad.copy_(torch.randn(ELEMENTS, generator=generator))


def recorded(t, params, optimizer):
    t.record_state("parameters", [parameter.data for parameter in params])
    t.record_state("state", [optimizer.state[parameter] for parameter in params])


def stepped(params, optimizer, numbers):
    for number in numbers:
        new_gradients(params, number)
        optimizer.step()


def captured(optimizer):
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        optimizer.step()
    return graph


def replayed(params, graph, numbers):
    for number in numbers:
        new_gradients(params, number)
        graph.replay()


@case("AdamW fp32", modes="cpu stream direct")
def after_moving(t):
    """a graph of the step, captured and replayed when state has moved, and steps of the program's own after and between replays"""
    params, optimizer = made()
    with t.part("before"):
        stepped(params, optimizer, range(5))
    graph = captured(optimizer)
    t.check("the report names the graph", lambda delta: any(
        "captured in a CUDA graph" in text for text in delta["reasons"] + [row["why"] for row in delta["functions"]]))
    replayed(params, graph, range(5, 8))
    stepped(params, optimizer, range(8, 11))
    replayed(params, graph, range(11, 13))
    stepped(params, optimizer, range(13, 15))
    torch.cuda.synchronize()
    t.check("nothing came home under the graph", lambda delta: not delta["totals"]["moved_home_bytes"])
    recorded(t, params, optimizer)


@case("AdamW fp32", modes="cpu stream direct")
def while_others_move(t):
    """the step of one optimizer in a graph, beside another whose state moves while the graph is replayed"""
    params, optimizer = made()
    stepped(params, optimizer, range(1))
    graph = captured(optimizer)
    others, other = made()
    with t.part("the other"):
        for number in range(1, 7):
            replayed(params, graph, [number])
            stepped(others, other, [number])
    del graph
    recorded(t, params, optimizer)
    t.record_state("others", [parameter.data for parameter in others])
