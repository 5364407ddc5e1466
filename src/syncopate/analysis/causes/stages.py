"""Stages: what those of pipelines compute, and would if all were equally long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from syncopate.analysis.evidence.pipeline import of_stage, pipelines
from syncopate.artifacts.timeline import Timeline
from syncopate.artifacts.timelines.spans import Times


class Stages:
    """The stages of the pipelines of a timeline, by the places of their ranks.

    Args:
        timeline: of a training.
        ranks: those that computed.

    Attributes:
        alike: the ranks of each stage; without pipelines all ranks.
        pipelines: the ranks of each pipeline, by stage; empty: there is none.
    """

    def __init__(self, timeline: Timeline, ranks: Sequence[int]) -> None:
        place = {rank: at for at, rank in enumerate(ranks)}
        self.alike = of_stage(timeline, ranks)
        found = pipelines(timeline)
        computing = ([place[rank] for rank in mine if rank in place] for mine in found)
        self.pipelines = [mine for mine in computing if mine]

    def evenly_s(self, parts_s: Times) -> tuple[float, float]:
        """Return the time of a stage in an iteration if all were even, and that of the longest.

        In the mean over iterations, of the pipeline in which that is most; 0: there are no stages.

        Args:
            parts_s: seconds by rank, iteration and part.
        """
        if not self.pipelines:
            return 0.0, 0.0
        lasts_s = parts_s.sum(axis=2)
        even_s = np.stack([lasts_s[mine].mean(axis=0) for mine in self.pipelines])
        return float(even_s.max(axis=0).mean()), float(lasts_s.mean(axis=1).max())

    def factors(self, usual_s: Times, slower: Mapping[int, Sequence[int]]) -> Times:
        """Return how many times as long each rank takes where all stages take as long.

        Args:
            usual_s: seconds by rank and part.
            slower: the parts in which ranks compute longer than the others of their stage: these do
                not count.
        """
        of_stage_s = usual_s.copy()
        for stage, part in product(self.alike, range(usual_s.shape[1])):
            healthy = [at for at in stage if part not in slower.get(at, ())]
            of_stage_s[stage, part] = np.median(usual_s[healthy or stage, part])
        factors = np.ones_like(of_stage_s)
        for mine in self.pipelines:
            own_s = of_stage_s[mine]
            there = np.where(own_s > 0, own_s, 1.0)
            factors[mine] = np.where(own_s > 0, own_s.mean(axis=0) / there, 1.0)
        return factors
