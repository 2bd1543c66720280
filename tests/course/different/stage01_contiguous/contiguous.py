"""A right answer that has nothing in common with the reference's: the given half of the class is
inherited, and its own half counts by trying."""

from __future__ import annotations

from minipaged.kvcache.contiguous import ContiguousKVManager as Given
from minipaged.kvcache.contiguous import Reservation

__all__ = ["ContiguousKVManager", "Reservation"]


class ContiguousKVManager(Given):
    def requested_tokens(self, group):
        known = [n for n in (group.expected_output_len, group.params.max_tokens) if n is not None]
        if self.policy == "max" or not known:
            return self.max_model_len
        room = max(self.max_model_len - len(group.prompt_token_ids), 0)
        if self.policy == "oracle":
            estimate = min(known[0], room)
        else:
            estimate = 1
            while estimate < min(known[0], room):
                estimate += estimate
        return min(len(group.prompt_token_ids) + estimate, self.max_model_len)

    def _blocks_per_region(self, group):
        starts = range(0, self.requested_tokens(group), self.block_size)
        return len(starts)

    def blocks_needed(self, group):
        region = self.allocator.region_size(self._blocks_per_region(group))
        return sum(region for _ in range(group.places()))

    def fits(self, group, headroom=0):
        return not group.places() > self.allocator.available(self._blocks_per_region(group))

    def fits_ever(self, group):
        return not group.places() > self.allocator.capacity(self._blocks_per_region(group))
