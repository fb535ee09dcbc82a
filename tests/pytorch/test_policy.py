#!/usr/bin/env -S python3 tests/pytorch/harness.py
"""How much moves, and when it stops: the signal that brings everything home, state that is to free no more than it was asked to, and a run
that only observes."""
import os
import signal

import torch
from cases import case
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
