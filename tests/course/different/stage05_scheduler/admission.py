"""Another design: what would be true if the group joined is worked out first, and then judged."""

from __future__ import annotations

from itertools import chain

from minipaged.contracts import AdmissionDecision, Verdict


class Admission:
    def __init__(self, config, kv, watermark_blocks):
        self.config = config
        self.kv = kv
        self.watermark_blocks = watermark_blocks

    def over_limit(self, group, tokens, batch):
        left = {
            "sequence limit": self.config.max_num_seqs
            - batch.num_seqs
            - group.places(self.config.count_max_seqs),
            "token budget": self.config.max_num_batched_tokens - batch.num_tokens - tokens,
        }
        if batch.num_seqs == 0:
            left["token budget"] = 0
        return next((name for name, room in left.items() if room < 0), "")

    def shortage(self, group, tokens, batch):
        if self.config.chunked_prefill:
            tokens = min(tokens, 1)
        keep = self.watermark_blocks * (batch.num_seqs > 0)
        said = [self.over_limit(group, tokens, batch)]
        said.append("" if self.kv.fits(group, headroom=keep) else "memory")
        return next(filter(None, said), "")

    def refusal(self, group):
        config, kv = self.config, self.kv
        tokens = next(seq.num_tokens for seq in group.live)
        return next(chain(self._reasons(group, config, kv, tokens), [""]))

    def _reasons(self, group, config, kv, tokens):
        if not group.params.width <= config.max_num_seqs:
            yield f"{group.params.width} sequences are more than the {config.max_num_seqs} allowed"
        if not tokens + 1 <= config.max_model_len:
            yield f"no output fits: {tokens} tokens of prompt, of {config.max_model_len} in all"
        if not kv.fits_ever(group):
            blocks = kv.blocks_needed(group)
            yield f"it takes {blocks} blocks and there are only {kv.num_usable_gpu_blocks} at all"

    def decide(self, group, tokens, batch):
        if not group.started and (never := self.refusal(group)):
            return AdmissionDecision(reason=never, verdict=Verdict.NEVER)
        later = self.shortage(group, tokens, batch)
        if later != "":
            return AdmissionDecision(reason=later, verdict=Verdict.LATER)
        return AdmissionDecision(Verdict.OK)
