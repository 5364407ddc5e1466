"""Overlap: what computation on a GPU loses while a collective runs, where nobody measured it.

Collectives of NCCL's take multiprocessors and memory bandwidth from the kernels beside them. Lee et
al. compared computation with a collective beside it and without, for GPT and LLaMA models on A100,
H100, MI210 and MI250: it took 18.9% longer in the mean, and 40.0% at most. That mean is the stated
default here: computation goes on at 1/1.189 of its rate. Theirs are newer GPUs and faster links
than many; a figure of one's own is always better (``syncopate calibrate``).

Source: S. Lee, J. Oh, J. Kim, S. Go, J. Park and D. Mahajan, "Characterizing compute-communication
overlap in GPU-accelerated distributed deep learning" (arXiv 2507.03114, 2025), abstract.
"""

from __future__ import annotations

from syncopate.artifacts.cluster import Interference

LONGER = 0.189
"""By how much computation took longer with a collective beside it."""

GPU_OVERLAP = Interference(compute_rate=1 / (1 + LONGER))
"""What is assumed of GPUs whose interference was not measured."""
