"""How sharp is the minimum that your network sits in? python examples/sharpness_of_checkpoint.py

Put your own model, checkpoint, data and loss into the three functions; torch alone is enough. Without a checkpoint it
trains two small networks first, one with SGD and one with SAM, to have something to compare.
"""

import sys

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from lookbehind import SAM
from lookbehind.measures.curvature import curvature
from lookbehind.measures.noise import robustness
from lookbehind.measures.sharpness import m_sharpness

RADII, SIGMAS = (0.05, 0.2, 0.5), (0.1, 0.3)


def make_model():
    torch.manual_seed(0)
    layers = (
        torch.nn.Linear(20, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 2),
    )
    return torch.nn.Sequential(*layers)


def batches():
    inputs = torch.randn(300, 20, generator=torch.Generator().manual_seed(1))
    labels = (inputs[:, :3].prod(1) > 0).long()
    return DataLoader(TensorDataset(inputs, labels), batch_size=50)  # the batch size is the m of m-sharpness


def loss(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1])


def measure(model):
    """All numbers of a network; it is the same, bit for bit, afterwards."""
    sharpness = m_sharpness(model, loss, batches(), radii=RADII)  # one gradient per minibatch serves all radii
    noisy = robustness(model, batches, SIGMAS, draws=5)
    bent = curvature(model, loss, batches)
    return {
        "loss": sharpness.loss,
        **{f"sharpness, radius {radius:g}": value for radius, value in zip(RADII, sharpness.values, strict=True)},
        **{f"accuracy with noise {sigma:g} %": value for sigma, value in zip(SIGMAS, noisy.mean, strict=True)},
        "largest eigenvalue of the Hessian": bent.eigenvalues[0],
        "trace of the Hessian": bent.trace,
        "norm of the weights": sharpness.weight_norm,  # compare sharpness only where these are alike
    }


def trained(make_optimizer, epochs=60):
    model = make_model()
    optimizer = make_optimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    for _ in range(epochs):
        for batch in batches():

            def closure(batch=batch):
                optimizer.zero_grad()
                value = loss(model, batch)
                value.backward()
                return value

            optimizer.step(closure)
    return model


def main(checkpoints):
    """Measure the checkpoints that are given, each the state_dict of ``make_model()``."""
    if checkpoints:
        models = {}
        for path in checkpoints:
            models[path] = make_model()
            models[path].load_state_dict(torch.load(path, weights_only=True))
    else:
        models = {
            "trained with SGD": trained(lambda base: base),
            "trained with SAM": trained(lambda b: SAM(b, rho=0.2)),
        }
    found = {name: measure(model) for name, model in models.items()}
    for name, numbers in found.items():
        print(name, *(f"  {what:35} {value:10.4f}" for what, value in numbers.items()), sep="\n")
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
