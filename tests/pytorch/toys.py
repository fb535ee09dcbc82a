"""Small models and a training loop for cases."""
import torch
from torch import nn

WIDTH = 64


def mlp(dtype=torch.float32, width=WIDTH, layers=2):
    """Weights of 16 KiB in fp32, in a stack with biases and norms."""
    blocks = []
    for _ in range(layers):
        blocks += [nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()]
    return nn.Sequential(*blocks, nn.Linear(width, width)).to("cuda", dtype)


def batch(number, width=WIDTH, rows=16, dtype=torch.float32):
    """Inputs and targets; the same for the same number."""
    generator = torch.Generator().manual_seed(1000 + number)
    x = torch.randn(rows, width, generator=generator)
    return x.to("cuda", dtype), (x.roll(1, 1) * 0.5).to("cuda", dtype)


def loss_of(model, number, **shape):
    x, y = batch(number, dtype=next(model.parameters()).dtype, **shape)
    return nn.functional.mse_loss(model(x), y)


def train(t, model, optimizer, steps=5, name="", before_step=None, loss=loss_of):
    """Plain training; losses are recorded. `before_step(step)` may change the optimizer."""
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        value = loss(model, step)
        value.backward()
        if before_step:
            before_step(step)
        optimizer.step()
        losses.append(value.detach())
    t.record(f"{name}losses", torch.stack(losses).float())


def record(t, model, optimizer, name=""):
    """Parameters and state, whole."""
    t.record_state(f"{name}model", model.state_dict())
    t.record_state(f"{name}optimizer", optimizer.state_dict())
