"""Table 1: the models, their servers, and what is left there for the KV cache."""

from __future__ import annotations

from minipaged.capacity import PAPER_TABLE_1, find_gpu, find_model, gib, make_plan
from minipaged.config import PAPER_2023_CACHE
from minipaged.hardware import GiB
from minipaged.sim.paper.comparison import Row
from minipaged.sim.paper.study import Study

TITLE = "Table 1. Models and servers"

_NOTES = (
    "parameters: the paper has the nominal size times 2 bytes, we count every tensor",
    "KV cache: what 0.95 of the memory leaves beside weights and {activations} a card, which is "
    "what the row of OPT-13B leaves for all else; the paper's GB must be GiB",
    "",
)


def compute(study: Study) -> list[Row]:
    """Three numbers of three models."""
    rows = []
    for model, cards, gpu, *published in PAPER_TABLE_1:
        plan = make_plan(find_model(model), find_gpu(gpu), cards, cache=PAPER_2023_CACHE)
        ours = (
            2 * plan.parameters / 1e9,
            plan.kv_bytes * cards / GiB,
            plan.num_slots / 1e3,
        )
        names = ("parameters (GB)", "KV cache (GiB)", "slots (thousands)")
        notes = [note.format(activations=gib(plan.activation_bytes)) for note in _NOTES]
        rows += [
            Row(
                "table1",
                name,
                f"{model}, {cards} x {gpu}",
                paper=paper,
                ours=number,
                fitted=model == "opt-13b" and at > 0,
                note=note,
            )
            for at, (name, paper, number, note) in enumerate(zip(names, published, ours, notes))
        ]
    return rows
