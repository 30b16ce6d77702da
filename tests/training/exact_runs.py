"""Runs of a small network, straight or in two halves: started as a program, so that each half has a process of its own.

    python exact_runs.py straight|first|second DIRECTORY

All configurations are run one after the other. "first" saves each after ten steps, and is killed in the middle of the last one's epoch.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset

from firekeep.checkpoint import CheckpointManager
from firekeep.training import ResumableLoader, ResumableSampler, SeededDataset, TrainingState

STEPS, HALF, ACCUMULATED = 20, 10, 2

OPTIMIZERS = {
    "sgd": lambda net: torch.optim.SGD(net.parameters(), lr=0.05),
    "momentum": lambda net: torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda net: torch.optim.Adam(net.parameters(), lr=0.01, amsgrad=True),
    "adamw": lambda net: torch.optim.AdamW(net.parameters(), lr=0.01),
    "rmsprop": lambda net: torch.optim.RMSprop(net.parameters(), lr=0.01, momentum=0.5, centered=True),
    "adagrad": lambda net: torch.optim.Adagrad(net.parameters(), lr=0.05),
    "lbfgs": lambda net: torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=3, history_size=4),
    "muon": lambda net: {
        "matrices": torch.optim.Muon([one for one in net.parameters() if one.ndim == 2], lr=0.02),
        "rest": torch.optim.AdamW([one for one in net.parameters() if one.ndim != 2], lr=0.01),
    },
}


def one_cycle(optimizer):
    cycled = "momentum" in optimizer.defaults or "betas" in optimizer.defaults
    return lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=STEPS + 1, cycle_momentum=cycled)


def warm_up(optimizer):
    first = lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=5)
    then = lr_scheduler.CosineAnnealingLR(optimizer, T_max=15)
    return lr_scheduler.SequentialLR(optimizer, [first, then], milestones=[5])


SCHEDULERS = {
    "none": lambda optimizer: None,
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=15),
    "one-cycle": one_cycle,
    "warm-up": warm_up,
    "plateau": lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1),
}

CONFIGURATIONS = [f"{optimizer}+{scheduler}" for optimizer in OPTIMIZERS for scheduler in SCHEDULERS]


class Noisy(Dataset):
    """Samples that draw from every generator of the process."""

    def __len__(self):
        return 120

    def __getitem__(self, index):
        noise = torch.randn(6) + random.random() + float(np.random.rand())
        return torch.linspace(-1, 1, 6) * (index % 7) + 0.1 * noise, index % 3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.2)
        self.second = nn.Linear(8, 3)

    def forward(self, x):
        return self.second(self.drop(torch.relu(self.norm(self.first(x)))))


def make(configuration, seed):
    """Make a run from nothing: 15 steps an epoch, so that it is broken off in the first and ends in the second."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    optimizer, scheduler = configuration.split("+")
    net = Net()
    moved = OPTIMIZERS[optimizer](net)
    several = moved if isinstance(moved, dict) else {"": moved}
    schedules = {name: SCHEDULERS[scheduler](one) for name, one in several.items()}
    data = SeededDataset(Noisy(), seed=4)
    sampler = ResumableSampler(len(data), seed=5)
    loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=2)
    return TrainingState(
        model=net,
        optimizer=moved,
        scheduler=None if scheduler == "none" else schedules if isinstance(moved, dict) else schedules[""],
        data=ResumableLoader(loader),
        values={"seen": 0},
    )


def listed(given):
    return [] if given is None else list(given.values()) if isinstance(given, dict) else [given]


def train(state, upto, *, last_breath=None):
    """Go on up to a step, and give the losses; `last_breath` is called within the loop once it is there."""
    losses = []
    criterion = nn.CrossEntropyLoss()
    optimizers, schedulers = listed(state.optimizer), listed(state.scheduler)
    while state.step < upto:
        batches = iter(state.data)
        while batch := list(islice(batches, ACCUMULATED)):

            def closure(batch=batch):
                for optimizer in optimizers:
                    optimizer.zero_grad()
                total = 0.0
                for x, y in batch:
                    with torch.autocast("cpu", dtype=torch.bfloat16):
                        loss = criterion(state.model(x), y) / ACCUMULATED
                    loss.backward()
                    total += loss.item()
                return total

            total = closure()
            for optimizer in optimizers:
                optimizer.step(closure) if isinstance(optimizer, torch.optim.LBFGS) else optimizer.step()
            for scheduler in schedulers:
                scheduler.step(*([total] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else []))
            losses.append(total)
            state.step += 1
            state.values["seen"] += sum(len(y) for _, y in batch)
            if state.step == upto:
                if last_breath is not None:
                    last_breath()
                break
        else:
            state.epoch += 1
    return losses


def digest(state):
    """Give what the weights and the states of the optimizers are, to the last bit."""
    found = hashlib.sha256()
    for name, value in state.model.state_dict().items():
        found.update(name.encode() + value.numpy().tobytes())
    for optimizer in listed(state.optimizer):
        for value in optimizer.state.values():
            for key, one in sorted(value.items()):
                parts = one if isinstance(one, list) else [one]
                for part in parts:
                    held = (
                        part.detach().float().numpy().tobytes()
                        if isinstance(part, torch.Tensor)
                        else repr(part).encode()
                    )
                    found.update(key.encode() + held)
        found.update(repr([group["lr"] for group in optimizer.param_groups]).encode())
    return found.hexdigest()


def main(half, directory):
    torch.set_num_threads(1)
    results = {}
    for configuration in CONFIGURATIONS:
        manager = CheckpointManager(directory / configuration, durable=False)
        if half == "second":
            state = make(configuration, seed=99)
            report = manager.restore(state).report
            losses = train(state, STEPS)
            results[configuration] = {
                "losses": losses,
                "digest": digest(state),
                "exact": report.exact,
                "report": str(report),
            }
            results[configuration]["seen"] = state.values["seen"]
        elif half == "first":
            state = make(configuration, seed=1)

            def save(state=state, manager=manager, last=configuration == CONFIGURATIONS[-1]):
                manager.save(state, step=state.step)
                if last:
                    (directory / "first.json").write_text(json.dumps(results))
                    os.kill(os.getpid(), signal.SIGKILL)

            results[configuration] = {"losses": train(state, HALF, last_breath=save)}
        else:
            state = make(configuration, seed=1)
            losses = train(state, STEPS)
            results[configuration] = {"losses": losses, "digest": digest(state), "seen": state.values["seen"]}
    (directory / f"{half}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
