"""The grammar of shell scripts, as far as training jobs use it: a text becomes a tree of commands. Nothing is run.

Words are kept as they are written; `trimtab.foreign.shell` expands them. Whatever is no shell at all gives some tree,
too: a reader of strangers' scripts has no use for syntax errors. One pass over the text, nested at most `DEEPEST` deep.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, TypeAlias

from msgspec import Struct

from trimtab.foreign import budget
from trimtab.foreign.budget import TooLong

LONGEST: Final = 400_000
"""Characters of a script; what lies beyond is not looked at (`TooLong`)."""
DEEPEST: Final = 24
_LONGEST_ASSIGNED = 200
"""Of a name with its index, before an array."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:\[[^\]\s]{0,64}\])?(\+?=)")
_OPERATORS = ("<<<", "<<-", "&>>", ";;&", "&&", "||", ";;", ";&", "<<", ">>", ">&", "<&", "&>", "|&", ">|")
_REDIRECTIONS = {"<<<", "<<-", "<<", ">>", ">&", "<&", "&>", "&>>", "<", ">", ">|"}


class Redirection(Struct, frozen=True):
    """`> file`, `<<< word`, `<< EOF`: `target` is the word, or the text of a here-document."""

    operator: str
    target: str
    literal: bool = False
    """A here-document in which nothing is expanded."""


class Simple(Struct, frozen=True):
    """Assignments, then words."""

    assignments: tuple[str, ...]
    words: tuple[str, ...]
    redirections: tuple[Redirection, ...] = ()


class If(Struct, frozen=True):
    """`if`, `elif`, `else`: a condition is the commands that decide it, and empty for `else`."""

    arms: tuple[tuple[Body, Body], ...]


class Case(Struct, frozen=True):
    """`case`: patterns and what is done."""

    subject: str
    arms: tuple[tuple[tuple[str, ...], Body], ...]


class For(Struct, frozen=True):
    """`for NAME in WORDS`; None for `while` and `until`."""

    name: str | None
    words: tuple[str, ...]
    condition: Body
    body: Body


class Function(Struct, frozen=True):
    """`NAME() { ... }`."""

    name: str
    body: Body


class Block(Struct, frozen=True):
    """`{ ... }` and `( ... )`."""

    body: Body
    redirections: tuple[Redirection, ...] = ()


class Joined(Struct, frozen=True):
    """Commands with `&&`, `||` or `|` between them: `operators[i]` stands before `parts[i + 1]`."""

    parts: tuple[Node, ...]
    operators: tuple[str, ...]


Node: TypeAlias = "Simple | If | Case | For | Function | Block | Joined"
Body: TypeAlias = "tuple[Node, ...]"


class Token(Struct, frozen=True):
    """A word as it is written, an operator, or a here-document (`<<`, its text in `text`)."""

    text: str
    operator: bool = False
    literal: bool = False
    document: str | None = None


def skip_quoted(text: str, at: int, depth: int = 0) -> int:
    """Return where what begins at `at` (a quote, `$(`, `${`, a backtick, a backslash, or a letter) ends."""
    if depth > DEEPEST:
        raise TooLong("its words are nested too deeply")
    match text[at]:
        case "\\":
            return min(at + 2, len(text))
        case "'":
            return _after(text, "'", at + 1)
        case '"':
            return _to(text, at + 1, '"', depth, quoted=True)
        case "`":
            return _to(text, at + 1, "`", depth, quoted=True)
        case "$" if text.startswith("$'", at):
            return _to(text, at + 2, "'", depth, quoted=True)
        case "$" if text.startswith("${", at):
            return _to(text, at + 2, "}", depth)
        case "$" if text.startswith("$(", at):
            return _to(text, at + 2, ")", depth)
    return at + 1


def _after(text: str, mark: str, at: int) -> int:
    found = text.find(mark, at)
    return len(text) if found < 0 else found + len(mark)


def _to(text: str, at: int, end: str, depth: int, quoted: bool = False) -> int:
    """Return what lies behind `end`, over all that is nested; within `quoted` ones `'` is a letter as any other."""
    opened = 0
    while at < len(text):
        letter = text[at]
        if letter == end and not opened:
            return at + 1
        if end == ")" and letter in "()":
            opened += 1 if letter == "(" else -1
            at += 1
        elif letter in "\\$`" or (letter == '"' and end != "'") or (letter == "'" and not quoted):
            at = skip_quoted(text, at, depth + 1)
        elif letter == "#" and end == ")" and text[at - 1] in " \t\n;":
            at = _line_end(text, at)
        else:
            at += 1
    return at


