"""Train a small network on handwritten digits with SGD, SAM and Lookbehind: what does each gain, and what does it cost?

python examples/digits.py [--epochs 40] [--seeds 3]
"""

from __future__ import annotations

import argparse
import copy
import json
import math
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from time import process_time
from typing import Any

import torch
from rich import box, print
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader, TensorDataset

from lookbehind import SAM, LookbehindASAM, LookbehindSAM

METHODS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda base, **_: base,
    "SAM": partial(SAM, rho=0.05),
    "matched SAM": partial(SAM, rho=0.15),
    "LookbehindSAM": partial(LookbehindSAM, rho=0.05, k=5, alpha=0.5),
    "LookbehindASAM": partial(LookbehindASAM, rho=0.5, k=5, alpha=0.5),
}
# the control: at the same learning rate Lookbehind moves about alpha k times as far as SAM, and the mean reach of its
# points is rho (k + 1) / 2; SAM with both of these shows what is left
LEARNING_RATES = {"matched SAM": 0.05 * 0.5 * 5}
Rows = dict[str, dict[str, list[float]]]  # method -> measure -> one value per seed


def digits(generator: torch.Generator) -> tuple[TensorDataset, TensorDataset]:
    pixels, labels = map(torch.tensor, load_digits(return_X_y=True))
    images = pixels.float().reshape(-1, 1, 8, 8) / 16
    train, test = torch.randperm(len(images), generator=generator).tensor_split([300])
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def network() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> None:
    def closure() -> Any:  # the loss, a tensor; torch annotates step(closure) for floats only
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        return loss

    optimizer.step(closure)


def run(method: str, seed: int, epochs: int) -> dict[str, float]:
    """Train once and measure at the weights after the last epoch."""
    generator = torch.Generator().manual_seed(seed)  # split, order of images and noise: the same for all methods
    train, test = digits(generator)
    batches = DataLoader(train, batch_size=64, shuffle=True, generator=generator)
    torch.manual_seed(seed)
    model = network()
    base = torch.optim.SGD(model.named_parameters(), lr=LEARNING_RATES.get(method, 0.05), momentum=0.9)
    # batchnorm="first": statistics at perturbed weights are not those of the weights that are tested
    optimizer = METHODS[method](base, model=model, batchnorm="first")
    scheduler = CosineAnnealingLR(optimizer, T_max=epochs)
    start = process_time()
    for _ in range(epochs):
        for images, labels in batches:
            step(model, optimizer, images, labels)
        scheduler.step()
    return {
        "cpu_seconds": process_time() - start,
        "evaluations": getattr(optimizer, "evaluations", epochs * len(batches)),  # SGD: one per step
        "train_loss": evaluate(model, train)[1],
        "accuracy": evaluate(model, test)[0],
        "noisy_accuracy": mean(evaluate(noisy(model, train, generator), test)[0] for _ in range(5)),
    }


@torch.no_grad()
def evaluate(model: nn.Module, data: TensorDataset) -> tuple[float, float]:
    """Accuracy in percent and mean loss."""
    images, labels = data.tensors
    outputs = model.eval()(images)
    accuracy = (outputs.argmax(1) == labels).double().mean()
    return 100 * accuracy.item(), nn.functional.cross_entropy(outputs, labels).item()


@torch.no_grad()
def noisy(model: nn.Module, train: TensorDataset, generator: torch.Generator) -> nn.Module:
    """A copy with its weights multiplied by N(1, 0.3^2) and the BatchNorm statistics that belong to those."""
    model = copy.deepcopy(model)
    for parameter in model.parameters():
        parameter.mul_(torch.normal(1.0, 0.3, parameter.shape, generator=generator))
    update_bn([train.tensors[0]], model)  # a cumulative average over the training images
    return model


def run_all(seeds: int, epochs: int) -> Rows:
    jobs = [(method, seed) for seed in range(seeds) for method in METHODS]
    rows: Rows = {method: defaultdict(list) for method in METHODS}
    # spawn: torch's threads do not survive a fork; one thread each: as many runs at a time as there are cores
    pool = ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,))
    columns = TextColumn("{task.description:22}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    bar = Progress(*columns, speed_estimate_period=600)
    with pool, bar:
        task = bar.add_task("", total=len(jobs))
        results = pool.map(partial(run, epochs=epochs), *zip(*jobs, strict=True))
        for method, seed in jobs:
            bar.update(task, description=f"{method}, seed {seed}")
            for measure, value in next(results).items():
                rows[method][measure].append(value)
            bar.advance(task)
    return rows


def deviation(values: list[float]) -> float:
    return stdev(values) if len(values) > 1 else math.inf  # one seed says nothing about the others


def with_spread(values: list[float], sign: str = "") -> str:
    spread = f" ± {deviation(values):.1f}" if len(values) > 1 else ""
    return f"{mean(values):{sign}.1f}{spread}"


def report(rows: Rows) -> None:
    table = Table("method", box=box.SIMPLE_HEAD, title="Last epoch, mean ± standard deviation over the seeds")
    for head in ("test\naccuracy %", "with 30 %\nweight noise", "train\nloss", "gradient\nevaluations", "CPU\nseconds"):
        table.add_column(head, justify="right", no_wrap=True)
    for method, row in rows.items():
        loss, evaluations, seconds = (mean(row[measure]) for measure in ("train_loss", "evaluations", "cpu_seconds"))
        accuracies = with_spread(row["accuracy"]), with_spread(row["noisy_accuracy"])
        table.add_row(method, *accuracies, f"{loss:.3f}", f"{evaluations:,.0f}", f"{seconds:.1f}")
    print(table)
    for measure, name in (("accuracy", "Test accuracy"), ("noisy_accuracy", "Weight noise")):
        best = max(rows, key=lambda method: mean(rows[method][measure]))
        sgd = rows["SGD"][measure]  # compared seed by seed: same split, same first weights, same order of images
        gains = {method: [a - b for a, b in zip(row[measure], sgd, strict=True)] for method, row in rows.items()}
        clear = [f"  {method} {with_spread(g, '+')}" for method, g in gains.items() if abs(mean(g)) > deviation(g)]
        print(f"{name}: best mean {best}. Differences to SGD beyond their spread:")
        print("\n".join(clear) or "  none")
    ratios = {method: mean(row["evaluations"]) / mean(rows["SGD"]["evaluations"]) for method, row in rows.items()}
    costs = ", ".join(f"{method} {ratio:.3g}" for method, ratio in ratios.items() if method != "SGD")
    print(f"Gradients for one of SGD's:\n  {costs}")
    print("Matched SAM: as long a step and as wide a climb as LookbehindSAM's, at a third\nof its gradients.")


def positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text}: give a number of 1 or more")
    return number


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Compare SGD, SAM and Lookbehind on scikit-learn's digits.")
    parser.add_argument("--epochs", type=positive, default=40)
    parser.add_argument("--seeds", type=positive, default=3)
    options = parser.parse_args(argv)
    rows = run_all(options.seeds, options.epochs)
    report(rows)
    file = Path("out/demo/results.json")
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".tmp")  # so that a half-written file never passes for the results
    unfinished.write_text(json.dumps([{"method": method, **row} for method, row in rows.items()], indent=2))
    unfinished.replace(file)
    print(f"Values of every seed: {file}")


if __name__ == "__main__":
    main()
