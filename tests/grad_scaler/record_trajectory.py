#!/usr/bin/env python3
"""Records what torch.amp.GradScaler does over random steps, for training_test.cpp to repeat.

    python3 tests/grad_scaler/record_trajectory.py > tests/grad_scaler/data/trajectory.csv

Each optimizer is an SGD that holds one weight w, with the loss w * x. Lines are

    config,<name>,<init_scale>,<growth_factor>,<backoff_factor>,<growth_interval>,<optimizers>
    step,<action>,<x of each optimizer>,<scale>,<growth tracker>,<w of each optimizer>

with float32 numbers as their bits in hex, lists separated by spaces and x = "none" for an optimizer
whose weight gets no gradient. An action comes before the update: "interval=N" sets growth_interval,
"scale=X" makes it update(X). Scale, tracker and w are those after the update.
"""

import random
import struct

import torch

STEPS = 500
LEARNING_RATE = 0.125


def bits(number):
    return struct.pack(">f", number).hex()


def draw_inputs(rng, optimizers, magnitude):
    """At least one is not None: Python's scaler refuses an update without gradients."""
    inputs = []
    for _ in range(optimizers):
        chance = rng.random()
        if chance < 0.06:
            inputs.append(float("inf") if rng.random() < 0.5 else -float("inf"))
        elif chance < 0.10:
            inputs.append(float("nan"))
        elif chance < 0.25 and optimizers > 1:
            inputs.append(None)
        else:
            inputs.append(struct.unpack(">f", bytes.fromhex(bits(rng.gauss(0, magnitude))))[0])
    return inputs if any(x is not None for x in inputs) else draw_inputs(rng, optimizers, magnitude)


def draw_action(rng, step):
    """Intervals only rise: once below the tracker, Python's scaler never grows again."""
    if step % 40 == 39:
        return "interval=" + str(3 + step // 40)
    if step % 70 == 69:
        return "scale=" + bits(rng.uniform(1, 1000))
    return ""


def record(name, init, growth, backoff, interval, optimizers, magnitude=1.0, actions=False):
    print("config", name, init, growth, backoff, interval, optimizers, sep=",")
    rng = random.Random(name)
    scaler = torch.amp.GradScaler(
        "cpu",
        init_scale=init,
        growth_factor=growth,
        backoff_factor=backoff,
        growth_interval=interval,
    )
    weights = [torch.ones(1, requires_grad=True) for _ in range(optimizers)]
    sgds = [torch.optim.SGD([w], lr=LEARNING_RATE) for w in weights]
    for step in range(STEPS):
        inputs = draw_inputs(rng, optimizers, magnitude)
        action = draw_action(rng, step) if actions else ""
        for weight, sgd, x in zip(weights, sgds, inputs):
            sgd.zero_grad()
            if x is not None:
                scaler.scale((weight * x).sum()).backward()
                scaler.step(sgd)
        if action.startswith("interval="):
            scaler.set_growth_interval(int(action.split("=")[1]))
        if action.startswith("scale="):
            scaler.update(struct.unpack(">f", bytes.fromhex(action.split("=")[1]))[0])
        else:
            scaler.update()
        print(
            "step",
            action,
            " ".join("none" if x is None else bits(x) for x in inputs),
            bits(scaler.get_scale()),
            scaler.state_dict()["_growth_tracker"],
            " ".join(bits(w.item()) for w in weights),
            sep=",",
        )


def main():
    print("# by record_trajectory.py with torch " + torch.__version__)
    record("short_interval", 65536.0, 2.0, 0.5, 5, optimizers=1)
    record("odd_factors", 3000.7, 1.37, 0.61, 1, optimizers=3)
    record("near_overflow", 2.0**120, 16.0, 0.25, 2, optimizers=2, magnitude=1e-30)
    record("actions", 65536.0, 2.0, 0.5, 2, optimizers=2, actions=True)


if __name__ == "__main__":
    main()
