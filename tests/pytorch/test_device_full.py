#!/usr/bin/env -S python3 tests/pytorch/harness.py
"""A device that is too small: a model that trains only with the library, an out of memory that stays one, a batch-size
finder. Without the library the cases that compare numbers run on a device that is large enough; GPUSIM_MEMORY among `offload`
makes it small for the library alone."""
import json
import os
import re
import subprocess

import torch
from cases import RUN, SCRIPTS, case
from toys import BIG, loss_of, mlp, record, train

SCRIPT = SCRIPTS / "train_gpt.py"
STEPS = 6
# 6.2 MiB of parameters: two layers' matrices lie in segments of 2 MiB, head and embeddings in others.
GPT = ("--layers", 2, "--width", 256, "--context", 32, "--batch", 2, "--steps", STEPS, "--checkpoint", "gpt.pt")
STATE_BYTES = 2 * 4 * 1_630_208
SEGMENT_BYTES = 2 << 20
# What cuBLAS asks of PyTorch for itself would dwarf the model.
WORKSPACE = {"CUBLAS_WORKSPACE_CONFIG": ":4096:1"}
# Without the library it takes 48 MiB, and 12 of state less would do.
SMALL = {"GPUSIM_MEMORY": "40MiB"}


def without_figures(text):
    return re.sub(r"[\d.]+ ([KMG]iB|bytes)", "N bytes", text)


alone = {}  # what the script came to without the library, in this process


def train_gpt(t):
    if t.delta() is None and alone:  # it has been run for another case: the same program on the same device
        t.record("steps", alone["steps"])
        t.record("checkpoint", alone["checkpoint"])
        return
    output = t.run(SCRIPT, *GPT)
    steps = re.findall(r"step +\d+  (loss \S+  norm \S+)  lr \S+", output)
    if len(steps) != STEPS:
        raise AssertionError(f"the script was to print {STEPS} steps:\n{output}")
    t.record("steps", str(steps).encode())
    t.record_file("checkpoint", t.folder / "gpt.pt")
    if t.delta() is None:
        alone.update(steps=str(steps).encode(), checkpoint=(t.folder / "gpt.pt").read_bytes())


