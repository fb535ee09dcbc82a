#!/usr/bin/env -S python3 tests/pytorch/harness.py
"""State beyond the host's budget lies on drives, here loop file systems: training, checkpoints and everything else that touches
state give the numbers that they give without the library, whatever share of it the host may hold."""
import datetime
import itertools
import os
import re

import cases
import drives
import torch
from cases import SCRIPTS, case
from toys import batch, record, train

MIB = 1 << 20
SHARES = (0, 25, 50)
RUNGS = ("defer", "coop", "plain", "threads")
DIRECTORIES, MISSING = drives.mount(2, 128 * MIB)
WHOLE = bool(os.environ.get("TESTED_WHOLE"))  # every combination, and not today's alone
TODAY = datetime.date.today().toordinal()

# PyTorch's segments are 2 MiB, and m and v of a matrix of 1 MiB fill one.
WIDTH, MATRICES = 512, 6
MODEL_STATE_BYTES = 2 * 4 * MATRICES * WIDTH * WIDTH
# Two layers; their matrices of 1 MiB fill segments, as above.
GPT = ("--layers", 2, "--width", 256, "--context", 32, "--batch", 2, "--steps", 7, "--checkpoint", "gpt.pt")
GPT_STATE_BYTES = 2 * 4 * 1_630_208
# cuBLAS's workspace would be the largest segment of all.
PIECES = {"GPUSIM_GRANULARITY": "16KiB", "CUBLAS_WORKSPACE_CONFIG": ":4096:1"}


def on_drives(share, directories, state_bytes, rung=""):
    """Variables for a job whose host holds this share of its state, with less staging than the rest has bytes."""
    return {"OFFLOAD_NVME": ":".join(str(directory) for directory in DIRECTORIES[:directories]),
            "OFFLOAD_HOST_MEMORY": str(state_bytes * share // 100), "OFFLOAD_NVME_STAGING": "2MiB",
            **({"OFFLOAD_TEST_NVME_RUNG": rung} if rung else {})}


def drive_case(offload, sentence=None):
    """A case of a job on drives in both modes; with `sentence` a function's case is one of several."""
    def register(function):
        def named(t):
            function(t)
        named.__name__ = function.__name__ + (f"_{len(cases.registered)}" if sentence else "")
        named.__doc__ = sentence or function.__doc__
        return case("AdamW fp32", modes="cpu stream", environment=PIECES, offload=offload, skip=MISSING)(named)
    return register


def check_drives(t, since=None):
    """State was written to drives, read back, and stepped from there; since a `t.delta()` if given."""
    def stepped(delta):
        before = (since or {"totals": {}})["totals"]
        return all(delta["totals"][name] > before.get(name, 0) for name in
                   ("drive_written_bytes", "drive_read_bytes", "elements_drive"))
    t.check("state was written to drives, read from there and stepped", stepped)


class Chain(torch.nn.Sequential):
    def __init__(self):
        super().__init__(*itertools.chain.from_iterable(
            (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()) for _ in range(MATRICES)), torch.nn.Linear(WIDTH, 32))


def chain():
    return Chain().to("cuda")


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05, fused=True)


def moments(optimizer):
    return [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]


# ---- every share, both ways, directories and rungs ----

def trained(t):
    model = chain()
    optimizer = adamw(model)
    train(t, model, optimizer, 7)
    check_drives(t)
    record(t, model, optimizer)


alone = {}  # what the script came to without the library: the same for all cases


def train_gpt(t):
    if t.delta() is None and alone:
        output, checkpoint = alone["output"], alone["checkpoint"]
    else:
        output = t.run(SCRIPTS / "train_gpt.py", *GPT)
        checkpoint = (t.folder / "gpt.pt").read_bytes()
    if t.delta() is None:
        alone.update(output=output, checkpoint=checkpoint)
    steps = re.findall(r"step +\d+  (loss \S+  norm \S+)  lr \S+", output)
    if len(steps) != 7:
        raise AssertionError(f"the script was to print seven steps:\n{output}")
    check_drives(t)
    t.record("steps", str(steps).encode())
    t.record("checkpoint", checkpoint)


