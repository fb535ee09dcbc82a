#!/usr/bin/env -S python3 tests/pytorch/harness.py
"""How much moves, and when it stops: the signal that brings everything home, state that is to free no more than it was asked to, and a run
that only observes."""
import os
import signal

import torch
from cases import case
from harness import HERE
from toys import mlp, record, train


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, fused=True)


# A process of its own: what the signal ends is over for all of it.
@case("AdamW fp32", modes="cpu stream direct", offload={"OFFLOAD_SIGNAL": "USR2"})
def switched_off(t):
    """a signal in the middle of training brings all state home, and training goes on the same"""
    model = mlp()
    optimizer = adamw(model)
    with t.part("before the signal"):
        train(t, model, optimizer, 5, "first ")
    t.check("state lies on the host", lambda delta: delta["totals"]["moved_bytes"] > 0)
    if t.delta() is not None:  # without the library the signal would end the process
        os.kill(os.getpid(), signal.SIGUSR2)
    train(t, model, optimizer, 5, "then ", first=5)
    t.check("all of it is home", lambda delta: delta["totals"]["moved_bytes"] == 0 and delta["totals"]["moved_home_bytes"] > 0)
    t.check("no step is counted behind the signal", lambda delta: delta["totals"]["steps"] == 5)
    record(t, model, optimizer)


# The ways are told, one a step: every change between two of them happens.
@case("AdamW fp32", modes="cpu", offload={"OFFLOAD_STEP": "auto", "OFFLOAD_TEST_WAYS": "cpu,stream,direct,stream,cpu,direct"})
def ways_in_turn(t):
    """a model whose steps go by cpu, stream and direct in turn trains the same"""
    model = mlp()
    optimizer = adamw(model)
    train(t, model, optimizer, 12)
    t.check("every way stepped elements", lambda delta: all(delta["totals"][f"elements_{way}"] for way in ("cpu", "stream", "direct")))
    t.check("and every way has had launches over state on the host",
            lambda delta: all(sum(row[f"launches_{way}"] for row in delta["functions"]) > 1 for way in ("cpu", "stream", "direct")))
    record(t, model, optimizer)


@case("Adam amsgrad fp32", modes="cpu", offload={"OFFLOAD_STEP": "auto", "OFFLOAD_TEST_WAYS": "stream,cpu,direct"})
def ways_in_turn_amsgrad(t):
    """so does one with amsgrad, and its checkpoint is the same after each way"""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, amsgrad=True, fused=True)
    for step in range(0, 9, 3):
        train(t, model, optimizer, 3, f"from {step} ", first=step)
        record(t, model, optimizer, f"from {step} ")
    t.check("every way stepped elements", lambda delta: all(delta["totals"][f"elements_{way}"] for way in ("cpu", "stream", "direct")))


# The rates tell of a quick CPU, which is made slow: chosen at first or tried later, it is left.
@case("AdamW fp32", modes="stream", offload={"OFFLOAD_STEP": "auto", "OFFLOAD_TEST_CHOOSE_FROM": "0", "OFFLOAD_TEST_WORKER_LAG_US": "50000",
                                             "OFFLOAD_RATES": str(HERE.parent / "data/rates/quick_cpu")})
def switched_by_cost(t):
    """a model whose CPU step is slower than it was foretold to be changes to stream and trains the same"""
    model = mlp()
    optimizer = adamw(model)
    train(t, model, optimizer, 30, change=lambda step: torch.cuda.synchronize())
    t.check("both ways stepped elements", lambda delta: delta["totals"]["elements_cpu"] and delta["totals"]["elements_stream"])
    now = t.report()
    if now:
        rows = [row for row in now["policy"]["functions"] if row["elements_host"]]
        t.check("it ends with stream, changed to from cpu by what both took",
                lambda delta: [(row["way"], row["switches"][-1]["from"], row["switches"][-1]["to"]) for row in rows] == [("stream", "cpu", "stream")]
                and " times that" in rows[0]["switches"][-1]["why"])
    record(t, model, optimizer)
