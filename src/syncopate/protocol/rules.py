"""Rules: how the servers turn pushes into weights. Every worker declares the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from syncopate.errors import InvalidValueError, UnknownNameError
from syncopate.recipe import WIRE_DTYPES

SSGD, ASGD, DC_ASGD = "ssgd", "asgd", "dc-asgd"
STEPS, MEAN_SQUARE = "steps", "mean_square"
"""What the optimizer counts for a slice as a whole; what delay compensation remembers of it."""

MODES = (SSGD, ASGD, DC_ASGD)
"""Synchronous SGD; asynchronous SGD; asynchronous SGD with adaptive delay compensation."""

INT8 = "int8"
PUSH_DTYPES = (*WIRE_DTYPES, INT8)
"""What gradients can be narrowed to on their way to servers."""

ABORT, CONTINUE, WAIT = "abort", "continue", "wait"
ON_WORKER_LOSS = (ABORT, CONTINUE, WAIT)
"""What a lost worker means: the job ends, goes on with the others, or waits for another process."""

Opens = Literal["", "lost", "more"]
CLOSED: Opens = ""
LOST: Opens = "lost"
MORE: Opens = "more"
"""Which places processes may take that come while a job runs: none, those of workers that are
lost, or also one more than there were.
"""

_UPDATER = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_STATE = re.compile(r"[A-Za-z_]\w{0,31}", re.ASCII)
_MOST_STATE = 7

FORMS = ("torch", "mxnet")
"""Where momentum takes the learning rate in; see :class:`SGD`."""


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the rules: frozen, keyword-only, strict when decoded."""


class SGD(Rule, frozen=True, tag="sgd"):
    r"""SGD with momentum and weight decay.

    With gradient g, weights w, weight decay d and momentum m:

    - ``torch``: ``v = m v + (1 - dampening) (g + d w)``; ``w = w - lr v`` (torch.optim.SGD).
    - ``mxnet``: ``v = m v - lr (g + d w)``; ``w = w + v`` (SSD-SGD, Section 3.2.1).

    Both are the same while the learning rate is. After it changes, ``mxnet`` carries on the old one
    in its momentum.
    """

    lr: float
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    form: str = "torch"


