"""``minipaged demo``: sixteen real requests share one paged pool.

The pool is made small, so that what the paper is about can be seen: blocks fill, siblings share
and copy on write, beams come and go, and when the pool is full somebody is preempted and comes
back, with the same words as if nothing had happened.
"""

from __future__ import annotations

import argparse
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from minipaged.course.student_parts import explained, load_parts
from minipaged.options import DEFAULT_MODEL, add_engine_arguments, build_llm
from minipaged.sampling_params import SamplingParams
from minipaged.trace import TraceWriter
from minipaged.viz.state import PoolState
from minipaged.viz.terminal import PoolView, Status

if TYPE_CHECKING:
    from minipaged.contracts import StepPlan
    from minipaged.llm import LLM, Prompt
    from minipaged.outputs import RequestOutput

POOL_BLOCKS = 72
MAX_MODEL_LEN = 1024
SYSTEM = (
    "You are a patient teacher. You explain things to curious beginners in one or two short "
    "sentences, with everyday words and without lists."
)
LONG_TEXT = (
    "In the early days of computing, every program was given one region of memory for itself, "
    "as large as it might ever need. Most of that memory lay idle. Then came paging: memory was "
    "cut into small pages of equal size, and a table said where each page of a program really "
    "was. Pages could lie anywhere, two programs could share one, and a page that nobody used "
    "could be moved to the disk and brought back later. Programs noticed nothing of it. Half a "
    "century later the servers of language models had the same trouble. The keys and values of "
    "every conversation were kept in one long region, reserved for the longest answer that the "
    "model could give, and most of it lay idle. The same old idea helped: cut the cache into "
    "blocks, keep a table for each conversation, and share what is equal."
)


@dataclass(frozen=True)
class DemoRequest:
    """One request of the demo.

    Attributes:
        name: as it is shown.
        kind: what it is there to show.
    """

    name: str
    kind: str
    question: str
    params: SamplingParams
    system: str | None = None


def demo_requests() -> list[DemoRequest]:
    """Short and long prompts, a shared system prompt, parallel sampling and a beam search."""
    greedy = SamplingParams(temperature=0, max_tokens=48)
    long = SamplingParams(temperature=0, max_tokens=96)
    requests = [
        DemoRequest("A", "short prompt", "What is the capital of France?", greedy),
        DemoRequest("B", "long answer", "Describe how bread is made, step by step.", long),
        DemoRequest("C", "long prompt", f"{LONG_TEXT}\n\nSummarize this in one sentence.", greedy),
    ]
    questions = (
        "What is gravity?",
        "Why do leaves turn red?",
        "What does a bee do all day?",
        "How does a boat float?",
        "Why is ice slippery?",
        "What is an echo?",
    )
    requests += [
        DemoRequest(name, "shared system prompt", question, greedy, system=SYSTEM)
        for name, question in zip("DEFGHI", questions)
    ]
    requests += [
        DemoRequest("J", "short prompt", "Name three colors.", greedy),
        DemoRequest("K", "long answer", "Tell me a short story about a brave mouse.", long),
        DemoRequest("L", "short prompt", "How many days are in a week?", greedy),
        DemoRequest("M", "long prompt", f"{LONG_TEXT}\n\nWhat was wasted?", greedy),
        # The last in the queue are the first to be preempted: several sequences are swapped,
        # a single one is recomputed.
        DemoRequest(
            "N",
            "beam search of width 4",
            "Why is the sky blue? Answer in one sentence.",
            SamplingParams(n=1, best_of=4, use_beam_search=True, max_tokens=40),
        ),
        DemoRequest(
            "O",
            "three samples",
            "Write one sentence about the sea.",
            SamplingParams(n=3, temperature=0.8, top_p=0.95, seed=7, max_tokens=40),
        ),
        DemoRequest("P", "long answer", "Give me advice for my first day at school.", long),
    ]
    return requests


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``minipaged demo``."""
    parser.add_argument("--plain", action="store_true", help="plain lines, no live picture")
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Serve the sixteen requests, show the pool meanwhile, and print what they said."""
    console = Console(force_terminal=False if args.plain else None)
    say = partial(console.print, highlight=False, soft_wrap=True)
    if args.num_gpu_blocks is None:
        args.num_gpu_blocks = POOL_BLOCKS
    if args.num_cpu_blocks is None:
        args.num_cpu_blocks = POOL_BLOCKS // 2
    if args.max_model_len is None and args.model == DEFAULT_MODEL:
        args.max_model_len = MAX_MODEL_LEN  # others may have been trained for less
    parts = load_parts(args.parts)
    with TraceWriter(args.trace) if args.trace else nullcontext() as trace, explained(parts):
        say(f"Loading {args.model} …")
        llm = build_llm(args, parts, trace)
        for note in llm.notes:
            say(f"  {escape(note)}", style="dim")
        _say_memory(llm, say)
        requests = demo_requests()
        results, events, seconds = _serve(llm, requests, console)
    _print_answers(requests, results, say, width=min(console.width, 100))
    return _print_summary(llm, results, events, seconds, say)


