"""What the simulated engine is asked to do: requests, when they arrive, what text they share.

The paper's experiments are :func:`paper`, :func:`shared_prefix` and :func:`chatbot`; beyond them
are :func:`long_context` and :func:`prefix_chat`. Workloads from files are read by
:mod:`minipaged.sim.traces`.
"""

from minipaged.sim.workloads.chat import chatbot, prefix_chat
from minipaged.sim.workloads.datasets import long_context, paper, shared_prefix
from minipaged.sim.workloads.request import Piece, Request, Workload

__all__ = [
    "Piece",
    "Request",
    "Workload",
    "chatbot",
    "long_context",
    "paper",
    "prefix_chat",
    "shared_prefix",
]
