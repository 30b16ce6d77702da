"""Keep a training run with CheckpointManager: killed at any moment, it goes on as if it had never stopped."""

import torch

from firekeep.checkpoint import CheckpointManager
from firekeep.training import TrainingState

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
state = TrainingState(model=model, optimizer=optimizer)

with CheckpointManager("run", every=10) as manager:
    if manager.latest():
        print(manager.restore(state))  # weights, moments, random numbers: all of it or nothing
    while state.step < 100:
        loss = model(torch.randn(16, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state.step += 1
        manager.tick(state, step=state.step, metrics={"valid_loss": loss.item()})  # the last two and the best stay
    print(manager.catalog())
