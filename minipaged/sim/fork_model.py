"""Which beam goes on from which: beam search without a model (paper, section 4.4 and figure 15).

A simulation has no log-probabilities to rank beams by. What matters to memory is only the family
tree: how often a beam dies, and from which other one its place is filled.
"""

from __future__ import annotations

import random


class ForkModel:
    """Draws the parents of the next beams.

    In a step, each place goes on from its own beam, or with the chance ``steal`` from another one,
    all others being equally likely. So a beam dies when nobody goes on from it, and the search
    keeps converging to a common ancestor, as real ones do.

    Args:
        steal: 0 to 1. The default is fitted on one number of the paper: the memory that beam
            search of width 2 saves on Alpaca (figure 15b).
    """

    def __init__(self, steal: float = 0.05) -> None:
        self.steal = steal

    def parents(self, width: int, rng: random.Random) -> list[int]:
        """For each of the ``width`` next beams, the index of the beam that it goes on from."""
        parents = list(range(width))
        for place in range(width):
            if rng.random() < self.steal:
                other = rng.randrange(width - 1)
                parents[place] = other + (other >= place)
        return parents
