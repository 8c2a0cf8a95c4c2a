"""`load_model`: a model whose optimizer is distributed again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from sirtaki.tensorflow.compression import Compression
from sirtaki.tensorflow.optimizer import DistributedOptimizer
from sirtaki.tensorflow.sync_batch_norm import SyncBatchNormalization


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type[Any]] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
    **options: Any,
) -> Any:
    """Loads a Keras model and makes its optimizer, with its state, a `DistributedOptimizer`.

    A `SyncBatchNormalization` that was saved is one again.

    Args:
        filepath: what `keras.models.load_model` takes. All ranks load it, or rank 0 does and the callback
            `BroadcastGlobalVariablesCallback` sends what it has loaded.
        custom_optimizers: classes of optimizers that Keras does not know.
        custom_objects: other classes and functions by name.
        compression: of the distributed optimizer.
        legacy_opts: Horovod's, for optimizers of Keras 2; it changes nothing here.
        **options: further arguments of `DistributedOptimizer`.

    Returns:
        The model. One that was saved without an optimizer has none.

    Example:
        >>> model = hvd.load_model("model.keras")
    """
    objects = {"BatchNormalization": _SynchronisedAsSaved}
    objects.update({cls.__name__: cls for cls in custom_optimizers or []})
    objects.update(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=objects)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        DistributedOptimizer(optimizer, compression=compression, **options)
    return model


class _SynchronisedAsSaved(keras.layers.BatchNormalization):
    """Makes a layer of a saved description: synchronised, if it was."""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        config = dict(config)
        kind = SyncBatchNormalization if config.pop("synchronized", False) else keras.layers.BatchNormalization
        return kind(**config)
