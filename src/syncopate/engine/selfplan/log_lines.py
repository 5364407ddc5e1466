"""Log lines: what self-planning says, a line for each thing it does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from syncopate.artifacts.plan import SERVED, SHARDED, Plan
from syncopate.delay import GLU, LEAST_WARM_UP, SGD, Delay, LocalSGD
from syncopate.engine.selfplan import cache
from syncopate.engine.selfplan.contest import Contender, alike
from syncopate.engine.selfplan.ddp_buckets import DDP
from syncopate.engine.selfplan.payback import SHARE, pays_after
from syncopate.engine.selfplan.replanning.slowdown import LINKS
from syncopate.units import format_count, format_seconds


def announcement(steps: int, folder: Path | None) -> str:
    """Return the line that announces self-planning, how long it takes, and where it keeps plans."""
    kept = f", kept in {folder} for the next run" if folder else ""
    return (
        f"begins on {DDP}, measures along the way in at most {SHARE:.0%} of the training's time, "
        f"and settles on a plan after some {steps} steps{kept}; a run that ends before keeps none"
    )


def of_sharded(gain_s: float) -> str:
    """Say by how much a step of the sharded exchange is expected to be shorter."""
    return (
        f"exchange='{SHARDED}' is expected to take {format_seconds(gain_s)} less a step, "
        "and a share of the optimizer's memory; other programs than DDP's (docs/sharded.md)"
    )


_SPREAD = (
    "; the optimizer's state is spread over the ranks: save model.syncopate.state_dict(optimizer), "
    "called on every rank; exchange='allreduce' keeps it whole"
)


def verdict(best: Contender, ddp: Contender, cost_s: float, why: str = "") -> str:
    """Say which plan stays and what it rests on.

    Args:
        best: the plan that stays.
        ddp: DDP's buckets.
        cost_s: what measuring took.
        why: why there was no contest, if there was none.
    """
    stays, before = named(best.name, best.plan), named(ddp.name, ddp.plan)
    if why:
        return f"{before}: kept, {why}"
    measured = f"measured {format_seconds(best.step_s)} a step"
    if best.name == ddp.name:
        return f"{before}: kept, {measured}, nothing is faster beyond noise"
    prediction = best.plan.prediction
    expected = f"expected {format_seconds(prediction.iteration_s)}, " if prediction else ""
    state = _SPREAD if best.plan.exchange == SHARDED else ""
    steps = pays_after(cost_s, ddp.step_s, best.step_s)
    # What was asked for stays, faster or not.
    repaid = "" if steps is None else f", which {steps} more steps repay"
    return (
        f"{stays}: kept, {expected}{measured}, {before} {format_seconds(ddp.step_s)}; "
        f"measuring took {format_seconds(cost_s)}{repaid}{state}"
    )


def slower(usual_s: float, now_s: float, causes: Sequence[str]) -> str:
    """Say what steps take, what they took, and what takes longer, where it is known."""
    verb = "take" if len(causes) > 1 or LINKS in causes else "takes"
    because = f" ({' and '.join(causes)} {verb} longer)" if causes else ""
    return f"steps take {format_seconds(now_s)} where they took {format_seconds(usual_s)}{because}"


def replanned(
    best: Contender, before: Contender, defends: Contender, cost_s: float, why: str = ""
) -> str:
    """Say which plan a training goes on with after it planned again.

    Args:
        best: that plan.
        before: the plan until then, by its name.
        defends: the same with its samples of now, or DDP's buckets, if it has the same messages.
        cost_s: what measuring took.
        why: why there was no contest, if there was none.
    """
    old, new = named(before.name, before.plan), named(best.name, best.plan)
    stays = alike(best.plan, before.plan)
    said = f"{old} stays" if stays else f"{new} replaces {old}"
    if why:
        return f"{said}: it {why}"
    said += f", measured {format_seconds(best.step_s)} a step"
    if stays:
        return f"{said}, nothing is faster beyond noise"
    taken = f"measuring took {format_seconds(cost_s)}"
    return f"{said}, {defends.name} {format_seconds(defends.step_s)}; {taken}"


def of_delay(delay: Delay | LocalSGD) -> str:
    """Say what a delay changes, and when."""
    if isinstance(delay, LocalSGD):
        return (
            f"after {delay.warm_up} iterations every rank steps by itself, and weights are "
            f"averaged every {delay.period} steps; evaluate and save in `with "
            "model.syncopate.global_weights():`, on every rank"
        )
    meanwhile = "ranks train on weights of their own" if delay.runs_ahead else "weights stay"
    return (
        f"after {delay.wp + 1} iterations weights are pulled every {delay.k} steps, and between "
        f"{meanwhile} ({delay.local_update}); evaluate and save in `with "
        "model.syncopate.global_weights():`, on every rank" + _of_early_rule(delay)
    )


def of_servers(servers: int, mode: str) -> str:
    """Say that servers have the weights, and that nothing is planned for them."""
    has = f"{servers} parameter server{' has' if servers == 1 else 's have'} the weights"
    return (
        f"{has} (mode {mode}), and training goes on in {DDP}: nothing is measured or planned by "
        f"itself with servers. `syncopate plan --exchange {SERVED} --servers {servers}` makes a "
        "plan, for plan="
    )


def _of_early_rule(delay: Delay) -> str:
    """Say that a delay that begins early may diverge, and what helps (docs/ssd_sgd.md)."""
    if delay.local_update not in (GLU, SGD) or delay.wp + 1 >= LEAST_WARM_UP:
        return ""
    if delay.local_update == SGD:
        other = f", or local_update={GLU!r}"
    elif delay.alpha > 1:
        other = ", or alpha=1, beta=1.5"
    else:
        other = ""
    return (
        f". The delay begins after {delay.wp + 1} iterations, of at least {LEAST_WARM_UP} in its "
        "paper. Early in training it may diverge where synchronous SGD does not. If the loss "
        f"grows, give a longer warm_up or a smaller lr{other} (docs/ssd_sgd.md)"
    )


DETERMINISTIC = (
    "no plan is kept for this training, and a deterministic one may not depend on clocks: stays on "
    "DDP's buckets. One run without the demand measures and keeps one"
)
"""What is said where planning was asked for and cannot be."""


def of_kept(kept: cache.Settled) -> str:
    """Say which plan an earlier run kept."""
    against = "" if kept.name == DDP else f", {DDP} {format_seconds(kept.ddp_step_s)}"
    return (
        f"{named(kept.name, kept.plan)} of {kept.date}: {format_seconds(kept.step_s)} a "
        f"step{against}; from {cache.path_of(kept.facts)}, cache=False measures again"
        f"{_SPREAD if kept.plan.exchange == SHARDED else ''}"
    )


def named(name: str, plan: Plan) -> str:
    """Return a plan by name with its size, such as ``two channels (8 buckets)``."""
    return f"{name} ({format_count(len(plan.buckets), 'bucket')})"
