"""Makes catalogue.json out of the two inventories of legacy names.

    python -m neuronmigrate.catalogue.generate OPTIMUM_SYMBOLS.json XLA_SYMBOLS.json

The inventories are lists of every name the legacy packages had, release by release, with what became of
it. They are far larger than what the tool needs; this keeps names, actions, releases and arguments, and
takes the texts from wording.py.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TypedDict, cast

from neuronmigrate.catalogue import wording
from neuronmigrate.targets.neuron import NAMES as NATIVE

DATA = Path(__file__).with_name("catalogue.json")

ACTIONS = {
    "KEEP": "keep",
    "RENAME": "rename",
    "REWRITE": "rewrite",
    "DROP": "drop",
    "REMOVE": "drop",
    "MANUAL": "manual",
    "INSERT": "insert",
    "SHIM": "rewrite",
}

SHORT_NAMES = {
    "dp": "torch_xla.distributed.data_parallel",
    "met": "torch_xla.debug.metrics",
    "npf": "neuronperf",
    "nxd": "neuronx_distributed",
    "pjrt": "torch_xla.experimental.pjrt",
    "pl": "torch_xla.distributed.parallel_loader",
    "xb": "torch_xla.core.xla_builder",
    "xbn": "torch_xla.distributed.xla_backend",
    "xf": "torch_xla.core.functions",
    "xla": "torch_xla",
    "xm": "torch_xla.core.xla_model",
    "xmp": "torch_xla.distributed.xla_multiprocessing",
    "xp": "torch_xla.debug.profiler",
    "xpl": "torch_xla.distributed.parallel_loader",
    "xr": "torch_xla.runtime",
    "xs": "torch_xla.distributed.spmd",
    "xser": "torch_xla.utils.serialization",
    "xu": "torch_xla.utils.utils",
}
"""The aliases that the inventory writes, which are those that people write."""

LEGACY_ROOTS = (
    "_XLAC",
    "libneuronxla",
    "nemo_neuron",
    "neuronperf",
    "neuronx_distributed",
    "neuronx_distributed_inference",
    "neuronx_distributed_training",
    "neuronxcc",
    "optimum",
    "torch.classes.neuron",
    "torch.neuron",
    "torch.ops.neuron",
    "torch_neuron",
    "torch_neuronx",
    "torch_xla",
    "transformers_neuronx",
)

MEMBERS = {
    "02.10": ("eager_mode", "eager_mode_context", "is_eager_mode"),
    "05.05": ("REDUCE_SUM", "REDUCE_MUL", "REDUCE_AND", "REDUCE_OR", "REDUCE_MIN", "REDUCE_MAX"),
}

SPELLING = re.compile(r"^(?:with |@|\w+ = )?(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\(.*)?:?$", re.DOTALL)
CODE = re.compile(r"`([A-Za-z_][\w.]*)(?:\([^`]*\))?`")


class Row(TypedDict):
    """One entry of the result, still with its texts in full."""

    kind: str
    action: str
    native: list[str]
    reason: str
    advice: str
    detail: str
    first: str
    last: str
    groups: dict[str, str]


def main(arguments: list[str]) -> None:
    """Read the two inventories and write catalogue.json beside this file."""
    optimum, xla = (json.loads(Path(path).read_text("utf-8")) for path in arguments)
    DATA.write_text(pack(optimum, xla), "utf-8")


def pack(optimum: dict[str, object], xla: dict[str, object]) -> str:
    """The text of catalogue.json."""
    rows: list[Row] = []
    names: dict[str, int] = {}
    environment: dict[str, int] = {}
    commands: dict[str, int] = {}
    flags: dict[str, int] = {}
    idioms: dict[str, int] = {}

    def put(table: dict[str, int], keys: list[str], row: Row) -> None:
        fresh = [key for key in dict.fromkeys(keys) if key not in table]
        if fresh:
            rows.append(row)
            table.update(dict.fromkeys(fresh, len(rows) - 1))

    records = cast("list[dict[str, object]]", xla["records"])
    for record in sorted(records, key=lambda item: item["tier"] != "curated"):
        _put_xla(record, put, names, environment, commands, flags, idioms)
    symbols = cast("list[dict[str, object]]", optimum["symbols"])
    # Public names first: where two classes share a path in different releases, the newer one holds.
    symbols = sorted(symbols, key=lambda item: (item["last"] != "main", str(item["tier"]) == "module-unused"))
    for symbol in symbols:
        _put_optimum(symbol, put, names, environment, commands)
    modules = cast("dict[str, dict[str, str]]", optimum["modules"])
    for module, span in modules.items():
        if module not in names:
            row = _row(
                "module", "manual", [], "optimum", _module_advice(module), "", span["first"], span["last"]
            )
            put(names, [module], row)
    below: dict[str, int] = {}
    for module, advice in wording.MODULES.items():
        put(below, [module], _row("module", "manual", [], module, advice))
        put(names, [module], _row("module", "manual", [], module, advice))
    tables = {
        "names": names,
        "modules": below,
        "variables": environment,
        "commands": commands,
        "flags": flags,
        "idioms": idioms,
    }
    return _write(rows, tables, _arguments(optimum))


def _put_xla(
    record: dict[str, object],
    put: object,
    names: dict[str, int],
    environment: dict[str, int],
    commands: dict[str, int],
    flags: dict[str, int],
    idioms: dict[str, int],
) -> None:
    assert callable(put)
    row_id, name = str(record["id"]), str(record["qualified_name"])
    aliases = [str(alias) for alias in cast("list[object]", record["aliases"])]
    action = ACTIONS[str(record["action"])]
    family = row_id.partition(".")[0]
    if not row_id:
        if name not in NATIVE and not name.startswith("torch_neuronx.nki."):
            advice = _module_advice(name)
            put(names, [name], _row("name", action, [], name, advice))
        return
    native = str(record["native_replacement"])
    advice = wording.ROWS.get(row_id, "")
    detail = _detail(native, str(record["conditions"]))
    targets = [] if native in {"nothing", "none", "unchanged"} else _targets(native)
    if family == "22":
        kept = "keep" if advice.startswith("keep it") else action
        for key in [name, *aliases]:
            put(environment, [key], _row("variable", kept, [], "", advice, detail))
    elif family == "23":
        kept = "keep" if native.startswith("keep") else action
        text = advice or wording.PLAIN_FLAGS[kept if kept in wording.PLAIN_FLAGS else "keep"]
        put(flags, [name], _row("flag", kept, [], "", text, detail))
    elif family == "24":
        key = name.removeprefix("pip ").removeprefix("apt ").partition(" (")[0]
        kind = "package" if name.startswith(("pip ", "apt ")) else "command"
        keys = [key]
        if name == "optimum-cli export neuron(x)":
            keys = ["optimum-cli export neuron", "optimum-cli export neuronx"]
        elif name == "modprobe/rmmod neuron":
            keys = ["modprobe neuron", "rmmod neuron"]
        elif name == "pip neuronx_distributed":
            keys = ["neuronx-distributed", "neuronx_distributed"]
        kept = "keep" if advice.startswith("keep") else action
        put(commands, keys, _row(kind, kept, [], "", advice, detail))
    else:
        qualified = _qualified(name)
        for text in wording.ROW_NAMES.get(row_id, ()):
            module, colon, below = text.partition(":")
            qualified += [f"{module}.{each}" for each in below.split()] if colon else [module]
        for alias in aliases:
            qualified += _qualified(alias)
        parent = name.rpartition(".")[0]
        qualified += [f"{parent}.{member}" for member in MEMBERS.get(row_id, ())]
        qualified = [
            key for key in qualified if key not in NATIVE or key in {"torch_neuronx", "torch.neuron"}
        ]
        modules = [key for key in qualified if _is_module(key)]
        row = _row("name", action, targets, (qualified or [name])[0], advice, detail)
        if modules != qualified:
            put(names, [key for key in qualified if key not in modules], row)
        module_row = _row("module", action, targets, (qualified or [name])[0], advice, detail)
        for key in modules:
            put(names, [key], module_row)
        if not _qualified(name):
            put(idioms, [name], _row("idiom", action, targets, "", advice, detail))


def _put_optimum(
    symbol: dict[str, object],
    put: object,
    names: dict[str, int],
    environment: dict[str, int],
    commands: dict[str, int],
) -> None:
    assert callable(put)
    mapping = cast("dict[str, object]", symbol["mapping"])
    action = ACTIONS[str(mapping["action"])]
    native = [str(item) for item in cast("list[object]", mapping["native"])]
    name, kind, family = str(symbol["name"]), str(symbol["kind"]), str(symbol["family"])
    first, last = str(symbol["first"] or ""), str(symbol["last"])
    note = str(mapping["note"])
    shown = _detail("", note)
    if kind == "env var":
        advice = wording.ENVIRONMENT.get(name) or _general(family, action, native, note)
        row = _row("variable", action, native, "", advice, shown, first, last)
        put(environment, [name], row)
    elif kind == "cli":
        key = name.partition(" [")[0]
        advice = next(
            (text for known, text in wording.COMMANDS.items() if key == known or key.startswith(f"{known} ")),
            "",
        )
        keys = [key, *(["optimum-cli export neuronx"] if key == "optimum-cli export neuron" else [])]
        put(commands, keys, _row("command", action, native, "", advice, shown, first, last))
    else:
        paths = cast("list[dict[str, str]]", symbol["import_paths"])
        qualified = [entry["path"] for entry in paths]
        advice = wording.OPTIMUM.get(name, "")
        if len(native) > 1 and f"transformers.{name}" in native:
            native = [f"transformers.{name}"]
        model = native[0].rpartition(".")[2] if native and native[0].count(".") == 1 else ""
        for module, text in wording.OPTIMUM_PATHS.items():
            if model.endswith(("Model", "ForCausalLM")) and model != "PreTrainedModel":
                advice = text.format(name=model) if qualified[0].startswith(f"{module}.") else advice
        advice = advice or _general(family, action, native, note)
        groups = cast("dict[str, str]", symbol.get("arg_groups", {}))
        row = _row(kind, action, native, "optimum", advice, shown, first, last, groups)
        # A path that two classes had goes to the one that is sorted first.
        put(names, qualified, row)


def _general(family: str, action: str, native: list[str], note: str) -> str:
    """Advice made of the mapping: the counterpart and the mapping's own condition."""
    note = wording.NOTES.get(note, note)
    shown = " or ".join(f"`{item}`" for item in native)
    if action in {"rename", "rewrite", "keep"} and native:
        return f"use {shown}" + (f"; {note}" if note not in _PLAIN else "")
    if action == "manual" and native:
        return f"look at {shown}" + (f"; {note}" if note not in _PLAIN else "")
    text = wording.FAMILIES.get((family, action), "")
    if not text and native:
        text = f"use {shown}"
    return text or "remove it: nothing native needs it"


