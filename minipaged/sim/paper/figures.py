"""All figures of the reproduction, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from minipaged.sim.paper import fig2, fig13
from minipaged.sim.paper.latency_curves import latency_figure
from minipaged.sim.paper.panels import FIG12, FIG14, FIG17
from minipaged.sim.paper.study import Figure

FIGURES: Mapping[str, Figure] = MappingProxyType(
    {
        "fig2": Figure(fig2.TITLE, fig2.compute, fig2.draw),
        "fig12": latency_figure("fig12", "Figure 12. Latency over the request rate", FIG12),
        "fig13": Figure(fig13.TITLE, fig13.compute, fig13.draw),
        "fig14": latency_figure(
            "fig14", "Figure 14. Parallel sampling and beam search, OPT-13B on Alpaca", FIG14
        ),
        "fig17": latency_figure("fig17", "Figure 17. Chatbot, OPT-13B", FIG17),
    }
)
