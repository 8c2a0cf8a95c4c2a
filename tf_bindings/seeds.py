"""One rule for random numbers: weights are equal on all ranks, what layers draw while they train is not.

Broadcasting all of a model's variables also copies the states of its seed generators, which would give every rank the
same dropout mask for its part of the batch. So each rank's generators are set apart afterwards, by its rank.
"""

from __future__ import annotations

from typing import Any

import keras
import sirtaki

# Odd, so that all ranks get different seeds, and large, so that rank 1 does not get the seed that the next
# layer has on rank 0 (people number their layers' seeds).
_STEP = 0x9E3779B9
_LIMIT = 2**31  # Keras hands seeds to TensorFlow as int32


def set_random_seed(seed: int) -> None:
    """Seeds Python, NumPy and TensorFlow: draws from here on differ between ranks.

    Make the model before, with `keras.utils.set_random_seed` and the same number on all ranks, or broadcast its
    weights; call this afterwards, for shuffling and augmentation that should not be the same on all ranks.

    Args:
        seed: 0 or more, the same on all ranks. Rank 0 gets it as it is.

    Example:
        >>> keras.utils.set_random_seed(1)  # the same weights everywhere
        >>> model = make_model()
        >>> hvd.set_random_seed(1)  # and different dropout and shuffling
    """
    keras.utils.set_random_seed(of_rank(seed, sirtaki.rank()))


def of_rank(seed: int, rank: int) -> int:
    """The seed of a rank, which differs from those of other ranks and, most likely, of seeds nearby."""
    return (seed + rank * _STEP) % _LIMIT if rank else seed


def states(model: Any) -> list[Any]:
    """The states of the seed generators of a model's layers, each once."""
    generators = (
        generator for layer in model._flatten_layers() for generator in getattr(layer, "_seed_generators", [])
    )
    unique = {id(generator): generator.state for generator in generators}
    return list(unique.values())


def set_apart(state: Any) -> None:
    """Gives a seed generator, whose state is now that of all ranks, this rank's own."""
    rank = sirtaki.rank()
    if rank > 0:
        seed, counter = (int(number) for number in keras.ops.convert_to_numpy(state))
        state.assign([of_rank(seed, rank), counter])
