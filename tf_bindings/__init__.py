"""Sirtaki for TensorFlow and Keras 3: the public face."""
