"""Made-up comparisons to draw reports of: usual, crowded, diverged, hostile."""

from __future__ import annotations

import math
import random

from lookbehind.experiments.pictures import pictures
from lookbehind.experiments.report import About, render
from lookbehind.experiments.results import Curve, over_levels, spread

HOSTILE = "<script>alert('x')</script>&\"$x_1$[bold red]"
LONG = "lookbehind-asam:k=10,alpha=adaptive"
ABOUT = About(
    title="digits, <convnet>",
    command="lookbehind compare --methods 'a & b'",
    settings={"data": "digits", "epochs": 12, "lr": 0.1, "warmup": None},
    versions={"lookbehind": "0.1", "torch": "2.6"},
    machine="2 cores",
    started="2025-01-01T10:00:00",
    seconds=4321.0,
    notices=["data files are not the official ones by MD5"],
)


def row(method, values, cost=1, seeds=None):
    """A row with these accuracies; None is a run that diverged."""
    others = {
        name: spread([None if v is None else v + shift for v in values])
        for name, shift in {"best_accuracy": 0.5, "recalibrated_accuracy": 0.1, "train_accuracy": 3.0}.items()
    }
    return {
        "method": method,
        "settings": {"lr": 0.1, "rho": 0.05},
        "seeds": list(range(len(values))) if seeds is None else seeds,
        "accuracy": spread(values),
        "validation_accuracy": spread([None] * len(values)),
        "train_loss": spread([None if v is None else (100 - v) / 200 for v in values]),
        "test_loss": spread([None if v is None else (100 - v) / 50 for v in values]),
        "alpha": spread([None] * len(values)),
        "gradient_evaluations": round(1200 * cost),
        "epochs": 12.0,
        "seconds": spread([10.0 * cost + 0.1 * i for i in range(len(values))]),
        "diverged": sum(v is None for v in values),
        **others,
    }


def curve(final, seed=0, cost=1, alpha=None, epochs=12):
    """A run that climbs to its final accuracy, or diverges in its middle."""
    noise = random.Random(seed)
    climb = [(final or 60.0) - 50 * math.exp(-e / 3) - noise.random() * (epochs - e) / 9 for e in range(1, epochs + 1)]
    test = [a if final is not None or e < epochs // 2 else None for e, a in enumerate(climb)]
    steps = range(1, epochs + 1)
    return Curve(
        seed=seed,
        epochs=[float(e) for e in steps],
        gradient_evaluations=[round(100 * cost * e) for e in steps],
        test_accuracy=test,
        train_accuracy=test,
        loss=[None if a is None else 3 * math.exp(-e / 3) for e, a in zip(steps, test, strict=True)],
        lr=[0.1] * epochs,
        alpha=[0.9 - 0.03 * e if alpha == "adaptive" else alpha for e in steps],
    )


def compared(*methods):
    """Rows, and curves that end where the rows do, of (method, accuracies, cost)."""
    rows = [row(method, values, cost) for method, values, cost in methods]
    curves = {
        method: [curve(v, seed, cost, "adaptive" if "adaptive" in method else None) for seed, v in enumerate(values)]
        for method, values, cost in methods
    }
    return rows, curves


TYPICAL = (
    ("sgd", [90.0, 91.0, 92.0], 1),
    ("sam", [90.5, 91.4, 92.9], 2),
    ("lookbehind-sam", [91.0, 92.1, 92.9], 6),
    (LONG, [91.0, None, 93.0], 11),
    ("sam-matched", [90.9, 92.2, 92.8], 2),
    (HOSTILE, [80.0, 85.0, 84.0], 3),
)
MANY = tuple((f"lookbehind-asam:k={k},alpha=adaptive", [90 + 0.1 * k, 91.0, None], k + 1) for k in range(25))
DEAD = (("sgd", [None, None], 1), ("sam", [None, None], 2))
CASES = {
    "typical": TYPICAL,
    "many": MANY,
    "dead": DEAD,
    "dead baseline": (DEAD[0], ("sam", [90.0, 91.0], 2)),
    "one method": (("lookbehind-sam", [90.0], 6),),
    "one seed": (("sgd", [90.0], 1), (HOSTILE, [91.0], 2)),
    "no gradients": (("sgd", [90.0, 91.0], 0), ("sam", [90.0, 91.0], 0)),
    "chance level": (*TYPICAL, ("sam:rho=50", [10.0, 10.0, 10.0], 2)),
}


def with_measures(rows, seeds=3):
    """The same rows with every measure, as if it had been taken of so many seeds."""

    def levels(name, at, value):
        return over_levels(name, at, [[value(x) * (1 + 0.05 * seed) for x in at] for seed in range(seeds)])

    found = []
    for i, one in enumerate(rows, 1):
        places = [-1.0, -0.5, 0.0, 0.5, 1.0]
        slope = levels("places", places, lambda x, i=i: 0.1 + i * x * x)
        slope["plane"] = [[None if a == b == 1.0 else 0.1 + i * (a * a + b * b) for b in places] for a in places]
        found.append(
            {
                **one,
                "sharpness": levels("radii", [0.05, 1.0, 5.0], lambda x, i=i: i * x),
                "asam_sharpness": levels("radii", [0.5, 5.0], lambda x, i=i: i * x),
                "noise": levels("sigmas", [0.0, 0.25, 0.5], lambda x, i=i: 90 - 40 * x - i),
                "analog": levels("sigmas", [0.0, 0.1], lambda x, i=i: 90 - 40 * x - i),
                "quantisation": levels("bits", [8, 4, 2], lambda x, i=i: 80 + x - i),
                "landscape": slope,
                "towards": levels("places", [0.0, 0.5, 1.0], lambda x: 0.1 + x * (1 - x)),
                "curvature": {"largest_eigenvalue": spread([10.0, 12.0, 14.0]), "trace": spread([2345.6, 40.0, 41.0])},
                "weight_norm": spread([3.0, 4.0, 5.0]),
            }
        )
    return found


def page(*methods):
    """The report of made-up methods."""
    rows, curves = compared(*methods)
    return render(ABOUT, rows, pictures(rows, curves))


def measured_page(*methods):
    """The same with every measure."""
    rows, curves = compared(*methods)
    rows = with_measures(rows)
    return render(ABOUT, rows, pictures(rows, curves))
