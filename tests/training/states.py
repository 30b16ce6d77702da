"""Small training states, written to files and opened again."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from firekeep.disk import write_file
from firekeep.formats import FORMATS, OpenOptions
from firekeep.limits import DEFAULT_LIMITS
from firekeep.opened import open_file
from firekeep.saving import prepare
from firekeep.training import TrainingState


def net(seed=0, *, width=4):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 2))


def adam(model, **options):
    return torch.optim.Adam(model.parameters(), lr=0.01, **options)


def step(model, optimizer, times=1):
    for _ in range(times):
        optimizer.zero_grad()
        model(torch.randn(5, 3)).square().mean().backward()
        optimizer.step()


def trained(seed=0, **more):
    """Give a state whose optimizer has made two steps."""
    model = net(seed)
    optimizer = adam(model)
    step(model, optimizer, 2)
    return TrainingState(model=model, optimizer=optimizer, **more)


def write(state, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for section in state.sections():
        plan, observe, seal = prepare(section.contents, FORMATS["burnpack"], digest=False, limits=DEFAULT_LIMITS)
        write_file(folder / f"{section.name}.bpk", plan, durable=False, observe=observe, seal=seal)
    return folder


@contextmanager
def opened(folder):
    with ExitStack() as stack:
        yield {path.stem: stack.enter_context(open_file(path, OpenOptions())) for path in sorted(folder.glob("*.bpk"))}


def restore(state, folder, **options):
    with opened(folder) as files:
        return state.restore(files, **options)


def bits(state):
    """Give everything that a restore may change, to be compared."""
    found = {
        "step": state.step,
        "epoch": state.epoch,
        "metrics": repr(dict(state.metrics)),
        "values": repr(state.values),
    }
    models = state.model if isinstance(state.model, dict) else {"": state.model}
    for prefix, model in models.items():
        found |= {f"{prefix}{name}": value.numpy().tobytes() for name, value in model.state_dict().items()}
    optimizers = state.optimizer if isinstance(state.optimizer, dict) else {"": state.optimizer}
    for prefix, optimizer in optimizers.items():
        if optimizer is not None:
            held = optimizer.state_dict()
            found[f"{prefix}optimizer"] = repr(held["state"]) + repr(held["param_groups"])
    schedulers = state.scheduler if isinstance(state.scheduler, dict) else {"": state.scheduler}
    found |= {f"{name}scheduler": repr(one and one.state_dict()) for name, one in schedulers.items()}
    found["rng"] = torch.get_rng_state().numpy().tobytes()
    return found
