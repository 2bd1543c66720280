"""Table 1: the models, their servers, and what is left there for the KV cache."""

from __future__ import annotations

from minipaged.capacity import find_gpu, find_model, gib, make_plan
from minipaged.config import PAPER_2023_CACHE
from minipaged.hardware import GiB
from minipaged.sim.paper.comparison import Row
from minipaged.sim.paper.study import Study
from minipaged.sim.simulate import PAPER_DEPLOYMENTS

TITLE = "Table 1. Models and servers"

#: Model -> parameters (GB), KV memory (GB), slots (thousands), as printed.
PUBLISHED = {
    "opt-13b": (26.0, 12.0, 15.7),
    "opt-66b": (132.0, 21.0, 9.7),
    "opt-175b": (346.0, 264.0, 60.1),
}
_NOTES = (
    "parameters: the paper has the nominal size times 2 bytes, we count every tensor",
    "KV cache: what 0.95 of the memory leaves beside weights and {activations} a card, which is "
    "what the row of OPT-13B leaves for all else; the paper's GB must be GiB",
    "",
)


def compute(study: Study) -> list[Row]:
    """Three numbers of three models."""
    rows = []
    for model, published in PUBLISHED.items():
        place = PAPER_DEPLOYMENTS[model]
        plan = make_plan(
            find_model(model), find_gpu(place.gpu), place.tensor_parallel, cache=PAPER_2023_CACHE
        )
        ours = (
            2 * plan.parameters / 1e9,
            plan.kv_bytes * place.tensor_parallel / GiB,
            plan.num_slots / 1e3,
        )
        names = ("parameters (GB)", "KV cache (GiB)", "slots (thousands)")
        notes = [note.format(activations=gib(plan.activation_bytes)) for note in _NOTES]
        rows += [
            Row(
                "table1",
                name,
                f"{model}, {place.tensor_parallel} x {place.gpu}",
                paper=paper,
                ours=number,
                fitted=model == "opt-13b" and at > 0,
                note=note,
            )
            for at, (name, paper, number, note) in enumerate(zip(names, published, ours, notes))
        ]
    return rows
