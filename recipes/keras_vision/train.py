"""Trains a model of `keras.applications` from random weights with Keras's `fit`, on TensorFlow.

The images are made: each class has a pattern of its own, under noise, so nothing is downloaded:

    python train.py --model resnet50 --image-size 32 --classes 10 --batch-size 16 --steps 5
    python train.py --model vgg19 --dropout 0.5
"""

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="resnet50")
    parser.add_argument("--image-size", type=int, default=224, help="a multiple of 32")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=32, help="images a step")
    parser.add_argument("--steps", type=int, default=200, help="steps an epoch")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--warmup", type=int, default=10, help="steps until the full learning rate")
    parser.add_argument("--dropout", type=float, default=0.0, help="between the last layers of VGG (0.5 as published)")
    parser.add_argument("--policy", default="float32", help="of mixed precision: mixed_bfloat16, mixed_float16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=10, help="steps between two printed losses")
    parser.add_argument("--permute-rows", action="store_true", help="reverse the images inside each batch")
    parser.add_argument("--dump", metavar="FILE", help="save the losses and the final state as an .npz file")
    return parser.parse_args()


# Data


class Images(keras.utils.PyDataset):
    """Batches of images [rows, size, size, 3] float32 and labels [rows] int32, each made when it is asked for."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.args = args
        self.patterns = np.random.default_rng(args.seed).standard_normal((args.classes, 8, 8, 3)).astype(np.float32)

    def __len__(self) -> int:
        return int(self.args.steps)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng([self.args.seed, index])
        size, rows = self.args.image_size, self.args.batch_size
        labels = rng.integers(0, self.args.classes, rows).astype(np.int32)
        images = self.patterns[labels].repeat(size // 8, axis=1).repeat(size // 8, axis=2)
        images += rng.standard_normal(images.shape, np.float32)
        order = slice(None, None, -1 if self.args.permute_rows else 1)
        return images[order], labels[order]


# Models


def resnet50(args: argparse.Namespace) -> keras.Model:
    return keras.applications.ResNet50(
        weights=None,
        input_shape=(args.image_size, args.image_size, 3),
        classes=args.classes,
        classifier_activation=None,
    )


def vgg19(args: argparse.Namespace) -> keras.Model:
    """The convolutions of `keras.applications`, and the published classifier with its dropout."""
    features = keras.applications.VGG19(
        weights=None, input_shape=(args.image_size, args.image_size, 3), include_top=False
    )
    x = keras.layers.Flatten()(features.output)
    for _ in range(2):
        x = keras.layers.Dense(4096, activation="relu", kernel_initializer="he_normal")(x)
        x = keras.layers.Dropout(args.dropout)(x)
    return keras.Model(features.input, keras.layers.Dense(args.classes)(x))


MODELS = {"resnet50": resnet50, "vgg19": vgg19}


# Training


class PrintLoss(keras.callbacks.Callback):
    """Prints the running mean of the loss every few steps, so that it is not read in the others."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.every = every
        self.losses: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        assert logs is not None
        if batch % self.every == 0:
            self.losses.append(float(logs["loss"]))
            print(f"step {batch} loss {self.losses[-1]:.4f} accuracy {float(logs['accuracy']):.3f}", flush=True)


def main() -> None:
    args = parse_arguments()
    keras.utils.set_random_seed(args.seed)
    keras.mixed_precision.set_global_policy(args.policy)
    model = MODELS[args.model](args)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, max(args.steps * args.epochs, 1), warmup_target=args.learning_rate, warmup_steps=args.warmup
    )
    model.compile(
        keras.optimizers.SGD(schedule, momentum=0.9, nesterov=True),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=True,
    )
    printer = PrintLoss(args.log_every)
    history = model.fit(Images(args), epochs=args.epochs, shuffle=False, verbose=0, callbacks=[printer])
    print(f"loss {history.history['loss'][-1]:.4f}")
    if args.dump:
        state = {v.path: np.asarray(v) for v in [*model.variables, *model.optimizer.variables]}
        np.savez(args.dump, loss=np.array(printer.losses), **state)


if __name__ == "__main__":
    main()
