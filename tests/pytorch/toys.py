"""Small models and a training loop for cases.

A launch's block covers 65,536 elements, and is taken over when its m and v lie wholly on host pieces. Small tensors share
pieces with the optimizer's step counters, which are no state, so that a model of small tensors alone moves by chance. BIG is
a matrix of three blocks: whatever its neighbours are, the one in the middle has pieces of its own."""
import torch
from torch import nn

BIG = (384, 512)


def mlp(dtype=torch.float32):
    """A quarter of a million parameters: one big matrix, smaller tensors of several sizes."""
    model = nn.Sequential(nn.Linear(BIG[1], BIG[0]), nn.GELU(), nn.LayerNorm(BIG[0]), nn.Linear(BIG[0], 32))
    return model.to("cuda", dtype)


def deep(dtype=torch.float32):
    """Nearly a million parameters, two matrices of six blocks: each of two processes has enough of it, by halves or by tensors."""
    wide = 2 * BIG[0]
    model = nn.Sequential(nn.Linear(BIG[1], wide), nn.GELU(), nn.Linear(wide, BIG[1]), nn.GELU(), nn.Linear(BIG[1], 32))
    return model.to("cuda", dtype)


def give_bf16_moments(optimizer, parameters, amsgrad=False):
    """Moments in bf16 of fp32 parameters, which PyTorch takes when the state is given so."""
    for parameter in parameters:
        optimizer.state[parameter]["step"] = torch.zeros((), device="cuda")
        for name in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")[:3 if amsgrad else 2]:
            optimizer.state[parameter][name] = torch.zeros_like(parameter, dtype=torch.bfloat16)


def batch(number, dtype=torch.float32, rows=8):
    """Inputs and targets; the same for the same number."""
    generator = torch.Generator().manual_seed(1000 + number)
    x = torch.randn(rows, BIG[1], generator=generator)
    return x.to("cuda", dtype), (x[:, :32] * x[:, 32:64]).to("cuda", dtype)


def loss_of(model, number):
    x, y = batch(number, next(model.parameters()).dtype)
    return nn.functional.mse_loss(model(x), y)


def train(t, model, optimizer, steps=5, name="", first=0, change=None, loss=loss_of):
    """Plain training; losses are recorded. `change(step)` may do something between the backward pass and the step."""
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        value = loss(model, step)
        value.backward()
        if change:
            change(step)
        optimizer.step()
        losses.append(value.detach())
    t.record(f"{name}losses", torch.stack(losses))


def record(t, model, optimizer, name=""):
    """Parameters and state, whole."""
    t.record_state(f"{name}model", model.state_dict())
    t.record_state(f"{name}optimizer", optimizer.state_dict())
