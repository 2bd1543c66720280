"""B14: teacher-forced logits through the paged executor against transformers, at every position,
however the tokens are cut into steps."""

import pytest
import torch
from tiny_models import VARIANTS, hf_logits, hf_model, ours, prompt

from minipaged.attention.reference import ReferenceAttention
from minipaged.contracts import Span, StepPlan
from minipaged.executor.torch_executor import TorchExecutor
from minipaged.kvcache.pool import KVPool

LENGTH = 23
CUTS = {
    "one prefill": [LENGTH],
    "prefill and decode": [11, *[1] * 12],
    "chunks of 5": [5, 5, 5, 5, 3],
    "decode only": [1] * LENGTH,
}


def paged_logits(model, sequences, cuts, block_size=4):
    """Logits of all positions of several sequences, computed in steps of these lengths, the
    j-th sequence starting j steps after the first, over scattered blocks full of NaN."""
    blocks_each = -(-max(len(tokens) for tokens in sequences) // block_size)
    total = blocks_each * len(sequences)
    pool = KVPool(model.config, block_size, total + 2)
    executor = TorchExecutor(model, pool, ReferenceAttention())
    executor.poison(range(total + 2))
    order = torch.randperm(total + 2, generator=torch.Generator().manual_seed(5)).tolist()
    tables = [order[i :: len(sequences)][:blocks_each] for i in range(len(sequences))]
    done, rows = [0] * len(sequences), [[] for _ in sequences]
    for step in range(len(cuts) + len(sequences) - 1):
        spans = []
        for i, tokens in enumerate(sequences):
            if 0 <= step - i < len(cuts):
                end = done[i] + cuts[step - i]
                spans.append(Span(i, done[i], tokens[done[i] : end], tables[i], True, True))
                done[i] = end
        out = executor.execute(StepPlan(step, spans))
        for row, span in zip(out.rows, spans, strict=True):
            rows[span.seq_id].append(out.prompt_rows[span.seq_id])
            torch.testing.assert_close(row, rows[span.seq_id][-1][-1], atol=1e-4, rtol=0)
    return [torch.cat(parts) for parts in rows]


def assert_parity(reference, model, sequences, cuts, **options):
    for tokens, got in zip(sequences, paged_logits(model, sequences, cuts, **options)):
        expected = hf_logits(reference, torch.tensor(tokens))
        assert got.shape == expected.shape
        assert expected.std() > 0.3, "logits near 0 would pass any comparison"
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)


@pytest.fixture(scope="module", params=VARIANTS)
def pair(request):
    reference = hf_model(request.param)
    return reference, ours(reference)


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_logits_equal_transformers_at_every_position(pair, cuts):
    assert_parity(*pair, [prompt(LENGTH).tolist()], cuts)


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_sequences_at_different_places_in_one_batch(pair, cuts):
    sequences = [prompt(LENGTH, seed=seed).tolist() for seed in range(3)]
    assert_parity(*pair, sequences, cuts, block_size=7)


# --------------------------------------------------------------------------- SmolLM2
TEXT = (
    "Paged attention keeps the keys and values of a sequence in blocks that need not be "
    "contiguous in memory, so that little of it is wasted."
)


@pytest.fixture(scope="module")
def smollm2(smollm2_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(smollm2_path)(TEXT).input_ids[:LENGTH]
    assert len(tokens) == LENGTH
    reference = AutoModelForCausalLM.from_pretrained(smollm2_path, dtype=torch.float32).eval()
    return reference, tokens


@pytest.mark.parametrize("name", ["one prefill", "prefill and decode", "chunks of 5"])
def test_smollm2_with_the_products_that_transformers_uses(smollm2, name):
    reference, tokens = smollm2
    assert_parity(reference, ours(reference, prepack=False), [tokens], CUTS[name], block_size=16)


def test_smollm2_with_packed_products(smollm2):
    """oneDNN sums in another order. Logits reach 30 here, where float32 itself leaves
    transformers 6e-5 to 1e-4 from float64: the tolerance is 1e-5 of the largest logit."""
    reference, tokens = smollm2
    model = ours(reference, prepack=True)
    expected = hf_logits(reference, torch.tensor(tokens))
    for name in ("prefill and decode", "chunks of 5"):
        (got,) = paged_logits(model, [tokens], CUTS[name], block_size=16)
        tolerance = 1e-5 * float(expected.abs().max())
        torch.testing.assert_close(got, expected, atol=tolerance, rtol=0)
        assert torch.equal(got.argmax(-1), expected.argmax(-1))
