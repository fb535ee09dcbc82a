#!/usr/bin/env -S python3 tests/pytorch/harness.py
"""How much moves, and when it stops: the signal that brings everything home, state that is to free no more than it was asked to, and a run
that only observes."""
import os
import signal

import torch
import torch.distributed as dist
from cases import case, read_report
from torch.nn.parallel import DistributedDataParallel
from toys import deep, mlp, record, train


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, fused=True)


# A process of its own: what the signal ends is over for all of it.
@case("AdamW fp32", modes="cpu", offload={"OFFLOAD_SIGNAL": "USR2"})
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


def told(t, question, sentence):
    """With the library: a question to its report as it stands, what other cases' objects are for."""
    if t.delta() is not None and not question(read_report(t.folder / "now.json")):
        t.unmet.append(f"unmet: {sentence}")


@case("AdamW fp32", modes="cpu", offload={"OFFLOAD_FREE": "800KiB", "OFFLOAD_PIECE": "16KiB"}, environment={"GPUSIM_GRANULARITY": "16KiB"})
def just_enough(t):
    """OFFLOAD_FREE moves as much as was asked for and no piece's pair more, and training goes the same"""
    model = mlp()
    optimizer = adamw(model)
    train(t, model, optimizer, 6)
    t.check("so much lies on the host", lambda delta: 800 << 10 <= delta["totals"]["moved_bytes"] <= 832 << 10)
    told(t, lambda now: now["free"]["devices"][0]["freed_bytes"] >= 800 << 10 and not now["free"]["devices"][0]["why"],
         "the report says that it is enough")
    record(t, model, optimizer)


@case(modes="cpu", moves=False, offload={"OFFLOAD_MODE": "observe", "OFFLOAD_STEP": "auto"})
def observed(t):
    """a run that observes moves nothing, sees all state and foretells what would move"""
    model = mlp()
    optimizer = adamw(model)
    train(t, model, optimizer, 6)
    state = sum(2 * parameter.numel() * 4 for parameter in model.parameters())
    told(t, lambda now: now["totals"]["ranges"] == 0 and now["observed"]["state_bytes"] == state
         and state // 2 < now["observed"]["move_bytes"] <= state, "all state is seen, and most of it would move")
    record(t, model, optimizer)


@case(modes="cpu", moves=False)
def advised_to_fuse(t):
    """foreach AdamW is advised against, with the bytes that fused=True would let move"""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    train(t, model, optimizer, 5)
    told(t, lambda now: any(one["kind"] == "fused" and "fused=True" in one["text"] for one in now["advice"]), "the advice is given")
    record(t, model, optimizer)


def on_ddp(t):
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    model = DistributedDataParallel(deep())
    optimizer = adamw(model)
    train(t, model, optimizer, 6)
    told(t, lambda now: any(one["kind"] == "shard" and "each of 2 ranks keeps and steps the same" in one["text"] for one in now["advice"]),
         "the repeated state is named")
    record(t, model, optimizer)
    dist.destroy_process_group()


@case("AdamW fp32", modes="cpu")
def repeated_state(t):
    """two ranks under DDP are told that each keeps the same state, and what divides it"""
    t.ranks(2, on_ddp)
