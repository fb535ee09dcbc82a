#!/usr/bin/env -S python3 tests/pytorch/harness.py
"""How much moves, and when it stops: the signal that brings everything home, state that is to free no more than it was asked to, and a run
that only observes."""
import os
import signal

import torch
import torch.distributed as dist
from cases import case, read_report
from harness import HERE
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


# The ways are given, one a step: every change between two of them happens.
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
@case("AdamW fp32", modes="stream", offload={"OFFLOAD_STEP": "auto", "OFFLOAD_TEST_CHOOSE_FROM": "0", "OFFLOAD_TEST_WORKER_LAG_MS": "50",
                                             "OFFLOAD_RATES": str(HERE.parent / "data/rates/quick_cpu")})
def switched_by_cost(t):
    """a model whose CPU step is slower than it was foretold to be changes to stream and trains the same"""
    model = mlp()
    optimizer = adamw(model)
    train(t, model, optimizer, 30, change=lambda step: torch.cuda.synchronize())
    t.check("both ways stepped elements", lambda delta: delta["totals"]["elements_cpu"] and delta["totals"]["elements_stream"])
    told(t, lambda now: [(row["way"], row["switches"][-1]["from"], row["switches"][-1]["to"]) for row in now["policy"]["functions"]]
         == [("stream", "cpu", "stream")] and " times that" in now["policy"]["functions"][0]["switches"][-1]["why"],
         "it ends with stream, changed to from cpu by what both took")
    record(t, model, optimizer)


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
