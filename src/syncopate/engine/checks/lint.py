"""Lint: what in a model and its optimizers ``distribute`` refuses, or what keeps work from overlap.

It needs no other rank, and leaves model and optimizers as they are. What is refused is found by the
checks of :func:`~syncopate.engine.checks.soundness.checks` themselves, for each module, parameter
and optimizer, and then by all of them in their row; what waits, by what the engine asks when it
decides whether a step is deferred.
"""

from __future__ import annotations

import inspect
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from syncopate.collectives.messages.piggyback import ride_of
from syncopate.engine.checkpoint import listed
from syncopate.engine.checks import soundness
from syncopate.engine.checks.findings import (
    COSTS,
    DIFFERS,
    EFFECTS,
    REFUSED,
    WAITS,
    Checked,
    Finding,
)
from syncopate.engine.checks.sparse import sparse_embeddings
from syncopate.engine.exchange import groups
from syncopate.engine.exchange.optimizers import changed_from, kind_of, known_base, step_of
from syncopate.engine.exchange.proxies.weights import asked_parameters, scripted_modules
from syncopate.engine.model import ownership
from syncopate.engine.selfplan.wishes import Wishes
from syncopate.engine.torch_compat import step_hooks
from syncopate.errors import EngineError, SyncopateError
from syncopate.units import dtype_name


class _Subject(NamedTuple):
    """What is looked at.

    Attributes:
        model: the model.
        optimizers: by name.
        given: the arguments of ``distribute``, as far as they are known.
        ignored: names of what every rank keeps for itself.
        shared: the other parameters, by name.
    """

    model: nn.Module
    optimizers: tuple[tuple[str, torch.optim.Optimizer], ...]
    given: soundness.Given
    ignored: frozenset[str]
    shared: list[tuple[str, nn.Parameter]]

    @property
    def trained(self) -> list[tuple[str, nn.Parameter]]:
        """The parameters that ranks share and train, those without a shape left out."""
        return [
            (name, each)
            for name, each in self.shared
            if each.requires_grad and not nn.parameter.is_lazy(each)
        ]


def check(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    *,
    ignore: Iterable[str] = (),
    broadcast_buffers: bool = True,
) -> Checked:
    """Say what ``distribute`` refuses in a model and its optimizer, and what does not overlap.

    Needs no process group and no other rank, runs nothing, and leaves model and optimizer as they
    are. What a forward or the training loop does is not seen: closures given to ``step``,
    parameters that a loss does not reach, memory of weights that a script keeps.

    Args:
        model: as it would be given to :func:`syncopate.distribute`.
        optimizer: likewise; one, a list of several, or none.
        ignore: as ``distribute`` has it.
        broadcast_buffers: as ``distribute`` has it.

    Returns:
        The findings, none where there is nothing to say. ``print`` shows them.

    Raises:
        InvalidValueError: ``model`` is no module, or ``optimizer`` no optimizer.
        EngineError: ``ignore`` names no parameter or buffer of the model.

    Example:
        >>> from torch import nn, optim
        >>> model = nn.Sequential(nn.Embedding(9, 2, sparse=True), nn.Linear(2, 2))
        >>> found = check(model, optim.SGD(model.parameters(), lr=0.1))
        >>> [(each.effect, each.what, each.where) for each in found.findings]
        [('waits', 'an embedding with sparse gradients', ('0',))]
    """
    given = soundness.Given(None, Wishes(), broadcast_buffers, tuple(ignore))
    ignored = soundness.ignored_names(model, given.ignore)
    several = optimizer if isinstance(optimizer, list | tuple) else [optimizer]
    known = list(dict.fromkeys(listed([each for each in several if each is not None])))
    names = [type(each).__name__ for each in known]
    if len(known) > 1:
        names = [f"optimizer {place}, {name}" for place, name in enumerate(names)]
    shared = soundness.shared_parameters(model, ignored)
    subject = _Subject(model, tuple(zip(names, known, strict=True)), given, ignored, shared)
    found = [each for look in _LOOKS for each in look(subject) if each.where]
    found += _row(subject, found)
    found.sort(key=lambda each: EFFECTS.index(each.effect))
    return Checked(" and ".join([type(model).__name__, *names]), tuple(found))


# -- what is refused -----------------------------------------------------------------------------


def _modules(subject: _Subject) -> Iterator[Finding]:
    named = subject.model.named_modules()
    yield from _refused(
        "a module that is trained over ranks already", named, soundness.require_plain
    )


def _parameters(subject: _Subject) -> Iterator[Finding]:
    buffers = subject.model.named_buffers() if subject.given.broadcast_buffers else ()
    named = [*subject.shared, *((name, b) for name, b in buffers if name not in subject.ignored)]
    yield from _refused("a tensor without a shape", named, soundness.require_shape)
    plain = [(name, each) for name, each in subject.shared if not nn.parameter.is_lazy(each)]
    what = "a parameter that is no plain tensor with values"
    yield from _refused(what, plain, soundness.require_parameter)


