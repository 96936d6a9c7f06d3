"""Environment variables that a script sets for the legacy stack: `os.environ["NEURON_FUSE_SOFTMAX"] = "1"`.

What nothing reads any more goes, a statement at a time. The folder of compiled graphs has another name
natively, `TORCH_NEURONX_NEFF_CACHE_DIR`. Of `NEURON_CC_FLAGS` the options of the compiler stay; those of the
cache, which the compiler itself does not know, become variables of their own, and what is the default now or
was for other chips goes. Tests of `XLA_USE_BF16` go that guard a patch of Transformers, or the name of
another dtype than a tensor says, and nothing else.

Variables that somebody may still want, values that cannot be read, and every other place that names one
are left to `hidden-name`.
"""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from neuronmigrate import catalogue, edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.effects import forget, is_harmless
from neuronmigrate.environment import (
    ANSWERED,
    DOWNCASTS,
    PATCHED,
    PATCHES,
    Setting,
    answer,
    guarded_patches,
    is_key,
    is_read,
    is_read_of,
    setting_of,
    strings_in,
    tells_dtype,
)
from neuronmigrate.site import Group, Site

codemod = Codemod(__name__)

FLAGS = "NEURON_CC_FLAGS"
FOLDER = "TORCH_NEURONX_NEFF_CACHE_DIR"
CACHES = ("NEURON_COMPILE_CACHE_URI", "NEURON_COMPILE_CACHE_URL")
# Whether these may go depends on how the script is started, or they do something still.
KEPT = frozenset(
    {"NEURONCORE_GROUP_SIZES", "NEURONCORE_NUM_DEVICES", "NEURON_EXTRACT_GRAPHS_ONLY"}
    | {"NEURON_MICS_PARTITION_GROUP_SIZE", "NEURON_PARALLEL_COMPILE", "NEURON_PROFILE"}
    | {"NEURON_PROFILE_TYPE", "NEURON_RT_NUM_CORES", "NEURON_RT_VISIBLE_CORES", "NXD_CPU_MODE"}
)
# Of the rest, those that another stack may read in a file that has nothing legacy.
SHARED = ("CPU_", "GPU_", "PJRT_", "TF_", "TPU_", "XLA_", "XRT_")

# Options that neuronx-cc is given natively, that were read by the cache in front of it, or were for Inf1.
GONE = {
    "--auto-cast": ("none",),
    "--cache_dir": None,
    "--distribution-strategy": None,
    "--dynamic-batch-size": None,
    "--fast-math": None,
    "--fp32-cast": None,
    "--framework": None,
    "--model-type": ("transformer",),
    "--neuroncore-pipeline-cores": None,
    "--no_cache": None,
    "--retry_failed_compilation": None,
    "--static-weights": None,
    "--target": ("inf1", "inf2", "trn1"),
    "--workdir": None,
}
"""Options that go, with the values for which they do; None stands for any."""
ALONE = frozenset({"--dynamic-batch-size", "--no_cache", "--retry_failed_compilation", "--static-weights"})
"""Options without a value."""
TUNING = ("--disable-dge", "--enable-ccop", "--internal", "--tensorizer-options")
WHY = "nothing reads it natively"


@codemod.once
def decide(site: Site) -> None:
    """Answer for every statement of the file that sets a variable."""
    for key in site.nodes(cst.SimpleString):
        setting = setting_of(site, key)
        if setting is None:
            continue
        if setting.name == FLAGS:
            _decide_flags(site, setting)
        elif setting.name in CACHES:
            _decide_folder(site, setting)
        else:
            _decide_unread(site, setting)
    for node in site.nodes(cst.If):
        _decide_guard(site, node)


def _decide_unread(site: Site, setting: Setting) -> None:
    """Take a setting out that nothing reads."""
    entry = catalogue.env(setting.name)
    if entry is None or entry.action != "drop" or setting.name in KEPT:
        return
    if setting.name.startswith(SHARED) and not site.uses:
        return
    if setting.name == "PJRT_DEVICE" and edits.code_of(setting.value).strip("\"'").upper() != "NEURON":
        return
    if is_read(site, setting) or not is_harmless(setting.value, site.name_of):
        return
    group = site.group()
    _drop(site, group, setting)
    group.fixed(setting.key, setting.name, WHY)


def _drop(site: Site, group: Group, setting: Setting) -> None:
    group.replace_statement(setting.statement)
    forget(site, setting.statement)
    answer(site, setting.statement)


