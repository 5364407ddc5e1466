"""Optimizers: which of torch's look at whole tensors, by the names of their classes.

An optimizer that treats every element alike and by itself updates a part of a tensor as it would
update that part within the whole. One that looks at whole tensors, at their norm or their shape,
must be given whole tensors. torch does not say which is which, so there is a table.
"""

from __future__ import annotations

ELEMENT, TENSOR = "element", "tensor"
"""The kinds: each element from its own gradient and state alone, or whole tensors."""

_BY_ELEMENT = (
    "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adamax", "Adadelta", "ASGD",
    "Rprop",
)  # fmt: skip
_BY_TENSOR = ("Adafactor", "Muon")

KINDS: dict[str, str] = dict.fromkeys(_BY_ELEMENT, ELEMENT) | dict.fromkeys(_BY_TENSOR, TENSOR)
"""Name of a class of ``torch.optim`` -> its kind."""
