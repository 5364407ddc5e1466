"""MG-WFBP: merge a gradient into the next while waiting for that costs less than a start-up.

With τ_c the start of each gradient's communication, gradient l is merged into l-1, the next one in
ready order, when ``τ_b[l-2] - τ_c[l] < a``: that wait is what merging costs, and the start-up time
a is what it saves. Algorithm 1 reads τ_b[0] and τ_b[1], which the paper never sets; they are
``τ_b[1] = τ_b[2] + t_b[2]`` and ``τ_b[0] = τ_b[1] + t_b[1]``, the end of backward.

The paper calls the result optimal (Theorem 1). It is not: each test weighs the wait for *one* more
gradient against a, so that many waits, each shorter than a, add up while the link idles. Three
gradients of 10 bytes, 0.9 s apart, at ``T(n) = 1 s + n * 1 s`` end at 33.7 s with Algorithm 1 and
at 32.9 s with the first one sent alone. The policy ``optimal`` solves the problem exactly.

Reference: Shi and Chu, "MG-WFBP: Efficient data communication for distributed synchronous SGD
algorithms" (INFOCOM 2019), Algorithm 1 and Theorem 1.
"""

from __future__ import annotations

from syncopate.planning.problem import Partition, Problem


def mg_wfbp(problem: Problem) -> Partition:
    """Return the partition of MG-WFBP's Algorithm 1.

    The paper recomputes every τ_c after each merge, in O(L^2) altogether. A merge of l changes no
    τ_c that an earlier test has read, and the next test reads only τ_c[l-1]; one pass in ready
    order therefore makes the same decisions in O(L).

    Under costs that are no line, a is the start-up time of the cost: its limit for small messages.
    """
    ready, startup = problem.ready_s.tolist(), problem.cost.startup_s
    ends: list[int] = []
    start = 0
    communication_start = ready[0]
    for index in range(problem.length - 1):
        if ready[index + 1] - communication_start < startup:
            # A merged gradient takes no time of its own: the next starts when it would have.
            free = communication_start
        else:
            ends.append(index + 1)
            free = communication_start + problem.bucket_s(start, index + 1)
            start = index + 1
        communication_start = max(free, ready[index + 1])
    return (*ends, problem.length)
