"""Actions: what a machine asks of its caller, to be done in their order."""

from __future__ import annotations

import msgspec

from syncopate.protocol.messages import Left, Lost, Message, Moved, Roster, Taken, Weights
from syncopate.protocol.placement.bundle import Cut
from syncopate.protocol.placement.piece import Slice, TableSlice
from syncopate.protocol.rules import Rules

Peer = int | bytes | str
"""Where a message goes: a server's rank, the name of a connection, or ``SCHEDULER``."""

SCHEDULER = "scheduler"
"""The peer that is the scheduler."""


class Action(msgspec.Struct, frozen=True):
    """Base of all actions."""


class Send(Action, frozen=True):
    """Send ``message``; of several that wait, the one with the highest priority first.

    With a push goes the gradient that was given to it as payload, and with a pull of rows their
    numbers.
    """

    to: Peer
    message: Message
    priority: int = 0


class Answer(Send, frozen=True):
    """The same, with the slice's present weights; keep a copy for the worker ``backup_for``.

    A :class:`~syncopate.protocol.messages.State` takes what the optimizer remembers along, and is
    to name it. :class:`~syncopate.protocol.messages.Rows` are those that ``worker`` asked for
    last; a :class:`~syncopate.protocol.messages.TableState` has those from the first of ``range``
    on, as many as its second. With ``before`` it has all as it was before the last update.
    """

    backup_for: int | None = None
    worker: int = -1
    range: tuple[int, int] = (0, 0)
    before: bool = False


class Forget(Action, frozen=True):
    """Drop what waits to be sent to ``peer``: it will be sent again."""

    peer: Peer


class Told(Action, frozen=True):
    """The scheduler's news: all nodes, or one that was lost, left or moved, or a place taken."""

    message: Roster | Lost | Left | Moved | Taken


class Remark(Action, frozen=True):
    """Tell people."""

    text: str


class BeginAgain(Action, frozen=True):
    """A server is to leave everything, and register again with what it has on disk."""


class Stop(Action, frozen=True):
    """The job is over, and all is well."""


class Fail(Action, frozen=True):
    """The job is over.

    Attributes:
        reason: a sentence.
        ranks: the workers held responsible.
    """

    reason: str
    ranks: tuple[int, ...] = ()


class Keep(Action, frozen=True):
    """Keep these slices, updated by these rules, from now on."""

    rules: Rules
    slices: tuple[Slice, ...]


class KeepTable(Action, frozen=True):
    """Keep this share of a table from now on."""

    table: TableSlice


class Split(Action, frozen=True):
    """Treat the parts of a bundle as slices of their own, in its state; see ``bundle``."""

    cut: Cut


class Stage(Action, frozen=True):
    """Hold the payload that came with the message until an update or initialisation takes it.

    Attributes:
        key: of the slice.
        worker: whose.
        sequence: of the push.
        part: where its bytes begin and end in a payload for a bundle that was cut; None: it has
            the whole payload.
        number: of a push of rows, which part of it this is.
        reached: of a push of rows, whether the worker's backward reached the table.
    """

    key: int
    worker: int
    sequence: int
    part: tuple[int, int] | None = None
    number: int = 0
    reached: bool = True


class Unstage(Action, frozen=True):
    """Drop the parts that came of a push of rows: the process that sent it is gone."""

    key: int
    worker: int
    sequence: int


class Ask(Action, frozen=True):
    """Hold the rows' numbers that came with the pull of ``worker`` until they are answered."""

    key: int
    worker: int


class Add(Action, frozen=True):
    """Add a staged gradient to the sum of those of the next update, which come in this order."""

    key: int
    worker: int
    sequence: int


class Initialise(Action, frozen=True):
    """Take the staged payload of ``worker``, sequence 0, as the slice's weights.

    Attributes:
        key: of the slice.
        worker: whose.
        state: what of the optimizer's follows the weights in it, by name.
        steps: of a table, how many updates the optimizer has counted.
    """

    key: int
    worker: int
    state: tuple[str, ...] = ()
    steps: int = 0


class Measure(Action, frozen=True):
    """Make the mean of the gradients of the next update, and say the sum of its squares.

    The caller tells the server's machine. The update follows when the norm of the step is known.

    Attributes:
        key: of the slice.
        version: counts updates from 1.
        gradients: as :class:`Update` has them.
    """

    key: int
    version: int
    gradients: tuple[tuple[int, int], ...]


class Update(Action, frozen=True):
    """Update a slice's weights to ``version``, and drop the gradients it takes.

    Attributes:
        key: of the slice.
        version: counts updates from 1.
        gradients: (worker, sequence) in the order in which they are added; their mean is applied.
            The first of them may have been added before, as :class:`Add` says.
        lr: the learning rate; None: that of the rules.
        compensate: the worker for whose delay to compensate; None: for none.
        norm: of the whole step's gradient, whose mean :class:`Measure` has made; None: it is not
            clipped.
    """

    key: int
    version: int
    gradients: tuple[tuple[int, int], ...]
    lr: float | None
    compensate: int | None
    norm: float | None = None


class Released(Action, frozen=True):
    """The push is over: its tensor is the caller's again."""

    key: int
    sequence: int


class Fill(Action, frozen=True):
    """Copy the payload that came with the message to where the pull wants it.

    Attributes:
        answer: the message, as one about the slice that was pulled.
        part: as :class:`Stage` has it.
    """

    answer: Weights
    part: tuple[int, int] | None = None