def _line_end(text: str, at: int) -> int:
    found = text.find("\n", at)
    return len(text) if found < 0 else found


def tokens(text: str) -> list[Token]:
    """Words and operators of a script; comments are left out. Raises TooLong."""
    if len(text) > LONGEST:
        raise TooLong(f"it is longer than {LONGEST:,} characters")
    budget.charge(2 * len(text), "its scripts")  # a character costs about as much to take apart as two to expand
    found: list[Token] = []
    waiting: list[tuple[int, bool]] = []  # here-documents whose texts begin on the next line: token, tabs are removed
    at = 0
    while at < len(text):
        letter = text[at]
        if letter == "\n":
            found.append(Token("\n", operator=True))
            at = _documents(text, at + 1, found, waiting)
        elif letter in " \t\r":
            at += 1
        elif text.startswith("\\\n", at):
            at += 2
        elif letter == "#":
            at = _line_end(text, at)
        elif letter in ";&|<>()":
            at = _operator(text, at, found)
        else:
            end = _word(text, at)
            word = text[at:end]
            if found and found[-1].text in ("<<", "<<-") and found[-1].operator:
                waiting.append((len(found) - 1, found[-1].text == "<<-"))
                found[-1] = Token("<<", operator=True, document="", literal=any(mark in word for mark in "'\"\\"))
                found.append(Token(word))
            else:
                found.append(Token(word))
            at = end
    return found


def _operator(text: str, at: int, found: list[Token]) -> int:
    if text.startswith("((", at):  # arithmetic as a command: `((i++))`
        end = _to(text, at + 1, ")", 0)
        found.append(Token(text[at:end]))
        return end
    if text[at] in "<>" and text.startswith("(", at + 1):  # process substitution is a word that nobody can know
        end = _to(text, at + 2, ")", 0)
        found.append(Token(text[at:end]))
        return end
    mark = next((each for each in _OPERATORS if text.startswith(each, at)), text[at])
    if mark[0] in "<>" and found and found[-1].text.isdigit() and at and text[at - 1].isdigit():
        found.pop()  # the number of a file: `2>&1`
    found.append(Token(mark, operator=True))
    return at + len(mark)


def _word(text: str, at: int) -> int:
    begun = at
    while at < len(text) and text[at] not in " \t\r\n;&|<>()":
        at = skip_quoted(text, at)
        array = text.startswith("(", at) and text[at - 1] in "=" and at - begun <= _LONGEST_ASSIGNED
        if array and _ASSIGNED.fullmatch(text, begun, at):
            at = _to(text, at + 1, ")", 0)
    return max(at, begun + 1)


def _documents(text: str, at: int, found: list[Token], waiting: list[tuple[int, bool]]) -> int:
    for index, tabs in waiting:
        mark = re.sub(r"['\"\\]", "", found[index + 1].text)
        lines = []
        while at < len(text):
            end = _line_end(text, at)
            line, at = text[at:end], min(end + 1, len(text))
            line = line.lstrip("\t") if tabs else line
            if line.rstrip("\r") == mark or (tabs and line.strip() == mark):
                break
            lines.append(line + "\n")
        found[index] = Token("<<", operator=True, document="".join(lines), literal=found[index].literal)
    waiting.clear()
    return at


def parse(text: str) -> Body:
    """The commands of a script. Raises TooLong."""
    return _Parser(tokens(text)).body(())