def _row(
    kind: str,
    action: str,
    native: list[str],
    root: str,
    advice: str,
    detail: str = "",
    first: str = "",
    last: str = "",
    groups: dict[str, str] | None = None,
) -> Row:
    reason = next(
        (
            text
            for name, text in wording.REASONS.items()
            if name and (root == name or root.startswith(f"{name}."))
        ),
        wording.REASONS[""],
    )
    if not advice:
        raise ValueError(f"nothing to say about {kind} {root} {native} {detail}")
    return {
        "kind": kind,
        "action": action,
        "native": native,
        "reason": reason if kind not in {"variable", "flag", "command", "package"} else "",
        "advice": advice,
        "detail": detail,
        "first": first,
        "last": last,
        "groups": groups or {},
    }


def _module_advice(name: str) -> str:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        text = wording.MODULES.get(".".join(parts[:length]))
        if text:
            return text
    raise ValueError(f"no module around {name} has a text")


def _is_module(name: str) -> bool:
    return name in wording.MODULES or name in LEGACY_ROOTS


def _qualified(spelling: str) -> list[str]:
    """The qualified names that a spelling such as `xm.get_ordinal(default)` stands for."""
    match = SPELLING.match(spelling.strip())
    if match is None:
        return []
    name = match["name"]
    head, dot, rest = name.partition(".")
    if head in SHORT_NAMES and dot:
        name = f"{SHORT_NAMES[head]}.{rest}"
    if any(name == root or name.startswith(f"{root}.") for root in LEGACY_ROOTS):
        return [name]
    return []


