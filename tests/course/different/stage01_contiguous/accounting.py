"""A right answer that has nothing in common with the reference's: slots are labelled one by one."""

from __future__ import annotations

from collections import Counter

from minipaged.kvcache.accounting import MemoryClasses, SequenceMemory

__all__ = ["MemoryClasses", "MemoryMeter", "SequenceMemory", "memory_classes", "sequence_memory"]


def memory_classes(sequences, pool_slots):
    count = Counter()
    for seq in sequences:
        if seq.tokens > seq.slots:
            raise ValueError("more tokens than slots")
        asked = seq.slots if seq.requested_slots is None else seq.requested_slots
        labels = ["rest"] * seq.slots
        for name, end in (
            ("internal", asked),
            ("reserved", seq.final_tokens),
            ("token", seq.tokens),
            ("shared", seq.shared_slots),
        ):
            labels[: min(end, seq.slots)] = [name] * min(end, seq.slots)
        count.update(labels)
    mine = count["token"] + count["reserved"] + count["internal"]
    if mine > pool_slots:
        raise ValueError("more than the pool")
    return MemoryClasses(count["token"], count["reserved"], count["internal"], pool_slots - mine)


def sequence_memory(manager, groups, max_model_len, reservation=None):
    found, seen = [], []
    for group in groups:
        length = group.expected_output_len or group.params.max_tokens or max_model_len
        booked = reservation(group) if reservation else None
        final = None
        for seq in group.seqs.values():
            final = min(seq.num_prompt_tokens + length, max_model_len)
            table = manager.block_table(seq.seq_id)
            shared = 0 if booked else len([block for block in table if block in seen])
            seen += table
            found.append(
                SequenceMemory(
                    tokens=seq.num_computed,
                    final_tokens=final,
                    slots=len(table) * manager.block_size,
                    requested_slots=booked.requested_tokens if booked else None,
                    shared_slots=shared * manager.block_size,
                )
            )
        for _ in range(booked.spare_regions if booked else 0):
            found.append(SequenceMemory(0, final, booked.region_slots, booked.requested_tokens))
    return found


class MemoryMeter:
    def __init__(self):
        self.steps = []

    def add(self, classes, weight=1.0):
        self.steps.append((classes, weight))

    def mean(self):
        total = sum(weight for _, weight in self.steps)
        if total == 0:
            raise ValueError("nothing to take the mean of")
        names = ("token_states", "reserved", "internal", "external")
        return MemoryClasses(
            *(sum(getattr(c, name) * weight for c, weight in self.steps) / total for name in names)
        )
