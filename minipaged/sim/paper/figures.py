"""All figures of the reproduction, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from minipaged.sim.paper import fig1, fig2, fig11, fig13, fig15, fig18, fig19, table1
from minipaged.sim.paper.latency_curves import latency_figure
from minipaged.sim.paper.panels import FIG12, FIG14, FIG16, FIG17
from minipaged.sim.paper.study import Figure

_TRANSLATION = (
    "sentences: their lengths are not published, and are assumed (minipaged.sim.workloads)"
)

#: In the paper's order.
FIGURES: Mapping[str, Figure] = MappingProxyType(
    {
        "table1": Figure(table1.TITLE, table1.compute, None),
        "fig1": Figure(fig1.TITLE, fig1.compute, fig1.draw),
        "fig2": Figure(fig2.TITLE, fig2.compute, fig2.draw),
        "fig11": Figure(fig11.TITLE, fig11.compute, fig11.draw),
        "fig12": latency_figure("fig12", "Figure 12. Latency over the request rate", FIG12),
        "fig13": Figure(fig13.TITLE, fig13.compute, fig13.draw),
        "fig14": latency_figure(
            "fig14", "Figure 14. Parallel sampling and beam search, OPT-13B on Alpaca", FIG14
        ),
        "fig15": Figure(fig15.TITLE, fig15.compute, fig15.draw),
        "fig16": latency_figure(
            "fig16", "Figure 16. Translation with a shared prefix, LLaMA-13B", FIG16, _TRANSLATION
        ),
        "fig17": latency_figure("fig17", "Figure 17. Chatbot, OPT-13B", FIG17),
        "fig18": Figure(fig18.TITLE, fig18.compute, fig18.draw),
        "fig19": Figure(fig19.TITLE, fig19.compute, fig19.draw),
    }
)