class Adam(Rule, frozen=True, tag="adam"):
    """Adam, or AdamW where weight decay is decoupled; as torch.optim.Adam and AdamW."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False


class Adagrad(Rule, frozen=True, tag="adagrad"):
    """Adagrad, as torch.optim.Adagrad."""

    lr: float = 1e-2
    lr_decay: float = 0.0
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10


class Updater(Rule, frozen=True, tag="updater"):
    """An updater of one's own: a class that servers import by its name.

    The page on parameter servers says what the class is to have. A server imports only those names
    that its own command line allows.

    Attributes:
        name: ``"package.module:Class"``.
        lr: the learning rate.
        options: keyword arguments that the class is made with, by name.
        state: names of what it remembers of a slice: each a tensor of as many elements of the same
            type; ``"steps"`` one integer of 64 bits.
    """

    name: str
    lr: float
    options: dict[str, bool | int | float | str] = {}
    state: tuple[str, ...] = ()


OptimizerRule = SGD | Adam | Adagrad | Updater
"""What an update does."""


class Compensation(Rule, frozen=True):
    """Adaptive delay compensation, DC-ASGD-a (Zheng et al., 2017, Section 4).

    The gradient g of worker m, computed on weights b, becomes ``g + lambda_t g g (w - b)`` with
    ``lambda_t = lambda_0 / sqrt(s + eps)`` and ``s = decay s + (1 - decay) g g``, all elementwise.
    """

    lambda_0: float = 2.0
    decay: float = 0.95
    eps: float = 1e-7


class Rules(Rule, frozen=True):
    """How the servers update.

    Attributes:
        mode: one of :data:`MODES`.
        optimizer: what an update does.
        groups: the same for tensors of the groups 1, 2 and so on; those of group 0 are updated by
            ``optimizer``.
        staleness: in asynchronous modes, how many pushes of a slice a worker may be ahead of the
            slowest one; None: any number.
        on_worker_loss: one of :data:`ON_WORKER_LOSS`.
        compensation: of ``dc-asgd``.
        window: pushes of one slice that a worker may have under way; at least the pull period.
        clip_norm: in mode ``ssgd``, the largest 2-norm of a step's mean gradient over all tensors.
            A larger one is scaled to it, as ``torch.nn.utils.clip_grad_norm_`` does. A step is one
            push of every tensor by every worker. None: none is scaled.
        push_dtype: one of :data:`PUSH_DTYPES`: what gradients of float32 and float64 travel as; see
            ``narrow``. Empty: as they are.
    """

    mode: str = SSGD
    optimizer: OptimizerRule = SGD(lr=0.1)
    groups: tuple[OptimizerRule, ...] = ()
    staleness: int | None = None
    on_worker_loss: str = ABORT
    compensation: Compensation = Compensation()
    window: int = 8
    clip_norm: float | None = None
    push_dtype: str = ""

    @property
    def synchronous(self) -> bool:
        """Whether an update waits for the pushes of all workers."""
        return self.mode == SSGD

    @property
    def opens(self) -> Opens:
        """Which places processes may take that come while the job runs."""
        if self.on_worker_loss != WAIT:
            return CLOSED
        return LOST if self.synchronous else MORE

    @property
    def keeps_before(self) -> bool:
        """Whether servers keep the version before of each slice: [Note: places] in ``places``."""
        return self.synchronous and self.on_worker_loss == WAIT

    def of(self, group: int) -> Rules:
        """Return the rules of the tensors of a group."""
        if not self.groups:
            return self
        optimizer = self.groups[group - 1] if group else self.optimizer
        return msgspec.structs.replace(self, optimizer=optimizer, groups=())

    def grouped(self, optimizers: Mapping[str, OptimizerRule]) -> tuple[Rules, dict[str, int]]:
        """Return these rules with a group for each other optimizer, and the groups of tensors.

        Args:
            optimizers: by name of the tensor; others are updated by ``optimizer``.

        Returns:
            The rules, the same for any order of the names, and the group of each name.
        """
        known, of = [self.optimizer], dict[str, int]()
        for name in sorted(optimizers):
            if optimizers[name] not in known:
                known.append(optimizers[name])
            of[name] = known.index(optimizers[name])
        return msgspec.structs.replace(self, groups=tuple(known[1:])), of

    @property
    def apart(self) -> frozenset[int]:
        """The groups whose slices are in no bundle.

        An updater of one's own may look at more than one element. It is given slices of tensors,
        which are the same on any number of servers, and no bundles, which are not. A narrowed
        gradient cannot be cut by its bytes, as bundles are.
        """
        rules, narrow = (self.optimizer, *self.groups), bool(self.push_dtype)
        return frozenset(n for n, each in enumerate(rules) if narrow or isinstance(each, Updater))

    @property
    def state(self) -> tuple[str, ...]:
        """The state of each slice of group 0 on servers, by name.

        As many elements of the slice's type as it has; of ``steps`` one integer of 64 bits.
        """
        names: tuple[str, ...] = (STEPS, "mean", "square")
        if isinstance(self.optimizer, SGD):
            names = ("momentum",) if self.optimizer.momentum else ()
        elif isinstance(self.optimizer, Adagrad):
            names = (STEPS, "sum")
        elif isinstance(self.optimizer, Updater):
            names = self.optimizer.state
        return (*names, MEAN_SQUARE) if self.mode == DC_ASGD else names

    def require_valid(self) -> Rules:
        """Return these rules.

        Raises:
            UnknownNameError: no such mode, way to go on, or form.
            InvalidValueError: a number is out of its range.
        """
        if self.mode not in MODES:
            raise UnknownNameError("mode", self.mode, MODES)
        if self.on_worker_loss not in ON_WORKER_LOSS:
            raise UnknownNameError("on_worker_loss", self.on_worker_loss, ON_WORKER_LOSS)
        if self.staleness is not None and (self.synchronous or self.staleness < 0):
            rule = "None in mode 'ssgd', else None or at least 0"
            raise InvalidValueError("staleness", self.staleness, rule)
        for optimizer in (self.optimizer, *self.groups):
            _require_optimizer(optimizer)
        _require("window", self.window, 1)
        self._require_clipping()
        if self.push_dtype and self.push_dtype not in PUSH_DTYPES:
            raise UnknownNameError("push_dtype", self.push_dtype, PUSH_DTYPES)
        _require("lambda_0", self.compensation.lambda_0, 0.0)
        _require("decay", self.compensation.decay, 0.0, 1.0)
        return self

    def _require_clipping(self) -> None:
        if self.clip_norm is None:
            return
        if not 0 < self.clip_norm < float("inf"):
            raise InvalidValueError("clip_norm", self.clip_norm, "None, or finite and above 0")
        if not self.synchronous:
            rule = (
                f"None in mode {self.mode!r}: no step has the gradients of all tensors there. Clip "
                "each gradient before its push"
            )
            raise InvalidValueError("clip_norm", self.clip_norm, rule)
        if self.on_worker_loss != ABORT:
            rule = f"None with on_worker_loss={self.on_worker_loss!r}: workers sum up the norm"
            raise InvalidValueError("clip_norm", self.clip_norm, rule)


def _require_optimizer(optimizer: OptimizerRule) -> None:
    _require("lr", optimizer.lr, 0.0)
    if isinstance(optimizer, Updater):
        _require_updater(optimizer)
        return
    _require("weight_decay", optimizer.weight_decay, 0.0)
    if isinstance(optimizer, Adam):
        for beta in optimizer.betas:
            _require("betas", beta, 0.0, 1.0)
        return
    if isinstance(optimizer, Adagrad):
        _require("lr_decay", optimizer.lr_decay, 0.0)
        _require("initial_accumulator_value", optimizer.initial_accumulator_value, 0.0)
        return
    _require("momentum", optimizer.momentum, 0.0)
    if optimizer.form not in FORMS:
        raise UnknownNameError("form", optimizer.form, FORMS, "SGD")
    if optimizer.nesterov and not (optimizer.momentum > 0 and optimizer.dampening == 0):
        raise InvalidValueError("nesterov", True, "False without momentum or with dampening")
    if optimizer.form == "mxnet" and (optimizer.nesterov or optimizer.dampening):
        raise InvalidValueError("form", "mxnet", "'torch' with nesterov or dampening")


def _require_updater(updater: Updater) -> None:
    if not _UPDATER.fullmatch(updater.name):
        raise InvalidValueError("updater", updater.name, "such as 'package.module:Class'")
    wrong = [name for name in updater.state if not _STATE.fullmatch(name) or name == MEAN_SQUARE]
    if wrong or len(updater.state) > _MOST_STATE:
        rule = f"up to {_MOST_STATE} names of letters, digits and _, and none {MEAN_SQUARE!r}"
        raise InvalidValueError(f"state of {updater.name}", updater.state, rule)


def _require(what: str, value: float, least: float, below: float = float("inf")) -> None:
    if not least <= value < below:
        limit = f" and less than {below:g}" if below != float("inf") else ""
        raise InvalidValueError(what, value, f"at least {least:g}{limit}")