def _decide_folder(site: Site, setting: Setting) -> None:
    """Name the folder of compiled graphs as the native backend does."""
    value = setting.value
    text = value.evaluated_value if isinstance(value, cst.SimpleString) else None
    if isinstance(text, str) and "://" in text:
        return
    group = site.group()
    keys = [
        each
        for each in site.nodes(cst.SimpleString)
        if each.evaluated_value == setting.name and is_key(site, each)
    ]
    answered = site.notes.setdefault(ANSWERED, set())
    if setting.key in answered:
        return
    for key in keys:
        answered.add(key)
        group.replace(key, key.with_changes(value=_requoted(key, FOLDER)))
    why = "the native backend keeps compiled graphs in this folder"
    if isinstance(text, str):
        group.fixed(setting.key, setting.name, why)
    else:
        group.review(
            setting.key, setting.name, why, "check that it is a folder: an s3:// address has no counterpart"
        )


def _requoted(node: cst.SimpleString, text: str) -> str:
    return f"{node.prefix}{node.quote}{text}{node.quote}"


# Options of the compiler.


def _decide_flags(site: Site, setting: Setting) -> None:
    """Leave the options that the native compiler knows."""
    folder = _folder_behind(setting.value)
    if folder is not None and is_harmless(folder[1], site.name_of):
        _cut_folder(site, setting, *folder)
        return
    strings = [
        each for each in strings_in(setting.value) if str(each.evaluated_value).lstrip().startswith("-")
    ]
    if not _is_text(site, setting.value):
        return  # what is put into it may be of the cache as well
    texts = {node: str(node.evaluated_value) for node in strings}
    sorted_out = {node: _sorted(text) for node, text in texts.items()}
    if any(each is None for each in sorted_out.values()):
        return
    gone = [flag for each in sorted_out.values() if each for flag in each.gone]
    if not gone:
        answer(site, setting.statement)  # the native compiler knows all of it
        return
    extra = [(name, value) for each in sorted_out.values() if each for name, value in each.variables]
    left = [flag for each in sorted_out.values() if each for flag in each.kept]
    group = site.group()
    answer(site, setting.statement)
    line = site.statement(setting.statement)
    for name, value in extra:
        template = f'os.environ["{name}"] = {{value}}\n'
        group.insert(line, group.statements(template, value=edits.string(value)))
    if not left and not is_read(site, setting):
        _drop(site, group, setting)
    else:
        for node, each in sorted_out.items():
            assert each is not None, "what cannot be sorted was left alone"
            if each.gone:
                text = texts[node]
                before = " " if text[:1] == " " and each.kept else ""
                after = " " if text[-1:] == " " and each.kept else ""
                new = before + " ".join(each.kept) + after
                around = site.parent(node)
                if not new and isinstance(around, cst.BinaryOperation) and around.right is node:
                    group.replace(around, around.left)
                else:
                    group.replace(node, node.with_changes(value=_requoted(node, new)))
    named = ", ".join(f"`{flag}`" for flag in dict.fromkeys(gone))
    why = f"{named} went: it is the default, or not known to the native compiler"
    if extra:
        why += f"; {' and '.join(name for name, _ in extra)} says what the cache was told"
    tuned = [flag for flag in left if flag.startswith(TUNING)]
    if tuned:
        todo = f"`{tuned[0]}` tuned the old compiler: try without it, and measure"
        group.review(setting.key, FLAGS, why, todo)
    else:
        group.fixed(setting.key, FLAGS, why)


def _folder_behind(value: cst.BaseExpression) -> tuple[str, cst.BaseExpression] | None:
    """The options in front of a folder that is worked out: `"-O1 --cache_dir=" + folder`, or an f-string."""
    text, last = "", value
    if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Add):
        text = str(value.left.evaluated_value) if isinstance(value.left, cst.SimpleString) else ""
        last = value.right
    elif isinstance(value, cst.FormattedString):
        parts = list(value.parts)
        fields = [each for each in parts if isinstance(each, cst.FormattedStringExpression)]
        if len(fields) != 1 or fields[0].conversion or fields[0].format_spec:
            return None
        at = parts.index(fields[0])
        texts = [
            "".join(each.value for each in side if isinstance(each, cst.FormattedStringText))
            for side in (parts[:at], parts[at + 1 :])
        ]
        if texts[1] and not texts[1][0].isspace():
            return None  # the folder goes on behind it
        head = texts[0].rstrip()
        text, last = f"{texts[1]} {head}".strip() + texts[0][len(head) :], fields[0].expression
    stripped = text.rstrip()
    if not stripped.endswith(("--cache_dir=", "--cache_dir")) or (
        stripped.endswith("--cache_dir") and stripped == text
    ):
        return None
    return stripped.removesuffix("=").removesuffix("--cache_dir"), last


