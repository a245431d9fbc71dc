"""Style: a generative adversarial network; the discriminator's step and the generator's alternate."""

import common
import jax
import jax.numpy as jnp
import optax

NOISE = 8
optimizer = optax.adam(1e-3, b1=0.5)


def init_mlp(key, inputs, hidden, outputs):
    key_1, key_2 = jax.random.split(key)
    return {
        "w1": jax.random.normal(key_1, (inputs, hidden)) * inputs**-0.5,
        "b1": jnp.zeros(hidden),
        "w2": jax.random.normal(key_2, (hidden, outputs)) * hidden**-0.5,
        "b2": jnp.zeros(outputs),
    }


def mlp(params, x):
    return jax.nn.leaky_relu(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


@jax.jit
def discriminator_step(discriminator, opt_state, generator, real, noise):
    def loss_fn(discriminator):
        fake = mlp(generator, noise)
        return (jax.nn.softplus(-mlp(discriminator, real)) + jax.nn.softplus(mlp(discriminator, fake))).mean()

    loss, grads = jax.value_and_grad(loss_fn)(discriminator)
    updates, opt_state = optimizer.update(grads, opt_state)
    return optax.apply_updates(discriminator, updates), opt_state, loss


@jax.jit
def generator_step(generator, opt_state, discriminator, noise):
    def loss_fn(generator):
        return jax.nn.softplus(-mlp(discriminator, mlp(generator, noise))).mean()

    loss, grads = jax.value_and_grad(loss_fn)(generator)
    updates, opt_state = optimizer.update(grads, opt_state)
    return optax.apply_updates(generator, updates), opt_state, loss


args = common.parser().parse_args()
key_g, key_d = jax.random.split(jax.random.key(0))
generator = init_mlp(key_g, NOISE, 64, common.FEATURES)
discriminator = init_mlp(key_d, common.FEATURES, 64, 1)
state_g, state_d = optimizer.init(generator), optimizer.init(discriminator)
losses = []
for real, _ in common.batches(args.steps, permute=args.permute_rows):
    noise = real[:, :NOISE]  # the data is normal noise itself; so the noise is permuted along with it
    discriminator, state_d, loss_d = discriminator_step(discriminator, state_d, generator, real, noise)
    generator, state_g, loss_g = generator_step(generator, state_g, discriminator, noise)
    losses.append(loss_d + loss_g)
state = {"generator": generator, "discriminator": discriminator, "state_g": state_g, "state_d": state_d}
common.dump(args.dump, common.print_losses(losses), state)
