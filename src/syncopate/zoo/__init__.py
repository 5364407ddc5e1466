"""Zoo: small models, real data and replayed workloads for demos, tests and benchmarks."""

from syncopate.zoo.data import Digits, digits
from syncopate.zoo.lenet5 import LeNet5, lenet5
from syncopate.zoo.replay import Delivered, Replay, ReplayOptimizer, replay
from syncopate.zoo.resnet import ResNet20, ResNet50, resnet20, resnet50
from syncopate.zoo.task import Task

__all__ = [
    "Delivered",
    "Digits",
    "LeNet5",
    "Replay",
    "ReplayOptimizer",
    "ResNet20",
    "ResNet50",
    "Task",
    "digits",
    "lenet5",
    "replay",
    "resnet20",
    "resnet50",
]
