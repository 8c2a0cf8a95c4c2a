"""Writes docs/horovod.md: what becomes of every name of Horovod's interface in Sirtaki.

    python docs/horovod_coverage.py [--check]

Reads docs/horovod_0.28.1_api.md, imports each module under its Horovod name as a script would, and compares names and
signatures. Ends with an error if a name is missing, or differs, and nothing here says why. --check writes nothing and
fails if the page is not what it would write.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
INTERFACE = HERE / "horovod_0.28.1_api.md"
PAGE = HERE / "horovod.md"

# Names that exist to say why they do nothing, or that mean something else. By full name, or by name anywhere.
DIFFERS = {
    "horovod.run": "the elastic and ssh arguments are refused with the reason",
    "horovod.runner.run": "the elastic and ssh arguments are refused with the reason",
    "LocalGradientAggregationHelper": "raises with the reason: it is an inner part of Horovod's optimizers; give "
    "`backward_passes_per_step` to `DistributedOptimizer`",
    "nccl_built": "0: tensors on GPUs are not supported yet",
    "cuda_built": "False: tensors on GPUs are not supported yet",
    "rocm_built": "False: Sirtaki does not use ROCm",
    "ccl_built": "False: Sirtaki does not use oneCCL",
    "ddl_built": "False: IBM's DDL is no more",
    "gloo_built": "False: Sirtaki has its own shared memory and TCP in Gloo's place",
    "gloo_enabled": "False: Sirtaki has its own shared memory and TCP in Gloo's place",
    "SyncBatchNormalization": "saved models have Keras's BatchNormalization with synchronized=True in its place",
    "HorovodInternalError": "is `sirtaki.errors.SirtakiError`; inside TensorFlow a collective raises tf.errors.OpError",
    "HostsUpdatedInterrupt": "nothing raises it: a job keeps the ranks that it was started with",
    "HostUpdateResult": "nothing gives one: a job keeps the ranks that it was started with",
    "WorkerNotificationManager": "tells nothing by itself: a job keeps the ranks that it was started with",
    "HorovodVersionMismatchError": "nothing but `check_installed_version` raises it: one build serves all versions",
    "EXTENSIONS": "only TensorFlow's is available",
    "run": "gives all ranks the state of rank 0 and calls the function once: a job keeps its ranks",
    "run_fn": "gives all ranks the state of rank 0 and calls the function: a job keeps its ranks",
    "TensorFlowState": "with a session it raises and names `BroadcastGlobalVariablesHook` and a Saver",
    "TYPE_CHECKING": "Python's own, from `typing`",
    "AnyStr": "Python's own, from `typing`",
    "BestModelCheckpoint": "has `filepath` in addition",
    "LearningRateScheduleCallback": "momentum correction scales Keras's velocity, which is the same update",
    "LearningRateWarmupCallback": "momentum correction scales Keras's velocity, which is the same update",
    "MetricAverageCallback": "weighted by samples; metrics of Keras are exact, whatever they are",
    "DistributedGradientTape": "a class; jacobians are refused with the reason",
    "PartialDistributedGradientTape": "a class; jacobians are refused with the reason",
    "ProcessSet": "`ranks` is a property; a set exists before `init`",
    "broadcast_global_variables": "eagerly it raises and names the alternatives, as Horovod's does",
}
_SERVICE = "raises and names TensorFlow's own tf.data service, or `shard`"
for _name in ("ComputeClient", "TfDataServiceConfig", "compute_worker_fn", "send_to_data_service", "tf_data_service"):
    DIFFERS[_name] = _SERVICE
for _name in ("ComputeService", "horovod.tensorflow.data.compute_worker.main"):
    DIFFERS[_name] = _SERVICE
# Methods and arguments of what raises when it is made.
RAISES = {"ComputeClient", "TfDataServiceConfig", "ComputeService", "LocalGradientAggregationHelper"}
SECTIONS_ABSENT = {
    "TensorFlow custom ops": "Horovod's compiled operations: Sirtaki's are called SirtakiAllreduce and so on, and are "
    "reached through the functions of `sirtaki.tensorflow`",
    "C functions": "Horovod's C library: `HorovodBasics` has the same functions as methods",
}


@dataclass
class Entry:
    """A line of the interface."""

    module: str
    name: str
    signature: str | None
    methods: list[tuple[str, str | None]] = field(default_factory=list)


def read_interface() -> tuple[list[str], list[str], list[Entry], list[str]]:
    """Returns settings, flags, entries and the sections that are not about Python names."""
    settings: list[str] = []
    flags: list[str] = []
    entries: list[Entry] = []
    sections: list[str] = []
    module = ""
    for line in INTERFACE.read_text().splitlines():
        if not module and line.startswith("Environment variables"):
            settings = re.findall(r"`(HOROVOD_\w+)`", line)
        elif not module and line.startswith("`horovodrun` flags"):
            flags = [flag for group in re.findall(r"`(-[^`]*)`", line) for flag in expand(group)]
        elif line.startswith("## ") or line.startswith("### "):
            module = line.lstrip("# ").split(" registered")[0].split(" called")[0]
            if not module.startswith("horovod"):
                sections.append(module)
        elif module.startswith("horovod") and (
            match := re.match(r"- (?:class )?`(\w+)(\(.*?\))?(?: ->.*)?`( =)?", line)
        ):
            entries.append(Entry(module, match[1], match[2]))
        elif module.startswith("horovod") and (
            match := re.match(r"    - (?:static |attribute )?`(\w+)(\(.*?\))?", line)
        ):
            entries[-1].methods.append((match[1], match[2]))
    return settings, flags, entries, sections


def expand(group: str) -> Iterator[str]:
    """The flags in a text like `-np/--num-proc` or `--[no-]stall-check`."""
    for flag in group.split(" ")[0].split("/"):
        if "[no-]" in flag:
            yield flag.replace("[no-]", "")
            yield flag.replace("[no-]", "no-")
        else:
            yield flag


def parameters_of(signature: str) -> list[tuple[str, str | None]]:
    """Names and defaults of a signature as it is written in the interface."""
    text = signature.replace("typing.", "")
    try:
        arguments = ast.parse(f"def f{text}: pass").body[0].args  # type: ignore[attr-defined]
    except SyntaxError:
        return []
    names = [argument.arg for argument in arguments.args]
    defaults = [None] * (len(names) - len(arguments.defaults)) + [ast.unparse(value) for value in arguments.defaults]
    found = list(zip(names, defaults, strict=True))
    found += [(argument.arg, None) for argument in (arguments.vararg, arguments.kwarg) if argument is not None]
    return [one for one in found if one[0] != "self"]


def written(value: Any) -> str:
    """A default as the interface writes it."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(int(value))
    name = getattr(value, "__name__", None)
    if name == "NoneCompressor":
        return "Compression.none"
    if type(value).__name__ == "_GlobalProcessSet":
        return "global_process_set"
    return repr(value)


