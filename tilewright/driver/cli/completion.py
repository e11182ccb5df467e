"""Scripts for shells, made of the arguments of all commands."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Words:
    """What may follow a command: options with what they say, and values that are known. An option
    without values takes files where it is among `takes`, and nothing otherwise."""

    about: str
    options: dict[str, str] = field(default_factory=dict)
    values: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by option; "": positional
    takes: frozenset[str] = frozenset()

    @classmethod
    def of(cls, about: str, parser: argparse.ArgumentParser) -> Words:
        options: dict[str, str] = {}
        values: dict[str, tuple[str, ...]] = {}
        takes: set[str] = set()
        for a in parser._actions:
            known = tuple(map(str, a.choices)) if a.choices is not None else ()
            for name in a.option_strings:
                options[name] = _short(a.help)
                if a.nargs != 0:
                    takes.add(name)
                    values |= {name: known} if known else {}
            if not a.option_strings and known:
                values[""] = values.get("", ()) + known
        return cls(about, options, values, frozenset(takes))


def script(shell: str, commands: Mapping[str, Words]) -> str:
    return SHELLS[shell](commands)


def _short(text: str | None) -> str:
    """The first words of what an option does, on one line."""
    said = " ".join((text or "").replace("%%", "%").split())
    return said if len(said) <= 60 else f"{said[:59].rsplit(' ', 1)[0]} …"


def _first_words(commands: Mapping[str, Words]) -> dict[str, Words]:
    """Commands of one word; those of two complete after the first."""
    return {name: w for name, w in commands.items() if " " not in name}


def _second_words(commands: Mapping[str, Words], first: str) -> list[str]:
    return [name.split()[1] for name in commands if name.startswith(f"{first} ")]


# ---- bash


def _bash(commands: Mapping[str, Words]) -> str:
    cases: list[str] = []
    for name, w in commands.items():
        more = _second_words(commands, name) if " " not in name else []
        plain = " ".join((*w.values.get("", ()), *more))
        cases.append(f"""    "{name}")""")
        cases.append("""      case "$prev" in""")
        for option, known in w.values.items():
            if option:
                cases.append(f"""        {option}) words="{" ".join(known)}" ;;""")
        files = sorted(w.takes - w.values.keys())
        if files:
            cases.append(f"""        {"|".join(files)}) files=1 ;;""")
        cases.append(f"""        *) words="{plain}"; options="{" ".join(w.options)}"; files=1 ;;""")
        cases += ["      esac ;;"]
    pairs = "|".join(f'"{name}"' for name in commands if " " in name)
    head = _BASH_HEAD.format(names=" ".join(_first_words(commands)), pairs=pairs or '""')
    return "\n".join((head, *cases, _BASH_TAIL))


_BASH_HEAD = """# Completion of tilewright for bash. Made by: tilewright completion bash
_tilewright() {{
  local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}"
  local command="${{COMP_WORDS[1]}}" words="" options="" files=""
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{names} --help --version" -- "$cur"))
    return
  fi
  case "$command ${{COMP_WORDS[2]}}" in
    {pairs}) [ "$COMP_CWORD" -gt 2 ] && command="$command ${{COMP_WORDS[2]}}" ;;
  esac
  case "$command" in"""
_BASH_TAIL = """  esac
  if [[ "$cur" == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$cur"))
    return
  fi
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
  if [ -n "$files" ] && [ ${#COMPREPLY[@]} -eq 0 ]; then
    compopt -o filenames 2>/dev/null
    COMPREPLY=($(compgen -f -- "$cur"))
  fi
}
complete -F _tilewright tilewright"""


# ---- zsh


def _zsh(commands: Mapping[str, Words]) -> str:
    lines = [
        "#compdef tilewright",
        "# Completion of tilewright for zsh. Made by: tilewright completion zsh",
        "_tilewright() {",
        "  local command=$words[2]",
        "  if (( CURRENT == 2 )); then",
        "    local -a known=(",
        *(
            f"      {_quoted(f'{_zsh_name(n)}:{w.about}')}"
            for n, w in _first_words(commands).items()
        ),
        "    )",
        "    _describe command known",
        "    return",
        "  fi",
    ]
    for first in _first_words(commands):
        for word in _second_words(commands, first):
            lines.append(
                f'  [[ "$words[2] $words[3]" == "{first} {word}" && CURRENT -gt 3 ]] '
                f'&& command="{first} {word}"'
            )
    lines.append('  case "$command" in')
    for name, w in commands.items():
        lines += [f'    "{name}")', "      _arguments \\"]
        for option, about in w.options.items():
            known = " ".join(w.values.get(option, ()))
            value = (f":value:({known})" if known else ":value:_files") if option in w.takes else ""
            lines.append(f"        {_quoted(f'*{option}[{_zsh_about(about)}]{value}')} \\")
        more = _second_words(commands, name) if " " not in name else []
        plain = " ".join((*w.values.get("", ()), *more))
        rest = f'"*:argument:{{compadd {plain}; _files}}"' if plain else "'*:argument:_files'"
        lines += [f"        {rest} ;;"]
    return "\n".join((*lines, _ZSH_TAIL))


# A file of $fpath is the function's body when it is first called; one that is read defines it.
_ZSH_TAIL = """  esac
}
if [ "$funcstack[1]" = "_tilewright" ]; then
  _tilewright "$@"
else
  compdef _tilewright tilewright
fi"""


def _zsh_name(name: str) -> str:
    return name.replace(":", r"\:")


def _zsh_about(text: str) -> str:
    for sign in ("\\", "[", "]", ":"):
        text = text.replace(sign, f"\\{sign}")
    return text


def _quoted(text: str) -> str:
    """One word of a shell."""
    return "'" + text.replace("'", "'\\''") + "'"


# ---- fish


def _fish(commands: Mapping[str, Words]) -> str:
    lines = ["# Completion of tilewright for fish. Made by: tilewright completion fish"]
    for name, w in _first_words(commands).items():
        when = "-n __fish_use_subcommand"
        lines.append(f"complete -c tilewright {when} -f -a {name} -d {_fish_quoted(w.about)}")
    for name, w in commands.items():
        first, _, second = name.partition(" ")
        seen = f"__fish_seen_subcommand_from {first}"
        others = _second_words(commands, first)
        if second:
            seen += f"; and __fish_seen_subcommand_from {second}"
        elif others:
            seen += f"; and not __fish_seen_subcommand_from {' '.join(others)}"
        begin = f'complete -c tilewright -n "{seen}"'
        plain = (*w.values.get("", ()), *([] if second else others))
        if plain:
            lines.append(f"{begin} -a {_fish_quoted(' '.join(plain))}")
        for option, about in w.options.items():
            kind = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            value = ""
            if option in w.takes:
                known = w.values.get(option)
                value = f" -x -a {_fish_quoted(' '.join(known))}" if known else " -r"
            lines.append(f"{begin} {kind}{value} -d {_fish_quoted(about)}")
    return "\n".join(lines)


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SHELLS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
