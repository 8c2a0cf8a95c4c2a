"""Maps the source folders to import names and builds the native code.

Nothing but a C++17 compiler and pybind11 is needed here: MPI and TensorFlow are met at run time
(through function pointers), so one build serves all of their versions.
"""

import os
from glob import glob

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension, build_ext
from setuptools import Extension, setup

# One compiler process per core; SIRTAKI_BUILD_JOBS sets another number.
ParallelCompile("SIRTAKI_BUILD_JOBS").install()

# No contraction to FMA: every rank must get the same bits from the same inputs, whatever the compiler
# finds to fuse on its machine.
COMPILE_FLAGS = [
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-pthread",
]
# For the project's own checks. A user's newer compiler may know warnings that ours does not.
if os.environ.get("SIRTAKI_WERROR") == "1":
    COMPILE_FLAGS.append("-Werror")

setup(
    package_dir={
        "sirtaki": "collectives",
        "sirtaki.tensorflow": "tf_bindings",
        "sirtaki.keras": "tf_bindings/horovod_keras",
        "sirtaki.benchmarks": "benchmarks",
    },
    packages=[
        "sirtaki",
        "sirtaki.horovod",
        "sirtaki.horovod.common",
        "sirtaki.horovod.data",
        "sirtaki.launcher",
        "sirtaki.timeline",
        "sirtaki.tensorflow",
        "sirtaki.tensorflow.data",
        "sirtaki.tensorflow.keras",
        "sirtaki.keras",
        "sirtaki.benchmarks",
    ],
    # The launcher puts `preload` on the ranks' module path: it is no package.
    package_data={"sirtaki": ["py.typed", "*.pyi"], "sirtaki.launcher": ["preload/sitecustomize.py"]},
    ext_modules=[
        Pybind11Extension(
            "sirtaki._native",
            sorted(glob("native/*.cc")),
            depends=sorted(glob("native/*.h")),
            extra_compile_args=COMPILE_FLAGS,
            extra_link_args=["-pthread"],
        ),
        # Not a Python module: TensorFlow loads it with tf.load_op_library.
        Extension(
            "sirtaki.tensorflow._ops",
            sorted(glob("native/tensorflow/*.cc")),
            depends=[*sorted(glob("native/tensorflow/*.h")), "native/engine_abi.h"],
            include_dirs=["native"],
            extra_compile_args=COMPILE_FLAGS,
            extra_link_args=["-pthread", "-ldl"],
            language="c++",
        ),
    ],
    cmdclass={"build_ext": build_ext},
)
