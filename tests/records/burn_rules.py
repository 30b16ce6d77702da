"""Burn's update rules in NumPy: what a run in Burn makes of a record. States go by Burn's names of fields."""

from __future__ import annotations

from typing import Any

import numpy as np

State = dict[str, Any]


def sgd(theta: Any, grad: Any, state: State, options: dict[str, Any]) -> Any:
    state["momentum.velocity"] = (1 - options["dampening"]) * grad + options["momentum"] * state["momentum.velocity"]
    velocity = state["momentum.velocity"]
    return theta - options["lr"] * (options["momentum"] * velocity + grad if options["nesterov"] else velocity)


def adam(theta: Any, grad: Any, state: State, options: dict[str, Any]) -> Any:
    first, second = options["betas"]
    state["momentum.time"] += 1
    time = state["momentum.time"]
    mean = state["momentum.moment_1"] = first * state["momentum.moment_1"] + (1 - first) * grad
    square = state["momentum.moment_2"] = second * state["momentum.moment_2"] + (1 - second) * grad**2
    if "momentum.max_moment_2" in state:
        square = state["momentum.max_moment_2"] = np.maximum(state["momentum.max_moment_2"], square)
    root = np.sqrt(1 - second**time)
    theta = theta * (1 - options["lr"] * options.get("decay", 0.0))
    return theta - options["lr"] * mean * (root / (1 - first**time)) / (np.sqrt(square) + options["eps"] * root)


def adagrad(theta: Any, grad: Any, state: State, options: dict[str, Any]) -> Any:
    state["lr_decay.time"] += 1
    state["lr_decay.sum"] = state["lr_decay.sum"] + grad**2
    rate = options["lr"] / (1 + (state["lr_decay.time"] - 1) * options["lr_decay"])
    return theta - rate * grad / (np.sqrt(state["lr_decay.sum"]) + options["eps"])


def rmsprop(theta: Any, grad: Any, state: State, options: dict[str, Any]) -> Any:
    alpha = options["alpha"]
    square = state["square_avg.square_avg"] = alpha * state["square_avg.square_avg"] + (1 - alpha) * grad**2
    if options["centered"]:
        mean = state["centered.grad_avg"] = alpha * state["centered.grad_avg"] + (1 - alpha) * grad
        square = square - mean**2
    state["centered.avg"] = square
    step = grad / (np.sqrt(square) + options["eps"])
    if options["momentum"]:
        step = state["momentum.buf"] = options["momentum"] * state["momentum.buf"] + step
    return theta - options["lr"] * step


def adafactor(theta: Any, grad: Any, state: State, options: dict[str, Any]) -> Any:
    state["time"] += 1
    time = state["time"]
    decay = 1 - time ** options["beta2_decay"]
    square = grad**2 + 1e-30
    if theta.ndim > 1:
        rows = decay * state["second_moment"] + (1 - decay) * square.mean(-1, keepdims=True)
        columns = decay * state["column_second_moment"] + (1 - decay) * square.mean(-2, keepdims=True)
        state["second_moment"], state["column_second_moment"] = rows, columns
        update = grad / (np.sqrt(rows / rows.mean(-2, keepdims=True)) * np.sqrt(columns))
    else:
        state["second_moment"] = decay * state["second_moment"] + (1 - decay) * square
        update = grad / np.sqrt(state["second_moment"])
    update = update / max(1.0, float(np.sqrt((update**2).mean())) / options["d"])
    rate = min(options["lr"], 1 / np.sqrt(time)) * max(1e-3, float(np.sqrt((theta**2).mean())))
    return theta * (1 - options["lr"] * options["weight_decay"]) - rate * update


def muon(theta: Any, grad: Any, state: State, options: dict[str, Any]) -> Any:
    state["momentum.velocity"] = options["momentum"] * state["momentum.velocity"] + grad
    step = grad + options["momentum"] * state["momentum.velocity"]
    made = step.T if step.shape[0] > step.shape[1] else step
    made = made / max(float(np.sqrt((made**2).sum())), options["eps"])
    a, b, c = options["ns_coefficients"]
    for _ in range(options["ns_steps"]):
        gram = made @ made.T
        made = a * made + (b * gram + c * gram @ gram) @ made
    made = made.T if step.shape[0] > step.shape[1] else made
    rate = options["lr"] * max(1.0, theta.shape[0] / theta.shape[1]) ** 0.5
    return theta * (1 - options["lr"] * options["weight_decay"]) - rate * made
