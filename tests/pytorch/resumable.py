"""Training that goes on from its own checkpoints (test_checkpoints.py's program): resumable.py NUMBER.

Program 0 begins. Each saves NUMBER.pt, NUMBER.safetensors and NUMBER.dcp; the others go on from each of the three that the
program before has left. NUMBER.record has all that came of it."""
import sys

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from toys import loss_of, mlp

STEPS = 4


def make():
    model = mlp()
    return model, torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)


def state_of(model, optimizer, steps=0):
    """Names and tensors of all parameters and their state; the state is made by a step of no effect where there is none."""
    if steps:
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        for group in optimizer.param_groups:
            group["lr"], group["lr_was"] = 0.0, group["lr"]
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] = group.pop("lr_was")
    for name, parameter in model.named_parameters():
        yield name, parameter.detach()
        for key, value in optimizer.state[parameter].items():
            yield f"{name}.{key}", value


def load_whole(place):
    model, optimizer = make()
    saved = torch.load(f"{place}.pt", map_location="cpu", weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return model, optimizer


def load_tensors(place):
    model, optimizer = make()
    saved = safetensors.torch.load_file(f"{place}.safetensors", device="cuda")
    for name, tensor in state_of(model, optimizer, steps=1):
        tensor.copy_(saved[name])
    return model, optimizer


def load_distributed(place):
    model, optimizer = make()
    dcp.load(dict(state_of(model, optimizer, steps=1)), checkpoint_id=f"{place}.dcp")  # in place
    return model, optimizer


def save(place, model, optimizer):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{place}.pt")
    tensors = dict(state_of(model, optimizer))
    safetensors.torch.save_file(tensors, f"{place}.safetensors")
    dcp.save(tensors, checkpoint_id=f"{place}.dcp")


def main():
    number = int(sys.argv[1])
    torch.manual_seed(1)
    starts = [load(number - 1) for load in (load_whole, load_tensors, load_distributed)] if number else [make()]
    results = []
    for model, optimizer in starts:
        losses = []
        for step in range(number * STEPS, (number + 1) * STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        results.append((torch.stack(losses), model.state_dict(), optimizer.state_dict()))
    save(number, *starts[0])
    torch.save(results, f"{number}.record")


if __name__ == "__main__":
    main()
