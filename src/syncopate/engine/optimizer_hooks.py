"""Optimizer hooks: the engine's hooks on a step run next to the update, inside the user's.

While an optimizer updates, its groups may hold pieces in the place of parameters, and what it has
updated is on its way afterwards. A user's hook before a step sees parameters and averaged
gradients, and one after it the new parameters, whenever it was registered: the engine's hook before
the update is the last of them, and the one after it the first.

[Note: How the order is kept]
Torch calls the global hooks before a step first, and then goes through the optimizer's own. So a
global hook puts the own ones in order before torch goes through them, by moving the engine's to
the end and to the front of the dictionaries that torch keeps. Hooks stay registered where they
were, so that their handles remove them, and copies of the optimizer have none of ours.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from syncopate.engine.torch_compat import step_hooks


class Innermost(NamedTuple):
    """The engine's hooks on one optimizer's step."""

    before: RemovableHandle
    after: RemovableHandle

    def remove(self) -> None:
        """Take both off."""
        self.before.remove()
        self.after.remove()


_innermost: weakref.WeakKeyDictionary[Optimizer, list[Innermost]] = weakref.WeakKeyDictionary()
"""Optimizer -> the hooks of the engines of what it trains, in the order of their making."""

_ordering: list[RemovableHandle] = []
"""The global hook, once there is something to put in order."""


def register(
    optimizer: Optimizer, begins: Callable[..., None], ends: Callable[..., None]
) -> Innermost:
    """Call ``begins`` before and ``ends`` after every update of ``optimizer``, as step hooks."""
    made = Innermost(
        optimizer.register_step_pre_hook(begins), optimizer.register_step_post_hook(ends)
    )
    _innermost.setdefault(optimizer, []).append(made)
    if not _ordering:
        _ordering.append(register_optimizer_step_pre_hook(_put_in_order))
    return made


def _put_in_order(optimizer: Optimizer, *_: Any) -> None:
    """See [Note: How the order is kept]."""
    before, after = step_hooks(optimizer)
    ours = [each for each in _innermost.get(optimizer, ()) if each.before.id in before]
    for each in ours:
        before.move_to_end(each.before.id)
    for each in reversed(ours):
        after.move_to_end(each.after.id, last=False)
