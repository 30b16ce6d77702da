"""Train a small model, be killed in the middle of it, and go on as if nothing had happened. NumPy is all it needs.

    python train_resume.py RUN [--kill-at STEP]

The same with a model of PyTorch: give TrainingState the model, the optimizer, the scheduler and a ResumableLoader, or leave the loop to
`firekeep.learner.Learner`.
"""

import argparse
import os
import signal
from itertools import islice
from pathlib import Path

import numpy as np

from firekeep.checkpoint import CheckpointManager
from firekeep.module import Linear, Module, Tanh, walk
from firekeep.schedulers import Cosine
from firekeep.training import ResumableSampler, TrainingState

EPOCHS, BATCH = 6, 16


class Net(Module):
    hidden: Linear
    output: Linear

    def __call__(self, x):
        return self.output(Tanh()(self.hidden(x)))


def gradients(net, x, target):
    """Give the loss of a batch, and its gradient for each parameter."""
    hidden = Tanh()(net.hidden(x))
    error = net.output(hidden) - target
    at_output = 2 / len(x) * error
    at_hidden = at_output @ net.output.weight.value.T * (1 - hidden**2)
    found = {
        "hidden.weight": x.T @ at_hidden,
        "hidden.bias": at_hidden.sum(axis=0),
        "output.weight": hidden.T @ at_output,
        "output.bias": at_output.sum(axis=0),
    }
    return float((error**2).mean()), found


def main(folder, kill_at):
    points = np.linspace(-3, 3, 200, dtype=np.float32)[:, None]
    net = Net(hidden=Linear(1, 32, rng=0), output=Linear(32, 1, rng=1))
    parameters = {visited.path: visited.param for visited in walk(net)}
    still = {name: np.zeros_like(one.value) for name, one in parameters.items()}
    schedule = Cosine(initial=0.05, iterations=EPOCHS * -(-len(points) // BATCH), clamp=True)
    order = ResumableSampler(len(points), seed=0)
    np.random.seed(0)

    state = TrainingState(model=net, scheduler=schedule, data=order, values={"velocity": still, "losses": []})
    with CheckpointManager(folder, every=10) as manager, manager.handle_signals():
        if manager.latest():
            print("going on:", manager.restore(state))
        while state.epoch < EPOCHS:
            indices = iter(order)
            while batch := list(islice(indices, BATCH)):
                # Random numbers of the process matter, too: each step adds noise of its own.
                x = points[batch] + np.random.normal(scale=0.02, size=(len(batch), 1)).astype(np.float32)
                loss, found = gradients(net, x, np.sin(2 * points[batch]))
                rate = np.float32(schedule.step())
                velocity = state.values["velocity"]
                for name, parameter in parameters.items():
                    velocity[name] = np.float32(0.9) * velocity[name] - rate * found[name]
                    parameter.value = parameter.value + velocity[name]
                state.values["losses"].append(loss)
                state.step += 1
                if state.step == kill_at:
                    print(f"step {state.step}: loss {loss!r}, and now this process is killed", flush=True)
                    os.kill(os.getpid(), signal.SIGKILL)
                if manager.tick(state, step=state.step):
                    return
            state.epoch += 1
            order.set_epoch(state.epoch)
            print(f"epoch {state.epoch}: step {state.step}, loss {loss!r}")
        manager.save(state, step=state.step, overwrite=True)
    Path(folder, "losses.txt").write_text("".join(f"{loss!r}\n" for loss in state.values["losses"]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", help="the directory of the checkpoints")
    parser.add_argument("--kill-at", type=int, metavar="STEP", help="kill the process after this step")
    arguments = parser.parse_args()
    main(arguments.run, arguments.kill_at)
