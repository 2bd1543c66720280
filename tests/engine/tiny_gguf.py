"""A GGUF file of a tiny LLaMA, written as llama.cpp's converter writes it."""

import json

import gguf
import numpy as np
import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import LlamaConfig, LlamaForCausalLM

HEADS, KV_HEADS, HEAD_DIM, LAYERS = 4, 2, 16, 2
TEXT = ["Once upon a time there was a little girl named Lily, who lived in a big city."] * 8
TEMPLATE = "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}"
_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def tiny_llama(tied=True, seed=0, **changes):
    """Transformers' model, random weights."""
    torch.manual_seed(seed)
    settings = {
        "vocab_size": 300,
        "hidden_size": HEADS * HEAD_DIM,
        "intermediate_size": 96,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 128,
        "rope_theta": 50000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": tied,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "initializer_range": 0.2,
    }
    return LlamaForCausalLM(LlamaConfig(**settings | changes)).eval()


def interleaved_rows(rows, num_heads):
    """What llama.cpp's converter does to the rows of a query or key projection."""
    halves = rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def write_gguf(path, model, quantized=None, permute=True, architecture="llama", extra=()):
    """Write ``model`` to ``path``; matrices as ``quantized`` (a GGMLQuantizationType) if given.

    ``extra``: (key, value) of more metadata, a string or an unsigned number.
    """
    config = model.config
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(TEXT, vocab_size=300, special_tokens=["<s>", "</s>"])
    by_id = {index: token for token, index in trained.get_vocab().items()}
    tokens = [by_id.get(i, f"<unused{i}>") for i in range(config.vocab_size)]
    merges = [tuple(m) for m in json.loads(trained._tokenizer.to_str())["model"]["merges"]]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if i < 2 else 1 for i in range(len(tokens))])
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    for key, value in extra:
        (writer.add_string if isinstance(value, str) else writer.add_uint32)(key, value)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        _add_tensor(writer, name, tensor.numpy(), quantized, permute)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tensor(writer, name, values, quantized, permute):
    if permute and "q_proj" in name:
        values = interleaved_rows(values, HEADS)
    if permute and "k_proj" in name:
        values = interleaved_rows(values, KV_HEADS)
    stem, kind = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        target = f"blk.{layer}.{_NAMES[part]}.{kind}"
    else:
        target = f"{_NAMES[stem]}.{kind}"
    values = np.ascontiguousarray(values)
    if quantized is not None and values.ndim == 2:
        writer.add_tensor(target, gguf.quantize(values, quantized), raw_dtype=quantized)
    else:
        writer.add_tensor(target, values)
