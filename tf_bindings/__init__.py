"""Sirtaki for TensorFlow and Keras 3: the public face."""
from sirtaki import *
from sirtaki import Average, Sum, init, rank, size, allgather_object
from sirtaki.tensorflow import diagnostics, gradients
from sirtaki.tensorflow.ops import allgather, allreduce, broadcast, grouped_allreduce
