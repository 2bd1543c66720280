"""The systems of the paper's evaluation, as settings of one engine (section 6.1).

They differ in how they reserve memory and in when a request may join a batch. Everything else is
the same code: the baselines are *reimplemented*, here as in the paper, and what one assumes of them
decides how they fare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from minipaged.config import Batching, CacheConfig, Reservation, SchedulerConfig
from minipaged.errors import ConfigError


@dataclass(frozen=True)
class System:
    """How a system serves.

    Attributes:
        name: as in commands.
        title: as in the paper's legends.
        reservation: what memory a request gets at its admission.
        batching: whether requests join and leave a batch in every step, or all at once.
        token_budget: does it limit the tokens of a step?
        padded: is a batch computed as a rectangle, to the end of its longest sequence?
    """

    name: str
    title: str
    reservation: Reservation
    batching: Batching = "iteration"
    token_budget: bool = False
    padded: bool = False

    def cache(self, base: CacheConfig, shares_a_prefix: bool = False) -> CacheConfig:
        """Its memory, other settings being those of ``base``.

        Args:
            shares_a_prefix: does the workload have one that is registered? Reserved regions share
                nothing.
        """
        if self.reservation != "paged":
            return replace(base, reservation=self.reservation, prefix_caching=False)
        if shares_a_prefix and not base.prefix_caching:
            return replace(base, prefix_caching="registered")
        return base

    def scheduler(self, base: SchedulerConfig) -> SchedulerConfig:
        """Its scheduler, other settings being those of ``base``."""
        budget = base.max_num_batched_tokens if self.token_budget else 1 << 40
        return replace(base, batching=self.batching, max_num_batched_tokens=budget)


SYSTEMS: Mapping[str, System] = MappingProxyType(
    {
        system.name: system
        for system in (
            System(
                "fastertransformer", "FasterTransformer", "max", batching="request", padded=True
            ),
            System("orca-max", "Orca (Max)", "max"),
            System("orca-pow2", "Orca (Pow2)", "pow2"),
            System("orca-oracle", "Orca (Oracle)", "oracle"),
            System("vllm", "vLLM", "paged", token_budget=True),
        )
    }
)
"""By name, in the order of the paper's legends."""


def find_system(name: str) -> System:
    """Raises ConfigError, which names those that there are."""
    if name not in SYSTEMS:
        raise ConfigError(f"unknown system {name!r}: choose from {', '.join(SYSTEMS)}")
    return SYSTEMS[name]
