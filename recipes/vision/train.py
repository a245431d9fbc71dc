"""Trains ResNet-50 (He et al. 2015) or VGG-19 (Simonyan and Zisserman 2014), in Flax Linen.

The images are scikit-learn's handwritten digits, enlarged, so nothing is downloaded:

    python train.py --model resnet_tiny --steps 20
    python train.py --model vgg_tiny --norm batch
    python train.py --model resnet50 --batch-size 256 --learning-rate 0.1
"""

import argparse
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training import train_state
from sklearn.datasets import load_digits


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="resnet_tiny")
    parser.add_argument("--norm", choices=["batch", "group", "none"], help="default: batch for ResNet, none for VGG")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=32, help="images a step")
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--warmup", type=int, default=10, help="steps until the full learning rate")
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--dropout", type=float, default=0.0, help="between the last layers of VGG (0.5 as published)")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=10, help="steps between two printed losses")
    parser.add_argument("--permute-rows", action="store_true", help="shuffle the images inside each batch")
    parser.add_argument("--dump", metavar="FILE", help="save the losses and the final state as an .npz file")
    return parser.parse_args()


# Data


def batches(rows: int, size: int, seed: int, permute: bool = False) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Endless random digits: images [rows, size, size, 3] uint8 and labels [rows] int32. `size`: a multiple of 8."""
    data = load_digits()
    images = (data.images * (255 / 16)).astype(np.uint8)
    labels = data.target.astype(np.int32)
    rng = np.random.default_rng(seed)
    order = np.random.default_rng(seed + 1)
    while True:
        picked = rng.integers(0, len(labels), rows)
        if permute:
            picked = order.permutation(picked)
        enlarged = images[picked].repeat(size // 8, axis=1).repeat(size // 8, axis=2)
        yield np.repeat(enlarged[..., None], 3, axis=3), labels[picked]


# Models


class Norm(nn.Module):
    """Batch norm, group norm or nothing."""

    kind: str
    dtype: str
    scale_init: nn.initializers.Initializer = nn.initializers.ones

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        if self.kind == "batch":
            norm = nn.BatchNorm(not train, momentum=0.9, param_dtype=self.dtype, scale_init=self.scale_init)
            return norm(x)
        if self.kind == "group":
            groups = min(32, x.shape[-1] // 4)
            return nn.GroupNorm(groups, param_dtype=self.dtype, scale_init=self.scale_init)(x)
        return x


def conv_with(norm: str, dtype: str) -> Callable[..., nn.Conv]:
    """A convolution before `norm`, which has a bias of its own."""
    init = nn.initializers.he_normal()
    return functools.partial(nn.Conv, use_bias=norm == "none", param_dtype=dtype, kernel_init=init)


class Bottleneck(nn.Module):
    width: int
    strides: int
    norm: str
    dtype: str

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        conv = conv_with(self.norm, self.dtype)
        norm = functools.partial(Norm, self.norm, self.dtype)
        h = nn.relu(norm()(conv(self.width, (1, 1))(x), train))
        h = nn.relu(norm()(conv(self.width, (3, 3), self.strides)(h), train))
        h = norm(nn.initializers.zeros)(conv(4 * self.width, (1, 1))(h), train)
        if x.shape != h.shape:
            x = norm()(conv(4 * self.width, (1, 1), self.strides)(x), train)
        return nn.relu(x + h)


class ResNet(nn.Module):
    """`stages`: blocks of each resolution; `width`: channels of the first."""

    stages: tuple[int, ...]
    width: int
    classes: int
    image_size: int
    norm: str = "batch"
    dropout: float = 0.0  # has no place in this model
    dtype: str = "float32"

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        x = images.astype(self.dtype) / 127.5 - 1.0
        x = conv_with(self.norm, self.dtype)(self.width, (7, 7), 2)(x)
        x = nn.relu(Norm(self.norm, self.dtype)(x, train))
        x = nn.max_pool(x, (3, 3), (2, 2), padding="SAME")
        for stage, blocks in enumerate(self.stages):
            for block in range(blocks):
                strides = 2 if stage > 0 and block == 0 else 1
                x = Bottleneck(self.width * 2**stage, strides, self.norm, self.dtype)(x, train)
        return nn.Dense(self.classes, param_dtype=self.dtype)(x.mean((1, 2)))


class VGG(nn.Module):
    """`stages`: (convolutions, channels) of each resolution; `hidden`: width of the two dense layers."""

    stages: tuple[tuple[int, int], ...]
    hidden: int
    classes: int
    image_size: int
    norm: str = "none"
    dropout: float = 0.0
    dtype: str = "float32"

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        x = images.astype(self.dtype) / 127.5 - 1.0
        dense = functools.partial(nn.Dense, param_dtype=self.dtype)
        for convolutions, channels in self.stages:
            for _ in range(convolutions):
                x = conv_with(self.norm, self.dtype)(channels, (3, 3))(x)
                x = nn.relu(Norm(self.norm, self.dtype)(x, train))
            x = nn.max_pool(x, (2, 2), (2, 2))
        x = x.reshape(len(x), -1)
        for _ in range(2):
            x = nn.relu(dense(self.hidden, kernel_init=nn.initializers.he_normal())(x))
            x = nn.Dropout(self.dropout, deterministic=not train)(x)
        return dense(self.classes)(x)


VGG_19 = ((2, 64), (2, 128), (4, 256), (4, 512), (4, 512))
MODELS = {
    "resnet50": functools.partial(ResNet, stages=(3, 4, 6, 3), width=64, classes=1000, image_size=224),
    "resnet_tiny": functools.partial(ResNet, stages=(1, 1), width=16, classes=10, image_size=32),
    "vgg19": functools.partial(VGG, stages=VGG_19, hidden=4096, classes=1000, image_size=224),
    "vgg_tiny": functools.partial(VGG, stages=((1, 16), (1, 32)), hidden=64, classes=10, image_size=32),
}


# Training


class TrainState(train_state.TrainState):
    batch_stats: Any


@functools.partial(jax.jit, donate_argnums=0)
def train_step(
    state: TrainState, images: jax.Array, labels: jax.Array, key: jax.Array
) -> tuple[TrainState, dict[str, jax.Array]]:
    def loss_fn(params: Any) -> tuple[jax.Array, Any]:
        logits, updated = state.apply_fn(
            {"params": params, "batch_stats": state.batch_stats},
            images,
            train=True,
            mutable=["batch_stats"],
            rngs={"dropout": jax.random.fold_in(key, state.step)},
        )
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return loss, (updated.get("batch_stats", {}), logits)

    (loss, (batch_stats, logits)), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    accuracy = (logits.argmax(-1) == labels).mean()
    return state.apply_gradients(grads=grads, batch_stats=batch_stats), {"loss": loss, "accuracy": accuracy}


def decayed(params: Any) -> Any:
    """Which parameters decay: kernels, neither biases nor scales."""
    return jax.tree.map(lambda leaf: leaf.ndim > 1, params)


def save(path: str, losses: list[jax.Array], state: Any) -> None:
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    arrays = {jax.tree_util.keystr(name, simple=True, separator="/"): np.asarray(leaf) for name, leaf in leaves}
    np.savez(path, loss=np.asarray([float(loss) for loss in losses]), **arrays)


def main() -> None:
    args = parse_arguments()
    jax.config.update("jax_enable_x64", args.dtype == "float64")
    norm = {"norm": args.norm} if args.norm else {}
    model = MODELS[args.model](dropout=args.dropout, dtype=args.dtype, **norm)
    batch = batches(args.batch_size, model.image_size, args.seed, args.permute_rows)

    schedule = optax.warmup_cosine_decay_schedule(
        0.0, args.learning_rate, args.warmup, max(args.steps, args.warmup + 1)
    )
    optimizer = optax.chain(
        optax.add_decayed_weights(args.weight_decay, mask=decayed), optax.sgd(schedule, momentum=0.9, nesterov=True)
    )
    key = jax.random.key(args.seed)
    sample = jnp.zeros((1, model.image_size, model.image_size, 3), jnp.uint8)
    variables = jax.jit(model.init)(key, sample)
    state = TrainState.create(
        apply_fn=model.apply, params=variables["params"], batch_stats=variables.get("batch_stats", {}), tx=optimizer
    )
    count = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    print(f"{args.model}: {count:,} parameters", flush=True)

    losses = []
    start = time.perf_counter()
    for step in range(1, args.steps + 1):
        state, metrics = train_step(state, *next(batch), key)
        losses.append(metrics["loss"])
        if step % args.log_every == 0:
            seconds = (time.perf_counter() - start) / step
            values = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
            print(f"step {step:5d}  {values}  {1e3 * seconds:.0f} ms a step", flush=True)
    if args.dump:
        trained = {"params": state.params, "batch_stats": state.batch_stats, "opt_state": state.opt_state}
        save(args.dump, losses, trained)


if __name__ == "__main__":
    main()
