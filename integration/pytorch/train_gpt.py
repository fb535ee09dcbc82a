#!/usr/bin/env python3
"""Trains a small character-level GPT on a text.

    python train_gpt.py --steps 200 --dtype bfloat16
    python train_gpt.py --checkpoint gpt.pt --save-every 100        # and later: --resume gpt.pt
    torchrun --nproc_per_node 2 train_gpt.py --parallel fsdp
"""
import argparse
import contextlib
import math
import os
import pathlib
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_model_state_dict, get_optimizer_state_dict, set_model_state_dict, set_optimizer_state_dict)
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

DEFAULT_TEXT = pathlib.Path(__file__).resolve().parent.parent / "charlm" / "text.txt"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary, context, layers, heads, width):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class Batches:
    """Random windows of the text. A batch depends on the seed and its number alone, so that a resumed run goes on with
    the same ones."""

    def __init__(self, path, args, device, rank, ranks):
        text = pathlib.Path(path).read_text(encoding="utf-8")
        characters = sorted(set(text))
        index = {character: i for i, character in enumerate(characters)}
        self.data = torch.tensor([index[character] for character in text])
        self.vocabulary = len(characters)
        self.args, self.device, self.rank, self.ranks = args, device, rank, ranks
        if len(self.data) < args.context + 2:
            raise SystemExit(f"{path} has {len(self.data)} characters, fewer than --context {args.context} needs")

    def get(self, number):
        generator = torch.Generator().manual_seed(self.args.seed * 1_000_003 + number * self.ranks + self.rank)
        starts = torch.randint(len(self.data) - self.args.context - 1, (self.args.batch,), generator=generator)
        windows = torch.stack([self.data[start:start + self.args.context + 1] for start in starts])
        if self.device.type == "cuda":
            windows = windows.pin_memory().to(self.device, non_blocking=True)
        return windows[:, :-1], windows[:, 1:]


def make_optimizer(model, args):
    """Weight decay for matrices, none for biases and norms."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": args.weight_decay},
              {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=args.lr, betas=(args.beta1, args.beta2), fused=True)


def learning_rate(step, args):
    """Linear warm-up, then a cosine down to a tenth."""
    if step < args.warmup:
        return args.lr * (step + 1) / args.warmup
    progress = (step - args.warmup) / max(1, args.steps - args.warmup)
    return args.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, progress))))


def parallelise(model, args, device):
    if args.parallel == "ddp":
        return DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    if args.parallel == "fsdp":
        policy = MixedPrecisionPolicy()
        if args.dtype == "bfloat16":
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in model.blocks:
            fully_shard(block, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    return model


def synchronise_gradients(model, args, last):
    """Gradients are exchanged once a step, with the last of the accumulated batches."""
    if args.parallel == "fsdp":
        model.set_requires_gradient_sync(last)
    elif args.parallel == "ddp" and not last:
        return model.no_sync()
    return contextlib.nullcontext()


def save(path, model, optimizer, scaler, step, args, rank):
    whole = StateDictOptions(full_state_dict=True, cpu_offload=args.parallel == "fsdp")
    state = {"model": get_model_state_dict(model, options=whole),
             "optimizer": get_optimizer_state_dict(model, optimizer, options=whole),
             "scaler": scaler.state_dict(), "step": step}
    if rank == 0:
        torch.save(state, f"{path}.tmp")
        os.replace(f"{path}.tmp", path)
    if dist.is_initialized():
        dist.barrier()


def load(path, model, optimizer, scaler):
    state = torch.load(path, map_location="cpu", weights_only=True)
    whole = StateDictOptions(full_state_dict=True)
    set_model_state_dict(model, state["model"], options=whole)
    set_optimizer_state_dict(model, optimizer, state["optimizer"], options=whole)
    scaler.load_state_dict(state["scaler"])
    return state["step"]


def train(args, device, rank, ranks):
    torch.manual_seed(args.seed)
    batches = Batches(args.text, args, device, rank, ranks)
    model = GPT(batches.vocabulary, args.context, args.layers, args.heads, args.width).to(device)
    if rank == 0:
        print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(batches.data):,} characters, "
              f"{ranks} x {device.type}, {args.dtype}", flush=True)
    model = parallelise(model, args, device)
    optimizer = make_optimizer(model, args)
    scaler = torch.amp.GradScaler(device.type, enabled=args.dtype == "float16")
    first = load(args.resume, model, optimizer, scaler) if args.resume else 0
    autocast = contextlib.nullcontext()
    if args.dtype != "float32" and args.parallel != "fsdp":  # FSDP casts by its own policy
        autocast = torch.autocast(device.type, DTYPES[args.dtype])

    last = min(args.steps, args.stop_after or args.steps)
    for step in range(first, last):
        began = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args)
        total = torch.zeros((), device=device)
        for part in range(args.accumulate):
            tokens, targets = batches.get(step * args.accumulate + part)
            with synchronise_gradients(model, args, part == args.accumulate - 1):
                with autocast:
                    loss = model(tokens, targets) / args.accumulate
                scaler.scale(loss).backward()
            total += loss.detach()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if dist.is_initialized():
            dist.all_reduce(total)
        if rank == 0:
            norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
            print(f"step {step + 1:4d}  loss {total.item() / ranks:.6f}  norm {norm.item():.4f}  "
                  f"lr {optimizer.param_groups[0]['lr']:.6f}  {time.perf_counter() - began:.2f} s", flush=True)
        elif hasattr(norm, "full_tensor"):
            norm.full_tensor()  # every rank takes part
        done = step + 1
        if args.checkpoint and (done == last or (args.save_every and done % args.save_every == 0)):
            save(args.checkpoint, model, optimizer, scaler, done, args, rank)


def parse_arguments():
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--text", default=DEFAULT_TEXT, help="what to learn")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=8, help="windows per batch and process")
    parser.add_argument("--accumulate", type=int, default=1, help="batches per step")
    parser.add_argument("--context", type=int, default=64, help="characters per window")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--warmup", type=int, default=4, help="steps")
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--beta1", type=float, default=0.9)
    parser.add_argument("--beta2", type=float, default=0.95)
    parser.add_argument("--clip", type=float, default=1.0, help="largest norm of the gradient")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="float16 uses a GradScaler")
    parser.add_argument("--parallel", choices=["none", "ddp", "fsdp"], default="none", help="under torchrun")
    parser.add_argument("--checkpoint", help="file to save to, at the end")
    parser.add_argument("--save-every", type=int, default=0, help="steps; 0: only at the end")
    parser.add_argument("--stop-after", type=int, default=0, help="step to stop at before the end, for a job with a time limit")
    parser.add_argument("--resume", help="checkpoint to go on from")
    parser.add_argument("--seed", type=int, default=1337)
    args = parser.parse_args()
    if args.width % args.heads:
        parser.error(f"--width {args.width} is no multiple of --heads {args.heads}")
    if args.parallel != "none" and "RANK" not in os.environ:
        parser.error(f"--parallel {args.parallel} needs torchrun: torchrun --nproc_per_node 2 train_gpt.py ...")
    if args.parallel == "none" and int(os.environ.get("WORLD_SIZE", 1)) > 1:
        parser.error("several processes need --parallel ddp or --parallel fsdp")
    if args.parallel == "fsdp" and args.dtype == "float16":
        parser.error("--dtype float16 is for one process or --parallel ddp; with fsdp use bfloat16")
    return args


def main():
    args = parse_arguments()
    cuda = torch.cuda.is_available()
    rank, ranks, local = (int(os.environ.get(name, default))
                          for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0)))
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if args.parallel != "none":
        dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
    train(args, device, rank, ranks)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