def difference(found: Any, signature: str | None) -> str | None:
    """How the signature of what is there is not that of the interface."""
    if signature is None or not callable(found) or signature == "(?)":
        return None
    expected = parameters_of(signature)
    try:
        own = inspect.signature(found).parameters
    except (TypeError, ValueError):
        return None
    takes_all = any(one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL) for one in own.values())
    order = [name for name in own if name != "self"]
    for position, (name, default) in enumerate(expected):
        if name in ("args", "kwargs"):
            continue
        if name not in own:
            if takes_all:
                continue
            return f"has no argument `{name}`"
        if own[name].kind != inspect.Parameter.KEYWORD_ONLY and order.index(name) != position:
            return f"argument `{name}` is at another place"
        has = None if own[name].default is inspect.Parameter.empty else written(own[name].default)
        if default is not None and has is not None and has != default:
            return f"`{name}` defaults to {has}, not {default}"
    return None


def judge(entry: Entry) -> tuple[str, str]:
    """Returns supported, differs, absent or GAP, and why."""
    full = f"{entry.module}.{entry.name}"
    why = DIFFERS.get(full, DIFFERS.get(entry.name, ""))
    if entry.name == "run" and entry.module in ("horovod", "horovod.runner"):
        why = DIFFERS[full]
    try:
        found = getattr(importlib.import_module(entry.module), entry.name)
    except (ImportError, AttributeError) as error:
        return "GAP", str(error)
    problems = [] if entry.name in RAISES else [difference(found, entry.signature)]
    for method, signature in [] if entry.name in RAISES else entry.methods:
        if not hasattr(found, method) and not (inspect.isclass(found) and in_instances(found, method)):
            problems.append(f"has no `{method}`")
        elif method != "__init__" and hasattr(found, method):
            problems.append(difference(getattr(found, method), signature))
    problems = [problem for problem in problems if problem]
    if problems and not why:
        return "GAP", "; ".join(problems)
    if why:
        return "differs", "; ".join([why, *problems])
    return "supported", ""