def _say_memory(llm: LLM, say: Callable[..., None]) -> None:
    cache = llm.cache_config
    tokens = (cache.num_gpu_blocks or 0) * cache.block_size
    say(
        f"A pool of {cache.num_gpu_blocks} blocks of {cache.block_size} tokens, small on purpose: "
        f"room for {tokens} tokens.\nIf each request reserved the {llm.max_model_len} tokens that "
        f"it may have at most, {tokens // llm.max_model_len} could run at a time.\n"
    )


@dataclass
class Events:
    """What happened, counted from the plans."""

    copies: int = 0
    swapped_out: int = 0
    swapped_in: int = 0
    preempted: int = 0
    most_shared: int = 0
    most_running: int = 0
    output_tokens: int = 0

    def see(self, plan: StepPlan, state: PoolState, running: int) -> None:
        self.copies += len(plan.copies)
        self.swapped_out += len(plan.swap_out)
        self.swapped_in += len(plan.swap_in)
        self.preempted += len(plan.preempted)
        self.most_shared = max(self.most_shared, len(state.gpu.shared))
        self.most_running = max(self.most_running, running)
        self.output_tokens += sum(span.sample for span in plan.spans)


def _serve(
    llm: LLM, requests: list[DemoRequest], console: Console
) -> tuple[dict[str, RequestOutput], Events, float]:
    for request in requests:
        messages = [{"role": "user", "content": request.question}]
        if request.system:
            messages.insert(0, {"role": "system", "content": request.system})
        llm.add(_prompt(llm, messages), request.params, request_id=request.name)
    results: dict[str, RequestOutput] = {}
    events = Events()
    start = time.monotonic()
    with PoolView(console) as view:
        try:
            while llm.engine.has_unfinished():
                for output in llm.engine.step():
                    results[output.request_id] = output
                _show(llm, view, events, start)
        finally:
            llm.abort(request.name for request in requests)
    return results, events, time.monotonic() - start


def _prompt(llm: LLM, messages: list[dict[str, str]]) -> Prompt:
    if llm.can_chat:
        return llm.chat_tokens(messages)
    return "\n".join(message["content"] for message in messages) + "\n"


def _show(llm: LLM, view: PoolView, events: Events, start: float) -> None:
    scheduler = llm.engine.scheduler
    plan = llm.engine.last_plan
    owner = {s.seq_id: f"{g.request_id}{s.index or ''}" for g in scheduler.groups for s in g.live}
    state = PoolState.of(llm.engine.kv, scheduler.groups, lambda seq: owner[seq.seq_id])
    events.see(plan, state, len(scheduler.running))
    for line in _notes(plan):
        view.note(line)
    seconds = time.monotonic() - start
    gauges = {
        "tokens/s": f"{events.output_tokens / seconds:.0f}",
        "copies": str(events.copies),
        "preemptions": str(events.preempted),
    }
    running, waiting, swapped = (
        [group.request_id for group in queue]
        for queue in (scheduler.running, scheduler.waiting, scheduler.swapped)
    )
    view.show(state, Status(plan.step, running, waiting, swapped, gauges))


def _notes(plan: StepPlan) -> Iterator[str]:
    """What is worth a line that stays."""
    recomputed = [victim.request_id for victim in plan.preempted if victim.mode == "recompute"]
    swapped = [victim.request_id for victim in plan.preempted if victim.mode == "swap"]
    full = f"step {plan.step}: the pool is full, preempted"
    if recomputed:
        yield f"{full}: {', '.join(recomputed)} (blocks freed, tokens to be computed again)"
    if swapped:
        yield f"{full}: {', '.join(swapped)} ({len(plan.swap_out)} blocks to host memory)"
    if plan.resumed:
        names = ", ".join(plan.resumed)
        yield f"step {plan.step}: back: {names} ({len(plan.swap_in)} blocks from host memory)"


def _print_answers(
    requests: list[DemoRequest],
    results: dict[str, RequestOutput],
    say: Callable[..., None],
    width: int,
) -> None:
    say()
    for request in requests:
        result = results[request.name]
        times = result.metrics.num_preemptions
        again = f", preempted {times}x" if times else ""
        question = textwrap.shorten(request.question, 70, placeholder=" …")
        say(f"[bold]{request.name}[/] {escape(question)} [dim]({request.kind}{again})[/]")
        for completion in result.outputs:
            text = " ".join(completion.text.split())
            if completion.finish_reason == "length":
                text += " …"
            indent = "    "
            say(escape(textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent)))


def _print_summary(
    llm: LLM,
    results: dict[str, RequestOutput],
    events: Events,
    seconds: float,
    say: Callable[..., None],
) -> int:
    kv = llm.engine.kv
    tokens = sum(len(c.token_ids) for result in results.values() for c in result.outputs)
    prompts = sum(len(result.prompt_token_ids) for result in results.values())
    say(
        f"\n{len(results)} requests, {prompts} prompt and {tokens} output tokens in "
        f"{seconds:.1f} s ({tokens / seconds:.0f} tokens/s); up to {events.most_running} requests "
        f"at a time.\n"
        f"{events.copies} copies on write, up to {events.most_shared} blocks shared, "
        f"{events.preempted} preemptions, {events.swapped_out} blocks swapped out and "
        f"{events.swapped_in} in."
    )
    lost = kv.num_gpu_blocks - kv.num_free_gpu_blocks
    say(f"{kv.num_free_gpu_blocks} of {kv.num_gpu_blocks} blocks are free again.")
    return 1 if lost else 0
