"""Optimizers: which of torch's look at whole tensors, by the names of their classes.

An optimizer that treats every element alike and by itself updates a part of a tensor as it would
update that part within the whole. One that looks at whole tensors, at their norm or their shape,
must be given whole tensors. torch does not say which is which, so there is a table.
"""

from __future__ import annotations

from syncopate.errors import UnknownNameError

ELEMENT, TENSOR = "element", "tensor"
"""The kinds: each element from its own gradient and state alone, or whole tensors."""

_BY_ELEMENT = (
    "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adamax", "Adadelta", "ASGD",
    "Rprop",
)  # fmt: skip
_BY_TENSOR = ("Adafactor", "Muon")

KINDS: dict[str, str] = dict.fromkeys(_BY_ELEMENT, ELEMENT) | dict.fromkeys(_BY_TENSOR, TENSOR)
"""Name of a class of ``torch.optim`` -> its kind."""


def kind_named(name: str) -> str:
    """Return the kind of an optimizer by its name, or by that of its kind.

    Raises:
        UnknownNameError: no such name; lists those there are.

    Example:
        >>> kind_named("Muon"), kind_named("element")
        ('tensor', 'element')
    """
    known = KINDS | {kind: kind for kind in (ELEMENT, TENSOR)}
    if name not in known:
        raise UnknownNameError("optimizer", name, known)
    return known[name]