def combinations(turn):
    """Every (share, directories, rung), or each share once, with what else is its turn."""
    if WHOLE:
        return list(itertools.product(SHARES, (1, 2), RUNGS))
    return [(share, 1 + (turn + i) % 2, RUNGS[(turn + i) // 2 % len(RUNGS)]) for i, share in enumerate(SHARES)]


CHAIN = {0: "a chain of layers trains the same with none of its state in host memory",
         25: "a chain of layers trains the same with a quarter of its state in host memory",
         50: "a chain of layers trains the same with half of its state in host memory"}
SCRIPT = {0: "train_gpt.py trains the same with none of its state in host memory",
          25: "train_gpt.py trains the same with a quarter of its state in host memory",
          50: "train_gpt.py trains the same with half of its state in host memory"}


def register_matrix():
    """The script takes longer: one share a day."""
    for share, directories, rung in combinations(TODAY):
        drive_case(on_drives(share, directories, MODEL_STATE_BYTES, rung), CHAIN[share])(trained)
    for share, directories, rung in combinations(TODAY + 1):
        if WHOLE or share == SHARES[TODAY % len(SHARES)]:
            drive_case(on_drives(share, directories, GPT_STATE_BYTES, rung), SCRIPT[share])(train_gpt)


register_matrix()


# ---- what else touches state ----

QUARTER = on_drives(25, 1, MODEL_STATE_BYTES)


def begun(t, steps=5):
    """A model in training whose state is on drives."""
    model = chain()
    optimizer = adamw(model)
    train(t, model, optimizer, steps)
    check_drives(t)
    return model, optimizer


def faults(t):
    """Pieces that were brought in until now: those that lie beside what every step uses may be, at first."""
    delta = t.delta()
    return delta["totals"]["drive_faults"] if delta else 0


def goes_on(t, model, optimizer, first, steps=5):
    """Trains on, and state must go to drives again."""
    before = t.delta()
    train(t, model, optimizer, steps, name="later ", first=first)
    check_drives(t, before)


@drive_case(QUARTER)
def checkpoint(t):
    """torch.save of the state while it is on drives copies it from there, and training goes on"""
    model, optimizer = begun(t)
    before = faults(t)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, t.folder / "checkpoint.pt")
    t.check("state was copied from drives where it stayed", lambda delta: delta["totals"]["drive_served_bytes"] > 0)
    t.check("none of it was brought in for that", lambda delta: delta["totals"]["drive_faults"] == before)
    goes_on(t, model, optimizer, 5)
    t.record_file("checkpoint", t.folder / "checkpoint.pt")
    record(t, model, optimizer)


@drive_case(QUARTER)
def loaded(t):
    """load_state_dict while state is on drives, of what it was some steps before"""
    model, optimizer = begun(t)
    saved = {"model": {name: value.cpu() for name, value in model.state_dict().items()},
             "optimizer": torch.load(save(t, optimizer), weights_only=True)}
    train(t, model, optimizer, 3, name="between ", first=5)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    goes_on(t, model, optimizer, 5)
    record(t, model, optimizer)


def save(t, optimizer):
    torch.save(optimizer.state_dict(), t.folder / "state.pt")
    return t.folder / "state.pt"


@drive_case(QUARTER)
def summed(t):
    """a kernel that reads state has it brought in, and training goes on with it on drives again"""
    model, optimizer = begun(t)
    before = faults(t)
    sums = torch.stack([moment.sum() for moment in moments(optimizer)])
    t.check("state was brought in from drives", lambda delta:
            delta["totals"]["drive_faults"] > before and delta["totals"]["drive_fault_bytes"] > 0)
    goes_on(t, model, optimizer, 5)
    t.record("sums", sums)
    record(t, model, optimizer)


@drive_case(QUARTER)
def written(t):
    """memsets, copies and kernels that write state have it brought in, and what they write is stepped on"""
    model, optimizer = begun(t)
    before = faults(t)
    for number, state in enumerate(optimizer.state.values()):
        if number % 3 == 0:
            state["exp_avg"].zero_()
        elif number % 3 == 1:
            state["exp_avg"].mul_(0.5)
        else:
            state["exp_avg"].copy_(torch.full(state["exp_avg"].shape, 1e-4))
    t.check("state was brought in from drives", lambda delta: delta["totals"]["drive_faults"] > before)
    goes_on(t, model, optimizer, 5)
    record(t, model, optimizer)


@drive_case(QUARTER)
def foreach_steps(t):
    """steps by foreach kernels in between have the state brought in"""
    model, optimizer = begun(t)
    before = faults(t)
    for group in optimizer.param_groups:
        group.update(fused=False, foreach=True)
    train(t, model, optimizer, 2, name="foreach ", first=5)
    t.check("state was brought in from drives", lambda delta: delta["totals"]["drive_faults"] > before)
    for group in optimizer.param_groups:
        group.update(fused=True, foreach=False)
    goes_on(t, model, optimizer, 7)
    record(t, model, optimizer)


@drive_case(QUARTER)
def made_anew(t):
    """an optimizer whose state is on drives is freed, another one is made, and its state goes there too"""
    model, optimizer = begun(t)
    held = t.delta()
    del optimizer
    torch.cuda.empty_cache()
    t.check("what was on drives is given back", lambda delta: held and
            delta["totals"]["drive_bytes"] < held["totals"]["drive_bytes"] / 4)
    optimizer = adamw(model)
    goes_on(t, model, optimizer, 5)
    record(t, model, optimizer)


@drive_case(QUARTER)
def clipped(t):
    """clip_grad_norm_ and zero_grad(set_to_none=False) before steps from drives"""
    model = chain()
    optimizer = adamw(model)
    norms = []

    def clip(_):
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05))
    losses = []
    for step in range(7):
        optimizer.zero_grad(set_to_none=False)
        x, y = batch(step)
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        clip(step)
        optimizer.step()
        losses.append(loss.detach())
    check_drives(t)
    t.record("losses", torch.stack(losses))
    t.record("norms", torch.stack(norms))
    record(t, model, optimizer)


@drive_case(QUARTER)
def scaled(t):
    """a GradScaler, one of whose steps is left out, over state on drives"""
    model = chain()
    optimizer = adamw(model)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0 ** 10, growth_interval=3)
    losses = []
    for step in range(8):
        optimizer.zero_grad()
        x, y = batch(step)
        with torch.autocast("cuda", torch.float16):
            loss = torch.nn.functional.mse_loss(model(x).float(), y)
        scaler.scale(loss * (torch.inf if step == 5 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    check_drives(t)
    t.record("scale", scaler.get_scale())
    t.record("losses", torch.stack(losses))
    record(t, model, optimizer)
