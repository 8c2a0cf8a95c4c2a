"""Notices training in a job of several ranks that does not keep them together, and says so.

A plain `load_model`, `clone_model` or second `compile` brings an optimizer that is not distributed, and each
rank would train a model of its own without a word. Our callbacks raise then; without them, `training.py` has `fit`
warn. It also warns if the ranks' weights differ and nothing makes them equal.
"""

from __future__ import annotations

import hashlib
import warnings
from typing import Any

import keras
import numpy as np
import sirtaki
from sirtaki.config import Settings
from sirtaki.errors import UnreducedGradientsError
from sirtaki.tensorflow import diagnostics
from sirtaki.tensorflow.keras_models import trains_its_own_way
from sirtaki.tensorflow.optimizer import local_variables, optimizer_name, reduces_gradients
from sirtaki.tensorflow.variables import identity

_REMEDY = (
    "Wrap the optimizer before compile(): "
    "model.compile(optimizer=sirtaki.tensorflow.DistributedOptimizer(optimizer), ...); after load_model, "
    "clone_model or a second compile, wrap it again. If every rank is meant to train a model of its own, set "
    "SIRTAKI_ALLOW_UNWRAPPED_OPTIMIZER=1."
)


class UnreducedGradientsWarning(RuntimeWarning):
    """Ranks train without reducing their gradients."""


class DifferentWeightsWarning(RuntimeWarning):
    """Ranks train models with different weights."""


def is_built(model: Any) -> bool:
    """Whether the model has all its weights."""
    return all(layer.built for layer in model._flatten_layers())


def applies() -> bool:
    """Whether unreduced gradients are a mistake in this job."""
    if not sirtaki.is_initialized() or sirtaki.size() == 1:
        return False
    return not Settings.from_environment().allow_unwrapped_optimizer


def problem_before_training(model: Any) -> str | None:
    """What is wrong with the model, as far as its optimizer tells.

    A model with a train_step of its own may reduce elsewhere (`DistributedGradientTape`); whether it does
    shows in its first step.
    """
    optimizer = getattr(model, "optimizer", None)
    if not applies() or optimizer is None or trains_its_own_way(model) or reduces_gradients(optimizer):
        return None
    return (
        f"the optimizer {optimizer_name(optimizer)!r} of the model {model.name!r} does not reduce gradients, so "
        f"each of the {sirtaki.size()} ranks would train a model of its own. {_REMEDY}"
    )


class ReductionWatch:
    """Tells whether a gradient was reduced since it was made."""

    def __init__(self) -> None:
        self._before = self._count()

    def problem(self, model: Any) -> str | None:
        """What is wrong with the model if nothing was reduced."""
        if not applies() or self._count() != self._before:
            return None
        return (
            f"the training steps of the model {model.name!r} have reduced no gradient, so each of the "
            f"{sirtaki.size()} ranks trains a model of its own. Use DistributedGradientTape in its "
            f"train_step, or: {_REMEDY}"
        )

    @staticmethod
    def _count() -> int:
        return diagnostics.counters().gradients


def raise_if(problem: str | None) -> None:
    """Raises `UnreducedGradientsError` with the text, if there is one."""
    if problem is not None:
        raise UnreducedGradientsError(problem)


def warn(problem: str, kind: type[Warning] = UnreducedGradientsWarning) -> None:
    """Warns at the place of the call two levels up."""
    warnings.warn(f"Sirtaki: {problem}", kind, stacklevel=4)


def warn_of_different_weights(model: Any) -> None:
    """Compares the ranks' trainable weights, which are equal for good if they are equal once."""
    digest = hashlib.sha256()
    local = local_variables(model.optimizer).identities()
    for weight in model.trainable_weights:
        if identity(weight) in local:
            continue
        digest.update(np.ascontiguousarray(keras.ops.convert_to_numpy(weight)).tobytes())
    digests = sirtaki.allgather_object(digest.hexdigest(), name="fit.weights")
    different = [rank for rank, other in enumerate(digests) if other != digests[0]]
    if different:
        warn(
            f"the weights of the model {model.name!r} on ranks {different} differ from those on rank 0, so the ranks "
            "train different models. Add the callback BroadcastGlobalVariablesCallback(0), or set the same seed on all "
            "ranks before the model is made.",
            DifferentWeightsWarning,
        )
