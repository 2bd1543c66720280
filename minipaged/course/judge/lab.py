"""What graded tests, which import neither torch nor the engine, give to a submission.

It runs where the submission runs: in the worker, or in the tests' own process for debugging.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from minipaged.config import ModelConfig
from minipaged.errors import OutOfBlocks


class Lab:
    """Makes and reads what a submission works on.

    Attributes:
        device: where tensors live, as torch names it.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.device = device

    def tensor(self, array: np.ndarray[Any, Any], dtype: str | None = None) -> Any:
        """A tensor that holds a copy of an array.

        Args:
            dtype: ``float16``, ``bfloat16``, …: its type, to whose nearest values the array is
                rounded (:meth:`read` gives them); by default that of the array.
        """
        import torch

        tensor = torch.from_numpy(np.array(array, order="C"))
        return tensor.to(self.device, getattr(torch, dtype) if dtype else tensor.dtype)

    def read(self, tensor: Any) -> np.ndarray[Any, Any]:
        """A copy of what a tensor holds; in float32 of one in bfloat16, which numpy lacks.

        Raises:
            TypeError: not a tensor.
        """
        import torch

        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"expected a torch.Tensor, got {type(tensor).__name__}")
        tensor = tensor.detach().cpu()
        if tensor.dtype is torch.bfloat16:
            tensor = tensor.float()
        return np.array(tensor.numpy())

    def dtype(self, tensor: Any) -> str:
        """The type of a tensor, as ``bfloat16``.

        Raises:
            TypeError: not a tensor.
        """
        import torch

        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"expected a torch.Tensor, got {type(tensor).__name__}")
        return str(tensor.dtype).removeprefix("torch.")

    def split(self, tensor: Any, sizes: Sequence[int], axis: int) -> tuple[Any, ...]:
        """Views of a tensor, side by side along an axis, as queries, keys and values are of what
        one product has computed. They keep its strides."""
        return tuple(tensor.split(list(sizes), axis))

    def every_other(self, tensor: Any, axis: int) -> Any:
        """A view of every second entry along an axis: what lies between them is not its own."""
        return tensor[(slice(None),) * axis + (slice(None, None, 2),)]

    def spread(
        self,
        array: np.ndarray[Any, Any],
        stride: int,
        axis: int = 0,
        dtype: str | None = None,
    ) -> Any:
        """A tensor that holds a copy of an array, of which two neighbors along an axis are
        ``stride`` elements apart, as :func:`minipaged.course.judge.cache_lab.spread`."""
        from minipaged.course.judge.cache_lab import spread

        return spread(array, stride, axis, self.device, dtype)

    def one_sequence(self, decode: Callable[..., Any], block_size: int) -> Any:
        """A sequence of whole numbers: :class:`minipaged.course.judge.cache_lab.OneSequence`."""
        from minipaged.course.judge.cache_lab import OneSequence

        return OneSequence(decode, block_size)

    def fill(self, tensor: Any, value: float) -> None:
        """Overwrite all of a tensor, with NaN as well."""
        tensor.fill_(value)

    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call what launches kernels. No kernel may touch what its tensors do not hold.

        Raises:
            OutOfBounds: one would have; nothing was read or written there.
        """
        from minipaged.course.judge.kernel_lab import launch

        return launch((function, args, kwargs))

    def traffic(
        self, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> dict[str, dict[str, int]]:
        """As :meth:`launch`, for the bytes that its kernels move: of each of their parameters
        that is a tensor, those ``loaded`` and ``stored``, what is masked out not counted."""
        from minipaged.course.judge.kernel_lab import traffic

        return traffic((function, args, kwargs))

    def milliseconds(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> float:
        """On a GPU: what a call takes, the median of many, each with cold caches."""
        from minipaged.course.judge.kernel_lab import milliseconds

        return milliseconds((function, args, kwargs))

    def copy_bandwidth(self, size: int = 1 << 28) -> float:
        """On a GPU: bytes a second, read and written, that a copy of so many bytes reaches."""
        from minipaged.course.judge.kernel_lab import copy_bandwidth

        return copy_bandwidth(size)

    def ptx(
        self, function: Callable[..., Any], arguments: Mapping[str, Any], arch: str, version: int
    ) -> list[dict[str, Any]]:
        """As :func:`minipaged.course.judge.kernel_lab.ptx`, where kernels are compiled."""
        from minipaged.course.judge.kernel_lab import ptx

        return ptx(function, arguments, arch, version)

    def model_config(
        self, *, num_layers: int, num_heads: int, num_kv_heads: int, head_dim: int, **others: Any
    ) -> ModelConfig:
        """The shape of a model.

        Args:
            others: its other fields; a vocabulary, a width and so on that go with the shape stand
                for what is left out.
        """
        width = num_heads * head_dim
        defaults: dict[str, Any] = {
            "architecture": "llama",
            "vocab_size": 32000,
            "hidden_size": width,
            "intermediate_size": 4 * width,
            "max_model_len": 2048,
        }
        return ModelConfig(
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            **(defaults | others),
        )

    def serve(self, requests: Sequence[Mapping[str, Any]], **engine: Any) -> dict[str, Any]:
        """Requests through the whole engine, as :func:`minipaged.course.judge.serving.serve`."""
        from minipaged.course.judge.serving import serve

        return serve(requests, **engine)

    def scene(self, state: str, **objects: Any) -> None:
        """What a test has done so far only brought about this state of these objects. A transcript
        begins here, and calls them by these names."""

    def named(self, **objects: Any) -> None:
        """What a transcript calls objects from here on."""

    def iterator(self, items: list[Any]) -> Any:
        """What can be gone through once."""
        return iter(items)

    def empty(self, owner: Any, name: str) -> None:
        """Read a list that an object gives, and take everything out of it, as a careless caller
        may: that must not show in the object.

        Raises:
            TypeError: what the object gives is no list.
        """
        given = getattr(owner, name)
        if not isinstance(given, list):
            raise TypeError(f"{name} must be a list, not {type(given).__name__}")
        given.clear()

    def overwrite(self, owner: Any, method: str, *args: Any) -> None:
        """Call a method, and then overwrite the arrays that went in and came out, as a careless
        caller may: that must not show in the object."""
        given = [np.array(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
        returned = getattr(owner, method)(*given)
        for array in (*given, *(returned if isinstance(returned, tuple) else ())):
            if isinstance(array, np.ndarray):
                array[...] = 0

    def sequence_group(
        self,
        *,
        prompt: int,
        computed: Sequence[int] = (0,),
        first_id: int = 0,
        n: int = 1,
        beam: bool = False,
        max_tokens: int | None = 16,
        expected_output_len: int | None = None,
    ) -> Any:
        """A :class:`minipaged.sequence.SequenceGroup`.

        Args:
            prompt: tokens of the prompt.
            computed: a live sequence each: how many of its tokens are in the cache. One that has
                its whole prompt there has sampled one token more, and the group has started.
            first_id: the sequences are numbered from here on.
        """
        from minipaged.sampling_params import SamplingParams
        from minipaged.sequence import Sequence as Stream
        from minipaged.sequence import SequenceGroup

        params = SamplingParams(n=n, use_beam_search=beam, max_tokens=max_tokens)
        first = Stream(first_id, [0] * prompt)
        group = SequenceGroup(
            f"r{first_id}", first, params, expected_output_len=expected_output_len
        )
        group.started = computed[0] >= prompt
        for index, tokens in enumerate(computed):
            seq = first if index == 0 else first.fork(first_id + index, index)
            seq.token_ids = [0] * max(prompt, tokens + group.started)
            seq.num_computed = tokens
            group.seqs[seq.seq_id] = seq
        return group

    def scheduling(self, scheduler: Any, admission: Any = None, **options: Any) -> Any:
        """A scheduler at work, over a small pool and a scripted preemption.

        Args:
            scheduler, admission: the classes; without an admission, a scripted one.
            options: of :class:`minipaged.course.judge.scheduling_lab.Trial`.
        """
        from minipaged.course.judge.scheduling_lab import Trial

        return Trial(scheduler, admission, **options)

    def admission(self, admission: Any, **options: Any) -> Any:
        """An admission, to be asked about one group at a time.

        Args:
            admission: the class.
            options: of :class:`minipaged.course.judge.scheduling_lab.Desk`.
        """
        from minipaged.course.judge.scheduling_lab import Desk

        return Desk(admission, **options)

    def block_tables(self, block_size: int, tables: Mapping[int, list[int]]) -> Any:
        """A KV manager to look at: it has these tables, and nothing else."""
        return BlockTables(block_size, tables)

    def reservation(
        self, requested_tokens: int, region_slots: int, spare_regions: int
    ) -> Callable[[Any], Any]:
        """A function from any group to this reservation."""
        from minipaged.kvcache.contiguous import Reservation

        booked = Reservation(requested_tokens, region_slots, spare_regions)

        def reservation(group: Any) -> Reservation:
            return booked

        return reservation

    def attention_batch(
        self,
        *,
        slot_mapping: np.ndarray[Any, Any],
        query_start: np.ndarray[Any, Any],
        context_lens: np.ndarray[Any, Any],
        block_tables: np.ndarray[Any, Any],
        num_decodes: int,
        max_query_len: int,
        max_context_len: int,
        block_size: int,
    ) -> Any:
        """A :class:`minipaged.attention.AttentionBatch`, its tensors in the types that it says."""
        from minipaged.attention import AttentionBatch

        def int32(array: np.ndarray[Any, Any]) -> Any:
            return self.tensor(np.asarray(array, dtype=np.int32))

        return AttentionBatch(
            slot_mapping=self.tensor(np.asarray(slot_mapping, dtype=np.int64)),
            query_start=int32(query_start),
            context_lens=int32(context_lens),
            block_tables=int32(block_tables),
            num_decodes=num_decodes,
            max_query_len=max_query_len,
            max_context_len=max_context_len,
            block_size=block_size,
        )

    def running_group(
        self,
        *,
        prompt: int,
        tokens: Sequence[Sequence[int]],
        first_id: int = 0,
        ended: Sequence[int] = (),
        computed: int | None = None,
    ) -> Any:
        """A :class:`minipaged.sequence.SequenceGroup` that runs: all its tokens but the last of
        each sequence are in the cache.

        Args:
            prompt: how many of the tokens are the prompt.
            tokens: of each sequence, prompt and output.
            first_id: the sequences are numbered from here on; the request's number, too, and its
                place in the order of arrival.
            ended: those of them, counted from 0, that have ended.
            computed: tokens of the first that are in the cache so far, of a group that is still
                being computed.
        """
        from minipaged.sampling_params import SamplingParams
        from minipaged.sequence import Sequence as Stream
        from minipaged.sequence import SequenceGroup, Status

        first = Stream(first_id, tokens[0][:prompt])
        params = SamplingParams(n=len(tokens), max_tokens=None)
        group = SequenceGroup(f"r{first_id}", first, params, arrival_index=first_id)
        group.started, group.prefilling = computed is None, computed is not None
        for index, ids in enumerate(tokens):
            seq = first.fork(first_id + index, index) if index else first
            seq.token_ids = list(ids)
            seq.num_computed = len(ids) - 1 if computed is None else computed
            seq.status = Status.RUNNING
            group.seqs[seq.seq_id] = seq
        for index in ended:
            seq = group.seqs.pop(first_id + index)
            seq.status = Status.FINISHED
            group.finished_seqs.append(seq)
        return group

    def rng(self, seed: int) -> np.random.Generator:
        """What random numbers come from. It stays where the submission draws from it."""
        return np.random.default_rng(seed)

    def request_record(self, **fields: Any) -> Any:
        """A :class:`minipaged.sim.records.RequestRecord` of these fields."""
        from minipaged.sim.records import RequestRecord

        return RequestRecord(**fields)

    def step_plan(self) -> Any:
        """An empty :class:`minipaged.contracts.StepPlan`."""
        from minipaged.contracts import StepPlan

        return StepPlan()

    def block_counter(
        self,
        *,
        gpu: int,
        cpu: int,
        pairs: Mapping[str, Sequence[tuple[int, int]]],
        next_token: Mapping[str, int] | None = None,
        block_size: int = 4,
    ) -> Any:
        """A KV manager of groups that are on the device. It only counts.

        Args:
            gpu, cpu: free blocks.
            pairs: request -> its (device, host) blocks.
            next_token: request -> blocks that its next token takes.
        """
        return BlockCounter(gpu, cpu, pairs, next_token or {}, block_size)

    def paged_kv(
        self,
        *,
        gpu: int,
        cpu: int = 0,
        block_size: int,
        unique_blocks: Callable[[Any], list[int]] | None = None,
        move: Callable[[Any, Any], list[tuple[int, int]]] | None = None,
    ) -> Any:
        """The engine's own :class:`minipaged.kvcache.manager.PagedKVManager`, with so many blocks.

        Args:
            unique_blocks, move: of the part ``swap``; it cannot swap without the two.
        """
        from minipaged.kvcache.manager import PagedKVManager
        from minipaged.parts import Parts

        parts = Parts()
        if unique_blocks is not None and move is not None:
            parts = Parts(unique_blocks=unique_blocks, move=move)
        return PagedKVManager(gpu, cpu, block_size, parts)


class BlockTables:
    """Given block tables."""

    def __init__(self, block_size: int, tables: Mapping[int, list[int]]) -> None:
        self.block_size = block_size
        self._tables = {seq_id: list(blocks) for seq_id, blocks in tables.items()}

    def block_table(self, seq_id: int) -> list[int]:
        """The table of a sequence; empty for one that holds nothing."""
        return self._tables.get(seq_id, [])


class BlockCounter:
    """A KV manager that knows of each group how many blocks it has, and on which side.

    Attributes:
        num_free_gpu_blocks, num_free_cpu_blocks: of the two pools.
        held: request -> ``device``, ``host``, or ``nothing``.
    """

    def __init__(
        self,
        gpu: int,
        cpu: int,
        pairs: Mapping[str, Sequence[tuple[int, int]]],
        next_token: Mapping[str, int],
        block_size: int,
    ) -> None:
        self.num_free_gpu_blocks, self.num_free_cpu_blocks = gpu, cpu
        self.block_size = block_size
        self.held = dict.fromkeys(pairs, "device")
        self._pairs = {request: list(blocks) for request, blocks in pairs.items()}
        self._next_token = dict(next_token)

    def can_swap_out(self, group: Any) -> bool:
        """Is there room in host memory?"""
        return len(self._pairs[group.request_id]) <= self.num_free_cpu_blocks

    def can_swap_in(self, group: Any, headroom: int = 0) -> bool:
        """Is there room on the device, for the next token too?"""
        request = group.request_id
        need = len(self._pairs[request]) + self._next_token.get(request, 0)
        return need + headroom <= self.num_free_gpu_blocks

    def swap_out(self, group: Any) -> list[tuple[int, int]]:
        """To host memory, as (device, host) pairs."""
        self._leave(group, "device", "swap_out")
        self._take(group, "host")
        return list(self._pairs[group.request_id])

    def swap_in(self, group: Any) -> list[tuple[int, int]]:
        """To the device, as (host, device) pairs."""
        self._leave(group, "host", "swap_in")
        self._take(group, "device")
        return [(host, device) for device, host in self._pairs[group.request_id]]

    def release(self, group: Any) -> None:
        """Free what a group holds."""
        held = self.held[group.request_id]
        self._leave(group, "host" if held == "host" else "device", "release")

    def _leave(self, group: Any, side: str, call: str) -> None:
        request = group.request_id
        if self.held[request] != side:
            where = {"device": "on the device", "host": "on the host", "nothing": "free"}
            raise ValueError(f"{call}({request}): its blocks are {where[self.held[request]]}")
        self._count(side, len(self._pairs[request]))
        self.held[request] = "nothing"

    def _take(self, group: Any, side: str) -> None:
        request = group.request_id
        self._count(side, -len(self._pairs[request]))
        self.held[request] = side

    def _count(self, side: str, blocks: int) -> None:
        name = {"device": "num_free_gpu_blocks", "host": "num_free_cpu_blocks"}[side]
        left = getattr(self, name) + blocks
        if left < 0:
            raise OutOfBlocks(f"{side}: {-left} blocks too few")
        setattr(self, name, left)
