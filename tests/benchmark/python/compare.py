#!/usr/bin/env python3
"""Compares tidemark with PyTorch's own tools: the same networks, weights and threads, in one process
that alternates between the two languages, measured by one meter.

    compare.py --module DIR [--compiler COMMAND] [--rounds N] [--compiles N] [--threads N] [--out DIR]

Prints a Markdown table and writes comparison.md and comparison.svg. A ratio is C++ by Python: its
median over the rounds, and the interval that holds the true median with 99 % confidence. A goal is
met if the interval ends at it or below, and missed if it begins above. An interval with the goal
inside says "at the goal" if the median is at it or below and the interval ends within 2 % of it, else
"unknown": more rounds or a quieter machine may tell. Exit status 1 if gradients differ or a goal is missed or unknown.
"""

import argparse
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import torch

from goals import FEWEST, median_interval, verdict
from networks import NETWORKS, region


class PythonStep:
    """A step of a network in Python, with the interface of the module's Step."""

    def __init__(self, network):
        self.network = network

    def forward(self, x, checkpointed):
        return self.network(x, checkpointed).square().mean()

    def backward(self, loss):
        loss.backward()

    def zero_grad(self):
        self.network.zero_grad(set_to_none=True)

    def gradients(self):
        return [parameter.grad for parameter in self.network.parameters()]


def measure_step(step, x, checkpointed, Meter):
    """Seconds, held and peak bytes, and gradients of a step."""
    step.zero_grad()
    meter = Meter()
    begin = time.perf_counter()
    loss = step.forward(x, checkpointed)
    held = meter.current
    step.backward(loss)
    seconds = time.perf_counter() - begin
    return seconds, held, meter.peak, step.gradients()


def ratios(pairs):
    return median_interval([cpp / python for python, cpp in pairs])


def in_turn(round_, python, cpp):
    """Which side runs first changes from round to round, lest the second profits or suffers."""
    return (python, cpp) if round_ % 2 == 0 else (cpp, python)


