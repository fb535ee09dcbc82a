"""Trains a little with batches from worker processes: loaders.py fork|spawn cpu|cuda. A program by itself; test_unseen.py and
test_loaders.py run it."""
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    start, device = sys.argv[1:]
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(96, 512), torch.randn(96, 32))
    model = nn.Sequential(nn.Linear(512, 384), nn.GELU(), nn.Linear(384, 32)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    # Made before training begins and again in the middle of it.
    for epoch in range(2):
        loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=2, multiprocessing_context=start,
                            pin_memory=device == "cuda", generator=torch.Generator().manual_seed(epoch))
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x.to(device, non_blocking=True)), y.to(device, non_blocking=True))
            loss.backward()
            optimizer.step()
            print(f"loss {loss.item().hex()}")
    for parameter in model.parameters():
        print(f"norm {parameter.detach().double().norm().item().hex()}")
        for name, state in optimizer.state[parameter].items():
            print(f"{name} {state.detach().double().norm().item().hex()}")


if __name__ == "__main__":
    main()
