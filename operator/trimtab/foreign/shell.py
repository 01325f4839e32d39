"""What a script would run, as far as its text tells: an abstract walk through it. Nothing is executed.

Variables, defaults, arithmetic, functions, loops over known words and here-documents are followed. A condition that
nobody can know before it runs is followed both ways: variables keep what both ways agree on, commands of either are
found, and a way that ends in `exit` counts for nothing. `${X:-default}` counts as its default.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Final

from msgspec import Struct

from trimtab.foreign import syntax
from trimtab.foreign.budget import OF_ITEM, Budget, TooLong, reading
from trimtab.foreign.conditions import holds, matches
from trimtab.foreign.configs import CONFIGS
from trimtab.foreign.expansion import MARK, Expander, Value, known, size, unknown
from trimtab.foreign.syntax import DEEPEST

MOST_TURNS: Final = 16
"""Of one loop over known words."""
SHELLS: Final = frozenset({"sh", "bash", "zsh", "dash", "ash", "ksh"})
_OF_WORD: Final = 64
"""How many characters each word of a command that is found costs as much as: it is looked up in tables."""
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[^\]\s]{0,64}\])?(\+?)=", re.ASCII)
_CHANGED = re.compile(r"\(\(\s*([A-Za-z_][A-Za-z0-9_]*)\s*(?:\+\+|--|[-+*/%]?=(?!=))")
_PLACEHOLDER = re.compile(r"<[A-Z][A-Za-z0-9_.-]{0,40}(?: [A-Za-z0-9_.-]{1,40}){0,8}>", re.ASCII)
"""`<PATH TO CHECKPOINTS>`, which a shell would take for files."""
_COMMANDS = re.compile("-[a-z]*c[a-z]*")
"""The option of a shell after which commands stand."""
_DECLARE = frozenset({"export", "declare", "local", "readonly", "typeset"})


class Command(Struct, frozen=True):
    """A command that the script would run, its words expanded, launchers before a nested shell among them."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    """Of exported variables, and those set for this command alone: what names a config."""
    certain: bool = True
    """Whether it runs whatever is unknown."""


class Walk(Struct):
    """What was found on the way."""

    commands: list[Command]
    files: dict[str, str]
    """What the script itself writes, by the last part of the path."""
    submitted: list[str]
    """Scripts that it hands to `sbatch`."""


class _Exit(Exception):
    """The script ends here; whether as one that refuses to run."""


class _Return(Exception):
    """A function ends here."""


class _Leave(Exception):
    """A loop is left here, or goes on with its next turn."""


def walk(
    text: str,
    variables: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> Walk:
    """Find the commands of a script. `files` are scripts and configs that lie beside it, by name. Raises TooLong."""
    found = Walk([], dict(files or {}), [])
    with reading() as budget:
        shell = _Shell(found, dict(variables or {}), list(arguments), set(variables or {}), budget)
        try:
            shell.script(_PLACEHOLDER.sub("PLACEHOLDER", text.replace(MARK, "")))
        except RecursionError:
            raise TooLong("it is nested too deeply") from None
    return found


def walk_words(words: Sequence[str], variables: Mapping[str, str], files: Mapping[str, str] | None = None) -> Walk:
    """The same for a command that is given as words, as a container's is. Raises TooLong."""
    found = Walk([], dict(files or {}), [])
    with reading() as budget:
        shell = _Shell(found, dict(variables), [], set(variables), budget)
        try:
            with suppress(_Exit, _Return, _Leave):  # as a script ends: what was seen until then counts
                shell.external(list(words))
        except RecursionError:
            raise TooLong("it is nested too deeply") from None
    return found