class Table:

    def __init__(self):
        self.rows = []
        self.failed = []

    def add(self, what, unit, python, cpp, ratio, goal):
        """Adds a row; ratio is (median, low, high)."""
        said = "" if goal is None else self.judge(what, ratio, goal)
        self.rows.append((what, unit, python, cpp, ratio, goal, said))

    def judge(self, what, figure, goal):
        """What a figure, (median, low, high), says about its goal."""
        middle, low, high = figure
        said = verdict(middle, low, high, goal)
        if said in ("missed", "unknown"):
            self.failed.append(f"{said}: {what}, {middle:.3f} ({low:.3f} to {high:.3f}) where "
                               f"{goal:.3f} is the goal")
        return said

    def markdown(self):
        lines = [
            "| what | unit | Python | C++ | C++ / Python | 99 % interval | goal | |",
            "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
        ]
        for what, unit, python, cpp, (middle, low, high), goal, said in self.rows:
            wanted = "" if goal is None else f"{goal:.3g}"
            lines.append(f"| {what} | {unit} | {python:.4g} | {cpp:.4g} | {middle:.3f} | "
                         f"{low:.3f} to {high:.3f} | {wanted} | {said} |")
        return "\n".join(lines) + "\n"

    def svg(self):
        """A bar for each ratio, with its interval, and a mark where the goal is."""
        row, left, width = 22, 330, 360
        height = row * len(self.rows) + 40
        scale = lambda ratio: left + width * min(ratio, 1.5) / 1.5
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 90}" height="{height}" '
            'font-family="sans-serif" font-size="12">',
            f'<line x1="{scale(1)}" x2="{scale(1)}" y1="0" y2="{height - 25}" stroke="#888"/>',
            f'<text x="{scale(1)}" y="{height - 8}" text-anchor="middle">as Python</text>',
        ]
        for i, (what, _, _, _, (middle, low, high), goal, _) in enumerate(self.rows):
            y = 5 + i * row
            lines.append(f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{what}</text>')
            lines.append(f'<rect x="{left}" y="{y + 3}" width="{scale(middle) - left:.1f}" '
                         'height="12" fill="#4477aa"/>')
            lines.append(f'<line x1="{scale(low):.1f}" x2="{scale(high):.1f}" y1="{y + 9}" '
                         f'y2="{y + 9}" stroke="#000"/>')
            if goal is not None:
                lines.append(f'<line x1="{scale(goal):.1f}" x2="{scale(goal):.1f}" y1="{y}" '
                             f'y2="{y + 18}" stroke="#cc3311" stroke-width="2"/>')
            lines.append(f'<text x="{scale(max(middle, high)) + 6:.1f}" y="{y + 13}">{middle:.2f}</text>')
        return "\n".join(lines + ["</svg>"]) + "\n"


def compare_networks(table, module, rounds):
    """Step time, peak, held bytes, and the largest difference of gradients."""
    worst = 0.0
    for name, Network in NETWORKS.items():
        torch.manual_seed(1)
        network = Network()
        x = network.example()
        sides = {
            "Python": PythonStep(network),
            "C++": module.Step(name, list(network.named_parameters())),
        }
        for checkpointed in (False, True):
            seconds = {side: [] for side in sides}
            held, peak, gradients = {}, {}, {}
            for round_ in range(rounds + 1):
                for side in in_turn(round_, *sides):
                    time_, held[side], peak[side], gradients[side] = measure_step(
                        sides[side], x, checkpointed, module.Meter)
                    if round_ > 0:  # the first one allocates what stays
                        seconds[side].append(time_)
            worst = max([worst] + [
                (a - b).abs().max().item()
                for a, b in zip(gradients["Python"], gradients["C++"])
            ])
            what = f"{name}, {'checkpointed' if checkpointed else 'plain'}"
            pairs = list(zip(seconds["Python"], seconds["C++"]))
            table.add(f"{what}: step", "ms", 1e3 * statistics.median(seconds["Python"]),
                      1e3 * statistics.median(seconds["C++"]), ratios(pairs), 1.0)
            for figure, values in (("peak", peak), ("held", held)):
                ratio = values["C++"] / values["Python"]
                table.add(f"{what}: {figure}", "MiB", values["Python"] / 2**20,
                          values["C++"] / 2**20, (ratio, ratio, ratio),
                          1.0 if figure == "peak" else None)
    return worst


def per_call(function, count):
    begin = time.perf_counter()
    for _ in range(count):
        function()
    return (time.perf_counter() - begin) / count


def python_region_seconds(ops, checkpointed, count):

    def chain(x):
        for _ in range(ops):
            x = x.sin()
        return x

    x = torch.ones(8).requires_grad_() * 1

    def step():
        y = region(chain, x) if checkpointed else chain(x)
        torch.autograd.grad(y.sum(), x)

    return per_call(step, count)


class NoStep(torch.optim.Optimizer):

    def __init__(self, parameters):
        super().__init__(parameters, {})

    def step(self, closure=None):
        return None


def python_scaler_seconds(parameters, count):
    leaves = [torch.ones(64).requires_grad_() for _ in range(parameters)]
    for leaf in leaves:
        leaf.grad = torch.ones(64)
    optimizer = NoStep(leaves)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    scaler.scale(torch.ones(()))

    def step():
        scaler.step(optimizer)
        scaler.update()

    return per_call(step, count)


def python_window_seconds(count):
    mlp = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(mlp.parameters(), 0.01)
    x = torch.ones(8, 16)

    def window():
        for _ in range(4):
            (mlp(x).square().mean() / 4).backward()
        torch.nn.utils.clip_grad_norm_(mlp.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return per_call(window, count)


def compare_overheads(table, module, rounds):
    """What a region, a scaler and a window cost by themselves."""

    def alternate(python, cpp):
        python(), cpp()
        pairs = []
        for round_ in range(rounds):
            seconds = {side: side() for side in in_turn(round_, python, cpp)}
            pairs.append((seconds[python], seconds[cpp]))
        return pairs

    def medians(pairs):
        return (statistics.median(python for python, _ in pairs),
                statistics.median(cpp for _, cpp in pairs))

    count = 300
    pairs = alternate(
        lambda: python_region_seconds(1, True, count) - python_region_seconds(1, False, count),
        lambda: module.region_seconds(1, True, count) - module.region_seconds(1, False, count))
    python, cpp = medians(pairs)
    table.add("a region of one op, above plain", "us", 1e6 * python, 1e6 * cpp, ratios(pairs), 1 / 20)
    for parameters in (10, 100, 1000):
        count = 20000 // parameters
        pairs = alternate(lambda: python_scaler_seconds(parameters, count),
                          lambda: module.scaler_seconds(parameters, count))
        python, cpp = medians(pairs)
        table.add(f"GradScaler step, {parameters} parameters", "us", 1e6 * python, 1e6 * cpp,
                  ratios(pairs), 1 / 3)
    pairs = alternate(lambda: python_window_seconds(300), lambda: module.window_seconds(300))
    python, cpp = medians(pairs)
    table.add("an accumulation window of 4, small MLP", "us", 1e6 * python, 1e6 * cpp, ratios(pairs),
              1.0)


def compile_seconds(command, rounds):
    """Seconds of the CPU that a source takes: (torch.h alone, with tidemark.h), once a round.

    Of the CPU, since a compiler runs on one core and other processes don't count then.
    """

    def spent():
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    includes = ("", "#include <tidemark/tidemark.h>\n")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "source.cpp"
        for round_ in range(rounds):
            seconds = {}
            for include in in_turn(round_, *includes):
                source.write_text(f"#include <torch/torch.h>\n{include}int main() {{}}\n")
                begin = spent()
                subprocess.run(f"{command} -c {source} -o {folder}/object.o", shell=True, check=True)
                seconds[include] = spent() - begin
            rows.append(tuple(seconds[include] for include in includes))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--module", required=True, help="folder of the extension module")
    parser.add_argument("--compiler", help="how to compile a source with tidemark and LibTorch")
    parser.add_argument("--rounds", type=int, default=45, help="how often all is timed")
    parser.add_argument("--compiles", type=int, default=21, help="how often a compile is timed")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."))
    arguments = parser.parse_args()
    if min(arguments.rounds, arguments.compiles) < FEWEST:
        parser.error(f"--rounds and --compiles must be at least {FEWEST}")
    sys.path.insert(0, arguments.module)
    import tidemark_comparison as module

    torch.set_num_threads(arguments.threads)
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:arguments.threads]))
    torch.use_deterministic_algorithms(True)

    table = Table()
    compare_overheads(table, module, arguments.rounds)
    worst = compare_networks(table, module, arguments.rounds)
    text = table.markdown()
    text += (f"\nLibTorch {torch.__version__}, {arguments.threads} thread(s), {arguments.rounds} "
             f"rounds. Largest difference of gradients between the two: {worst:g}.\n")
    if arguments.compiler:
        rows = compile_seconds(arguments.compiler, arguments.compiles)
        middle, low, high = more = median_interval([with_ - alone for alone, with_ in rows])
        alone = statistics.median(alone for alone, _ in rows)
        said = table.judge("seconds to include tidemark.h", more, 1.0)
        text += (f"To include tidemark/tidemark.h takes the compiler {middle:.2f} s ({low:.2f} to "
                 f"{high:.2f}, {arguments.compiles} rounds) more than the {alone:.1f} s of "
                 f"torch/torch.h alone; at most 1 s is wanted: {said}.\n")
    print(text)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "comparison.md").write_text(text, encoding="utf-8")
    (arguments.out / "comparison.svg").write_text(table.svg(), encoding="utf-8")
    if worst != 0:
        table.failed.append(f"gradients differ by {worst:g}")
    for failed in table.failed:
        print(failed)
    return 1 if table.failed else 0


if __name__ == "__main__":
    sys.exit(main())
