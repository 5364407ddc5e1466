"""Kinds: the one table of exchanges that the engine runs, each a row of parts.

To add one, write the part that is new (:mod:`~syncopate.engine.exchange.parts` says which calls it
answers), add a row here, and its name to ``plan.EXCHANGES``.
"""

from __future__ import annotations

from functools import partial

from syncopate.artifacts.plan import ALLREDUCE, DECOUPLED, ROOTED, SERVED, SHARDED, Plan
from syncopate.engine.exchange.delay import averaged, behind_steps, periodic_pull
from syncopate.engine.exchange.delay.shards import OwnMasters, UnmixedGradients
from syncopate.engine.exchange.layout import Owner
from syncopate.engine.exchange.model_buffers import InForward, InStep
from syncopate.engine.exchange.notes import RidingNotes, SentNotes
from syncopate.engine.exchange.parts import Local, ModelBuffers, Row, Update
from syncopate.engine.exchange.proxies.lazy_gradients import AwaitedGradients
from syncopate.engine.exchange.proxies.partial_gradients import PartialGradients
from syncopate.engine.exchange.proxies.whole_gradients import WholeGradients
from syncopate.engine.exchange.pull.averages import PulledAverages, squared
from syncopate.engine.exchange.pull.from_rank0 import FromRank0
from syncopate.engine.exchange.pull.weights import PulledWeights
from syncopate.engine.exchange.push.reduced import Reduced
from syncopate.engine.exchange.serving import asynchronous, delayed, gradients, served
from syncopate.engine.exchange.serving.servers import Servers
from syncopate.engine.exchange.serving.state import ServedState
from syncopate.engine.exchange.shares import AtRoot, Elsewhere, Halves, Spread
from syncopate.engine.exchange.update.deferral import DeferredUpdate
from syncopate.engine.exchange.update.sharded_update import PieceUpdate

AVERAGED = "averaged"
DELAYED = "sharded, delayed"
SERVED_DELAYED = "served, delayed"
ASYNCHRONOUS = "served, asynchronous"

_sharded = Row(
    owner=Spread,
    push=Reduced,
    notes=SentNotes,
    gradients=PartialGradients,
    update=PieceUpdate,
    pull=PulledWeights,
    buffers=InStep,
    local=Local,
)

_served = _sharded._replace(
    owner=Elsewhere,
    push=served.SentPush,
    gradients=gradients.SentGradients,
    update=partial(PieceUpdate, state=ServedState, beside=(served.ServedSteps,)),
    pull=partial(PulledWeights, source=served.FromServers),
)

KINDS: dict[str, Row] = {
    ALLREDUCE: Row(
        owner=Owner,
        push=Reduced,
        notes=RidingNotes,
        gradients=WholeGradients,
        update=Update,
        pull=FromRank0,
        buffers=InForward,
        local=Local,
    ),
    DECOUPLED: Row(
        owner=Halves,
        push=Reduced,
        notes=squared,
        gradients=AwaitedGradients,
        update=DeferredUpdate,
        pull=PulledAverages,
        buffers=partial(InForward, aside=True),
        local=Local,
    ),
    SHARDED: _sharded,
    ROOTED: _sharded._replace(owner=AtRoot),
    SERVED: _served,
    ASYNCHRONOUS: _served._replace(
        push=asynchronous.UntoldPush,
        gradients=gradients.UntoldGradients,
        buffers=ModelBuffers,
        local=asynchronous.SharedWeights,
    ),
    DELAYED: _sharded._replace(
        push=behind_steps.LatePush,
        gradients=UnmixedGradients,
        update=partial(PieceUpdate, beside=(periodic_pull.LocalUpdates, behind_steps.StepsBehind)),
        pull=partial(
            PulledWeights,
            source=partial(periodic_pull.LatePulls, source=behind_steps.FromOwnersBehind),
        ),
        buffers=periodic_pull.LateBuffers,
        local=partial(periodic_pull.LateWeights, masters=OwnMasters),
    ),
    SERVED_DELAYED: _served._replace(
        push=delayed.LateSentPush,
        update=partial(
            PieceUpdate, state=ServedState, beside=(served.ServedSteps, periodic_pull.LocalUpdates)
        ),
        pull=partial(
            PulledWeights, source=partial(periodic_pull.LatePulls, source=served.FromServers)
        ),
        buffers=periodic_pull.LateBuffers,
        local=partial(periodic_pull.LateWeights, masters=delayed.ServersMasters),
    ),
    AVERAGED: Row(
        owner=Owner,
        push=averaged.WarmUpPush,
        notes=RidingNotes,
        gradients=averaged.OwnGradients,
        update=averaged.OwnSteps,
        pull=averaged.AveragedWeights,
        buffers=averaged.OwnBuffers,
        local=averaged.OwnWeights,
    ),
}
"""Name, in ``plan.EXCHANGES`` or of a variant -> what the exchange is composed of."""


def kind_for(plan: Plan, servers: Servers | None = None) -> str:
    """Return the name in :data:`KINDS` of the exchange for ``plan``."""
    if plan.exchange == SERVED:
        assert servers is not None
        if not servers.synchronous:
            return ASYNCHRONOUS
        return SERVED if plan.delay is None else SERVED_DELAYED
    if plan.local_sgd is not None:
        return AVERAGED
    return plan.exchange if plan.delay is None else DELAYED
