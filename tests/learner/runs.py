"""A small run of a Learner, for tests in this process and, run as a program, for those that kill it."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from firekeep.checkpoint import CheckpointManager
from firekeep.learner import Learner

SAMPLES, BATCH = 44, 8


class Noisy(Dataset):
    """Samples with noise that is drawn anew each time."""

    def __init__(self):
        self.inputs, self.targets = points()

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return self.inputs[index] + 0.1 * torch.randn(4), self.targets[index]


def points():
    inputs = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(1))
    return inputs, inputs.abs().argmax(1).clamp(max=2)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


def accuracy(output, target):
    return (output.argmax(1) == target).float().mean()


def learner(folder, *, optimizer=None, scheduler=None, model=None, **options):
    """AdamW with a cosine, unless told otherwise: three epochs of six batches."""
    model = network() if model is None else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02) if optimizer is None else optimizer(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 18) if scheduler is None else scheduler(optimizer)
    settings = {"loss": nn.functional.cross_entropy, "num_epochs": 3, "log_every": 1, "progress": False, "seed": 5}
    return Learner(
        model, optimizer, scheduler, checkpoint=folder, metrics={"accuracy": accuracy}, **{**settings, **options}
    )


def train_loader(dataset=None, **options):
    dataset = TensorDataset(*points()) if dataset is None else dataset
    return DataLoader(dataset, batch_size=BATCH, shuffle=True, **options)


def valid_loader():
    return DataLoader(TensorDataset(*points()), batch_size=20)


def at_forward(model, number, act, *, training=True):
    """Have something happen after so many calls of a model."""
    count = 0

    def hook(module, inputs, output):
        nonlocal count
        count += module.training == training
        if count == number and module.training == training:
            act()

    model.register_forward_hook(hook)


def bits(one):
    """What a learner holds, as bytes: weights, moments and counters."""
    made = {f"model.{name}": tensor for name, tensor in one.model.state_dict().items()}
    for name, optimizer in one.optimizers.items():
        for index, state in optimizer.state_dict()["state"].items():
            made |= {f"{name}.{index}.{key}": value for key, value in state.items() if isinstance(value, torch.Tensor)}
    return {name: tensor.numpy().tobytes() for name, tensor in made.items()}


def losses(folder):
    return [json.loads(line) for line in (Path(folder) / "history.jsonl").read_text().splitlines()]


def run(folder, setting, kill_at):
    model = network()
    if kill_at:
        at_forward(model, kill_at, lambda: os.kill(os.getpid(), signal.SIGKILL))
    options = {"accumulate": 4, "precision": "bf16", "clip_norm": 0.5} if setting == "workers" else {}
    manager = CheckpointManager(folder, every=2, durable=False)
    one = learner(manager, model=model, **options)
    loader = train_loader(Noisy(), num_workers=2) if setting == "workers" else train_loader()
    report = one.fit(loader, valid_loader())
    told = {
        "resumed": None if report.resumed is None else report.resumed.step,
        "exact": report.exact,
        "step": report.step,
        "bits": {name: data.hex() for name, data in bits(one).items()},
        "rng": torch.rand(4).tolist(),
    }
    print(json.dumps(told), flush=True)


def main(place, setting, kill_at):
    """Run straight through, then until killed, then to the end: each in a process of its own, forked before anything is computed."""
    for folder, last in (("straight", 0), ("killed", int(kill_at)), ("killed", 0)):
        pid = os.fork()
        if pid == 0:
            try:
                run(Path(place) / folder, setting, last)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status != (-signal.SIGKILL if last else 0):
            sys.exit(f"{folder}: {status}")


if __name__ == "__main__":
    main(*sys.argv[1:])
