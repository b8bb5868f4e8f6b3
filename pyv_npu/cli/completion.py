"""`pyv-npu completion`: shell scripts that complete commands, options, programs, presets and keys."""

import argparse
from collections.abc import Iterable, Mapping, Sequence

from pyv_npu.boot import shipped_programs
from pyv_npu.cli.main import VERBS, module_of
from pyv_npu.cli.shared.output import OK, Call, show
from pyv_npu.cli.shared.points import options_of
from pyv_npu.cli.shared.session import TRACES
from pyv_npu.config import presets
from pyv_npu.config.package_data import data_files
from pyv_npu.config.schema import keys_of
from pyv_npu.config.tree import SIM_LEVELS, Config
from pyv_npu.errors import UsageError

SCRIPTS = {
    "bash": """_pyv_npu() {
    local IFS=$'\\n' word=${COMP_WORDS[COMP_CWORD]}
    COMPREPLY=($(compgen -W "$(pyv-npu completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)" -- "$word"))
}
complete -o bashdefault -o default -F _pyv_npu pyv-npu
""",
    "zsh": """#compdef pyv-npu
_pyv_npu() {
    local -a found
    found=("${(@f)$(pyv-npu completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    compadd -a found
    _files
}
compdef _pyv_npu pyv-npu
""",
    "fish": """function __pyv_npu
    set -l before (commandline -opc) (commandline -ct)
    pyv-npu completion words -- $before[2..] 2>/dev/null
end
complete -c pyv-npu -a '(__pyv_npu)'
""",
}
_WORDS = "words"
_SETUP = {
    "bash": 'eval "$(pyv-npu completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(pyv-npu completion zsh)"    # in ~/.zshrc, after compinit',
    "fish": "pyv-npu completion fish > ~/.config/fish/completions/pyv-npu.fish",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "; ".join(_SETUP.values())
    parser.add_argument("shell", choices=(*SCRIPTS, _WORDS), help="the shell; words: what may follow a command line")
    parser.add_argument("line", nargs="*", metavar="WORD", help="with words: after --, the last of them is unfinished")


def execute(args: argparse.Namespace, call: Call) -> int:
    if args.shell != _WORDS:
        if args.line:
            raise UsageError(f"{args.line[0]}: a shell takes no words; drop it")
        show(SCRIPTS[args.shell])
        return OK
    matches = list(words(args.line))
    if matches:
        show("\n".join(matches))
    return OK


def words(line: Sequence[str]) -> Iterable[str]:
    """Return the completions of the last word of a command line; the shell itself completes file names."""
    *words_before, last = line or [""]
    if not words_before:
        return [verb for verb in VERBS if verb.startswith(last)]
    if words_before[0] not in VERBS:
        return []
    options_of_verb = options_of(module_of(words_before[0]))
    option, equals, value = last.partition("=")
    if equals and option in options_of_verb:
        return [f"{option}={name}" for name in _values(option, options_of_verb) if name.startswith(value)]
    if last.startswith("-"):
        return [name for name in options_of_verb if name.startswith(last)]
    if words_before[-1] in options_of_verb and (values := _values(words_before[-1], options_of_verb)):
        return [name for name in values if name.startswith(last)]
    return [name for name in _arguments(words_before[0]) if name.startswith(last)]


def _values(option: str, choices: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """Return the values of an option that can be completed."""
    if choices[option]:
        return choices[option]
    keys = keys_of(Config)
    named: Mapping[str, Iterable[str]] = {
        "--preset": presets.NAMES, "--config": data_files("configs"), "--qconfig": data_files("qconfigs"),
        "--set": (f"{path}=" for path in keys), "--mode": keys["npu.mode"].rule["choices"],
        "--core": keys["core.engine"].rule["choices"], "--sim-level": SIM_LEVELS.values(),
        "--sim_level": SIM_LEVELS.values(), "--isa": keys["core.custom"].rule["choices"],
        "--trace": TRACES, "--faults": data_files("examples"), "--rtos": data_files("rtos"),
    }  # fmt: skip
    return [*named.get(option, ())]


_TAKE_PROGRAMS = ("run", "compare", "sweep", "campaign", "compile", "check", "disasm", "serve")


def _arguments(verb: str) -> Iterable[str]:
    """Return the positional arguments of a verb that can be completed."""
    if verb == "docs":
        return data_files("docs", ".md")
    if verb not in (*_TAKE_PROGRAMS, "export-models"):
        return []
    from toolchain.decoders.shapes import MODELS
    from toolchain.examples import DECODERS, EXAMPLES

    if verb == "export-models":
        return [*EXAMPLES, *DECODERS]
    return sorted({*shipped_programs(), *MODELS, *EXAMPLES, *DECODERS})
