"""OPT and LLaMA against transformers: numbers, names and shapes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from tiny_models import (
    LLAMA_VARIANTS,
    MAX_POSITIONS,
    OPT_VARIANTS,
    VARIANTS,
    VOCAB_SIZE,
    CausalAttention,
    canonical_weights,
    config_of,
    hf_config,
    hf_logits,
    hf_model,
    logits,
    ours,
    prompt,
)

from minipaged.config import ModelConfig
from minipaged.errors import ModelError
from minipaged.models import build_model
from minipaged.models.catalog import CATALOG, parameter_count
from minipaged.models.hf_config import model_config_from_hf
from minipaged.models.layers import Linear, RMSNorm, RotaryEmbedding, rotate

TOLERANCE = 1e-4


# --------------------------------------------------------------------------- logits
@pytest.mark.parametrize("prepack", [True, False], ids=["packed", "plain"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers_at_every_position(variant, prepack):
    reference = hf_model(variant)
    expected = hf_logits(reference, prompt(23))
    assert expected.std() > 0.3, "logits near 0 would pass any comparison"
    model = ours(reference, prepack=prepack)
    for pieces in ([23], [11, *[1] * 12], [5, 5, 5, 5, 3]):
        torch.testing.assert_close(
            logits(model, prompt(23), pieces=pieces), expected, atol=TOLERANCE, rtol=0
        )


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers_up_to_the_last_position(variant):
    reference = hf_model(variant, seed=3)
    tokens = prompt(MAX_POSITIONS)
    torch.testing.assert_close(
        logits(ours(reference), tokens), hf_logits(reference, tokens), atol=TOLERANCE, rtol=0
    )


@pytest.mark.parametrize("variant", ["llama-mha", "llama-gqa", "llama-theta-500000"])
def test_llama_equals_transformers_at_far_positions(variant):
    """Trap B36: the angle at a far position needs float32 and the configured theta."""
    longest = 8192
    reference = hf_model(variant, max_position_embeddings=longest)
    positions = torch.tensor([0, 1, 100, longest - 2, longest - 1])
    tokens = prompt(len(positions))
    with torch.inference_mode():
        expected = reference(
            tokens[None],
            position_ids=positions[None],
            # without a mask, transformers takes the gaps for the starts of other sequences
            attention_mask=torch.ones(1, len(positions), dtype=torch.long),
        ).logits[0]
        model = ours(reference)
        hidden = model(tokens, positions, CausalAttention(model.config))
        got = model.logits(hidden)
        near = model(tokens, torch.arange(len(tokens)), CausalAttention(model.config))
    torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=0)
    assert (hidden - near).abs().max() > 0.01, "the positions made no difference"


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_weight_is_used(variant):
    """Adding noise to any one tensor changes the logits, but for the bias of OPT's keys: it adds
    the same to all scores of a query."""
    reference = hf_model(variant)
    tokens = prompt(9)
    before = logits(ours(reference), tokens)

    def after(changed):
        noise = torch.Generator().manual_seed(5)
        return logits(
            ours(
                reference,
                edit=lambda name, tensor: (
                    tensor + 0.3 * torch.randn(tensor.shape, generator=noise)
                    if name == changed
                    else tensor
                ),
            ),
            tokens,
        )

    for name in canonical_weights(reference):
        difference = (after(name) - before).abs().max()
        if variant in OPT_VARIANTS and name.endswith("k_proj.bias"):
            assert difference < TOLERANCE, name
        else:
            assert difference > 10 * TOLERANCE, name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_half_types_give_finite_logits_near_those_of_float32(variant, dtype):
    """Trap B21. The bound is 16 steps of the type at the size of the largest logit."""
    reference = hf_model(variant)
    model = ours(reference, dtype=dtype)
    for length in (1, 40):
        expected = hf_logits(reference, prompt(length))
        got = logits(model, prompt(length))
        assert got.dtype == torch.float32
        assert got.isfinite().all()
        bound = 16 * torch.finfo(dtype).eps * float(expected.abs().max())
        assert (got - expected).abs().max() < bound


@pytest.mark.parametrize("variant", ["opt-pre-norm", "opt-no-final-norm", "llama-gqa"])
def test_activations_past_float16_show_in_the_logits(variant):
    """Trap B21: an overflow must not end as a row of plausible numbers; NaN or infinity in the
    row is what lets the sampler refuse it. The same weights are fine in bfloat16."""
    reference = hf_model(variant)

    def edit(name, tensor):
        return tensor * 60000.0 if name.endswith(("0.fc2.weight", "0.mlp.down_proj.weight")) else (
            tensor * 100.0 if name.endswith(("0.fc1.weight", "0.mlp.up_proj.weight")) else tensor
        )  # fmt: skip

    for length in (1, 40):
        broken = logits(ours(reference, dtype=torch.float16, edit=edit), prompt(length))
        assert not broken.isfinite().all(dim=-1).any()
        whole = logits(ours(reference, dtype=torch.bfloat16, edit=edit), prompt(length))
        assert whole.isfinite().all()


def test_a_batch_without_sampled_rows_has_no_logits():
    for variant in ("opt-post-norm-projected", "llama-gqa"):
        model = ours(hf_model(variant))
        empty = model.logits(torch.empty(0, model.config.hidden_size))
        assert empty.shape == (0, VOCAB_SIZE)


# --------------------------------------------------------------------------- layers
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_a_rotated_score_depends_on_the_distance_only(theta):
    rotary = RotaryEmbedding(16, 4096, theta, dtype=torch.float32, device="cpu")
    q, k = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(0))

    def score(p, r):
        at_p, at_r = (rotate(x[None], rotary(torch.tensor([i]))) for x, i in ((q, p), (k, r)))
        return (at_p * at_r).sum(-1)

    for distance in (0, 1, 7, 1000):
        first = score(distance, 0)
        for start in (1, 64, 2049, 4095 - distance):
            torch.testing.assert_close(score(start + distance, start), first, atol=2e-3, rtol=0)
    assert (score(8, 1) - score(9, 1)).abs().max() > 0.01


def test_rotary_pairs_are_the_halves_of_a_head():
    rotary = RotaryEmbedding(4, 8, 10000.0, dtype=torch.float32, device="cpu")
    x = torch.tensor([[[1.0, 0.0, 0.0, 0.0]]])
    angle = torch.tensor(3.0)
    expected = torch.tensor([[[angle.cos(), 0.0, angle.sin(), 0.0]]])
    torch.testing.assert_close(rotate(x, rotary(torch.tensor([3]))), expected)


def test_rotary_tables_are_cast_only_when_they_are_done():
    """Trap B36: bfloat16 positions or frequencies would give the same angle to neighbors."""
    exact = RotaryEmbedding(16, 2048, 10000.0, dtype=torch.float32, device="cpu")
    for dtype in (torch.float16, torch.bfloat16):
        half = RotaryEmbedding(16, 2048, 10000.0, dtype=dtype, device="cpu")
        assert torch.equal(half.cos, exact.cos.to(dtype))
        assert torch.equal(half.sin, exact.sin.to(dtype))
    with pytest.raises(ModelError, match="even head_dim, not 7"):
        RotaryEmbedding(7, 8, 10000.0, dtype=torch.float32, device="cpu")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_rms_norm_squares_in_float32(dtype):
    norm = RMSNorm(64, 1e-5, dtype=dtype, device="cpu")
    norm.weight.data.fill_(0.5)
    x = torch.full((3, 64), 3000.0, dtype=dtype)
    torch.testing.assert_close(norm(x).float(), torch.full((3, 64), 0.5))


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 8, 33])
@pytest.mark.parametrize("bias", [True, False])
def test_packed_product_equals_the_plain_one(rows, bias):
    linear = Linear(24, {"a": 40, "b": 8}, bias=bias, dtype=torch.float32, device="cpu")
    generator = torch.Generator().manual_seed(rows)
    for parameter in linear.parameters():
        parameter.data.normal_(generator=generator)
    x = torch.randn(rows, 24, generator=generator)
    with torch.inference_mode():
        plain = linear(x)
        if not linear.prepack():
            pytest.skip("this torch has no oneDNN")
        assert linear.weight is None, "the weight is kept twice"
        torch.testing.assert_close(linear(x), plain, atol=1e-5, rtol=1e-5)
        wide = torch.randn(rows, 30, generator=generator)
        wide[:, :24] = x
        torch.testing.assert_close(linear(wide[:, :24]), plain, atol=1e-5, rtol=1e-5)


def test_only_float32_on_a_cpu_is_packed():
    for dtype, device in ((torch.bfloat16, "cpu"), (torch.float32, "meta")):
        linear = Linear(8, 8, bias=False, dtype=dtype, device=device)
        assert not linear.prepack()
        assert linear.weight is not None


def test_a_torch_without_onednn_multiplies_plainly(monkeypatch):
    monkeypatch.setattr(torch.ops, "mkldnn", object())
    reference = hf_model("llama-gqa")
    model = ours(reference)
    assert model.lm_head.weight is not None
    torch.testing.assert_close(
        logits(model, prompt(5)), hf_logits(reference, prompt(5)), atol=TOLERANCE, rtol=0
    )


# --------------------------------------------------------------------------- weights
@pytest.mark.parametrize("variant", VARIANTS)
def test_expected_weights_are_those_of_transformers(variant):
    reference = hf_model(variant)
    model = build_model(config_of(reference), torch.float32, "cpu")
    assert model.expected_weights() == {
        name: tensor.shape for name, tensor in canonical_weights(reference).items()
    }


@pytest.mark.parametrize("name", CATALOG)
def test_catalog_names_shapes_and_counts_equal_transformers(name):
    config = CATALOG[name]
    with torch.device("meta"):
        reference = _transformers_model(config)
    expected = {key: tensor.shape for key, tensor in canonical_weights(reference).items()}
    model = build_model(config, torch.float16, "meta")
    assert model.expected_weights() == expected
    assert all(parameter.is_meta for parameter in model.parameters())
    count = sum(shape.numel() for shape in expected.values())
    assert parameter_count(config) == count
    assert sum(parameter.numel() for parameter in model.parameters()) == count
    assert replace(config_of(reference), name=name, dtype=config.dtype) == config


def _transformers_model(config: ModelConfig):
    from transformers import LlamaConfig, LlamaForCausalLM, OPTConfig, OPTForCausalLM

    shared = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "max_position_embeddings": config.max_model_len,
    }
    if config.architecture == "llama":
        return LlamaForCausalLM(
            LlamaConfig(
                **shared,
                intermediate_size=config.intermediate_size,
                rms_norm_eps=config.rms_norm_eps,
            )
        )
    return OPTForCausalLM(
        OPTConfig(
            **shared,
            ffn_dim=config.intermediate_size,
            word_embed_proj_dim=config.embed_dim,
            do_layer_norm_before=config.do_layer_norm_before,
        )
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_parameter_count_is_exact(variant):
    reference = hf_model(variant)
    unique = sum(tensor.numel() for tensor in canonical_weights(reference).values())
    assert parameter_count(config_of(reference)) == unique


def test_the_catalog_cannot_be_changed():
    with pytest.raises(TypeError):
        CATALOG["opt-13b"] = CATALOG["opt-125m"]


def test_a_weight_of_wrong_name_or_shape_is_refused_by_name():
    model = build_model(config_of(hf_model("llama-gqa")), torch.float32, "cpu")
    name = "model.layers.1.self_attn.k_proj.weight"
    with pytest.raises(ModelError, match=r"no tensor 'model\.layers\.2\."):
        model.load_weight("model.layers.2.self_attn.k_proj.weight", torch.zeros(32, 64))
    with pytest.raises(ModelError, match=r"k_proj\.weight' has the shape \[64, 64\].*\[32, 64\]"):
        model.load_weight(name, torch.zeros(64, 64))
    with pytest.raises(ModelError, match=r"lm_head\.bias"):
        model.load_weight("lm_head.bias", torch.zeros(VOCAB_SIZE))


def test_a_model_with_a_tensor_missing_never_runs():
    reference = hf_model("opt-pre-norm")
    model = build_model(config_of(reference), torch.float32, "cpu")
    left_out = "model.decoder.layers.1.self_attn.v_proj.bias"
    for name, tensor in canonical_weights(reference).items():
        if name != left_out:
            model.load_weight(name, tensor)
    with pytest.raises(ModelError, match=r"1 of the model's \d+ tensors .*1\.self_attn\.v_proj"):
        model.finish_loading()
    model.load_weight(left_out, reference.state_dict()[left_out])
    model.finish_loading()
    with pytest.raises(ModelError, match="too late"):
        model.load_weight(left_out, reference.state_dict()[left_out])


def test_weights_are_cast_to_the_type_of_the_model():
    reference = hf_model("llama-tied").to(torch.bfloat16)
    model = build_model(config_of(reference), torch.float32, "cpu")
    for name, tensor in canonical_weights(reference).items():
        model.load_weight(name, tensor)
    model.finish_loading(prepack=False)
    weight = model.model.embed_tokens.weight
    assert weight.dtype == torch.float32
    assert torch.equal(weight, reference.model.embed_tokens.weight.float())
    assert model.lm_head.weight is weight, "a tied head is the embedding, not a copy"


@pytest.mark.parametrize("variant", ["opt-pre-norm", "llama-tied", "llama-mha"])
def test_plain_weights_are_dropped_once_they_are_packed(variant):
    reference = hf_model(variant)
    model = ours(reference)
    linears = [module for module in model.modules() if isinstance(module, Linear)]
    if not model.lm_head.prepack():
        pytest.skip("this torch has no oneDNN")
    assert linears
    assert all(linear.weight is None for linear in linears)
    left = {name for name, parameter in model.named_parameters() if parameter.ndim > 1}
    assert left
    assert all("embed" in name for name in left)
    assert model.expected_weights().keys() == canonical_weights(reference).keys()


# --------------------------------------------------------------------------- config.json
def _raw(variant, **changes):
    return {**hf_config(variant).to_dict(), **changes}


@pytest.mark.parametrize("variant", VARIANTS)
def test_config_written_by_transformers_is_read(variant, tmp_path):
    reference = hf_model(variant)
    config = config_of(reference)
    written = reference.config
    assert config.architecture == written.model_type
    assert config.num_layers == 2
    assert config.max_model_len == MAX_POSITIONS
    assert config.eos_token_ids == (2,)
    assert config.bos_token_id == (1 if variant in LLAMA_VARIANTS else 2)
    assert config.tie_word_embeddings == written.tie_word_embeddings
    reference.config.architectures = [type(reference).__name__]
    reference.config.save_pretrained(tmp_path)
    assert model_config_from_hf(json.loads((tmp_path / "config.json").read_text())) == config


def test_theta_is_found_wherever_transformers_has_put_it():
    raw = _raw("llama-gqa")
    raw.pop("rope_parameters", None)
    places = (
        {"rope_theta": 123.0},
        {"rope_theta": 123, "rope_scaling": None},
        {"rope_parameters": {"rope_theta": 123.0, "rope_type": "default"}},
        {"rope_scaling": {"rope_theta": 123.0, "type": "default"}},
        {"rope_theta": 123.0, "rope_scaling": {"rope_type": "none"}},
    )
    for place in places:
        assert model_config_from_hf({**raw, **place}).rope_theta == 123.0, place
    assert model_config_from_hf(raw).rope_theta == 10000.0


def test_older_configurations_are_read():
    raw = {
        "architectures": ["LlamaForCausalLM"], "torch_dtype": "float16", "vocab_size": 100,
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "eos_token_id": [2, 5],
    }  # fmt: skip
    config = model_config_from_hf(raw, "old")
    assert (config.name, config.dtype, config.num_kv_heads) == ("old", "float16", 4)
    assert (config.head_dim, config.eos_token_ids, config.bos_token_id) == (16, (2, 5), None)
    assert not config.tie_word_embeddings


@pytest.mark.parametrize(
    ("variant", "changes", "message"),
    [
        ("llama-mha", {"architectures": ["MistralForCausalLM"]}, "MistralForCausalLM"),
        ("llama-mha", {"architectures": None, "model_type": "gemma"}, "gemma"),
        ("llama-mha", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ("opt-pre-norm", {"activation_function": "gelu"}, "activation_function is 'gelu'"),
        ("llama-mha", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "'linear'.*scaling"),
        ("llama-mha", {"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters is 'yarn'"),
        ("llama-mha", {"rope_scaling": {"rope_type": "llama3"}}, "'llama3'"),
        ("llama-mha", {"rope_parameters": {"full_attention": {"a": 1}}}, "rope by layer"),
        ("llama-mha", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ("llama-mha", {"rope_interleaved": True}, "rope_interleaved"),
        ("llama-mha", {"sliding_window": 4096}, "sliding_window is 4096"),
        ("llama-mha", {"layer_types": ["sliding_attention"]}, "sliding_attention"),
        ("opt-pre-norm", {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("opt-pre-norm", {"hidden_size": None}, "hidden_size is missing"),
        ("opt-pre-norm", {"vocab_size": "many"}, "vocab_size must be.*'many'"),
        ("opt-pre-norm", {"num_hidden_layers": 0}, "num_hidden_layers.*not 0"),
        ("opt-pre-norm", {"num_attention_heads": 5}, r"hidden_size \(32\).*heads \(5\)"),
        ("llama-mha", {"num_key_value_heads": 3}, r"num_heads \(4\).*num_kv_heads \(3\)"),
        ("llama-mha", {"eos_token_id": "</s>"}, "eos_token_id.*'</s>'"),
        ("llama-mha", {"rope_parameters": {"rope_theta": -1.0}}, "rope_theta.*-1.0"),
        ("llama-mha", {"tie_word_embeddings": "no"}, "tie_word_embeddings.*'no'"),
    ],
)  # fmt: skip
def test_what_is_not_implemented_is_refused_by_name(variant, changes, message):
    with pytest.raises(ModelError, match=message) as error:
        model_config_from_hf(_raw(variant, **changes), "some-model")
    assert str(error.value).startswith("some-model: config.json: ")