def _cut_folder(site: Site, setting: Setting, text: str, folder: cst.BaseExpression) -> None:
    """Give the folder a variable of its own."""
    rest = _sorted(text)
    if rest is None or rest.variables or isinstance(setting.statement, cst.Expr):
        return
    group = site.group()
    answer(site, setting.statement)
    line = site.statement(setting.statement)
    group.insert(line, group.statements(f'os.environ["{FOLDER}"] = {{folder}}\n', folder=folder))
    if rest.kept or is_read(site, setting):
        space = " " if rest.kept and text[:1] == " " else ""
        group.replace(setting.value, edits.string(space + " ".join(rest.kept)))
    else:
        _drop(site, group, setting)
    todo = "check that it is a folder: an s3:// address has no counterpart"
    group.review(
        setting.key, FLAGS, f"the native backend reads the folder of compiled graphs from {FOLDER}", todo
    )


@dataclass(frozen=True)
class _Sorted:
    """The options in one string."""

    kept: tuple[str, ...]
    gone: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]


def _sorted(text: str) -> _Sorted | None:
    """What becomes of each option; None for a string that quotes or is cut in the middle of one."""
    if any(mark in text for mark in "\"'\\$`"):
        return None
    words = text.split()
    kept: list[str] = []
    gone: list[str] = []
    variables: list[tuple[str, str]] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        flag, given, value = word.partition("=")
        if not word.startswith("-"):
            kept.append(word)
            continue
        apart = not given and flag not in ALONE and at < len(words) and not words[at].startswith("-")
        if apart and flag in GONE:
            value = words[at]
        if flag not in GONE or (GONE[flag] is not None and value not in (GONE[flag] or ())):
            kept.append(word)
            continue
        if GONE[flag] is None and flag not in ALONE and not value:
            return None  # its value stands elsewhere
        at += apart
        gone.append(flag)
        if flag == "--cache_dir" and "://" not in value:
            variables.append((FOLDER, value))
        elif flag == "--cache_dir":
            return None
        elif flag == "--no_cache":
            variables.append(("TORCH_NEURONX_NEFF_DISABLE_CACHE", "1"))
    return _Sorted(tuple(kept), tuple(gone), tuple(variables))


def _is_text(site: Site, value: cst.BaseExpression) -> bool:
    """Whether a value is text, or text behind what the variable held."""
    if isinstance(value, cst.BinaryOperation):
        return _is_text(site, value.left) and _is_text(site, value.right)
    reads = [each for each in strings_in(value) if is_read_of(site, each)]
    return isinstance(value, cst.SimpleString) or [each.evaluated_value for each in reads] == [FLAGS]


# Tests of the switches for bfloat16.


def _decide_guard(site: Site, node: cst.If) -> None:
    """Take a test out that guards nothing but patches which go."""
    if tells_dtype(site, node):
        group = site.group()
        group.replace_statement(node)
        site.rebuilt.add(node)
        forget(site, node)
        answer(site, node)
        name = next(str(each.evaluated_value) for each in strings_in(node.test))
        group.fixed(node.test, name, "tensors are natively of the dtype that they say")
        return
    patches = guarded_patches(site, node)
    if not patches:
        return
    names = [str(each.evaluated_value) for each in strings_in(node.test) if each.evaluated_value in DOWNCASTS]
    group = site.group()
    group.replace_statement(node)
    site.rebuilt.add(node)
    forget(site, node)
    answer(site, node)
    patched = site.notes.setdefault(PATCHED, set())
    for small, name in patches:
        patched.add(small)
        head: cst.BaseExpression = small.targets[0].target
        while isinstance(head, cst.Attribute):
            head = head.value
        if isinstance(head, cst.Name):
            aliases = [binding.node for binding in site.names.bindings_at(head)]
            group.releases += [alias for alias in aliases if isinstance(alias, cst.ImportAlias)]
        group.fixed(small, name, PATCHES[name])
    group.fixed(node.test, names[0], "the test guarded nothing but a patch that goes")
