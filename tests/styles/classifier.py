"""The model of the scripts whose style lies elsewhere: a classifier with one hidden layer, plain functions."""

import common
import jax
import jax.numpy as jnp
import optax


def init_params(key):
    key_1, key_2 = jax.random.split(key)
    return {
        "hidden": {"w": jax.random.normal(key_1, (common.FEATURES, 64)) * 0.2, "b": jnp.zeros(64)},
        "output": {"w": jax.random.normal(key_2, (64, common.CLASSES)) * 0.1, "b": jnp.zeros(common.CLASSES)},
    }


def apply(params, x):
    hidden = jax.nn.tanh(x @ params["hidden"]["w"] + params["hidden"]["b"])
    return hidden @ params["output"]["w"] + params["output"]["b"]


def loss_fn(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(apply(params, x), y).mean()
