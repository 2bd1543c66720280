"""The engine on a submission's parts, beside the reference's, for the checks of checkpoint A."""

from __future__ import annotations

from typing import Any

from minipaged.course.testing import expect

#: Beginnings of stories, as token ids of the model opt-stories: "Once upon a time, there was a
#: little girl named Anna. She" and "Tom and his mother went to the river to look for fish. The".
BEGINNINGS = (
    [2, 365, 361, 261, 352, 14, 347, 284, 261, 356, 569, 399, 556, 80, 80, 67, 16, 291],
    [2, 488, 282, 402, 977, 604, 270, 266, 332, 75, 345, 270, 901, 455, 727, 16, 343],
)


def seats(parts: Any) -> dict[str, Any]:
    """All that the engine takes from the stages so far."""
    return {
        "BlockAllocator": parts.BlockAllocator,
        "BlockTable": parts.BlockTable,
        "attention": parts.ReferenceAttention,
        "fork": parts.fork,
        "make_writable": parts.make_writable,
        "blocks_for_next_token": parts.blocks_for_next_token,
        "copy_blocks": parts.copy_blocks,
    }


def prompt_of(rng: Any, length: int) -> list[int]:
    """A prompt of so many tokens: a beginning of one of the stories, and then others' words."""
    words = [*BEGINNINGS[int(rng.integers(2))], *rng.integers(16, 1000, size=length).tolist()]
    return [int(word) for word in words[:length]]


def serve_both(
    parts: Any, lab: Any, reference: Any, requests: list[dict[str, Any]], **engine: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the submission's engine and the reference's do with the same requests."""
    mine = lab.serve(requests, parts=seats(parts), model="stories", **engine)
    return mine, reference.serve(requests, parts={}, model="stories", **engine)


def expect_same_outputs(
    mine: dict[str, Any], want: dict[str, Any], requests: list[dict[str, Any]], block_size: int
) -> None:
    """Fail at the first token that is another; it names where in the cache that token stands."""
    for number, request in enumerate(requests):
        length = len(request["prompt"])
        pairs = zip(mine["outputs"][number], want["outputs"][number], strict=True)
        for sample, (ours, theirs) in enumerate(pairs):
            who = f"request {number}, a prompt of {length} tokens"
            if request.get("n", 1) > 1:
                who += f", sample {sample}"
            for at, (token, wanted) in enumerate(zip(ours["token_ids"], theirs["token_ids"])):
                # The logits after position p choose the token of position p + 1.
                block, offset = divmod(length + at - 1, block_size)
                why = f"{who}: output token {at}, chosen by what block {block}, offset {offset} of "
                expect(token, wanted, f"{why}its table and all before it hold")
            expect(len(ours["token_ids"]), len(theirs["token_ids"]), f"{who}: output tokens")
            expect(ours["text"], theirs["text"], f"{who}: the text")
            expect(ours["finish"], theirs["finish"], f"{who}: why it ended")
