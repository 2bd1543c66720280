"""``minipaged generate``: prompts in, text out."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

from minipaged.course.student_parts import explained, load_parts
from minipaged.errors import RequestError
from minipaged.options import (
    add_engine_arguments,
    add_sampling_arguments,
    build_llm,
    sampling_params,
)
from minipaged.trace import TraceWriter

if TYPE_CHECKING:
    from minipaged.llm import LLM, Prompt
    from minipaged.outputs import RequestOutput
    from minipaged.sampling_params import SamplingParams


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``minipaged generate``."""
    parser.add_argument("prompts", nargs="*", metavar="PROMPT", help="none, or -: read stdin")
    parser.add_argument(
        "--raw", action="store_true", help="continue the text; do not wrap it as a chat message"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a prompt")
    add_sampling_arguments(parser)
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Serve the prompts together; one prompt alone is streamed."""
    texts = args.prompts if args.prompts not in ([], ["-"]) else [sys.stdin.read()]
    if not all(texts):
        raise RequestError("the prompt is empty")
    params = sampling_params(args)
    parts = load_parts(args.parts)
    with TraceWriter(args.trace) if args.trace else nullcontext() as trace, explained(parts):
        llm = build_llm(args, parts, trace)
        for note in llm.notes:
            print(f"minipaged: {note}", file=sys.stderr)
        prompts: list[Prompt] = texts
        if llm.can_chat and not args.raw:
            prompts = [llm.chat_tokens([{"role": "user", "content": text}]) for text in texts]
        if len(prompts) == 1 and params.width == 1 and not args.json:
            _stream(llm, prompts[0], params)
            return 0
        outputs = llm.generate(prompts, params, progress=sys.stderr.isatty())
    for text, output in zip(texts, outputs):
        print(_as_json(text, output) if args.json else _as_text(text, output))
    return 0


def _stream(llm: LLM, prompt: Prompt, params: SamplingParams) -> None:
    request_id = llm.add(prompt, params, stream=True)
    try:
        while llm.engine.has_unfinished():
            for output in llm.engine.step():
                print(output.outputs[0].delta, end="", flush=True)
                if output.finished:
                    print()
                    _say_end(output)
    except Exception:
        print()  # what is said about it starts a line
        raise
    finally:
        llm.abort([request_id])


def _say_end(output: RequestOutput) -> None:
    """An end that the user did not ask for is not passed over."""
    for completion in output.outputs:
        if isinstance(completion.stop_reason, str) and completion.finish_reason != "stop":
            print(f"minipaged: {completion.stop_reason}", file=sys.stderr)


def _as_text(prompt: str, output: RequestOutput) -> str:
    _say_end(output)
    texts = [completion.text for completion in output.outputs]
    return "\n".join([f"> {prompt}", *texts, ""])


def _as_json(prompt: str, output: RequestOutput) -> str:
    return json.dumps(dataclasses.asdict(output) | {"prompt": prompt}, ensure_ascii=False)
