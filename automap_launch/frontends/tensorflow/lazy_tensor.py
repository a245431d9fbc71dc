"""`LazyTensor`: a result of a step that stays on JAX's devices until something reads it."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import tensorflow as tf

from automap_launch.frontends.tensorflow import tf_internals


class LazyTensor(tf_internals.EagerTensorBase):  # type: ignore[misc]  # TensorFlow has no types
    """A `tf.Tensor` in all that a script can ask of it. What needs the value waits for the step and copies it, once.

    It is no `EagerTensor` of TensorFlow's own, whose memory is there from the start: operations convert it first.
    """

    def __init__(self, array: jax.Array) -> None:
        self._array: jax.Array | None = array
        self._eager: Any = None
        self._tensor_shape = tf.TensorShape(array.shape)
        self._lazy_dtype = tf.as_dtype(array.dtype)

    @property
    def array(self) -> Any:
        """The value where it is now: on JAX's devices, or as a numpy array."""
        return self._eager.numpy() if self._array is None else self._array

    @property
    def eager(self) -> Any:
        """TensorFlow's own tensor of this value."""
        if self._eager is None:
            self._eager = tf.constant(np.array(self._array), dtype=self._lazy_dtype)
            self._array = None
        return self._eager

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
        return self.eager.__tf_tensor__(dtype, name)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        del copy  # what is given is a copy of the step's result in any case
        return np.asarray(self.eager.numpy(), dtype=dtype)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __dlpack__(self, **options: Any) -> Any:
        return self.eager.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.eager.__dlpack_device__()

    def _numpy_internal(self) -> Any:
        return self.eager._numpy_internal()

    def _datatype_enum(self) -> int:
        return int(self._lazy_dtype.as_datatype_enum)

    def _shape_tuple(self) -> tuple[int, ...]:
        return tuple(self._tensor_shape.as_list())

    def _rank(self) -> int:
        return int(self._tensor_shape.rank)

    def _num_elements(self) -> int:
        return int(self._tensor_shape.num_elements())

    def cpu(self) -> Any:
        return self.eager.cpu()

    def gpu(self, gpu_index: int = 0) -> Any:
        return self.eager.gpu(gpu_index)

    @property
    def backing_device(self) -> Any:
        return self.eager.backing_device

    def __getattr__(self, name: str) -> Any:
        # Reached for what the C type of eager tensors has and its base in Python has not.
        if name in ("_array", "_eager", "_lazy_dtype", "_tensor_shape"):
            raise AttributeError(name)
        return getattr(self.eager, name)
