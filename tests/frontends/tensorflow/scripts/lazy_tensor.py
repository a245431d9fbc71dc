"""A result that stays on the devices is a tensor in every way that a script can use one."""

import copy
import pickle

import jax
import keras
import numpy as np
import tensorflow as tf

from automap_launch.frontends.tensorflow.lazy_tensor import LazyTensor


def lazy(value):
    return LazyTensor(jax.numpy.asarray(value))


def unread(tensor):
    return tensor._eager is None


scalar, row = lazy(np.float32(2.5)), lazy(np.arange(4, dtype=np.float32))
assert isinstance(scalar, tf.Tensor)
assert tf.is_tensor(scalar)
assert keras.ops.is_tensor(scalar)
assert (scalar.shape, row.shape, scalar.dtype, row.ndim, len(row)) == ((), (4,), tf.float32, 1, 4)
assert unread(scalar)
assert unread(row)
assert tf.nest.flatten({"a": scalar})[0] is scalar
assert copy.deepcopy(scalar) is scalar
assert unread(scalar)

assert float(lazy(np.float32(2.5))) == 2.5
assert int(lazy(np.int32(3))) == 3
assert bool(lazy(np.bool_(True)))
assert f"{lazy(np.float32(2.5)):.2f}" == "2.50"
assert str(lazy(np.float32(2.5))) == str(tf.constant(2.5))
assert repr(lazy(np.arange(3.0))) == repr(tf.constant(np.arange(3.0, dtype=np.float32)))
assert lazy(np.float32(2.5)).numpy().item() == 2.5
assert (lazy(np.arange(4)).numpy() == np.arange(4)).all()
assert np.mean([lazy(np.float32(1.0)), lazy(np.float32(2.0))]) == 1.5
assert np.asarray(lazy(np.arange(3)), np.float64).dtype == np.float64
assert pickle.loads(pickle.dumps(lazy(np.float32(2.5)))).numpy() == 2.5
assert [float(x) for x in lazy(np.arange(2.0))] == [0.0, 1.0]

assert float(scalar + 1) == float(1 + scalar) == 3.5
assert float(tf.constant(2.0) * lazy(np.float32(3.0))) == 6.0
assert bool(lazy(np.float32(1.0)) < 2.0)
assert max(lazy(np.float32(1.0)), 3.0) == 3.0
assert float(tf.reduce_mean([lazy(np.float32(1.0)), lazy(np.float32(2.0))])) == 1.5
assert tf.concat([row, row], 0).shape == (8,)
assert float(tf.constant(lazy(np.float32(2.0)))) == 2.0
assert float(tf.tensordot(row, row, 1)) == 14.0
assert float(tf.function(lambda x: 2 * x)(lazy(np.float32(2.0)))) == 4.0
captured = lazy(np.float32(2.0))
assert float(tf.function(lambda: captured * 3)()) == 6.0
variable = tf.Variable(lazy(np.float32(1.0)))
variable.assign_add(lazy(np.float32(2.0)))
assert float(variable) == 3.0
mean = keras.metrics.Mean()
mean.update_state(lazy(np.float32(4.0)))
assert float(mean.result()) == 4.0
assert len(list(tf.data.Dataset.from_tensor_slices(lazy(np.arange(3))))) == 3
watched = lazy(np.float32(3.0))
with tf.GradientTape() as tape:
    tape.watch(watched)
    square = watched**2
assert float(tape.gradient(square, watched)) == 6.0
assert lazy(np.float32(1.0)).device.endswith("CPU:0")
assert scalar.ref() == scalar.ref()
assert (lazy(np.int32([1, 2])) == tf.constant([1, 2])).numpy().all()
