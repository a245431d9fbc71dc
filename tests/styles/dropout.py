"""The model of the scripts with random numbers in their step: dropout of whole hidden units, the same in every row."""

import classifier
import jax
import jax.numpy as jnp
import optax

init_params = classifier.init_params


def loss_fn(params, key, x, y):
    hidden = jax.nn.tanh(x @ params["hidden"]["w"] + params["hidden"]["b"])
    # One mask for all rows: the loss then does not depend on the order of the rows.
    keep = jax.random.bernoulli(key, 0.8, hidden.shape[-1:])
    hidden = jnp.where(keep, hidden / 0.8, 0.0)
    logits = hidden @ params["output"]["w"] + params["output"]["b"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def descend(params, key, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, key, x, y)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss
