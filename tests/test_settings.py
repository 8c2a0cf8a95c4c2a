"""Every setting: a value that cannot be used is told at init, with the variable and the value."""

import dataclasses
import os
import subprocess
import sys

import pytest
from sirtaki.config import Settings

# Values that no parser of the kind takes. Text settings take any text; bad names of interfaces show at start.
_NO_NUMBERS = ["abc", "-1", "nan", "", " "]
BAD = {
    "SIRTAKI_FUSION_THRESHOLD": [*_NO_NUMBERS, "1.5"],
    "SIRTAKI_CACHE_CAPACITY": [*_NO_NUMBERS, "63", "16777217"],
    "SIRTAKI_SLOT_BYTES": [*_NO_NUMBERS, "4095", "5000", "2147483648"],
    "SIRTAKI_SPIN_US": [*_NO_NUMBERS, "100001"],
    "SIRTAKI_START_TIMEOUT": [*_NO_NUMBERS, "0", "inf"],
    "SIRTAKI_STALL_CHECK_TIME_SECONDS": [*_NO_NUMBERS, "inf"],
    "SIRTAKI_STALL_SHUTDOWN_TIME_SECONDS": [*_NO_NUMBERS, "inf"],
    "SIRTAKI_UNRESPONSIVE_TIME_SECONDS": [*_NO_NUMBERS, "inf", "0.05"],
    "SIRTAKI_METRICS_PORT": [*_NO_NUMBERS, "65536", "80.5"],
    "SIRTAKI_LOG_LEVEL": ["loud", "-1", "2", ""],
    "SIRTAKI_TIMELINE_MARK_CYCLES": ["maybe", "-1", "2"],
    "SIRTAKI_ALLOW_UNWRAPPED_OPTIMIZER": ["maybe", "-1", "2"],
}
FREE_TEXT = {f.metadata["variable"] for f in dataclasses.fields(Settings) if f.metadata["parse"] is str}


def cases():
    """Yield variable and value for every field; a new setting fails here until it has bad values."""
    for field in dataclasses.fields(Settings):
        variable = field.metadata["variable"]
        if variable not in FREE_TEXT:
            for value in BAD[variable]:
                yield variable, value


def test_init_names_every_bad_setting():
    program = """
import ast, os, sys
import sirtaki
for variable, value in ast.literal_eval(sys.argv[1]):
    os.environ[variable] = value
    try:
        sirtaki.init()
    except sirtaki.errors.ConfigError as error:
        if variable not in str(error) or repr(value) not in str(error):
            print("not named:", variable, repr(value), error)
    else:
        sirtaki.shutdown()
        print("accepted:", variable, repr(value))
    del os.environ[variable]
sirtaki.init()
print("tried")
"""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SIRTAKI_")}
    command = [sys.executable, "-c", program, repr(list(cases()))]
    result = subprocess.run(command, capture_output=True, text=True, env=clean, timeout=60)
    assert (result.stdout, result.returncode) == ("tried\n", 0), result.stdout + result.stderr


@pytest.mark.parametrize("variable", sorted(BAD))
def test_table_has_only_settings_that_exist(variable):
    assert variable in {f.metadata["variable"] for f in dataclasses.fields(Settings)}