def _optimizers(subject: _Subject) -> Iterator[Finding]:
    def require(_: str, optimizer: torch.optim.Optimizer) -> None:
        soundness.sound_optimizer(optimizer, subject.model)

    what = "an optimizer of other parameters"
    others = list(_refused(what, subject.optimizers, require))
    yield from others
    parameters = [id(each) for each in subject.model.parameters()]
    for name, optimizer in subject.optimizers:
        if any(name in each.where for each in others):
            continue
        strange = tuple(ownership.strangers(optimizer, parameters))
        if strange:
            happens, do = _said(ownership.not_averaged(strange[0]))
            happens = f"{happens}, and the first step is refused"
            yield Finding(REFUSED, "a parameter that is not the model's", strange, happens, do)


def _row(subject: _Subject, found: Iterable[Finding]) -> Iterator[Finding]:
    """Yield what the row of all checks refuses and no look has found."""
    model, known = subject.model, [each for _, each in subject.optimizers]
    try:
        deque(soundness.checks(model, known, subject.given, world_size=1), maxlen=0)
    except SyncopateError as error:
        happens, do = _said(error)
        if all(each.happens != happens for each in found):
            yield Finding(REFUSED, "the model as a whole", (type(model).__name__,), happens, do)


# -- what does not overlap -----------------------------------------------------------------------


def _steps(subject: _Subject) -> Iterator[Finding]:
    if not subject.optimizers:
        yield Finding(
            WAITS,
            "no optimizer",
            (type(subject.model).__name__,),
            "without one only the 'allreduce' exchange can train, which hides behind backward and "
            "not behind the next forward",
            "give it the optimizer, too: distribute(model, optimizer)",
        )
    for name, optimizer in subject.optimizers:
        if _needs_closure(type(optimizer)):
            yield Finding(
                WAITS,
                "a step that needs a closure",
                (name,),
                "its step runs backward, so it is not deferred and hides behind backward alone, "
                "and 'sharded' refuses it",
                "take an optimizer whose step needs no closure, if that trains as well",
            )
            continue
        try:
            kind_of(optimizer)
        except EngineError as error:
            happens, do = _said(error)
            happens += (
                f"{_overridden(type(optimizer))}, so its whole step waits for all gradients, and "
                "'sharded' refuses it"
            )
            yield Finding(WAITS, "an optimizer that is not declared", (name,), happens, do)


def _needs_closure(kind: type[torch.optim.Optimizer]) -> bool:
    """Say whether a class of optimizers cannot step without a closure, as L-BFGS."""
    found = inspect.signature(step_of(kind)).parameters.get("closure")
    return found is not None and found.default is inspect.Parameter.empty


def _overridden(kind: type[torch.optim.Optimizer]) -> str:
    """Say what a class changes of one that is declared."""
    base = known_base(kind)
    if base is None:
        return ""
    names = ", ".join(sorted(changed_from(kind, base)))
    return f" (it has a {names} of its own beside {base.__name__}'s)"


def _step_hooks(subject: _Subject) -> Iterator[Finding]:
    hooked = (name for name, each in subject.optimizers if any(map(_has_others, step_hooks(each))))
    yield Finding(
        WAITS,
        "a hook on the optimizer's step",
        tuple(hooked),
        "where a hook reads a gradient or a weight it waits for it, and that does not hide behind "
        "the next forward",
        "read in it what is needed and no more, or in every so many steps",
    )


def _gradient_hooks(subject: _Subject) -> Iterator[Finding]:
    hooked: list[str] = []
    for name, parameter in subject.trained:
        held: Any = parameter
        if _has_others(held._backward_hooks) or _has_others(held._post_accumulate_grad_hooks):
            hooked.append(name)
    yield Finding(
        WAITS,
        "a hook on a gradient",
        tuple(hooked),
        "it gets this rank's own gradient, as under DDP, and the gradient is sent when it has "
        "returned",
        "keep the hook short; what needs the average belongs behind backward()",
    )


def _has_others(hooks: Mapping[int, object] | None) -> bool:
    """Say whether some hook is not the engine's own."""
    own = __name__.partition(".")[0]
    return any(
        getattr(hook, "__module__", "").partition(".")[0] != own for hook in (hooks or {}).values()
    )


def _embeddings(subject: _Subject) -> Iterator[Finding]:
    named = sparse_embeddings(subject.model, subject.shared)
    yield Finding(
        WAITS,
        "an embedding with sparse gradients",
        tuple(name or "the model" for name, _ in named),
        "ranks gather the rows of its gradient at the end of backward, which hides behind nothing; "
        "'sharded' and delays refuse it",
        "keep it where a step looks up few of many rows; else build it with sparse=False",
    )


def _scripts(subject: _Subject) -> Iterator[Finding]:
    happens = "no step of the model is deferred to the next forward"
    yield Finding(
        WAITS,
        "a TorchScript module",
        tuple(scripted_modules(subject.model)),
        f"it reads weights unseen, so {happens}",
        "use the eager module, or torch.compile",
    )
    yield Finding(
        WAITS,
        "a parameter with its own __torch_function__",
        tuple(asked_parameters(subject.model)),
        f"its class is asked first what torch does, so {happens}",
        "use plain parameters",
    )


