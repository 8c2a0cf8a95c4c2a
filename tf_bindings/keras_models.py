"""What Keras 3 and `tf_keras` call differently: models, their optimizers' state, and callbacks for both."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import keras


class Callback(keras.callbacks.Callback):
    """A callback that works in `fit` of Keras 3 and of `tf_keras`."""

    # What tf_keras asks its callbacks in addition.
    _chief_worker_only = None
    _supports_tf_logs = False

    def _implements_train_batch_hooks(self) -> bool:
        return implements_batch_end(self) or implements(self, "on_train_batch_begin", "on_batch_begin")

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False


def implements(callback: Any, *methods: str) -> bool:
    """Whether a callback defines one of the methods itself."""
    base = next(cls for cls in type(callback).__mro__ if cls.__name__ == "Callback" and _is_of_keras(cls))
    return any(getattr(type(callback), method, None) is not getattr(base, method, None) for method in methods)


def implements_batch_end(callback: Any) -> bool:
    """Whether a callback acts at the end of a batch, where Keras gives up asynchronous logs for it."""
    return implements(callback, "on_train_batch_end", "on_batch_end")


def base_model(model: Any) -> type[Any]:
    """The class `Model` that a model comes from."""
    return next(cls for cls in type(model).__mro__ if cls.__name__ == "Model" and _is_of_keras(cls))


def model_classes() -> list[type[Any]]:
    """`Model` of Keras 3, and that of `tf_keras` if it has been imported."""
    legacy = sys.modules.get("tf_keras")
    return [keras.Model] if legacy is None else [keras.Model, legacy.Model]


def trains_its_own_way(model: Any) -> bool:
    """Whether the model overrides how Keras trains it."""
    base = base_model(model)
    return any(
        getattr(type(model), method) is not getattr(base, method) for method in ("train_step", "make_train_function")
    )


def optimizer_state(optimizer: Any) -> list[Any]:
    """The variables of an optimizer, or none if there is no optimizer."""
    if optimizer is None:
        return []
    variables = optimizer.variables
    return list(variables() if isinstance(variables, Callable) else variables)  # type: ignore[arg-type]


def build_optimizer(optimizer: Any, variables: list[Any]) -> None:
    """Makes the optimizer's variables, if they are not there yet."""
    if hasattr(optimizer, "_create_all_weights"):
        optimizer._create_all_weights(variables)  # tf_keras.optimizers.legacy
    elif hasattr(optimizer, "build") and not getattr(optimizer, "built", False):
        optimizer.build(variables)


def get_learning_rate(optimizer: Any) -> float:
    """The learning rate now.

    Raises:
        AttributeError: the optimizer has several, as a MultiOptimizer.
    """
    rate = optimizer.learning_rate
    if callable(rate) and not hasattr(rate, "numpy"):  # a schedule, in tf_keras
        rate = rate(optimizer.iterations)
    return float(keras.ops.convert_to_numpy(rate) if isinstance(rate, keras.Variable) else rate)


def set_learning_rate(optimizer: Any, value: float) -> None:
    """Sets the learning rate.

    Raises:
        TypeError: it follows a schedule.
    """
    optimizer.learning_rate = value


def _is_of_keras(cls: type[Any]) -> bool:
    return cls.__module__.split(".")[0] in ("keras", "tf_keras") or cls is Callback
