"""Communicator: the collectives of one group of ranks, on one or several channels.

Example:
    >>> import torch, torch.distributed as dist  # doctest: +SKIP
    >>> dist.init_process_group("gloo")  # doctest: +SKIP
    >>> with Communicator(channels=2) as communicator:  # doctest: +SKIP
    ...     handle = communicator.all_reduce(gradient, algorithm="ring", async_op=True)
    ...     communicator.all_reduce(other, algorithm="recursive_doubling", channel=1)
    ...     handle.wait()
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist

from syncopate.artifacts.cluster import Cluster
from syncopate.collectives import choices, transport
from syncopate.collectives.channel import Channel
from syncopate.collectives.choices import Choices
from syncopate.collectives.endings import STOP_S, end_threads, give_up
from syncopate.collectives.handle import Handle, finished
from syncopate.collectives.health import agreement
from syncopate.collectives.health.blame import Call
from syncopate.collectives.health.detector import FailureDetector
from syncopate.collectives.messages.tensors import Messages
from syncopate.collectives.nccl.streams import Completion
from syncopate.collectives.request import DTYPES, form_of, require_recipe
from syncopate.collectives.runner import Runner, Work, opened
from syncopate.errors import CollectiveError, InvalidValueError
from syncopate.recipe import AlgorithmOptions, Recipe
from syncopate.schedules import registry
from syncopate.schedules.options import Option

_CLOSED = "the communicator is closed"


class _Place(NamedTuple):
    """Where a collective runs: its channel, on whose thread, and whether a stream carries it on."""

    channel: int
    background: bool
    queued: bool = False


class Communicator:
    """Collectives among the ranks of a process group.

    Every rank of the group must create its communicators, and submit collectives to each channel,
    in the same order. With ``group=None`` all ranks of the job take part.

    Ranks are counted within the group. A collective that fails raises
    :class:`~syncopate.errors.CollectiveError` on every rank that is alive, and leaves the
    communicator broken: every later call raises the first reason at once.

    Args:
        group: the ranks; ``None`` for the default group.
        channels: how many collectives may be under way at once; each channel has its own process
            group over the same ranks, made here.
        timeout_s: how long a rank waits for another before it gives up; ``None`` for the time
            limit of ``group``. A rank that died or whose host is silent is not waited for.
        check: compare before every collective what the ranks are about to do, and raise on all of
            them when they differ; costs a small all-gather each time. Without it, schedules that
            do not match are found out within a second or two, but a native collective may mix up
            data, or Gloo may end the process. ``None`` asks the environment variable
            ``SYNCOPATE_CHECK``.
        cluster: what ``algorithm="auto"`` decides by; see :meth:`use_cluster`.

    Raises:
        InvalidValueError: torch.distributed is not initialised, or an argument is out of range.
        CollectiveError: not every rank arrived to create the communicator, or came with another
            cluster.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        channels: int = 1,
        timeout_s: float | None = None,
        check: bool | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        if channels < 1:
            raise InvalidValueError("channels", channels, "an integer >= 1")
        if timeout_s is not None and not timeout_s > 0:
            rule = "a number of seconds > 0, or None for the group's own time limit"
            raise InvalidValueError("timeout_s", timeout_s, rule)
        if group is None and not (dist.is_available() and dist.is_initialized()):
            rule = "initialised first: start with torchrun and call init_process_group"
            raise InvalidValueError("torch.distributed", "not initialised", rule)
        if timeout_s is None:
            timeout_s = transport.group_timeout_s(group)
        self.timeout_s = timeout_s = min(timeout_s, transport.LONGEST_S)
        self._rank = dist.get_rank() if group is None else group.rank()
        self._world_size = dist.get_world_size() if group is None else group.size()
        self._check = agreement.wanted() if check is None else check
        self._closed = False
        self._choices = Choices()
        self._group = group
        self._detector: FailureDetector | None = None
        with opened(group, channels, timeout_s) as self._runners:
            if self._runners:
                self._detector = FailureDetector(self._runners, self._rank, self._world_size)
        self._channels = [Channel(index) for index in range(channels)]
        # Without close() the threads still end with the communicator, or with the interpreter, and
        # the sockets with the communicator.
        weakref.finalize(self, end_threads, self._channels, self._detector)
        dropped = (self._channels, self._detector, self._runners)
        weakref.finalize(self, give_up, *dropped).atexit = False
        if cluster is not None:
            try:
                self.use_cluster(cluster)
            except BaseException:
                self.close()
                raise

    @property
    def rank(self) -> int:
        """This process's rank within the group."""
        return self._rank

    @property
    def world_size(self) -> int:
        """Number of ranks in the group."""
        return self._world_size

    @property
    def detector(self) -> FailureDetector | None:
        """What notices that ranks are lost; None for a rank alone, which cannot lose any."""
        return self._detector

    def messages(self) -> Messages:
        """Return messages between two of these ranks, on channel 0; not for a rank alone."""
        self._require_open("messages")
        if self._detector is None:
            raise InvalidValueError("messages", "of a rank alone", "between two ranks")
        return Messages(self._runners[0], self._detector)

    @property
    def carrier(self) -> Runner | None:
        """What carries channel 0; None for a rank alone."""
        return self._runners[0] if self._runners else None

    @property
    def channels(self) -> int:
        """Number of channels."""
        return len(self._channels)

    def widen(self, channels: int) -> None:
        """Have so many channels at least from now on; every rank calls it.

        What is there stays: channels, connections and the failure detector.

        Args:
            channels: how many; with no collective under way.

        Raises:
            CollectiveError: a rank was lost, or did not come.
        """
        self._require_open("widen")
        have = self.channels
        if have >= channels:
            return
        if self._detector is not None:
            self.barrier()  # torch, which makes the groups, would sit out its limit for a dead rank
            with opened(self._group, channels - have, self.timeout_s) as runners:
                for runner in runners:
                    self._detector.add(runner)
            self._runners += runners
        self._channels += [Channel(index) for index in range(have, channels)]

    def use_cluster(self, cluster: Cluster) -> None:
        """Let ``algorithm="auto"`` decide by ``cluster`` from now on; every rank calls it.

        What each collective costs there at each size decides: as measured, where the cluster was
        calibrated with it, else by the prices of the schedules.

        Args:
            cluster: of as many ranks as the communicator has, and the same on all of them.

        Raises:
            CollectiveError: the ranks were given different clusters; names those that differ.
            InvalidValueError: a cluster of another number of ranks.
        """
        self._require_open("use_cluster")
        device = self._runners[0].device if self._runners else torch.device("cpu")
        self._choices = choices.agree(self, cluster, device)

    @property
    def choices(self) -> Choices:
        """What ``"auto"`` stands for here."""
        return self._choices

    def all_reduce(
        self,
        tensor: torch.Tensor,
        *,
        algorithm: str = registry.NATIVE,
        channel: int = 0,
        async_op: bool = False,
        options: Mapping[str, Option] | None = None,
    ) -> Handle:
        """Replace ``tensor`` by its sum over the ranks; bit-identical on all of them.

        Args:
            tensor: contiguous, of the same size and dtype on every rank; not part of autograd.
            algorithm: a registered algorithm, ``"native"`` for the backend's own, or ``"auto"``
                for what is best at this size on the cluster given to :meth:`use_cluster`.
            channel: where it runs; after what that channel was given before.
            async_op: return at once; :meth:`Handle.wait` then gives the result.
            options: what the algorithm takes besides, such as ``{"blocks": 8}``; its defaults
                otherwise. The same on every rank.

        Raises:
            UnknownNameError: no such algorithm or option.
            InvalidValueError: no such channel or value of an option, a tensor that does not fit,
                or ``"auto"`` without a cluster.
            CollectiveError: it did not finish.
        """
        recipe = Recipe("all_reduce", algorithm, 0, _told(options), channel)
        return self.run(recipe, tensor, async_op=async_op)

    def reduce_scatter(
        self,
        tensor: torch.Tensor,
        *,
        bounds: Sequence[int] | None = None,
        algorithm: str = registry.NATIVE,
        channel: int = 0,
        async_op: bool = False,
        options: Mapping[str, Option] | None = None,
    ) -> Handle:
        """Leave in each rank's shard of ``tensor`` the sum of that shard over the ranks.

        The full buffer goes in; rank r's shard is its elements ``bounds[r]:bounds[r + 1]``, and
        the rest is undefined afterwards. The p + 1 offsets never decrease, from 0 to the number of
        elements, and are the same on every rank; a shard may be empty. Left out, they are
        ``chunk_offsets(numel, p)``, and shards equal but for one element. With other bounds
        ``"native"``, and NCCL's stages of a hierarchy, move as much as if all shards were as long
        as the longest. ``"auto"`` does not look at them.

        Other arguments and errors as in :meth:`all_reduce`.

        Raises:
            InvalidValueError: other bounds.
        """
        recipe = Recipe("reduce_scatter", algorithm, 0, _told(options), channel)
        return self.run(recipe, tensor, bounds=bounds, async_op=async_op)

    def all_gather(
        self,
        tensor: torch.Tensor,
        *,
        bounds: Sequence[int] | None = None,
        algorithm: str = registry.NATIVE,
        channel: int = 0,
        async_op: bool = False,
        options: Mapping[str, Option] | None = None,
    ) -> Handle:
        """Fill ``tensor`` with every rank's shard, given that each rank's own is in place.

        Shards, arguments and errors as in :meth:`reduce_scatter`.
        """
        recipe = Recipe("all_gather", algorithm, 0, _told(options), channel)
        return self.run(recipe, tensor, bounds=bounds, async_op=async_op)

    def broadcast(
        self,
        tensor: torch.Tensor,
        src: int = 0,
        *,
        algorithm: str = registry.NATIVE,
        channel: int = 0,
        async_op: bool = False,
        options: Mapping[str, Option] | None = None,
    ) -> Handle:
        """Overwrite ``tensor`` with rank ``src``'s.

        Other arguments and errors as in :meth:`all_reduce`.

        Raises:
            InvalidValueError: no such rank.
        """
        self._require_rank("src", src)
        recipe = Recipe("broadcast", algorithm, src, _told(options), channel)
        return self.run(recipe, tensor, async_op=async_op)

    def reduce(
        self,
        tensor: torch.Tensor,
        dst: int = 0,
        *,
        algorithm: str = registry.NATIVE,
        channel: int = 0,
        async_op: bool = False,
        options: Mapping[str, Option] | None = None,
    ) -> Handle:
        """Replace rank ``dst``'s ``tensor`` by the sum over the ranks; undefined on the others.

        Other arguments and errors as in :meth:`all_reduce`.

        Raises:
            InvalidValueError: no such rank.
        """
        self._require_rank("dst", dst)
        recipe = Recipe("reduce", algorithm, dst, _told(options), channel)
        return self.run(recipe, tensor, async_op=async_op)

    def run(
        self,
        recipe: Recipe,
        tensor: torch.Tensor,
        *,
        bounds: Sequence[int] | None = None,
        before: Callable[[], object] | None = None,
        async_op: bool = False,
        wire_dtype: torch.dtype | None = None,
    ) -> Handle:
        """Run what ``recipe`` says on ``tensor``, in place.

        What the collectives' own methods do; other arguments and errors as there.

        Args:
            recipe: what to run.
            tensor: as for the collective's own method.
            bounds: as for collectives with shards.
            before: called on the thread that runs the collective, when its turn has come;
                ``tensor`` may be filled until it returns.
            async_op: return at once.
            wire_dtype: what the elements of a sum of float32 or float64 travel as, bfloat16 or
                float16 (:mod:`syncopate.collectives.mesh.narrow`); as they are when left out.

        Raises:
            InvalidValueError: a ``wire_dtype`` for another collective, or an unknown one.
        """
        channel = recipe.channel
        form = form_of(recipe.collective, tensor, self._world_size, bounds, wire_dtype)
        if not 0 <= channel < len(self._channels):
            raise InvalidValueError("channel", channel, f"in 0..{len(self._channels) - 1}")
        self._require_open(recipe.collective)
        recipe = self._choices.resolve(recipe, form.nbytes(tensor))
        if not tensor.numel() or not self._runners:
            require_recipe(recipe, self._world_size)
            if before is not None:
                before()
            return finished()
        runner = self._runners[channel]
        label, work, waits = runner.collective(recipe, tensor, form)
        if before is not None:
            work = _after(before, work)
        place = _Place(channel, async_op, queued=not waits)
        return self._submit(label, work, place, tensor)

    def perform(
        self,
        label: str,
        body: Callable[[Runner | None], None],
        *,
        channel: int = 0,
        async_op: bool = False,
    ) -> Handle:
        """Carry out ``body`` as one collective.

        Args:
            label: its name, by which the ranks are compared.
            body: called with what carries it, None for a rank alone, when its turn has come.
            channel: where it runs; after what that channel was given before.
            async_op: return at once.

        Raises:
            CollectiveError: it did not finish.
        """
        self._require_open(label)
        if not self._runners:
            body(None)
            return finished()
        runner = self._runners[channel]
        return self._submit(label, lambda: body(runner), _Place(channel, background=async_op))

    def barrier(self) -> None:
        """Return when every rank has come here; on channel 0.

        Raises:
            CollectiveError: some rank did not come.
        """
        self.perform("barrier", lambda runner: runner.objects.barrier() if runner else None)

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """Return rank ``src``'s object on every rank; it travels pickled, on channel 0.

        Raises:
            InvalidValueError: no such rank.
            CollectiveError: it did not finish.
        """
        self._require_rank("src", src)
        held: list[Any] = []

        def body(runner: Runner | None) -> None:
            held.append(runner.objects.broadcast(obj, src) if runner else obj)

        self.perform("broadcast_object", body)
        return held[0]

    def all_gather_object(self, obj: Any) -> list[Any]:
        """Return every rank's object, in rank order; they travel pickled, on channel 0.

        Raises:
            CollectiveError: it did not finish.
        """
        gathered: list[Any] = []

        def body(runner: Runner | None) -> None:
            gathered.extend(runner.objects.all_gather(obj) if runner else [obj])

        self.perform("all_gather_object", body)
        return gathered

    def close(self) -> None:
        """Finish what was submitted, end the threads, destroy the groups. May be called again."""
        if self._closed:
            return
        self._closed = True
        for channel in self._channels:
            if not channel.close(self.timeout_s) and self._detector is not None:
                self._detector.interrupt()
                channel.close(STOP_S)
        if self._detector is not None:
            self._detector.close()
        for runner in self._runners:
            runner.close()
        self._runners.clear()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _submit(
        self, label: str, work: Work, place: _Place, tensor: torch.Tensor | None = None
    ) -> Handle:
        """Hand ``work`` to its channel, and wait for it unless it is to run in the background."""
        handle, detector = Handle(), self._detector
        assert detector is not None
        channel = self._channels[place.channel]
        numel, dtype = (0, "") if tensor is None else (tensor.numel(), DTYPES[tensor.dtype])
        runner = self._runners[place.channel]
        call: Call
        if self._check:
            work = _after(lambda: agreement.require_agreement(call, runner.objects), work)
        work = runner.here(work)

        def job() -> None:
            nonlocal call
            call = Call(label, place.channel, channel.take_number(), numel, dtype)
            error: BaseException | None = None
            completion: Completion | None = None
            started_s = time.perf_counter()
            try:
                completion = detector.run(call, work)
            except BaseException as caught:  # raised again where the handle is waited for
                error = caught
            with channel.ending():
                handle._finish(started_s, time.perf_counter(), error, completion)

        if not channel.run(job, background=place.background and not place.queued):
            raise CollectiveError(label, _CLOSED)
        if not place.background:
            handle.wait()
        return handle

    def _require_open(self, label: str) -> None:
        if self._closed:
            raise CollectiveError(label, _CLOSED)

    def _require_rank(self, what: str, rank: int) -> None:
        if not 0 <= rank < self._world_size:
            raise InvalidValueError(what, rank, f"a rank in 0..{self._world_size - 1}")


def _after(before: Callable[[], object], work: Work) -> Work:
    def both() -> Completion | None:
        before()
        return work()

    return both


def _told(options: Mapping[str, Option] | None) -> AlgorithmOptions:
    return cast("AlgorithmOptions", dict(options or {}))
