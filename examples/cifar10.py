"""CIFAR-10 with Lookbehind in one file (pip install 'lookbehind[experiments]'): python examples/cifar10.py

A wide ResNet, crops and flips, a cosine schedule, a checkpoint after every epoch from which the same command goes on:
it takes a GPU and an evening. To see it run on a laptop:

    python examples/cifar10.py --data digits --model convnet --augmentation none --batch-size 32 --epochs 20
"""

import argparse
import os
import time
from pathlib import Path

import torch
from torch.nn import functional

from lookbehind import LookbehindSAM
from lookbehind.data.batches import Batches
from lookbehind.data.vision import load
from lookbehind.measures.accuracy import score
from lookbehind.models import build

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", default="cifar10", help="cifar10, cifar100, fashion-mnist or digits")
parser.add_argument("--data-dir", default="data", help="where its files are, or are put")
parser.add_argument("--model", default="wrn-28-2", help="as `lookbehind list models` shows them")
parser.add_argument("--augmentation", default="crop-flip")
parser.add_argument("--epochs", type=int, default=100)
parser.add_argument("--batch-size", type=int, default=128)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--rho", type=float, default=0.05)
parser.add_argument("--k", type=int, default=2)
parser.add_argument("--alpha", type=lambda word: word if word == "adaptive" else float(word), default=0.5)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--out", type=Path, help="the checkpoint; out/DATA-MODEL-seedN.pt if not given")


def main(arguments=None):
    """Train, and give the accuracy of every epoch."""
    args = parser.parse_args(arguments)
    args.out = args.out or Path("out") / f"{args.data}-{args.model}-seed{args.seed}.pt"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    data = load(args.data, args.data_dir)
    train = Batches(data.train, data.mean, data.std, args.batch_size, args.seed, args.augmentation, device)
    test = Batches(data.test, data.mean, data.std, args.batch_size, device=device)
    model = build(args.model, classes=data.classes, channels=data.channels)
    model.to(device, memory_format=torch.channels_last)

    base = torch.optim.SGD(model.named_parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
    optimizer = LookbehindSAM(base, rho=args.rho, k=args.k, alpha=args.alpha, model=model, batchnorm="first")
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(base, args.epochs * len(train))

    parts, accuracies = (model, optimizer, scheduler), []
    if args.out.exists():
        saved = torch.load(args.out, map_location=device, weights_only=True)
        accuracies = saved["accuracies"]
        for part, state in zip(parts, saved["parts"], strict=True):
            part.load_state_dict(state)
        print(f"going on after epoch {len(accuracies)} of {args.out}")

    for epoch in range(len(accuracies), args.epochs):
        began, total = time.monotonic(), torch.zeros((), device=device)
        model.train()
        for inputs, labels in train.epoch(epoch):

            def closure(inputs=inputs, labels=labels):
                optimizer.zero_grad()
                with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                    loss = functional.cross_entropy(model(inputs), labels)
                loss.backward()
                return loss

            total += optimizer.step(closure).detach()  # the loss at the weights before the step
            scheduler.step()
        accuracies.append(score(model, test.plain()).accuracy)
        seconds, loss = time.monotonic() - began, float(total) / len(train)
        print(f"epoch {epoch + 1}: loss {loss:.4f}, test accuracy {accuracies[-1]:.2f} %, {seconds:.1f} s", flush=True)

        args.out.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"accuracies": accuracies, "parts": [part.state_dict() for part in parts]}, f"{args.out}.new")
        os.replace(f"{args.out}.new", args.out)  # all of it or nothing, whenever the power fails
    return accuracies


if __name__ == "__main__":
    main()
