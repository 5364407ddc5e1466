"""Pulled weights: a step ends by launching the weights that it changed, each from its owner.

They come in the order of the plan: what the next forward needs first comes first. The step does
not wait; a look at a parameter does (``exchange/proxies/weights.py``).

[Note: several optimizers]
A step launches the pulls of its own optimizer's parameters and no others, so that it does not
matter whether the others step in the same iteration, before or after, or at all: what no step has
changed is not pulled. As of any collective, all ranks take the same steps in the same order.
Parameters of different optimizers have different flat buffers, so that nothing is pulled twice, and
a step does not wait for the pulls of the step before it.
"""

from __future__ import annotations

from collections.abc import Callable

from syncopate.engine.buckets import FlatBuffer, Message
from syncopate.engine.exchange.flat_weights import FlatWeights
from syncopate.engine.exchange.layout import Launched, Layout
from syncopate.engine.exchange.parts import Pull, Stepped
from syncopate.engine.exchange.proxies import weights


class Source:
    """Brings weights from the ranks or servers that updated them."""

    def bring(self, part: FlatBuffer, message: Message) -> None:
        """Launch what ``message`` carries of the weights of a flat buffer, and let looks wait."""

    def pushed(self) -> None:
        """Note that all pushes of a backward are launched."""

    def launched(self) -> None:
        """Note that all pulls of a step are launched."""


class FromOwners(Source):
    """Collectives of the plan bring weights from the ranks that own them."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._weights = layout.shared(FlatWeights)

    def bring(self, part: FlatBuffer, message: Message) -> None:
        """Launch the updated weights that ``message`` carries, from their owners."""
        assert message.pull is not None
        pulled = self._weights.of(part)[message.start : message.stop]
        handle = self._layout.communicator.run(
            message.pull, pulled, bounds=message.bounds, async_op=True
        )
        self._layout.traffic.pulls.append(Launched(part, message, handle))
        self._weights.expect(part, handle)


class PulledWeights(Pull):
    """Brings back the weights that a step has changed.

    Args:
        layout: of the exchange.
        source: brings them.
    """

    def __init__(self, layout: Layout, source: Callable[[Layout], Source] = FromOwners) -> None:
        self._layout = layout
        self._weights = layout.shared(FlatWeights)
        self._source = source(layout)

    def pushed(self) -> None:
        """Launch what the source launches behind the pushes."""
        self._source.pushed()

    def launch(self, stepped: Stepped) -> None:
        """Launch the weights that a step has changed."""
        for part in self._layout.parts:
            if part.replicated and id(part) in stepped.parts:
                weights.renew(part.parameters)
        with self._weights.arriving:  # no look takes one message of a flat buffer for all of it
            for part, message in self._layout.pulled:
                if id(part) in stepped.parts:
                    self._source.bring(part, message)
        if self._weights.compiled:
            self._weights.ready()
        self._source.launched()

    def ready(self) -> None:
        """Wait until every weight has come back."""
        self._weights.ready()

    def leave(self) -> None:
        """Give every parameter memory of its own."""
        self._weights.give_back()
