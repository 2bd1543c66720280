"""The paper's claims, and where each number of theirs and ours is found."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from minipaged.capacity import find_gpu, find_model, make_plan
from minipaged.config import PAPER_2023_CACHE
from minipaged.kvcache.sizing import kv_bytes_per_token
from minipaged.sim.paper import block_sizes, fig15, fig19, saturated
from minipaged.sim.paper.claims import Claim, Kind, NotStoredError, Values
from minipaged.sim.paper.knees import find_knees
from minipaged.sim.paper.panels import FIG12, FIG14, FIG16, FIG17, ORCA, Panel
from minipaged.sim.paper.published import points, rate_at, value
from minipaged.sim.paper.study import Study
from minipaged.sim.systems import SYSTEMS

Panels = Sequence[Panel]
_PANELS = {panel.name: panel for panel in (*FIG12, *FIG14, *FIG16, *FIG17)}
_SHAREGPT = FIG12[:3]
#: The quantity of figure 18b.
_BLOCK_SIZES = "norm_latency_s_per_tok_vs_block_size"


# --------------------------------------------------------------------------- latency curves
def _own_ratios(panels: Panels, systems: Sequence[str], level: float) -> Values:
    """vLLM's rate over each system's, as published."""
    return tuple(
        rate_at(panel.name, SYSTEMS["vllm"].title, level)
        / rate_at(panel.name, SYSTEMS[system].title, level)
        for panel in panels
        for system in systems
    )


def _our_ratios(panels: Panels, systems: Sequence[str], study: Study) -> Values:
    """The same of ours. A range over several panels is not seen in some of them."""
    if study.quick and not all(panel.quick for panel in panels):
        raise NotStoredError("a quick study leaves some of these panels out")
    ratios = []
    for panel in panels:
        knees = find_knees(study.sweep, panel.jobs(study.quick), label=panel.name)
        best = knees[panel.name, "vllm"].rate
        for system in systems:
            rate = knees[panel.name, system].rate
            if best is None or rate is None:
                raise NotStoredError(f"{panel.name}: {system} or vllm has no rate at the level")
            ratios.append(best / rate)
    return tuple(ratios)


def _faster(
    place: str,
    text: str,
    said: tuple[float, float],
    panels: Panels,
    systems: Sequence[str],
    kind: Kind = "span",
) -> Claim:
    """A claim about request rates."""
    own, ours = (partial(find, panels, systems) for find in (_own_ratios, _our_ratios))
    figure = f"fig{panels[0].name[:2]}"
    return Claim(place, text, "x", said, kind, own, ours, figure, by_level=True)


# --------------------------------------------------------------------------- memory and batches
def _own_states(level: float) -> Values:
    return tuple(value("fig2", "pct_of_kv_memory:token_states", SYSTEMS[s].title) for s in ORCA)


def _our_states(study: Study) -> Values:
    outcomes = saturated.sharegpt(study)
    return tuple(outcomes[system].memory["token_states"] for system in ORCA)


def _own_waste(level: float) -> Values:
    return (100 - value("fig2", "pct_of_kv_memory:token_states", SYSTEMS["vllm"].title),)


def _our_waste(study: Study) -> Values:
    return (100 - saturated.sharegpt(study)["vllm"].memory["token_states"],)


def _own_batches(system: str, level: float) -> Values:
    vllm, other = (
        value("fig13a", "avg_batched_requests", SYSTEMS[name].title) for name in ("vllm", system)
    )
    return (vllm / other,)


def _our_batches(system: str, study: Study) -> Values:
    outcomes = saturated.sharegpt(study)
    return (outcomes["vllm"].mean_batch / outcomes[system].mean_batch,)


# --------------------------------------------------------------------------- sharing
def _own_saved(kind: str, level: float) -> Values:
    (figure, quantity), _, _ = fig15.KINDS[kind]
    return tuple(point.value for point in points(figure, quantity, "vLLM"))


def _our_saved(dataset: str, kind: str, study: Study) -> Values:
    return tuple(
        row.ours
        for row in fig15.compute(study)
        if row.series == f"{dataset}, {kind}" and row.ours is not None
    )


# --------------------------------------------------------------------------- blocks, swapping
def _own_best(dataset: str, count: int, level: float) -> Values:
    curve = points("fig18b", _BLOCK_SIZES, dataset)
    return tuple(p.x or 0.0 for p in sorted(curve, key=lambda point: point.value)[:count])


def _our_best(dataset: str, count: int, study: Study) -> Values:
    if study.quick:
        raise NotStoredError("a quick study leaves block sizes out")
    curve = block_sizes.latencies(study, dataset)
    return tuple(float(size) for size in sorted(curve, key=lambda size: curve[size])[:count])


def _own_recompute(level: float) -> Values:
    """Recomputing over swapping out and in, by block size."""
    ways = (points("fig19a", "ms_vs_block_size", way) for way in ("Recompute", "Swap in+out"))
    return tuple(again.value / swap.value for again, swap in zip(*ways))


def _our_recompute(study: Study) -> Values:
    return tuple(
        fig19.preemption_seconds("Recompute", size) / fig19.preemption_seconds("Swap in+out", size)
        for size in block_sizes.BLOCK_SIZES
    )


def _own_kernel(level: float) -> Values:
    """Percent that the paged kernel takes longer."""
    return tuple(
        100 * (paged.value / plain.value - 1)
        for batch in (8, 32)
        for paged, plain in zip(
            points("fig18a", "attn_kernel_us", f"vLLM bs{batch}"),
            points("fig18a", "attn_kernel_us", f"FT bs{batch}"),
        )
    )


# --------------------------------------------------------------------------- sizes
def _our_token(study: Study) -> Values:
    return (kv_bytes_per_token(find_model("opt-13b"), 2) / 1024,)


def _our_shares(study: Study) -> Values:
    """Percent of the 40 GB on the label that weights take."""
    gpu = find_gpu("a100-40gb")
    plan = make_plan(find_model("opt-13b"), gpu, cache=PAPER_2023_CACHE)
    return (100 * plan.weight_bytes / (gpu.marketed_gb * 1e9),)


def _our_slots(study: Study) -> Values:
    plan = make_plan(find_model("opt-13b"), find_gpu("a100-40gb"), cache=PAPER_2023_CACHE)
    return (plan.num_slots / 1e3,)


CLAIMS: tuple[Claim, ...] = (
    Claim("Abstract", "Of vLLM's KV cache nearly nothing is wasted: less than 4 %.", " %", (0, 4),
          "within", _own_waste, _our_waste, "fig2"),
    _faster("Abstract", "At the same latency vLLM serves 2 to 4 times as much as Orca and "
            "FasterTransformer; read as: over Orca (Pow2), ShareGPT.", (2, 4), _SHAREGPT,
            ("orca-pow2",)),
    _faster("Abstract", "The same, over all three Orcas and both datasets.", (2, 4), FIG12, ORCA),
    Claim("Section 1", "In systems before, 20.4 to 38.2 % of the KV cache hold the states of "
          "tokens.", " %", (20.4, 38.2), "span", _own_states, _our_states, "fig2", tolerance=0.1),
    Claim("Figure 1", "The weights of OPT-13B take 65 % of an A100-40GB.", " %", (65, 65), "span",
          None, _our_shares),
    Claim("Section 3", "A token of OPT-13B has 800 KB of keys and values.", " KB", (800, 800),
          "span", None, _our_token, tolerance=0.01),
    Claim("Table 1", "What is left beside OPT-13B holds 15.7K tokens.", "K", (15.7, 15.7), "span",
          None, _our_slots, tolerance=0.03),
    _faster("Section 6.2", "On ShareGPT vLLM sustains 1.7 to 2.7 times the rate of Orca (Oracle).",
            (1.7, 2.7), _SHAREGPT, ("orca-oracle",)),
    _faster("Section 6.2", "On ShareGPT vLLM sustains 2.7 to 8 times the rate of Orca (Max).",
            (2.7, 8), _SHAREGPT, ("orca-max",)),
    _faster("Section 6.2", "vLLM sustains up to 22 times the rate of FasterTransformer; read as: "
            "on ShareGPT.", (22, 22), _SHAREGPT, ("fastertransformer",), "reach"),
    Claim("Section 6.2", "On ShareGPT at 2 req/s vLLM has 2.2 times as many requests in a batch as "
          "Orca (Oracle).", "x", (2.2, 2.2), "span", partial(_own_batches, "orca-oracle"),
          partial(_our_batches, "orca-oracle"), "fig13"),
    Claim("Section 6.2", "And 4.3 times as many as Orca (Max).", "x", (4.3, 4.3), "span",
          partial(_own_batches, "orca-max"), partial(_our_batches, "orca-max"), "fig13"),
    _faster("Section 6.3", "vLLM's advantage over Orca (Oracle) on Alpaca grows from 1.3 times "
            "with one sequence to 2.3 times with beams of width 6.", (1.3, 2.3),
            (_PANELS["12d"], _PANELS["14f"]), ("orca-oracle",)),
    Claim("Section 6.3", "Alpaca: sharing saves 6.1 to 9.8 % of the blocks of parallel samples.",
          " %", (6.1, 9.8), "span", partial(_own_saved, "parallel"),
          partial(_our_saved, "Alpaca", "parallel"), "fig15"),
    Claim("Section 6.3", "Alpaca: and 37.6 to 55.2 % of those of beams.", " %", (37.6, 55.2),
          "span", partial(_own_saved, "beam"), partial(_our_saved, "Alpaca", "beam"), "fig15"),
    Claim("Section 6.3", "ShareGPT: sharing saves 16.2 to 30.5 % of the blocks of parallel "
          "samples.", " %", (16.2, 30.5), "span", None,
          partial(_our_saved, "ShareGPT", "parallel"), "fig15"),
    Claim("Section 6.3", "ShareGPT: and 44.3 to 66.3 % of those of beams.", " %", (44.3, 66.3),
          "span", None, partial(_our_saved, "ShareGPT", "beam"), "fig15"),
    _faster("Section 6.4", "With a shared prefix of one example vLLM sustains 1.67 times the rate "
            "of Orca (Oracle).", (1.67, 1.67), (_PANELS["16a"],), ("orca-oracle",)),
    _faster("Section 6.4", "With five examples 3.58 times.", (3.58, 3.58), (_PANELS["16b"],),
            ("orca-oracle",)),
    _faster("Section 6.5", "As a chatbot vLLM sustains twice the rate of the three Orcas.", (2, 2),
            FIG17, ORCA),
    Claim("Section 7.1", "The attention kernel takes 20 to 26 % longer than "
          "FasterTransformer's.", " %", (20, 26), "within", _own_kernel, None),
    Claim("Section 7.2", "On ShareGPT blocks of 16 to 128 tokens are the best.", "", (16, 128),
          "span", partial(_own_best, "ShareGPT", 4), partial(_our_best, "ShareGPT", 4), "fig18",
          tolerance=0.01),
    Claim("Section 7.2", "On Alpaca blocks of 16 and 32 tokens are.", "", (16, 32), "span",
          partial(_own_best, "Alpaca", 2), partial(_our_best, "Alpaca", 2), "fig18",
          tolerance=0.01),
    Claim("Section 7.3", "Recomputing never takes more than 20 % of the time of swapping; as it is "
          "written.", "x", (0, 0.2), "within", _own_recompute, _our_recompute),
    Claim("Section 7.3", "The same, read as: never more than 20 % longer than swapping.", "x",
          (0, 1.2), "within", _own_recompute, _our_recompute),
)  # fmt: skip
"""In the order of the paper."""
