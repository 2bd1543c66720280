"""Faults that an engine could have, each a find-and-replace on its source, with what whoever
writes it believes.

A fault changes the code of functions in place, for as long as the ``with`` lasts: whoever
imported them, or was built from them, has the fault too.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One wrong engine.

    Attributes:
        module: below ``minipaged``.
        old, new: text of the module, which occurs exactly once, and what stands there instead.
        belief: the misconception, in a sentence.
        killers: how it may show: invariants by number, ``I7`` for other tokens than alone, the
            name of an exception, ``Stuck``.
    """

    name: str
    module: str
    old: str
    new: str
    belief: str
    killers: tuple[str, ...]

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The engine has this fault inside the ``with``.

        Raises:
            LookupError: the text is not in the source exactly once.
        """
        module = importlib.import_module(f"minipaged.{self.module}")
        source = inspect.getsource(module)
        if source.count(self.old) != 1:
            raise LookupError(
                f"fault {self.name!r}: its text occurs {source.count(self.old)} times in "
                f"{module.__name__}, not once: bring the fault up to date"
            )
        twin = types.ModuleType(module.__name__)
        twin.__file__ = module.__file__
        # Dataclasses look their module up by name while they are made.
        code = compile(source.replace(self.old, self.new), f"<{self.name}>", "exec")
        sys.modules[module.__name__] = twin
        try:
            exec(code, twin.__dict__)
        finally:
            sys.modules[module.__name__] = module
        wrong = dict(_functions(twin))
        right = {function: function.__code__ for _, function in _functions(module)}
        try:
            for name, function in _functions(module):
                function.__code__ = wrong[name].__code__
            yield
        finally:
            for function, code in right.items():
                function.__code__ = code


def _functions(module: types.ModuleType) -> Iterator[tuple[str, types.FunctionType]]:
    """Functions and methods that a module defines, by qualified name."""
    owners = [module, *(v for v in vars(module).values() if isinstance(v, type))]
    for owner in owners:
        if owner is not module and owner.__module__ != module.__name__:
            continue
        for value in vars(owner).values():
            value = getattr(value, "__func__", value)  # static and class methods
            value = getattr(value, "fget", value)  # properties
            if isinstance(value, types.FunctionType) and value.__module__ == module.__name__:
                yield value.__qualname__, value


COW, SWAP, MANAGER = "kvcache.copy_on_write", "kvcache.swap", "kvcache.manager"
ADMISSION, SCHEDULER = "scheduling.admission", "scheduling.scheduler"
QUEUES = "scheduling.queues"
PREEMPTION, ENGINE = "scheduling.preemption", "engine"

FAULTS = [
    # ------------------------------------------------------------------ sharing
    Fault(
        "cow_appends",
        COW,
        "    table.blocks[-1] = target\n    table.allocator.free(source)\n",
        "    table.blocks.append(target)\n",
        "The copy comes after the shared block, instead of in its place.",
        ("I4",),
    ),
    Fault(
        "cow_keeps_its_reference",
        COW,
        "    table.allocator.free(source)\n",
        "",
        "The source stays referenced by the sequence that has copied it.",
        ("I1", "I15"),
    ),
    Fault(
        "cow_without_bytes",
        COW,
        "    return source, target\n",
        "    return None\n",
        "To remap the table is enough; the bytes find their way.",
        ("I7",),
    ),
    Fault(
        "one_copy_of_a_step_is_lost",
        SCHEDULER,
        "                plan.copies += self.kv.append([group])\n                self.decode",
        "                self.kv.append([group])\n                self.decode",
        "A group that comes back from the host has just been copied.",
        ("I7",),
    ),
    Fault(
        "last_holder_copies",
        COW,
        "    if table.allocator.ref_count(source) == 1:\n        return None\n",
        "",
        "A partly filled block is always copied before it is written.",
        ("I15",),
    ),
    Fault(
        "shared_block_is_written",
        COW,
        "    if table.allocator.ref_count(source) == 1:\n",
        "    if table.allocator.ref_count(source) <= 2:\n",
        "With one other reader left there is nobody to protect.",
        ("I3",),
    ),
    Fault(
        "fork_forgets_the_last_reference",
        COW,
        "    for block in child.blocks:\n",
        "    for block in child.blocks[:-1]:\n",
        "The last block will be copied anyway, so it needs no reference.",
        ("I1",),
    ),
    Fault(
        "need_ignores_copies",
        COW,
        "            left[block] = refs - 1\n            need += 1\n",
        "            left[block] = refs - 1\n",
        "Only a sequence that opens a block needs one.",
        ("OutOfBlocks",),
    ),
    Fault(
        "forks_see_the_next_token",
        SCHEDULER,
        "            continued += [(self.fork(group, seq, child), child) for child in mine[1:]]\n"
        "            continued += [(seq, child) for child in mine[:1]]\n",
        "            for child in mine[:1]:\n"
        "                self.append(group, seq, child)\n"
        "            continued += [(self.fork(group, seq, child), child) for child in mine[1:]]\n",
        "The parent goes on first, then it is forked.",
        ("I4",),
    ),
    # ------------------------------------------------------------------ swap
    Fault(
        "swap_loses_references",
        SWAP,
        "                target.share(moved[block])\n",
        "                pass\n",
        "A block that was moved is new, and so has one reference.",
        ("I1",),
    ),
    Fault(
        "swap_moves_a_shared_block_per_holder",
        SWAP,
        "    return list(moved.items())\n",
        "    return [(b, moved[b]) for b in moved for _ in range(target.ref_count(moved[b]))]\n",
        "Each holder brings its own bytes along.",
        ("I15",),
    ),
    Fault(
        "swap_frees_a_shared_block_once",
        SWAP,
        "            if block in held:\n"
        "                target.share(moved[block])\n"
        "            held.add(block)\n"
        "            table.allocator.free(block)\n",
        "            if block in held:\n"
        "                target.share(moved[block])\n"
        "            else:\n"
        "                table.allocator.free(block)\n"
        "            held.add(block)\n",
        "A block that has been moved is free, however many held it.",
        ("I1",),
    ),
    Fault(
        "swap_in_without_room_to_go_on",
        MANAGER,
        "return len(self.parts.unique_blocks(tables)) + self.parts.blocks_for_next_token(tables)",
        "return len(self.parts.unique_blocks(tables))",
        "A group fits if its blocks fit.",
        ("OutOfBlocks",),
    ),
    Fault(
        "swap_both_ways_in_one_step",
        SCHEDULER,
        "        if not plan.swap_out:\n            self.resume(plan)\n",
        "        self.resume(plan)\n",
        "What room a swap-out leaves may be swapped in at once.",
        ("I5",),
    ),
    Fault(
        "swapped_groups_come_back_last_first",
        SCHEDULER,
        "            group = self.swapped[0]\n",
        "            self.swapped.reverse()\n            group = self.swapped[0]\n",
        "The blocks swapped out last are the warmest.",
        ("resume order",),
    ),
    # ------------------------------------------------------------------ recompute
    Fault(
        "recompute_drops_the_last_token",
        QUEUES,
        "            missing = seq.num_tokens - several - seq.num_computed\n",
        "            missing = seq.num_tokens - (several or group.started) - seq.num_computed\n",
        "Only what was in the cache has to be computed again.",
        ("I4",),
    ),
    Fault(
        "recompute_takes_outputs_for_prompt",
        PREEMPTION,
        "            seq.num_computed = 0\n",
        "            seq.num_computed = 0\n            seq.num_prompt_tokens = seq.num_tokens\n",
        "What is computed in a prefill is the prompt.",
        ("I7", "I10"),
    ),
    Fault(
        "refill_skips_a_block_that_is_not_shared",
        PREEMPTION,
        "            starts.append(min(shared * self.kv.block_size, tokens - 1))\n",
        "            starts.append(min((shared + 1) * self.kv.block_size, tokens - 1))\n",
        "The first block that differs is the last that is shared.",
        ("I7", "I8"),
    ),
    Fault(
        "refill_trusts_blocks_not_computed_yet",
        PREEMPTION,
        "            computed.update(table)\n",
        "            computed.update(*tables)\n",
        "All blocks of the group are computed once one of its sequences is.",
        ("I7",),
    ),
    Fault(
        "refill_forgets_the_shape",
        MANAGER,
        "                if label in block_of:\n",
        "                if label in block_of and seq is group.live[0]:\n",
        "Each sibling gets blocks of its own when it comes back.",
        ("I7", "OutOfBlocks"),
    ),
    Fault(
        "one_sibling_is_released",
        MANAGER,
        "        for seq in group.live:\n            self.free(seq)\n",
        "        self.free(group.live[-1])\n",
        "One victim at a time: the youngest sibling makes room.",
        ("I6",),
    ),
    Fault(
        "refill_computes_shared_blocks_again",
        QUEUES,
        "            seq.num_computed = start\n",
        "            seq.num_computed = 0\n",
        "Each sibling computes its own tokens, all of them.",
        ("I3",),
    ),
    Fault(
        "recompute_goes_on_in_the_middle",
        PREEMPTION,
        "            starts.append(min(shared * self.kv.block_size, tokens - 1))\n",
        "            starts.append(tokens - 1)\n",
        "What was computed once is computed.",
        ("I7", "Stuck", "I8", "IndexError"),
    ),
    Fault(
        "a_failed_step_is_repeated",
        QUEUES,
        "        for group in touched:\n",
        "        for group in touched[:0]:\n",
        "A step that failed has done nothing, so it can be done again.",
        ("I4", "I7"),
    ),
    # ------------------------------------------------------------------ positions
    Fault(
        "decode_one_position_late",
        QUEUES,
        "Span(seq_id, len(tokens) - 1, [tokens[-1]], block_table(seq_id))",
        "Span(seq_id, len(tokens), [tokens[-1]], block_table(seq_id))",
        "The next token stands after all tokens so far.",
        ("I4",),
    ),
    Fault(
        "chunk_is_a_token_short",
        QUEUES,
        "            tokens, table = seq.token_ids[start:stop]",
        "            tokens, table = seq.token_ids[start : stop - (start > 0)]",
        "The end of a chunk is its last position.",
        ("I4", "I7", "Stuck"),
    ),
    Fault(
        "decode_feeds_the_token_before",
        QUEUES,
        "[tokens[-1]]",
        "[tokens[-2]]",
        "The last token is the one that comes out.",
        ("I7",),
    ),
    Fault(
        "chunk_begins_one_late",
        QUEUES,
        "            start, stop = seq.num_computed, seq.num_computed + count\n",
        "            start, stop = seq.num_computed + bool(seq.num_computed), "
        "seq.num_computed + count\n",
        "The last token of a chunk is the first of the next.",
        ("I4", "I7"),
    ),
    Fault(
        "every_chunk_samples",
        QUEUES,
        "            sample = not several and count == missing\n",
        "            sample = not several\n",
        "Each pass over a prompt ends with a token.",
        ("I3", "I4"),
    ),
    # ------------------------------------------------------------------ who runs
    Fault(
        "the_first_is_the_victim",
        PREEMPTION,
        "        victim = candidates[-1]\n",
        "        victim = candidates[len(candidates) > 1]\n",
        "Whoever is next in the scan is at hand.",
        ("victim",),
    ),
    Fault(
        "a_scheduled_group_is_the_victim",
        SCHEDULER,
        "evict([group, *pending[position:]], plan)",
        "evict([group, *pending[position:], *pending[:1]], plan)",
        "All running groups are equal, so any may give way.",
        ("I6",),
    ),
    Fault(
        "admission_while_groups_are_swapped",
        SCHEDULER,
        "        if not self.swapped and not self.config.prefill_first:\n",
        "        if not self.config.prefill_first:\n",
        "New requests use the room that is too small for a swapped group.",
        ("I9",),
    ),
    Fault(
        "back_to_the_end_of_the_queue",
        QUEUES,
        '        bisect.insort(queue, group, key=attrgetter("order"))\n',
        "        queue.append(group)\n",
        "Who is preempted queues again.",
        ("I9", "victim", "resume order"),
    ),
    Fault(
        "admission_ignores_the_watermark",
        ADMISSION,
        "headroom = 0 if batch.empty else self.watermark_blocks",
        "headroom = 0",
        "A block that is free can be used.",
        ("watermark",),
    ),
    Fault(
        "admission_counts_one_sequence_a_group",
        QUEUES,
        "sum([group.places(count_max) for group in self.running])",
        "len(self.running)",
        "A request is a sequence.",
        ("sequence limit",),
    ),
    Fault(
        "admission_ignores_the_budget",
        ADMISSION,
        "        if batch.num_tokens + tokens > self.config.max_num_batched_tokens"
        " and not batch.empty:\n",
        "        if batch.num_tokens > self.config.max_num_batched_tokens and not batch.empty:\n",
        "The budget is used up once it is exceeded.",
        ("token budget",),
    ),
    Fault(
        "never_is_later",
        ADMISSION,
        '"" if group.started else self.refusal(group)',
        '"" if not group.started else self.refusal(group)',
        "Sooner or later there will be room.",
        ("refusal",),
    ),
    # ------------------------------------------------------------------ ends
    Fault(
        "blocks_are_freed_twice",
        MANAGER,
        "        table = self.tables.pop(seq.seq_id, None)\n"
        "        if table is not None:\n"
        "            table.free()\n",
        "        table = self.tables.pop(seq.seq_id, None)\n"
        "        if table is not None:\n"
        "            blocks = list(table.blocks)\n"
        "            table.free()\n"
        "            self.gpu.free_many(b for b in blocks if table.allocator is self.gpu)\n",
        "To be safe, whoever ends a sequence frees its blocks too.",
        ("DoubleFree", "I1"),
    ),
    Fault(
        "finished_siblings_keep_their_blocks",
        QUEUES,
        "        self.drop(group, seq)\n        seq.finish_reason = finish\n",
        "        if group.seqs.keys() == {seq.seq_id}:\n"
        "            self.drop(group, seq)\n"
        "        else:\n"
        "            seq.status = Status.FINISHED\n"
        "            del group.seqs[seq.seq_id]\n"
        "        seq.finish_reason = finish\n",
        "A group's blocks are free when the group is done.",
        ("I1", "I6"),
    ),
    Fault(
        "losing_beams_keep_their_blocks",
        SCHEDULER,
        "            if not by_parent[seq.seq_id]:\n                self.drop(group, seq)\n",
        "            if not by_parent[seq.seq_id]:\n                del group.seqs[seq.seq_id]\n",
        "A beam that nobody continues is simply forgotten.",
        ("I1",),
    ),
    Fault(
        "abort_forgets_the_swapped",
        QUEUES,
        "        for queue in (self.waiting, self.running, self.swapped):\n",
        "        for queue in (self.waiting, self.running):\n",
        "A request waits or runs.",
        ("abort", "KeyError"),
    ),
    Fault(
        "abort_keeps_the_blocks",
        QUEUES,
        '                    self.end(group, "abort", None)\n',
        "                    for seq in group.live:\n"
        "                        seq.finish_reason = 'abort'\n"
        "                        seq.status = Status.FINISHED\n"
        "                        group.finished_seqs.append(group.seqs.pop(seq.seq_id))\n"
        "                    self.ended.append(group)\n",
        "The next step will find out that nobody needs them.",
        ("I1", "I11"),
    ),
    Fault(
        "refusals_are_silent",
        SCHEDULER,
        '                self.end(group, "error", decision.reason)\n',
        "",
        "What cannot run leaves the queue.",
        ("I11", "Stuck"),
    ),
    Fault(
        "ended_twice",
        ENGINE,
        "        self.scheduler.ended = []\n",
        "",
        "The list of the ended is made anew in the next step.",
        ("I11", "KeyError"),
    ),
    Fault(
        "the_oldest_sibling_gives_up",
        QUEUES,
        "group.live if group.params.use_beam_search else group.live[-1:]",
        "group.live if group.params.use_beam_search else group.live[:1]",
        "Any sibling may end for want of memory.",
        ("give-up",),
    ),
    # ------------------------------------------------------------------ seeds
    Fault(
        "seed_of_the_sequence",
        "sampling.decide",
        "siblings: Seq[int] = (seq.index,)",
        "siblings: Seq[int] = (seq.seq_id,)",
        "A sequence's number tells it apart from every other.",
        ("I7", "I13"),
    ),
]