def in_instances(found: Any, attribute: str) -> bool:
    """Whether a class sets the attribute in its objects."""
    try:
        return f"self.{attribute}" in inspect.getsource(found)
    except (OSError, TypeError):
        return False


def page() -> tuple[str, list[str]]:
    """Returns the page, and the gaps that nothing explains."""
    import sirtaki
    from sirtaki.horovod import settings as horovod_settings
    from sirtaki.launcher import horovod_flags
    from sirtaki.launcher.options import _parser

    sirtaki.install_as_horovod()
    settings, flags, entries, sections = read_interface()
    gaps: list[str] = []
    lines = [
        "# Horovod's names in Sirtaki",
        "",
        "Generated by `make docs` from [the interface of Horovod 0.28.1](horovod_0.28.1_api.md) and the installed",
        "package:",
        'each name was imported as a script does, and its arguments compared. "supported": the same name with the same',
        'arguments. "differs": it exists, and the last column says what is not the same. How to use Horovod\'s names:',
        "`import sirtaki.tensorflow as hvd` (`sirtaki.tensorflow.keras`, `sirtaki.keras`), or with an unchanged script",
        "`sirtakirun --as-horovod`, or `sirtaki.install_as_horovod()` before its imports.",
        "",
    ]
    counts = {"supported": 0, "differs": 0, "absent": 0}
    tables: list[str] = []
    module = ""
    for entry in entries:
        status, why = judge(entry)
        if status == "GAP":
            gaps.append(f"{entry.module}.{entry.name}: {why}")
            status = "absent"
        counts[status] += 1
        if entry.module != module:
            module = entry.module
            tables += ["", f"## `{module}`", "", "| name | status | |", "|---|---|---|"]
        tables.append(f"| `{entry.name}` | {status} | {why} |")
    tables += ["", "## Settings", "", "| variable | status | |", "|---|---|---|"]
    for variable in settings:
        if variable in horovod_settings.EQUAL:
            tables.append(f"| `{variable}` | supported | as `{horovod_settings.EQUAL[variable]}` |")
            counts["supported"] += 1
        elif variable in horovod_settings.REASONS:
            tables.append(f"| `{variable}` | differs | named in a warning: {horovod_settings.REASONS[variable]} |")
            counts["differs"] += 1
        else:
            gaps.append(variable)
    known = {option for action in _parser()._actions for option in action.option_strings}
    tables += ["", "## Flags of `horovodrun`, given to `sirtakirun`", "", "| flag | status | |", "|---|---|---|"]
    for flag in dict.fromkeys(flags):
        reason = horovod_flags.REASONS.get(flag)
        if flag not in known:
            gaps.append(flag)
        status = "differs" if reason else "supported"
        counts[status] += 1
        tables.append(f"| `{flag}` | {status} | {reason or ''} |")
    tables += ["", "## What is no Python name", "", "| | status | |", "|---|---|---|"]
    for section in sections:
        reason = next((why for start, why in SECTIONS_ABSENT.items() if section.startswith(start)), None)
        if reason is None:
            gaps.append(section)
        counts["absent"] += 1
        tables.append(f"| {section} | absent | {reason} |")
    lines.append("In all: " + ", ".join(f"{number} {status}" for status, number in counts.items()) + ".")
    return "\n".join(lines + tables) + "\n", gaps


def main() -> int:
    """Writes the page or checks it."""
    warnings.simplefilter("ignore")
    text, gaps = page()
    for gap in gaps:
        print(f"unexplained: {gap}", file=sys.stderr)
    if "--check" in sys.argv:
        if PAGE.read_text() != text:
            print(f"{PAGE.name} is not up to date, run: make docs", file=sys.stderr)
            return 1
    else:
        PAGE.write_text(text)
    return 1 if gaps else 0


if __name__ == "__main__":
    sys.exit(main())
