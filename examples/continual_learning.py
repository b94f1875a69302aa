"""Continual learning with replay and Lookbehind: python examples/continual_learning.py

Needs `pip install 'lookbehind[experiments]'`. Five tasks of two digits each come one after the other; what is measured
is how much of the earlier ones is left. Your own stream needs labels that count on from task to task, nothing else.
"""

import argparse
import random

import torch

from lookbehind import LookbehindSAM
from lookbehind.data.tasks import task_stream
from lookbehind.data.vision import load
from lookbehind.lifelong.heads import OneHead
from lookbehind.lifelong.learners import ReplayLearner
from lookbehind.lifelong.memory import Reservoir
from lookbehind.lifelong.metrics import average_accuracy, forgetting
from lookbehind.measures.accuracy import score
from lookbehind.models.convnet import StridedConvNet

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", default="digits", help="digits, cifar100, ...: its classes are divided into tasks")
parser.add_argument("--data-dir", default="data")
parser.add_argument("--classes-per-task", type=int, default=2)
parser.add_argument("--epochs", type=int, default=5, help="per task")
parser.add_argument("--memory", type=int, default=50, help="examples that are kept; 0: none")
parser.add_argument("--k", type=int, default=2, help="ascent steps of Lookbehind; 0: plain SGD")
parser.add_argument("--seed", type=int, default=0)


def main(arguments=None):
    """Learn all tasks, and give the matrix: accuracy on every task (column) after every task (row)."""
    args = parser.parse_args(arguments)
    torch.manual_seed(args.seed)
    stream = task_stream(load(args.data, args.data_dir), args.classes_per_task, args.seed)
    network = StridedConvNet(stream.classes, channels=stream.channels, size=stream.size, width=32, hidden=64)
    base = torch.optim.SGD(network.named_parameters(), lr=0.1)
    optimizer = LookbehindSAM(base, rho=0.05, k=args.k, alpha=0.5) if args.k else base
    learner = ReplayLearner(network, optimizer, Reservoir(args.memory), classes_per_task=args.classes_per_task)
    draws, matrix = random.Random(args.seed), []
    for task in stream.tasks:
        batches = stream.batches(task.train, size=10, seed=args.seed, augmentation="none", device="cpu")
        for epoch in range(args.epochs):
            for inputs, labels in batches.epoch(epoch):
                learner.learn(inputs, labels, draws, first_epoch=epoch == 0)
        matrix.append([accuracy(network, stream, one) for one in stream.tasks])
        print(f"after task {task.number + 1}:", *(f"{value:6.1f}" for value in matrix[-1]), flush=True)
    print(f"average accuracy {average_accuracy(matrix):.1f} %, forgetting {forgetting(matrix):.1f}")
    return matrix


def accuracy(network, stream, task):
    """On the test images of a task, among its own classes."""
    batches = stream.batches(task.test, size=10, seed=0, augmentation="none", device="cpu").plain()
    own = ((inputs, labels - task.first) for inputs, labels in batches)
    return score(OneHead(network, task.first, stream.classes_per_task), own).accuracy


if __name__ == "__main__":
    main()
