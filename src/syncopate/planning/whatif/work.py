"""Work: what ranks compute at a setting, from one profile or several.

Other devices are a factor on every time, or a second profile of the same model. Another batch
takes, for each time t of forward and backward, the line through two profiles,

    t(b) = t1 + (t2 - t1) (b - b1) / (b2 - b1),

and from one profile ``t(b) = t1 b / b1``, which is an assumption: it leaves out what is the same
for every batch, such as the launch of kernels. The update stays as it is then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from syncopate.artifacts.results.whatif import Setting
from syncopate.artifacts.workload import Workload
from syncopate.errors import InvalidValueError, UnknownNameError

BATCH = "batch"
"""What the metadata of a workload call the samples of a rank in an iteration."""


def batch_of(workload: Workload) -> int | None:
    """Return the samples of a rank in an iteration; None: its metadata do not say."""
    said = workload.metadata.get(BATCH, "")
    return int(said) if said.isdecimal() and int(said) > 0 else None


@dataclass(frozen=True)
class Work:
    """Profiles of one model.

    Attributes:
        base: the one that is known.
        profiles: others by name, on other devices.
        other_batch: the same device with another batch, which its metadata name; None: none.

    Raises:
        InvalidValueError: a profile of another model, or two of one batch.
    """

    base: Workload
    profiles: Mapping[str, Workload] = field(default_factory=dict)
    other_batch: Workload | None = None

    def __post_init__(self) -> None:
        others = [*self.profiles.values(), *([self.other_batch] if self.other_batch else [])]
        for other in others:
            if other.fingerprint != self.base.fingerprint:
                rule = f"of the same gradients as {self.base.model}"
                raise InvalidValueError("second profile", other.model, rule)
        if self.other_batch is not None:
            batches = batch_of(self.base), batch_of(self.other_batch)
            if None in batches or batches[0] == batches[1]:
                rule = "two different ones, each in the metadata of its profile"
                raise InvalidValueError("batches of the two profiles", batches, rule)

    def at(self, setting: Setting) -> Workload:
        """Return the work of a setting.

        Raises:
            InvalidValueError: a speed or batch that is none, or a batch where the profile's is not
                known.
            UnknownNameError: no such profile.
        """
        if not 0 < setting.gpu_speed < float("inf"):
            raise InvalidValueError("gpu_speed", setting.gpu_speed, "a finite number > 0")
        found = self.base
        if setting.profile:
            if setting.profile not in self.profiles:
                raise UnknownNameError("profile", setting.profile, self.profiles)
            found = self.profiles[setting.profile]
        if setting.batch is not None and setting.batch != batch_of(self.base):
            found = self._at_batch(found, setting.batch)
        return found if setting.gpu_speed == 1 else found.scaled(1 / setting.gpu_speed)

    def _at_batch(self, workload: Workload, batch: int) -> Workload:
        known = batch_of(self.base)
        if known is None:
            rule = "left out: the profile does not say which batch it had. Name it in its metadata"
            raise InvalidValueError("batch", batch, rule)
        if batch < 1:
            raise InvalidValueError("batch", batch, "an integer >= 1")
        if self.other_batch is None:
            share = batch / known
            return _times(workload, share, share, 1.0, {})
        one, two = self.base, self.other_batch
        at = (batch - known) / ((batch_of(two) or 0) - known)
        theirs = {tensor.name: tensor for tensor in two.tensors}
        parts = {
            tensor.name: (
                _on_line(tensor.forward_s, theirs[tensor.name].forward_s, at),
                _on_line(tensor.backward_s, theirs[tensor.name].backward_s, at),
            )
            for tensor in one.tensors
        }
        return _times(
            workload,
            _on_line(one.forward_s, two.forward_s, at),
            _on_line(one.backward_s, two.backward_s, at),
            _on_line(one.update_s, two.update_s, at),
            parts,
        )


def _on_line(one_s: float, two_s: float, at: float) -> float:
    """Return what a time is multiplied by; one that was 0 stays so."""
    return max(1 + (two_s / one_s - 1) * at, 0.0) if one_s > 0 else 1.0


def _times(
    workload: Workload,
    forward: float,
    backward: float,
    update: float,
    parts: Mapping[str, tuple[float, float]],
) -> Workload:
    """Return a workload with its times multiplied, those of named tensors by ``parts``."""
    tensors = []
    for tensor in workload.tensors:
        ahead, back = parts.get(tensor.name, (forward, backward))
        tensors.append(
            replace(tensor, forward_s=tensor.forward_s * ahead, backward_s=tensor.backward_s * back)
        )
    backward_s = workload.backward_s * backward
    return replace(
        workload,
        tensors=tuple(tensors),
        forward_s=workload.forward_s * forward,
        backward_s=max(backward_s, sum(tensor.backward_s for tensor in tensors)),
        update_s=workload.update_s * update,
    )