class _Shell:
    """One scope: the script, or one that it starts."""

    def __init__(
        self,
        found: Walk,
        variables: dict[str, Value],
        arguments: list[str],
        exported: set[str],
        budget: Budget,
        parent: _Shell | None = None,
    ) -> None:
        self.found = found
        self.expander = Expander(variables, self._substitute, ["script", *arguments], budget)
        self.exported = exported
        self.functions: dict[str, syntax.Body] = {} if parent is None else dict(parent.functions)
        self.prefix: tuple[str, ...] = ()
        self.certain = True
        self.budget = budget
        self.depth: int = 0 if parent is None else parent.depth + 1
        if parent is not None:
            self.prefix, self.certain = parent.prefix, parent.certain
        if self.depth > DEEPEST:
            raise TooLong("its scripts are nested too deeply")

    # --- bodies --------------------------------------------------------------------------------------------------
    def script(self, text: str) -> None:
        """Walk through a whole script."""
        try:
            self.run(syntax.parse(text))
        except (_Exit, _Return, _Leave):
            return

    def run(self, body: syntax.Body) -> bool | None:
        """Walk through commands; the status of the last one."""
        status: bool | None = True
        for node in body:
            status = self.one(node)
        return status

    def one(self, node: syntax.Node) -> bool | None:
        """Walk through one command: whether it succeeds, None where that is not known."""
        self.budget.step()
        match node:
            case syntax.Simple():
                return self._simple(node)
            case syntax.If():
                return self._if(node.arms)
            case syntax.Case():
                return self._case(node)
            case syntax.For():
                return self._loop(node)
            case syntax.Function():
                self.functions[node.name] = node.body
                return True
            case syntax.Block():
                return self.run(node.body)
            case syntax.Joined():
                return self._joined(node)

    def _joined(self, node: syntax.Joined) -> bool | None:
        status = self.one(node.parts[0])
        for operator, part in zip(node.operators, node.parts[1:], strict=True):
            if operator in ("|", "|&"):
                status = self.one(part)
            elif status is None:
                self._ways([(part,)], falls_through=True)
            elif status == (operator == "&&"):
                status = self._unless_refused((part,))
        return status

    def _if(self, arms: Sequence[tuple[syntax.Body, syntax.Body]]) -> bool | None:
        ways: list[syntax.Body] = []
        for condition, body in arms:
            status = self.run(condition) if condition else True
            if status is False:
                continue
            if status is True and not ways:
                return self._unless_refused(body)
            ways.append(body)
            if status is True:
                self._ways(ways, falls_through=False)
                return None
        if ways:
            self._ways(ways, falls_through=True)
        return None if ways else True

    def _unless_refused(self, body: syntax.Body) -> bool | None:
        """Go this way, except where the script refuses to run: what it demands from outside is there when it runs."""
        before = dict(self.expander.variables)
        try:
            return self.run(body)
        except _Exit as end:
            if not end.args[0]:
                raise
            self.expander.variables = before
            return None

    def _case(self, node: syntax.Case) -> bool | None:
        subject = self.expander.single(node.subject)
        ways: list[syntax.Body] = []
        for patterns, body in node.arms:
            if not known(subject):
                ways.append(body)
                continue
            found = [matches(subject, self.expander.single(pattern)) for pattern in patterns]
            if True in found:
                return self.run(body)
        if ways:
            catches_all = any("*" in patterns for patterns, _ in node.arms)
            self._ways(ways, falls_through=not catches_all)
        return None

    def _loop(self, node: syntax.For) -> bool | None:
        if node.name is None:
            if self.run(node.condition) is not False:
                before = dict(self.expander.variables)
                self.budget.charge(sum(map(size, before.values())) // OF_ITEM)
                self._ways([node.body], falls_through=True)
                self.expander.variables.update({name: value for name, value in before.items() if _fixed(value)})
            return True
        words = [field for word in node.words for field in self.expander.fields(word)]
        turns = words if words and len(words) <= MOST_TURNS and all(map(known, words)) else [unknown(node.name)]
        for word in turns:
            if re.fullmatch(r"[A-Za-z_]\w*", node.name):
                self.expander.variables[node.name] = word
            try:
                self.run(node.body)
            except _Leave:
                continue
        return True

    def _ways(self, bodies: Sequence[syntax.Body], falls_through: bool) -> None:
        """Go each way from here, and keep what all of those agree on that come to an end."""
        before, certain = self.expander.variables, self.certain
        after = [dict(before)] if falls_through else []
        self.certain = False
        ended: Exception | None = None
        for body in bodies:
            self.budget.step(1 + len(before) // 25)
            self.expander.variables = dict(before)
            try:
                self.run(body)
            except (_Exit, _Return, _Leave) as end:
                ended = end
            else:
                after.append(self.expander.variables)
        self.certain = certain
        self.expander.variables = _agreed(after) if after else before
        if not after and ended is not None:
            raise ended

    # --- commands ------------------------------------------------------------------------------------------------
    def _simple(self, node: syntax.Simple) -> bool | None:
        if node.words and node.words[0] in ("[", "[[", "test"):
            return holds(node.words, self.expander)
        if node.words and node.words[0].startswith("(("):
            return self._arithmetic(node.words[0])
        for_it_alone = bool(node.words and node.assignments)
        before = dict(self.expander.variables) if for_it_alone else {}
        self.budget.step(len(before) // 200)
        for assignment in node.assignments:
            self._assign(assignment)
        words = [field for word in node.words for field in self._fields(word)]
        if not words:
            return True
        named = [match[1] for each in node.assignments if for_it_alone and (match := _ASSIGNMENT.match(each))]
        given = {name: value for name in named if isinstance(value := self.expander.variables.get(name), str)}
        status = self._command(words, node, given)
        for name in named:
            if words[0] != "read" or name == "IFS":
                self._restore(name, before)
        return status

    def _restore(self, name: str, before: Mapping[str, Value]) -> None:
        if name in before:
            self.expander.variables[name] = before[name]
        else:
            self.expander.variables.pop(name, None)

    def _fields(self, word: str) -> list[str]:
        return [word] if word.startswith("((") else self.expander.fields(word)

    def _arithmetic(self, word: str) -> bool | None:
        if changed := _CHANGED.match(word):
            self.expander.variables[changed[1]] = unknown(changed[1])
            return True
        value = self.expander.arithmetic(word[2:-2])
        return value != "0" if known(value) else None

    def _assign(self, word: str) -> None:
        match = _ASSIGNMENT.match(word)
        if match is None:
            return
        name, index, more, raw = match[1], match[2], match[3], word[match.end() :]
        value: Value
        if raw.startswith("(") and index is None:
            self.budget.charge(2 * len(raw))
            value = [field for each in _elements(raw) for field in self.expander.fields(each)]
        else:
            value = self.expander.single(raw)
            value = unknown(name) if value == unknown() else value
        before = self.expander.variables.get(name)
        if index is not None:
            value = (
                [*before, *([value] if isinstance(value, str) else value)]
                if isinstance(before, list)
                else [unknown(name)]
            )
        elif more and isinstance(value, list):
            value = [*(before if isinstance(before, list) else [before] if before else []), *value]
        elif more and isinstance(before, list):
            value = [*before, str(value)]
        elif more and isinstance(value, str):
            value = (before or "") + value if isinstance(before, str) else value
        self.budget.charge(size(value))
        self.expander.variables[name] = value

    def _command(self, words: list[str], node: syntax.Simple, given: Mapping[str, str]) -> bool | None:
        name = words[0].rpartition("/")[2]
        if words[0] in self.functions:
            return self._call(words)
        if name in _DECLARE:
            return self._declare(words, node)
        if handler := _BUILTINS.get(name):
            return handler(self, words, node)
        if self._writes(words, node):
            return True
        self._external(words, node, given)
        return True

    def _declare(self, words: list[str], node: syntax.Simple) -> bool:
        for raw in node.words[1:]:
            if _ASSIGNMENT.match(raw):
                self._assign(raw)
            if words[0] == "export" and (match := re.match(r"[A-Za-z_]\w*", raw)):
                self.exported.add(match[0])
        return True

    def _call(self, words: list[str]) -> bool | None:
        self.depth += 1
        if self.depth > DEEPEST:
            raise TooLong("its functions call one another too deeply")
        before, self.expander.positional = self.expander.positional, words
        try:
            return self.run(self.functions[words[0]])
        except _Return:
            return None
        finally:
            self.expander.positional = before
            self.depth -= 1

    def _text_of(self, node: syntax.Simple) -> str | None:
        """What is given to a command as its standard input, where the script says it."""
        for each in node.redirections:
            if each.operator == "<<":
                self.budget.charge(len(each.target), "its here-documents")
                return each.target if each.literal else self.expander.document(each.target)
            if each.operator == "<<<":
                return self.expander.single(each.target) + "\n"
        return None

    def _writes(self, words: list[str], node: syntax.Simple) -> bool:
        """`cat > file << EOF` and `echo text > file`: kept, for the script may run it or name it as a config."""
        name = words[0].rpartition("/")[2]
        if name not in ("cat", "echo", "printf", "tee"):
            return False
        text = self._text_of(node) if name in ("cat", "tee") else " ".join(words[1:]) + "\n"
        targets = [
            self.expander.single(each.target) for each in node.redirections if each.operator in (">", ">>", ">|")
        ]
        targets += words[1:] if name == "tee" else []
        for target in targets:
            if text is not None and len(self.found.files) < 200:
                self.budget.charge(len(text), "the files that it writes")
                self.found.files[target.rpartition("/")[2]] = text
        return True

    def _external(self, words: list[str], node: syntax.Simple, given: Mapping[str, str]) -> None:
        name = words[0].rpartition("/")[2]
        if name == "sbatch" and (text := self._text_of(node)):
            self.budget.charge(4 * len(text), "the scripts that it submits")  # their options are read, too
            self.found.submitted.append(text)
            self._nested(text, words[:1], [], given)
            return
        at = next((index for index, word in enumerate(words) if word.rpartition("/")[2] in SHELLS), None)
        if at is not None:
            options = takewhile(lambda word: word.startswith("-") and not _COMMANDS.fullmatch(word), words[at + 1 :])
            rest = words[at + 1 + sum(1 for _ in options) :]
            if rest and _COMMANDS.fullmatch(rest[0]):
                follows = [word for word in rest[1:] if word not in ("-x", "-e", "-c")]
                if follows:
                    self._nested(follows[0], words[:at], follows[2:], given)
                return
            if rest and (script := self._beside(rest[0])) is not None:
                self._nested(script, words[:at], rest[1:], given)
                return
            if not rest and (text := self._text_of(node)):
                self._nested(text, words[:at], [], given)
                return
        for index, word in enumerate(words):
            if (
                name not in _MOVES_FILES
                and word.endswith(".sh")
                and "=" not in word
                and (script := self._beside(word)) is not None
            ):
                self._nested(script, words[:index], words[index + 1 :], given)
                return
        self.budget.step(1 + len(self.exported) // 100)
        environment = self._environment(given)
        self.budget.charge(_OF_WORD * (len(self.prefix) + len(words) + len(environment)), "its commands")
        self.found.commands.append(Command((*self.prefix, *words), environment, self.certain))

    def external(self, words: list[str]) -> None:
        """A command that the shell itself knows nothing about."""
        if words:
            self._external(words, syntax.Simple((), ()), {})

    def _beside(self, path: str) -> str | None:
        return self.found.files.get(path.rpartition("/")[2]) if not path.startswith("-") else None

    def _environment(self, given: Mapping[str, str]) -> dict[str, str]:
        variables = self.expander.variables
        shown = {name: value for name in self.exported if isinstance(value := variables.get(name), str)}
        return {name: value for name, value in (shown | dict(given)).items() if value.endswith(CONFIGS)}

    def _nested(self, text: str, prefix: Sequence[str], arguments: Sequence[str], given: Mapping[str, str]) -> None:
        names = len(self.expander.variables) + len(self.functions) + len(self.exported)
        words = len(self.prefix) + len(prefix) + len(arguments)
        self.budget.charge(len(text) + OF_ITEM * (names + words), "the scripts that it starts")
        variables = {**self.expander.variables, **given}
        child = _Shell(self.found, variables, list(arguments), set(self.exported), self.budget, self)
        child.prefix = (*self.prefix, *prefix)
        child.script(text)

    def _substitute(self, text: str) -> str:
        """What a command prints, where that is the script's own text: `echo`, `cat` of a here-document, `expr`."""
        self.budget.step()
        body = syntax.parse(text)
        if len(body) != 1 or not isinstance(node := body[0], syntax.Simple) or not node.words:
            return self._piped(body)
        words = [field for word in node.words for field in self._fields(word)]
        match words:
            case ["echo", *rest]:
                return " ".join(rest[1:] if rest[:1] in (["-n"], ["-e"]) else rest)
            case ["cat"]:
                return (self._text_of(node) or unknown()).rstrip("\n")
            case ["expr", *rest]:
                return self.expander.arithmetic(" ".join(rest))
        return unknown()

    def _piped(self, body: syntax.Body) -> str:
        """`echo X | tr ...`, where what follows only tidies white space up."""
        node = body[0] if len(body) == 1 else None
        if not isinstance(node, syntax.Joined) or set(node.operators) != {"|"}:
            return unknown()
        first, *filters = node.parts
        if not (isinstance(first, syntax.Simple) and first.words[:1] == ("echo",)):
            return unknown()
        for each in filters:
            if not isinstance(each, syntax.Simple) or each.words not in _TIDY:
                return unknown()
        return " ".join(" ".join(self.expander.single(word) for word in first.words[1:]).split())

    # --- builtins ------------------------------------------------------------------------------------------------
    def _exit(self, words: list[str], node: syntax.Simple) -> bool:
        raise _Exit(len(words) > 1 and words[1] != "0")

    def _return(self, words: list[str], node: syntax.Simple) -> bool:
        raise _Return

    def _leave(self, words: list[str], node: syntax.Simple) -> bool:
        raise _Leave

    def _nothing(self, words: list[str], node: syntax.Simple) -> bool:
        return True

    def _false(self, words: list[str], node: syntax.Simple) -> bool:
        return False

    def _unset(self, words: list[str], node: syntax.Simple) -> bool:
        for name in words[1:]:
            self.expander.variables.pop(name, None)
        return True

    def _set(self, words: list[str], node: syntax.Simple) -> bool:
        if "--" in words:
            self.budget.charge(len(words))
            self.expander.positional = ["script", *words[words.index("--") + 1 :]]
        return True

    def _shift(self, words: list[str], node: syntax.Simple) -> bool:
        count = int(words[1]) if len(words) > 1 and re.fullmatch("[0-9]{1,3}", words[1]) else 1
        self.budget.charge(len(self.expander.positional))
        self.expander.positional = [self.expander.positional[0], *self.expander.positional[1 + count :]]
        return True

    def _eval(self, words: list[str], node: syntax.Simple) -> bool | None:
        self.depth += 1
        if self.depth > DEEPEST:
            raise TooLong("its scripts are nested too deeply")
        status = self.run(syntax.parse(" ".join(words[1:])))
        self.depth -= 1
        return status

    def _exec(self, words: list[str], node: syntax.Simple) -> bool | None:
        if len(words) > 1:
            self._external(words[1:], node, {})
            raise _Exit(False)
        return True

    def _source(self, words: list[str], node: syntax.Simple) -> bool | None:
        script = self._beside(words[1]) if len(words) > 1 else None
        if script is None:
            return True
        self.depth += 1
        if self.depth > DEEPEST:
            raise TooLong("its scripts are nested too deeply")
        status = self.run(syntax.parse(script))
        self.depth -= 1
        return status

    def _read(self, words: list[str], node: syntax.Simple) -> bool:
        text = self._text_of(node)
        names = [word for word in words[1:] if re.fullmatch(r"[A-Za-z_]\w*", word)]
        if text is None or not names:
            self.expander.variables.update({name: unknown(name) for name in names})
            return True
        if "-d" in words:
            self.expander.variables[names[-1]] = text
            return True
        separators = self.expander.variables.get("IFS", " \t\n")
        first, _, _ = text.partition("\n")
        parts = _split(first, separators if isinstance(separators, str) else " ")
        self.budget.charge(size(parts))
        if "-a" in words or any(re.fullmatch("-[a-z]*a[a-z]*", word) for word in words):
            self.expander.variables[names[-1]] = parts
            return True
        for index, name in enumerate(names):
            self.expander.variables[name] = parts[index] if index < len(parts) else ""
        return True

    def _mapfile(self, words: list[str], node: syntax.Simple) -> bool:
        self.expander.variables[words[-1]] = [unknown(words[-1])]
        return True


_MOVES_FILES = frozenset({"chmod", "cp", "mv", "rm", "ln", "ls", "touch", "scp", "rsync", "cat", "dos2unix"})
_TIDY = (("tr", "'\\n'", "' '"), ("sed", "'s/  \\+/ /g'"), ("xargs",), ("tr", "-s", "' '"), ("tr", '"\\n"', '" "'))
_BUILTINS: Final[dict[str, Callable[[_Shell, list[str], syntax.Simple], bool | None]]] = {
    "exit": _Shell._exit,
    "return": _Shell._return,
    "break": _Shell._leave,
    "continue": _Shell._leave,
    "true": _Shell._nothing,
    ":": _Shell._nothing,
    "cd": _Shell._nothing,
    "trap": _Shell._nothing,
    "false": _Shell._false,
    "unset": _Shell._unset,
    "set": _Shell._set,
    "shift": _Shell._shift,
    "eval": _Shell._eval,
    "exec": _Shell._exec,
    "source": _Shell._source,
    ".": _Shell._source,
    "read": _Shell._read,
    "mapfile": _Shell._mapfile,
    "readarray": _Shell._mapfile,
}


def _elements(raw: str) -> list[str]:
    inner = raw[1:-1] if raw.endswith(")") else raw[1:]
    return [token.text for token in syntax.tokens(inner) if not token.operator]


def _fixed(value: Value) -> bool:
    return all(map(known, value)) if isinstance(value, list) else known(value)


def _split(text: str, separators: str) -> list[str]:
    if not separators.strip(" \t\n"):
        return text.split()
    found = [text]
    for separator in separators[:8]:
        found = [part for each in found for part in each.split(separator)]
    return found


def _agreed(ways: Sequence[dict[str, Value]]) -> dict[str, Value]:
    """What all ways agree on. Of texts and arrays that one of them has longer, what they begin with alike."""
    if len(ways) == 1:
        return ways[0]
    found: dict[str, Value] = {}
    for name in dict.fromkeys(name for way in ways for name in way):
        values = [way.get(name) for way in ways]
        if all(value is values[0] or value == values[0] for value in values[1:]):
            assert values[0] is not None
            found[name] = values[0]
        else:
            found[name] = _common(name, values)
    return found


def _common(name: str, values: Sequence[Value | None]) -> Value:
    if all(isinstance(value, list) for value in values):
        lists = [value for value in values if isinstance(value, list)]
        shortest = min(lists, key=len)
        if all(each[: len(shortest)] == shortest for each in lists):
            return shortest
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) == len(values):
        shortest_text = min(texts, key=len)
        if (
            len(shortest_text) > 0
            and " " in shortest_text.strip()
            and all(each.startswith(shortest_text) for each in texts)
        ):
            return shortest_text
    return unknown(name)
