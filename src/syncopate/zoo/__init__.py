"""Zoo: models, real data and replayed workloads for demos, tests and benchmarks."""

from syncopate.zoo.alexnet import AlexNet, alexnet
from syncopate.zoo.bert import Bert, bert_large
from syncopate.zoo.char_gpt import CharGPT, char_gpt
from syncopate.zoo.data import Digits, digits
from syncopate.zoo.decoder import Decoder, decoder_1b, decoder_8b
from syncopate.zoo.googlenet import GoogLeNet, googlenet
from syncopate.zoo.lenet5 import LeNet5, lenet5
from syncopate.zoo.replay import Replay, ReplayOptimizer, replay
from syncopate.zoo.resnet import ResNet20, ResNet50, resnet20, resnet50
from syncopate.zoo.task import Task
from syncopate.zoo.text import Text, python_text
from syncopate.zoo.vgg import VGG11, vgg11

__all__ = [
    "VGG11",
    "AlexNet",
    "Bert",
    "CharGPT",
    "Decoder",
    "Digits",
    "GoogLeNet",
    "LeNet5",
    "Replay",
    "ReplayOptimizer",
    "ResNet20",
    "ResNet50",
    "Task",
    "Text",
    "alexnet",
    "bert_large",
    "char_gpt",
    "decoder_1b",
    "decoder_8b",
    "digits",
    "googlenet",
    "lenet5",
    "python_text",
    "replay",
    "resnet20",
    "resnet50",
    "vgg11",
]
