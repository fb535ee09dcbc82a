#!/usr/bin/env -S python3 tests/pytorch/harness.py
"""Whole training scripts, unmodified: integration/pytorch/train_gpt.py and finetune_hf.py."""
import re

from cases import SCRIPTS, case

# One layer with matrices of three blocks and more (toys.py says why).
SMALL = ("--layers", 1, "--width", 256, "--context", 32, "--batch", 2)


def gpt(t, *arguments):
    output = t.run(SCRIPTS / "train_gpt.py", *SMALL, *arguments)
    steps = re.findall(r"step +(\d+)  (loss \S+  norm \S+)  lr \S+", output)
    if not steps:
        raise AssertionError(f"the script printed no steps:\n{output}")
    return steps


def trained(t, *arguments):
    t.record("losses", str(gpt(t, "--steps", 6, "--checkpoint", "gpt.pt", *arguments)).encode())
    t.record_file("checkpoint", t.folder / "gpt.pt")


@case("AdamW fp32", modes="cpu direct")
def gpt_fp32(t):
    """train_gpt.py in fp32"""
    trained(t)


@case("AdamW fp32", modes="stream")
def gpt_bf16(t):
    """train_gpt.py under bf16 autocast, two batches a step"""
    trained(t, "--dtype", "bfloat16", "--accumulate", 2)


@case("AdamW fp32", modes="stream")
def gpt_fp16(t):
    """train_gpt.py under fp16 autocast with a GradScaler"""
    trained(t, "--dtype", "float16")


@case("AdamW fp32", modes="cpu")
def gpt_resumed(t):
    """train_gpt.py stopped and resumed"""
    gpt(t, "--steps", 7, "--stop-after", 4, "--checkpoint", "gpt.pt")
    t.record_file("half-way", t.folder / "gpt.pt")
    t.record("losses", str(gpt(t, "--steps", 7, "--resume", "gpt.pt", "--checkpoint", "gpt.pt")).encode())
    t.record_file("end", t.folder / "gpt.pt")


def finetuned(t, model, *arguments):
    output = t.run(SCRIPTS / "finetune_hf.py", "--model", model, *SMALL, "--steps", 6, "--save-every", 5, "--output", "out",
                   *arguments)
    losses = re.findall(r"'loss': '(\S+)', 'grad_norm': '(\S+)'", output)
    if len(losses) != 6:
        raise AssertionError(f"the script was to print six losses:\n{output}")
    t.record("losses", str(losses).encode())
    t.record_file("model", t.folder / "out" / "model.safetensors")
    t.record_file("optimizer", t.folder / "out" / "checkpoint-5" / "optimizer.pt")


@case("AdamW fp32", modes="cpu")
def gpt2_finetuned(t):
    """finetune_hf.py: GPT-2 by Hugging Face's Trainer with its default optimizer"""
    finetuned(t, "gpt2")


@case("AdamW fp32", modes="stream")
def llama_finetuned(t):
    """finetune_hf.py: Llama by Hugging Face's Trainer under bf16 autocast"""
    finetuned(t, "llama", "--bf16")
