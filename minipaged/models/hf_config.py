"""``config.json`` as transformers writes it, read as a ModelConfig.

What is not implemented is refused by name: a model that runs with a setting ignored still talks,
only worse.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from minipaged.config import ConfigError, ModelConfig
from minipaged.errors import ModelError

_ARCHITECTURES: Mapping[str, Literal["opt", "llama"]] = {
    "OPTForCausalLM": "opt",
    "LlamaForCausalLM": "llama",
}
_UNSUPPORTED = {
    # key: what it would ask for. Any value but null, false, 0 or an empty one is refused.
    "quantization_config": "quantized weights",
    "sliding_window": "sliding window attention",
    "rope_interleaved": "interleaved rotary embedding",
    "is_encoder_decoder": "an encoder",
    "add_cross_attention": "cross attention",
    "num_local_experts": "a mixture of experts",
    "use_qk_norm": "normalized queries and keys",
    "attn_logit_softcapping": "capped attention scores",
    "final_logit_softcapping": "capped logits",
}


def model_config_from_hf(raw: dict[str, Any], name: str = "") -> ModelConfig:
    """The model that a ``config.json`` describes.

    Args:
        raw: the parsed file, as transformers 4 or 5 writes it: ``torch_dtype`` or ``dtype``;
            ``rope_theta`` beside the other keys, or inside ``rope_parameters`` or
            ``rope_scaling``.
        name: what the model is called in messages and in the result.

    Raises:
        ModelError: a key is missing or has an impossible value; or the model needs something
            that is not implemented. The message names the key and its value.
    """
    reader = _Reader(raw, name)
    architecture = reader.architecture()
    reader.refuse_unsupported()
    try:
        return _opt(reader) if architecture == "opt" else _llama(reader)
    except ConfigError as error:
        raise reader.error(str(error)) from error


def _opt(reader: _Reader) -> ModelConfig:
    reader.require_activation("activation_function", "relu", ("relu",))
    hidden, heads = reader.integer("hidden_size"), reader.integer("num_attention_heads")
    embed = reader.integer("word_embed_proj_dim", hidden)
    pre_norm = reader.flag("do_layer_norm_before", True)
    return ModelConfig(
        architecture="opt",
        hidden_size=hidden,
        intermediate_size=reader.integer("ffn_dim"),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=reader.head_dim(hidden, heads),
        tie_word_embeddings=reader.flag("tie_word_embeddings", True),
        word_embed_proj_dim=0 if embed == hidden else embed,
        do_layer_norm_before=pre_norm,
        final_layer_norm=pre_norm and not reader.flag("_remove_final_layer_norm", False),
        enable_bias=reader.flag("enable_bias", True),
        layer_norm_affine=reader.flag("layer_norm_elementwise_affine", True),
        **reader.common(),
    )


def _llama(reader: _Reader) -> ModelConfig:
    reader.require_activation("hidden_act", "silu", ("silu", "swish"))
    hidden, heads = reader.integer("hidden_size"), reader.integer("num_attention_heads")
    explicit = reader.raw.get("head_dim") is not None
    return ModelConfig(
        architecture="llama",
        hidden_size=hidden,
        intermediate_size=reader.integer("intermediate_size"),
        num_heads=heads,
        num_kv_heads=reader.integer("num_key_value_heads", heads),
        head_dim=reader.integer("head_dim") if explicit else reader.head_dim(hidden, heads),
        tie_word_embeddings=reader.flag("tie_word_embeddings", False),
        rms_norm_eps=reader.number("rms_norm_eps", 1e-6),
        rope_theta=reader.rope_theta(),
        attention_bias=reader.flag("attention_bias", False),
        mlp_bias=reader.flag("mlp_bias", False),
        **reader.common(),
    )


class _Reader:
    """Typed look-ups in a ``config.json``, with errors that name key and value."""

    def __init__(self, raw: dict[str, Any], name: str) -> None:
        self.raw = raw
        self.name = name

    def error(self, what: str) -> ModelError:
        return ModelError(f"{self.name or 'the model'}: config.json: {what}")

    def unsupported(self, key: str, value: object, what: str) -> ModelError:
        return self.error(f"{key} is {value!r}, but minipaged does not implement {what}")

    # ------------------------------------------------------------------ one key
    def integer(self, key: str, default: int | None = None, least: int = 1) -> int:
        value = self.raw.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(f"{key} is missing")
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(f"{key} must be an integer of at least {least}, not {value!r}")
        return value

    def number(self, key: str, default: float, within: Mapping[str, Any] | None = None) -> float:
        """A positive number, of ``config.json`` itself or of a mapping inside it."""
        value = (self.raw if within is None else within).get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self.error(f"{key} must be a number above 0, not {value!r}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.raw.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(f"{key} must be true or false, not {value!r}")
        return value

    # ------------------------------------------------------------------ both architectures
    def architecture(self) -> Literal["opt", "llama"]:
        names = self.raw.get("architectures") or []
        model_type = self.raw.get("model_type")
        if not isinstance(names, list):
            raise self.error(f"architectures must be a list, not {names!r}")
        for name in names:
            if name in _ARCHITECTURES:
                return _ARCHITECTURES[name]
        if not names and model_type in ("opt", "llama"):
            return "opt" if model_type == "opt" else "llama"
        found = ", ".join(map(str, names)) or model_type or "none"
        raise self.error(
            f"the architecture is {found}; minipaged implements {' and '.join(_ARCHITECTURES)}"
        )

    def refuse_unsupported(self) -> None:
        for key, what in _UNSUPPORTED.items():
            if self.raw.get(key):
                raise self.unsupported(key, self.raw[key], what)
        for kind in self.raw.get("layer_types") or []:
            if kind != "full_attention":
                raise self.unsupported("layer_types", kind, "it")

    def require_activation(self, key: str, default: str, known: tuple[str, ...]) -> None:
        value = self.raw.get(key) or default
        if value not in known:
            raise self.error(f"{key} is {value!r}; minipaged implements {known[0]!r} only")

    def head_dim(self, hidden: int, heads: int) -> int:
        if hidden % heads:
            raise self.error(
                f"hidden_size ({hidden}) must be a multiple of num_attention_heads ({heads})"
            )
        return hidden // heads

    def common(self) -> dict[str, Any]:
        """The fields that both architectures read alike."""
        bos = self.raw.get("bos_token_id")
        return {
            "name": self.name,
            "vocab_size": self.integer("vocab_size"),
            "num_layers": self.integer("num_hidden_layers"),
            "max_model_len": self.integer("max_position_embeddings", 2048),
            "dtype": self.dtype(),
            "bos_token_id": None if bos is None else self.integer("bos_token_id", least=0),
            "eos_token_ids": self.eos(),
        }

    def dtype(self) -> str:
        value = self.raw.get("dtype") or self.raw.get("torch_dtype") or "float32"
        return str(value).removeprefix("torch.")

    def eos(self) -> tuple[int, ...]:
        value = self.raw.get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int) or token < 0:
                raise self.error(f"eos_token_id must be token ids of at least 0, not {value!r}")
        return tuple(ids)

    # ------------------------------------------------------------------ rotary embedding
    def rope_theta(self) -> float:
        """The base of the frequencies; every way to scale or to restrict them is refused."""
        theta = self.number("rope_theta", 10000.0)
        self._require_whole_head(self.raw)
        for key in ("rope_scaling", "rope_parameters"):
            settings = self.raw.get(key)
            if settings is None:
                continue
            if not isinstance(settings, dict):
                raise self.error(f"{key} must be an object, not {settings!r}")
            kind = settings.get("rope_type", settings.get("type")) or "default"
            if kind not in ("default", "none"):
                raise self.unsupported(f"the rope type in {key}", kind, "rope scaling")
            nested = next((k for k, v in settings.items() if isinstance(v, dict)), None)
            if nested is not None:
                raise self.unsupported(f"{key}[{nested!r}]", settings[nested], "rope by layer")
            self._require_whole_head(settings)
            theta = self.number("rope_theta", theta, settings)
        return theta

    def _require_whole_head(self, settings: Mapping[str, Any]) -> None:
        for key in ("partial_rotary_factor", "rotary_pct"):
            value = settings.get(key)
            if value is not None and value != 1:
                raise self.unsupported(key, value, "rotating a part of the head only")