@case(modes="stream", moves=False, environment={**WORKSPACE, **SMALL}, offload={"OFFLOAD_OVERFLOW": "0"})
def does_not_fit_alone(t):
    """on a device of 40 MiB train_gpt.py runs out of memory without the library, and with OFFLOAD_OVERFLOW=0, in PyTorch's words"""
    report = t.folder / "report_of_its_own.json"
    done = subprocess.run([RUN, SCRIPT, *map(str, GPT)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          env={**os.environ, "OFFLOAD_REPORT": str(report)}, cwd=t.folder, check=False)
    t.record("status", done.returncode)
    errors = re.findall(r"^torch\.OutOfMemoryError: CUDA out of memory.*", done.stderr, re.MULTILINE)
    if not done.returncode or len(errors) != 1:
        raise AssertionError(f"memory was to run out: status {done.returncode}\n{done.stderr[-2000:]}")
    t.record("error", without_figures(errors[0]).encode())
    t.check("nothing began on the host",
            lambda _: json.loads(report.read_text(encoding="utf-8"))["totals"]["provisional_bytes"] == 0)


@case("AdamW fp32", modes="cpu stream", environment=WORKSPACE, offload=SMALL)
def does_not_fit(t):
    """on a device of 40 MiB train_gpt.py trains as on a large one"""
    train_gpt(t)
    t.check("at first state began on the host since the device was full",
            lambda delta: delta["totals"]["provisional_bytes"] >= SEGMENT_BYTES)
    # Then nothing moves to and fro: each byte of state went once, with what of a segment is no state.
    t.check("then there is a steady state", lambda delta:
            0.9 * STATE_BYTES < delta["totals"]["moved_out_bytes"] + delta["totals"]["provisional_bytes"]
            < STATE_BYTES + 2 * SEGMENT_BYTES and delta["totals"]["moved_home_bytes"] < SEGMENT_BYTES)
    t.check("almost every element had its state on the host in all steps but the first", lambda delta:
            sum(row["elements_host"] for row in delta["functions"])
            > 0.9 * (STEPS - 1) / STEPS * sum(row["elements"] for row in delta["functions"]))


def no_room_for_staging(t):
    """Of a step's two launches the first is the matrices', the second has little on the host."""
    t.check("the report says why it was carried out by direct", lambda delta:
            any(row["mode"] == "direct" and "staging" in row["why"] for row in delta["functions"]))


@case("AdamW fp32", modes="direct", environment=WORKSPACE, offload={"GPUSIM_MEMORY": "32MiB", "OFFLOAD_STEP": "stream"})
def barely_fits(t):
    """on a device of 32 MiB, so small that activations, too, begin on the host, it trains the same"""
    train_gpt(t)
    t.check("more than the state began on the host",
            lambda delta: delta["totals"]["provisional_bytes"] > STATE_BYTES)
    no_room_for_staging(t)


@case("AdamW fp32", modes="direct", environment=WORKSPACE,
      offload={**SMALL, "OFFLOAD_MODE": "pressure", "OFFLOAD_STEP": "stream"})
def under_pressure_alone(t):
    """with OFFLOAD_MODE=pressure the state that must leave does, and it trains the same"""
    train_gpt(t)
    t.check("part of the state moved", lambda delta:
            SEGMENT_BYTES <= delta["totals"]["moved_out_bytes"] + delta["totals"]["provisional_bytes"] < STATE_BYTES)
    no_room_for_staging(t)


# ---- an out of memory that stays one ----

def error_of(call):
    """What PyTorch's error says, but for figures."""
    try:
        call()
    except torch.OutOfMemoryError as error:
        return f"{type(error).__name__}: {without_figures(str(error))}"
    raise AssertionError("memory was to run out")


@case("AdamW fp32", modes="cpu stream", environment={**WORKSPACE, "GPUSIM_MEMORY": "96MiB"})
def stays_one(t):
    """an out of memory that stays one has PyTorch's own message, may be caught, and training goes on"""
    def too_much():
        torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    model = mlp()
    t.record("message before a step", error_of(too_much).encode())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    train(t, model, optimizer, steps=2)
    t.record("message after steps", error_of(too_much).encode())
    train(t, model, optimizer, steps=2, first=2, name="more ")
    # Little by little, until what is left is less than a segment.
    held = []
    t.record("message at the end", error_of(lambda: held.extend(
        torch.empty(SEGMENT_BYTES, dtype=torch.uint8, device="cuda") for _ in range(100))).encode())
    held.clear()
    t.record("out of memory so often", torch.cuda.memory_stats()["num_ooms"])
    train(t, model, optimizer, steps=3, first=4, name="after ")
    record(t, model, optimizer)


@case("AdamW fp32", modes="stream", environment={**WORKSPACE, "GPUSIM_MEMORY": "96MiB"})
def in_the_backward_pass(t):
    """a batch that is too large fails in the middle of a step, is left out, and training goes on"""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    train(t, model, optimizer, steps=3)

    def too_large():
        x = torch.ones(20_000, BIG[1], device="cuda")
        model(x).square().mean().backward()
    t.record("message", error_of(too_large).encode())
    optimizer.zero_grad()
    torch.cuda.empty_cache()
    train(t, model, optimizer, steps=3, first=3, name="after ")
    record(t, model, optimizer)


# ---- a batch-size finder ----

def largest_batch(model):
    """Doubles the rows until memory runs out, as finders do before training begins."""
    rows = 128
    while True:
        try:
            loss_of_rows(model, 2 * rows).backward()
        except torch.OutOfMemoryError:
            break
        finally:
            model.zero_grad()
            torch.cuda.empty_cache()
        rows *= 2
    return rows


def loss_of_rows(model, rows):
    return model(torch.ones(rows, BIG[1], device="cuda")).square().mean()


@case("AdamW fp32", modes="stream", environment={**WORKSPACE, "GPUSIM_MEMORY": "64MiB"}, offload={"OFFLOAD_OVERFLOW": "0"})
def batch_size_finder(t):
    """with OFFLOAD_OVERFLOW=0 a batch-size finder finds what it finds without the library"""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    found = largest_batch(model)
    t.record("rows found", found)
    train(t, model, optimizer, steps=4, loss=lambda model, step: loss_of(model, step) + loss_of_rows(model, found // 2))
    record(t, model, optimizer)
    t.check("nothing began on the host", lambda delta: not delta["totals"]["provisional_bytes"])
