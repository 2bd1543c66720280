"""Arrays on their way to a device: one piece of memory, each array in its place."""

import numpy as np
import torch

from minipaged.device import Packing, choose_device, host_memory, to_device

CPU = torch.device("cpu")
ARRAYS = (
    np.arange(5, dtype=np.int32),
    np.arange(6, dtype=np.int64).reshape(2, 3),
    np.empty((0, 4), np.int32),
    np.linspace(0, 1, 3, dtype=np.float32),
    np.linspace(0, 1, 3),
)


def test_packed_arrays_keep_their_values_shapes_and_types():
    packing = Packing([(array.shape, array.dtype) for array in ARRAYS])
    memory = host_memory(packing.nbytes, CPU)
    for view, array in zip(packing.views(memory), ARRAYS):
        view.numpy()[...] = array
    moved = memory.clone()  # as one transfer leaves it
    for view, array in zip(packing.views(moved), ARRAYS):
        np.testing.assert_array_equal(view.numpy(), array)
        assert view.numpy().dtype == array.dtype
        assert view.shape == array.shape


def test_every_array_begins_at_a_multiple_of_16_bytes_and_none_overlap():
    packing = Packing([(array.shape, array.dtype) for array in ARRAYS])
    memory = torch.empty(packing.nbytes + 100, dtype=torch.uint8)
    end = 0
    for view in packing.views(memory):
        if not view.numel():
            continue
        start = view.data_ptr() - memory.data_ptr()
        assert start % 16 == 0
        assert end <= start < end + 16
        end = start + view.nbytes
    assert end == packing.nbytes


def test_on_a_cpu_arrays_are_not_copied():
    for tensor, array in zip(to_device(ARRAYS, CPU), ARRAYS):
        assert tensor.numpy().ctypes.data == array.ctypes.data or not array.size


def test_a_device_that_is_named_is_taken():
    assert choose_device("cpu") == "cpu"
    assert choose_device("cuda:1") == "cuda:1"
    assert choose_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")
