#!/usr/bin/env -S python3 tests/pytorch/harness.py
"""Two processes of torchrun on two devices, with NCCL: DDP, FSDP2 and ZeRO. Every rank's report must say that its own state
moved and was stepped in the mode under test; every rank's losses, parameters and state are compared."""
import contextlib

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from cases import SCRIPTS, case
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from toys import batch, deep, train


@contextlib.contextmanager
def group(backend="nccl"):
    dist.init_process_group(backend, device_id=torch.device("cuda", torch.cuda.current_device()))
    yield dist.get_rank()
    dist.destroy_process_group()


def my_loss(model, number):
    """Each rank has batches of its own."""
    x, y = batch(2 * number + dist.get_rank(), next(model.parameters()).dtype)
    return torch.nn.functional.mse_loss(model(x).float(), y.float())


def local(value):
    """A rank's own part of every sharded tensor."""
    if isinstance(value, dict):
        return {key: local(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [local(one) for one in value]
    return value.to_local() if isinstance(value, DTensor) else value


def clip(model):
    return lambda _: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def on_the_host(t):
    t.check("most of this rank's state is on the host", lambda delta: delta["totals"]["moved_bytes"] > 2_000_000)


def record(t, model, optimizer, name=""):
    t.record_state(f"{name}model", local(model.state_dict()))
    t.record_state(f"{name}optimizer", local(optimizer.state_dict()))


# ---- DDP ----

def on_ddp(t):
    with group():
        model = DistributedDataParallel(deep(), gradient_as_bucket_view=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

        def accumulated(model, number):
            """Two batches, of which the last exchanges the gradients."""
            with model.no_sync():
                my_loss(model, 2 * number).backward()
            return my_loss(model, 2 * number + 1)
        train(t, model, optimizer, change=clip(model), loss=accumulated)
        on_the_host(t)
        record(t, model, optimizer)


@case("AdamW fp32", modes="stream")
def ddp(t):
    """DDP on two ranks, accumulation with no_sync and clipping"""
    t.ranks(2, on_ddp)


# ---- FSDP2 ----

def sharded(policy=MixedPrecisionPolicy(), dtype=torch.float32):
    model = deep(dtype)
    for layer in (model[0], model[2]):
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def on_fsdp(t):
    with group("cpu:gloo,cuda:nccl"):
        mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        model, optimizer = sharded(mixed)
        train(t, model, optimizer, change=clip(model), loss=my_loss)
        on_the_host(t)
        whole = get_state_dict(model, optimizer, options=WHOLE)  # on rank 0; the others take part
        t.check("gathering sent nothing home", lambda delta: delta["totals"]["moved_home_bytes"] == 0)
        t.record_state("whole", whole)
        folder = t.folder.parent / "checkpoint"
        parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
        saved = dcp.async_save(parts, checkpoint_id=folder)
        train(t, model, optimizer, 3, "after: ", first=5, change=clip(model), loss=my_loss)
        record(t, model, optimizer)
        saved.result()

        model, optimizer = sharded(mixed)
        parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
        dcp.load(parts, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=parts["model"], optim_state_dict=parts["optimizer"])
        record(t, model, optimizer, "loaded: ")
        with t.part("resumed"):
            train(t, model, optimizer, 4, "resumed: ", first=5, change=clip(model), loss=my_loss)
        record(t, model, optimizer, "resumed: ")


@case("AdamW fp32", modes="cpu stream")
def fsdp(t):
    """FSDP2 on two ranks: mixed precision, clipping, all state gathered, a sharded asynchronous checkpoint resumed"""
    t.ranks(2, on_fsdp)


def on_fsdp_bf16(t):
    with group():
        model, optimizer = sharded(dtype=torch.bfloat16)
        train(t, model, optimizer, change=clip(model), loss=my_loss)
        record(t, model, optimizer)


@case("AdamW bf16", modes="stream")
def fsdp_bf16(t):
    """FSDP2 on two ranks with bf16 parameters and state"""
    t.ranks(2, on_fsdp_bf16)


# ---- ZeRO ----

def on_zero(t):
    with group() as rank:
        model = DistributedDataParallel(deep())
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3, fused=True)
        train(t, model, optimizer, loss=my_loss)
        on_the_host(t)
        t.record_state("own", optimizer.optim.state_dict())
        optimizer.consolidate_state_dict(to=0)
        torch.cuda.synchronize()  # it leaves its copies to pinned memory pending
        if rank == 0:
            t.record_state("whole", optimizer.state_dict())
        t.check("consolidating sent nothing home", lambda delta: delta["totals"]["moved_home_bytes"] == 0)
        train(t, model, optimizer, 3, "after: ", first=5, loss=my_loss)
        t.record_state("model", model.state_dict())
        t.record_state("optimizer", optimizer.optim.state_dict())


@case("AdamW fp32", modes="cpu")
def zero(t):
    """ZeroRedundancyOptimizer on two ranks, its state consolidated half-way"""
    t.ranks(2, on_zero)


# ---- a whole script ----

def gpt(t, *arguments, **options):
    output = t.torchrun(2, SCRIPTS / "train_gpt.py", "--layers", 1, "--width", 256, "--context", 32, "--batch", 2, "--steps", 6,
                        "--checkpoint", "gpt.pt", *arguments, **options)
    steps = [line.rpartition("  lr ")[0] for line in output.splitlines() if line.startswith("step ")]
    if len(steps) != 6:
        raise AssertionError(f"the script was to print six steps:\n{output}")
    t.record("losses", str(steps).encode())
    t.record_file("checkpoint", t.folder / "gpt.pt")


@case("AdamW fp32", modes="cpu")
def gpt_ddp(t):
    """train_gpt.py under torchrun with DDP, on a single hardware queue"""
    gpt(t, "--parallel", "ddp", "--accumulate", 2, environment={"GPUSIM_QUEUES": "1"})


@case("AdamW fp32", modes="stream")
def gpt_fsdp(t):
    """train_gpt.py under torchrun with FSDP2 in mixed precision, on a single hardware queue"""
    gpt(t, "--parallel", "fsdp", "--dtype", "bfloat16", environment={"GPUSIM_QUEUES": "1"})