def _buffers(subject: _Subject) -> Iterator[Finding]:
    if not subject.given.broadcast_buffers:
        return
    held = [
        (name, each)
        for name, each in subject.model.named_buffers()
        if name not in subject.ignored and not nn.parameter.is_lazy(each)
    ]
    large = (name for name, each in held if ride_of(each, torch.float32) is None)
    first = next(large, None)
    travel = f"; when rank 0 changes {first!r}, it is sent in a message of its own"
    yield Finding(
        WAITS,
        "buffers",
        tuple(name for name, _ in held),
        "each training forward begins with rank 0's, so ranks meet there in a message of a few "
        f"bytes, under 'sharded' after the step{'' if first is None else travel}",
        "keep it where ranks need the same ones; else give broadcast_buffers=False, or name "
        "constants in ignore=",
    )


def _tied(subject: _Subject) -> Iterator[Finding]:
    trained = {id(each): name for name, each in subject.trained}
    named = subject.model.named_parameters(remove_duplicate=False)
    tied = (
        f"{trained[id(each)]} = {name}"
        for name, each in named
        if id(each) in trained and trained[id(each)] != name
    )
    yield Finding(
        WAITS,
        "a shared parameter",
        tuple(tied),
        "its gradient is sent once, after the last of its layers in backward",
        "nothing, if they are meant to be one; a plan that is measured knows it",
    )


# -- what differs, and what costs ----------------------------------------------------------------


def _replicated(subject: _Subject) -> Iterator[Finding]:
    named = subject.model.named_modules()
    found = (name for name, module in named if isinstance(module, nn.DataParallel))
    yield Finding(
        COSTS,
        "a DataParallel",
        tuple(name or "the model" for name in found),
        "on a rank that sees several GPUs it copies all weights to each of them in every forward, "
        "and one process drives them all; on others it does nothing",
        "give the module inside (.module), and start one rank for each GPU",
    )


def _complex(subject: _Subject) -> Iterator[Finding]:
    yield Finding(
        DIFFERS,
        "a complex parameter",
        tuple(name for name, each in subject.trained if each.is_complex()),
        "'sharded' refuses it, and a plan with 16 bits on the wire sends it whole",
        "train by 'allreduce' or 'decoupled'",
    )


def _shared_by_optimizers(subject: _Subject) -> Iterator[Finding]:
    held = [groups.trained_ids(each) for _, each in subject.optimizers]
    found = (name for name, each in subject.trained if sum(id(each) in one for one in held) > 1)
    yield Finding(
        DIFFERS,
        "a parameter of several optimizers",
        tuple(found),
        "its shard is the first optimizer's, and a delay refuses it",
        "give each parameter to one optimizer",
    )


def _dtypes(subject: _Subject) -> Iterator[Finding]:
    by_dtype: dict[str, str] = {}
    for name, parameter in subject.trained:
        by_dtype.setdefault(dtype_name(parameter.dtype), name)
    if len(by_dtype) > 1:
        yield Finding(
            COSTS,
            "several dtypes",
            tuple(f"{name}: {dtype}" for dtype, name in by_dtype.items()),
            "a bucket of several dtypes is sent in a message for each",
            "keep trained parameters in one dtype, with autocast for the others",
        )


def _untrained(subject: _Subject) -> Iterator[Finding]:
    held = groups.trained_ids(*(each for _, each in subject.optimizers))
    found = tuple(name for name, each in subject.trained if id(each) not in held)
    if found and subject.optimizers:
        yield Finding(
            COSTS,
            "a parameter that no optimizer trains",
            found,
            "its gradient is made and averaged in every backward",
            "set requires_grad=False on it, or give all optimizers",
        )


_LOOKS: tuple[Callable[[_Subject], Iterator[Finding]], ...] = (
    _modules, _parameters, _optimizers,
    _steps, _step_hooks, _gradient_hooks, _embeddings, _scripts, _buffers, _tied,
    _replicated, _complex, _shared_by_optimizers, _dtypes, _untrained,
)  # fmt: skip


# -- how it is said ------------------------------------------------------------------------------


def _refused(
    what: str, named: Iterable[tuple[str, object]], require: Callable[[str, Any], object]
) -> Iterator[Finding]:
    """Yield what ``require`` refuses, those with one remedy together."""
    found: dict[str, list[tuple[str, str]]] = {}
    for name, each in named:
        try:
            require(name, each)
        except SyncopateError as error:
            happens, do = _said(error)
            found.setdefault(do, []).append((name or "the model", happens))
    for do, those in found.items():
        yield Finding(REFUSED, what, tuple(name for name, _ in those), those[0][1], do)


def _said(error: SyncopateError) -> tuple[str, str]:
    """Return what an error says that happened, and what to do."""
    text = str(error)
    two = re.match(r"(.*?)\. ([A-Z].*)", text, re.DOTALL)
    happens, do = two.groups() if two else text.rpartition("; ")[::2]
    return (happens, do[:1].lower() + do[1:]) if happens else (text, "change it")