def _targets(native: str) -> list[str]:
    """Names of torch and the Hugging Face libraries, when the replacement is nothing but names."""
    if re.sub(r"\s*(?:or|/|,|and)\s*", "", CODE.sub("", native)):
        return []
    short = {"dist.": "torch.distributed.", "F.": "torch.nn.functional.", "nn.": "torch.nn."}
    found = []
    for name in CODE.findall(native):
        for prefix, full in short.items():
            if name.startswith(prefix):
                name = full + name.removeprefix(prefix)
        if name.startswith(("torch.", "transformers.", "accelerate.", "diffusers.")):
            found.append(name)
    return list(dict.fromkeys(found))


_PLAIN = frozenset({"", "nothing", "none", "unchanged", "remove", "keep", "drop", "same", "same parameters"})
_ASIDE = re.compile(
    r"\s*\((?:checked|probe|report|10b|documented|seen|30 uses)[^()]*(?:\([^()]*\)[^()]*)*\)"
    r"| in the source seen"
)
_TALK = re.compile(
    r"\b(?:report\w*|MANUAL|INSERT|REMOVE|shim|template|section|table below|see table|example 10b|See 4\.\d|"
    r"name flow|project-wide|count column|the product|codemod|mapping)\b|"
    r"^(?:as |fold guards|see xla_device|same$)"
)


