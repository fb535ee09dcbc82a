#!/usr/bin/env -S python3 tests/pytorch/harness.py
"""Checkpoints that are written while the state is on the host: files, tensors, and training that goes on from them with the
library and without."""
import contextlib
import io
import re

import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from cases import HERE, SCRIPTS, case
from resumable import make, state_of
from toys import record, train
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions


@contextlib.contextmanager
def on_the_host(t):
    """What is done with the state, which is on the host before and stays there."""
    t.check("the state is on the host when it is saved", lambda delta: delta["totals"]["moved_bytes"] > 1_500_000)
    yield
    t.check("saving sent nothing home", lambda delta: delta["totals"]["moved_home_bytes"] == 0)


def trained(t):
    model, optimizer = make()
    train(t, model, optimizer, 4, "before: ")
    return model, optimizer


@case("AdamW fp32", modes="cpu stream direct")
def files(t):
    """files of torch.save and of safetensors are the same bytes"""
    model, optimizer = trained(t)
    whole = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    buffer = io.BytesIO()
    with on_the_host(t):
        torch.save(whole, t.folder / "whole.pt")
        torch.save(whole, t.folder / "legacy.pt", _use_new_zipfile_serialization=False)
        torch.save(optimizer.state_dict(), buffer)
        safetensors.torch.save_file(dict(state_of(model, optimizer)), t.folder / "state.safetensors")
    for name in ("whole.pt", "state.safetensors"):
        t.record_file(name, t.folder / name)
    t.record_state("legacy", torch.load(t.folder / "legacy.pt", map_location="cpu"))  # the file has addresses in it
    t.record("buffer", buffer.getvalue())
    train(t, model, optimizer, 3, "after: ", first=4)
    record(t, model, optimizer)


def read_back(t, folder):
    """The tensors of a checkpoint of torch.distributed.checkpoint."""
    model, optimizer = make()
    tensors = {name: torch.zeros_like(tensor, device="cpu") for name, tensor in state_of(model, optimizer, steps=1)}
    dcp.load(tensors, checkpoint_id=folder)
    t.record_state("saved", tensors)


@case("AdamW fp32", modes="cpu stream direct")
def distributed_checkpoint(t):
    """tensors of torch.distributed.checkpoint are the same"""
    model, optimizer = trained(t)
    with on_the_host(t):
        dcp.save(dict(state_of(model, optimizer)), checkpoint_id=t.folder / "saved")
    train(t, model, optimizer, 3, "after: ", first=4)
    read_back(t, t.folder / "saved")
    record(t, model, optimizer)


@contextlib.contextmanager
def group_of_one():
    dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@case("AdamW fp32", modes="cpu stream direct")
def asynchronous(t):
    """tensors of an asynchronous checkpoint are those of its beginning while training goes on"""
    model, optimizer = trained(t)
    with group_of_one():
        with on_the_host(t):
            saved = dcp.async_save(dict(state_of(model, optimizer)), checkpoint_id=t.folder / "saved")
            train(t, model, optimizer, 3, "after: ", first=4)
            saved.result()
        read_back(t, t.folder / "saved")
    record(t, model, optimizer)


@case("AdamW fp32", modes="cpu stream direct")
def staged(t):
    """tensors of an asynchronous checkpoint that a thread copies to pinned memory beside the next forward pass"""
    model, optimizer = trained(t)
    stager = DefaultStager(StagingOptions(use_shared_memory=False))
    with group_of_one():
        with on_the_host(t):
            saved = dcp.async_save(dict(state_of(model, optimizer)), checkpoint_id=t.folder / "saved", async_stager=stager)
            train(t, model, optimizer, 3, "after: ", first=4, change=lambda _: saved.staging_completion.result())
            saved.upload_completion.result()
        stager.close()
        read_back(t, t.folder / "saved")
    record(t, model, optimizer)


# ---- saved with the library, resumed without, and the reverse ----

def in_turns(t, start):
    """Three programs, each of which resumes from the one before: with the library, without and with it again. So a checkpoint
    of either kind is resumed by the other. `start(number, library)` runs one."""
    for number, library in enumerate((True, False, True)):
        with t.part(f"program {number}") if library else contextlib.nullcontext():
            start(number, library)


@case("AdamW fp32", modes="cpu stream")
def every_format(t):
    """torch.save, safetensors and torch.distributed.checkpoint: saved with, resumed without, saved without, resumed with"""
    def start(number, library):
        t.run(HERE / "resumable.py", number, library=library)
        t.record_file(f"program {number}", t.folder / f"{number}.record")
    in_turns(t, start)


@case("AdamW fp32", modes="stream")
def train_gpt(t):
    """train_gpt.py: saved with, resumed without, saved without, resumed with"""
    def start(number, library):
        output = t.run(SCRIPTS / "train_gpt.py", "--layers", 1, "--width", 256, "--context", 32, "--batch", 2, "--steps", 12,
                       "--stop-after", 4 * (number + 1), "--checkpoint", "gpt.pt",
                       *(["--resume", "gpt.pt"] if number else []), library=library)
        steps = re.findall(r"step +(\d+)  (loss \S+  norm \S+)  lr \S+", output)
        if [step for step, _ in steps] != [str(4 * number + i) for i in range(1, 5)]:
            raise AssertionError(f"program {number} was to print four steps:\n{output}")
        t.record(f"losses {number}", str(steps).encode())
        t.record_file(f"checkpoint {number}", t.folder / "gpt.pt")
    in_turns(t, start)


@case("AdamW fp32", modes="cpu")
def finetune_hf(t):
    """finetune_hf.py by Hugging Face's Trainer: saved with, resumed without, saved without, resumed with"""
    def start(number, library):
        steps = 4 * (number + 1)
        output = t.run(SCRIPTS / "finetune_hf.py", "--layers", 1, "--width", 256, "--context", 32, "--batch", 2, "--steps", steps,
                       "--save-every", 4, "--output", "out", *(["--resume"] if number else []), library=library)
        losses = re.findall(r"'loss': '(\S+)', 'grad_norm': '(\S+)'", output)
        if len(losses) != 4:
            raise AssertionError(f"program {number} was to print four losses:\n{output}")
        t.record(f"losses {number}", str(losses).encode())
        for name in ("model.safetensors", "optimizer.pt", "scheduler.pt"):
            t.record_file(f"{name} {number}", t.folder / "out" / f"checkpoint-{steps}" / name)
    in_turns(t, start)