class _Parser:
    """Recursive descent; what does not fit is taken for a word, and each call takes at least one token or ends."""

    def __init__(self, found: list[Token]) -> None:
        self._tokens = found
        self._at = 0
        self._depth = 0

    def _peek(self) -> Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _is(self, *texts: str) -> bool:
        token = self._peek()
        return token is not None and token.text in texts

    def _take(self) -> Token:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _skip(self, *texts: str) -> bool:
        if self._is(*texts):
            self._at += 1
            return True
        return False

    def body(self, ends: Iterable[str]) -> Body:
        """Commands up to one of these words, which is left standing."""
        found: list[Node] = []
        ends = (*ends,)
        while (token := self._peek()) is not None and token.text not in ends:
            if token.operator and token.text in ("\n", ";", "&", ";;", ";&", ";;&", ")", "|", "&&", "||"):
                self._take()
                continue
            found.append(self._joined())
        return tuple(found)

    def _joined(self) -> Node:
        parts, operators = [self._one()], []
        while (token := self._peek()) and token.operator and token.text in ("&&", "||", "|", "|&"):
            operators.append(self._take().text)
            while self._skip("\n"):
                pass
            if self._peek() is None:
                operators.pop()
                break
            parts.append(self._one())
        return parts[0] if not operators else Joined(tuple(parts), tuple(operators))

    def _one(self) -> Node:
        self._depth += 1
        if self._depth > DEEPEST:
            raise TooLong("its commands are nested too deeply")
        found = self._command()
        self._depth -= 1
        return found

    def _command(self) -> Node:
        while self._skip("!", "time"):
            pass
        token = self._peek()
        if token is None:
            return Simple((), ())
        match token.text:
            case "if":
                return self._if()
            case "case":
                return self._case()
            case "for" | "select" | "while" | "until":
                return self._loop()
            case "{":
                return self._block("}")
            case "(" if token.operator:
                return self._block(")")
            case "function":
                self._take()
                return self._function(self._take().text if self._peek() else "")
        return self._simple()

    def _if(self) -> Node:
        arms: list[tuple[Body, Body]] = []
        while self._skip("if", "elif"):
            condition = self.body(("then", "fi"))
            self._skip("then")
            arms.append((condition, self.body(("elif", "else", "fi"))))
        if self._skip("else"):
            arms.append(((), self.body(("fi",))))
        self._skip("fi")
        self._redirections()
        return If(tuple(arms))

    def _case(self) -> Node:
        self._take()
        subject = self._take().text if self._peek() else ""
        while self._skip("\n"):
            pass
        self._skip("in")
        arms: list[tuple[tuple[str, ...], Body]] = []
        while self._peek() is not None and not self._skip("esac"):
            if self._skip("\n", "(", ";;", ";&", ";;&", "|"):
                continue
            patterns = [self._take().text]
            while self._skip("|") and self._peek() is not None:
                patterns.append(self._take().text)
            self._skip(")")
            arms.append((tuple(patterns), self.body((";;", ";&", ";;&", "esac"))))
        return Case(subject, tuple(arms))

    def _loop(self) -> Node:
        kind = self._take().text
        name: str | None = None
        words: list[str] = []
        condition: Body = ()
        if kind in ("for", "select"):
            name = self._take().text if self._peek() else ""
            while self._skip("\n"):
                pass
            if self._skip("in"):
                while (token := self._peek()) and not token.operator:
                    words.append(self._take().text)
        else:
            condition = self.body(("do", "done"))
        while self._skip("\n", ";"):
            pass
        self._skip("do")
        body = self.body(("done",))
        self._skip("done")
        self._redirections()
        return For(name, tuple(words), condition, body)

    def _block(self, end: str) -> Node:
        self._take()
        found = self._until(end)
        self._skip(end)
        return Block(found, self._redirections())

    def _until(self, end: str) -> Body:
        if end != ")":
            return self.body((end,))
        found: list[Node] = []
        while self._peek() is not None and not self._is(")"):
            found += self.body((")", "\n", ";", "&", ";;"))
            while self._skip("\n", ";", "&", ";;"):
                pass
        return tuple(found)

    def _redirections(self) -> tuple[Redirection, ...]:
        found = []
        while (token := self._peek()) and token.operator and token.text in _REDIRECTIONS:
            found.append(self._redirection())
        return tuple(found)

    def _redirection(self) -> Redirection:
        token = self._take()
        follows = self._peek()
        target = self._take().text if follows is not None and not follows.operator else ""
        if token.document is not None:
            return Redirection("<<", token.document, token.literal)
        return Redirection(token.text, target)

    def _simple(self) -> Node:
        assignments: list[str] = []
        words: list[str] = []
        redirections: list[Redirection] = []
        while (token := self._peek()) is not None:
            if words[:1] == ["[["] and words[-1] != "]]":
                words.append(self._take().text)
            elif token.operator and token.text in _REDIRECTIONS:
                redirections.append(self._redirection())
            elif (
                token.operator and token.text == "(" and len(words) == 1 and _NAME.fullmatch(words[0].replace("-", "_"))
            ):
                return self._function(words[0])
            elif token.operator:
                break
            elif not words and _ASSIGNED.match(token.text):
                assignments.append(self._take().text)
            else:
                words.append(self._take().text)
        return Simple(tuple(assignments), tuple(words), tuple(redirections))

    def _function(self, name: str) -> Node:
        self._skip("(")
        self._skip(")")
        while self._skip("\n"):
            pass
        return Function(name, (self._one(),) if self._peek() is not None else ())