def _detail(native: str, conditions: str) -> str:
    """The mapping's own words, without what it says to the people who write codemods."""
    kept = []
    for text in (native, conditions):
        for clause in re.split(r"; |(?<=[a-z)`\"])\. (?=[A-Z])", _ASIDE.sub("", text)):
            if clause not in _PLAIN and not _TALK.search(clause):
                kept.append(clause.strip())
    return "; ".join(dict.fromkeys(kept))


def _arguments(optimum: dict[str, object]) -> dict[str, dict[str, list[str]]]:
    tables = cast("dict[str, dict[str, dict[str, dict[str, str | None]]]]", optimum["arg_tables"])
    packed: dict[str, dict[str, list[str]]] = {}
    for table, content in tables.items():
        packed[table] = {}
        for name, argument in content["args"].items():
            text = [
                ACTIONS[str(argument["action"])],
                argument["native"] or "",
                wording.NOTES.get(argument["note"] or "", argument["note"] or ""),
                argument.get("first") or "",
                argument.get("last") or "",
                _default(argument.get("default")),
            ]
            packed[table][name] = text
    for (table, name), told in wording.ARGUMENT_OVERRIDES.items():
        for each in (table, *wording.SHARED_OVERRIDES.get(table, ())):
            if each == table or (name in packed[each] and (each, name) not in wording.ARGUMENT_OVERRIDES):
                old = packed[each].get(name, ["", "", "", "", "", ""])
                packed[each][name] = [*told, *old[3:]]
    return packed


def _default(default: str | None) -> str:
    """The default as code; of a dataclass field its default alone."""
    if not default:
        return ""
    match = re.match(r"field\(default=(?P<value>.*?), metadata=", default, re.DOTALL)
    factory = re.match(r"field\(default_factory=(?P<value>\w+)", default)
    if match:
        return match["value"]
    return f"{factory['value']}()" if factory else ("" if default.startswith("field(") else default)


def _write(
    rows: list[Row],
    tables: dict[str, dict[str, int]],
    arguments: dict[str, dict[str, list[str]]],
) -> str:
    """Rows as arrays, each text once, one row or name a line so that changes can be read."""
    texts: dict[str, int] = {}

    def number(text: str) -> int:
        return texts.setdefault(text, len(texts))

    def entry(row: Row) -> list[object]:
        return [
            row["kind"],
            row["action"],
            row["native"],
            number(row["reason"]),
            number(row["advice"]),
            number(row["detail"]),
            row["first"],
            row["last"],
            row["groups"],
        ]

    # Names with equal rows share one.
    unique: dict[str, int] = {}
    place = [unique.setdefault(json.dumps(entry(row)), len(unique)) for row in rows]

    def lines(items: list[str]) -> str:
        return ",\n".join(items)

    parts = ['"rows": [\n' + lines(list(unique)) + "\n]"]
    for table, content in tables.items():
        body = lines([f"{json.dumps(key)}: {place[content[key]]}" for key in sorted(content)])
        parts.append(f'"{table}": {{\n{body}\n}}')
    body = lines(
        [
            f"{json.dumps(table)}: {{\n"
            + lines([f"{json.dumps(name)}: {json.dumps(row)}" for name, row in content.items()])
            + "\n}"
            for table, content in sorted(arguments.items())
        ]
    )
    parts.append(f'"arguments": {{\n{body}\n}}')
    parts.insert(0, '"texts": [\n' + lines([json.dumps(text) for text in texts]) + "\n]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    main(sys.argv[1:])
