# SPDX-License-Identifier: Apache-2.0
"""Turns the tokens of a template into its nodes."""

from collections.abc import Callable, Iterator

from pipecd.gotemplate.lexer import Action, Kind, Token, split
from pipecd.gotemplate.nodes import (
    Body,
    Break,
    Call,
    Chain,
    Command,
    Continue,
    Dot,
    Function,
    If,
    Literal,
    Node,
    Operand,
    Output,
    Pipe,
    Range,
    Template,
    TemplateMistake,
    Text,
    Variable,
    With,
)

MistakeMaker = Callable[[str], TemplateMistake]

_CONSTANTS = {"true": True, "false": False, "nil": None}
_BRANCHES: dict[str, type[If] | type[With] | type[Range]] = {
    "if": If,
    "with": With,
    "range": Range,
}


def parse(text: str, *, name: str) -> Template:
    """Parses a template; its `name` is only used in messages."""
    return _Parser(text, name).template()


class _Parser:
    def __init__(self, text: str, name: str) -> None:
        self._name = name
        self._parts: Iterator[str | Action] = split(text, name)
        self._defined: dict[str, Body] = {}
        self._ranges = 0
        self._line = 1

    def template(self) -> Template:
        body, end = self._body()
        if end is not None:
            raise self._mistake(f"unexpected {{{{{end.tokens[0].text}}}}}")
        return Template(self._name, body, self._defined)

    def _mistake(self, what: str) -> TemplateMistake:
        return TemplateMistake(f"template: {self._name}:{self._line}: {what}")

    def _body(self) -> tuple[Body, Action | None]:
        """Nodes up to an `end` or `else`, and that action."""
        nodes: list[Node] = []
        for part in self._parts:
            if isinstance(part, str):
                if part:
                    nodes.append(Text(part))
                continue
            self._line = part.line
            if not part.tokens:
                raise self._mistake("missing value for command")
            if part.tokens[0].kind is Kind.WORD and part.tokens[0].text in ("end", "else"):
                return tuple(nodes), part
            node = self._action(_Tokens(part.tokens, self._mistake), part.tokens[0])
            if node is not None:
                nodes.append(node)
        return tuple(nodes), None

    def _action(self, tokens: "_Tokens", first: Token) -> Node | None:
        keyword = first.text if first.kind is Kind.WORD else ""
        match keyword:
            case "if" | "with" | "range":
                tokens.take()
                return self._branch(keyword, tokens)
            case "define":
                tokens.take()
                self._define(tokens)
                return None
            case "block":
                tokens.take()
                name, line = self._template_name(tokens), self._line
                pipe = tokens.pipe()
                self._defined.setdefault(name, self._until_end("block"))
                return Call(name, pipe, line)
            case "template":
                tokens.take()
                name = self._template_name(tokens)
                return Call(name, None if tokens.done else tokens.pipe(), self._line)
            case "break" | "continue" if len(tokens.rest) == 1:
                if not self._ranges:
                    raise self._mistake(f"{{{{{keyword}}}}} outside {{{{range}}}}")
                return Break() if keyword == "break" else Continue()
            case _:
                return Output(tokens.pipe())

    def _template_name(self, tokens: "_Tokens") -> str:
        token = None if tokens.done else tokens.take()
        if token is None or token.kind is not Kind.LITERAL or not isinstance(token.value, str):
            raise self._mistake("the name of a template must be a quoted string")
        return token.value

    def _define(self, tokens: "_Tokens") -> None:
        name = self._template_name(tokens)
        tokens.must_be_done("define")
        self._defined[name] = self._until_end("define")

    def _until_end(self, keyword: str) -> Body:
        line = self._line
        body, end = self._body()
        if end is None or end.tokens[0].text != "end" or len(end.tokens) != 1:
            self._line = line
            raise self._mistake(f"{{{{{keyword}}}}} is not closed by {{{{end}}}}")
        return body

    def _branch(self, keyword: str, tokens: "_Tokens") -> Node:
        line = self._line
        pipe = tokens.pipe(in_range=keyword == "range")
        self._ranges += keyword == "range"
        body, end = self._body()
        self._ranges -= keyword == "range"
        otherwise: Body = ()
        if end is not None and end.tokens[0].text == "else":
            if len(end.tokens) == 1:
                otherwise = self._until_end(keyword)
            else:
                otherwise = (self._else_branch(keyword, end),)
        elif end is None or len(end.tokens) != 1:
            self._line = line
            raise self._mistake(f"{{{{{keyword}}}}} is not closed by {{{{end}}}}")
        return _BRANCHES[keyword](pipe, body, otherwise)

    def _else_branch(self, keyword: str, end: Action) -> Node:
        word = end.tokens[1].text
        if word != keyword or word == "range":
            raise self._mistake(f"unexpected {word!r} behind else")
        return self._branch(word, _Tokens(end.tokens[2:], self._mistake))


class _Tokens:
    """The tokens of one action, taken from left to right."""

    def __init__(self, tokens: tuple[Token, ...], mistake: MistakeMaker) -> None:
        self.rest = list(tokens)
        self._mistake = mistake

    @property
    def done(self) -> bool:
        return not self.rest

    def take(self) -> Token:
        if not self.rest:
            raise self._mistake("unexpected end of the action")
        return self.rest.pop(0)

    def must_be_done(self, where: str) -> None:
        if self.rest:
            raise self._mistake(f"unexpected {self.rest[0].text!r} in {where}")

    def pipe(self, *, in_range: bool = False) -> Pipe:
        """A whole pipeline, to the end of the action."""
        pipe = self._pipe(in_range=in_range)
        self.must_be_done("a command")
        return pipe

    def _pipe(self, *, in_range: bool = False) -> Pipe:
        variables, declares = self._declaration(in_range)
        line = self.rest[0].line if self.rest else 0
        commands = [self._command()]
        while self._is_sign("|"):
            self.take()
            commands.append(self._command())
        for command in commands[1:]:
            if isinstance(command.operands[0], Literal | Dot):
                raise self._mistake("only a function or a field can stand behind |")
        return Pipe(tuple(commands), line, variables, declares)

    def _is_sign(self, sign: str, at: int = 0) -> bool:
        if len(self.rest) <= at:
            return False
        return self.rest[at].kind is Kind.SIGN and self.rest[at].text == sign

    def _declaration(self, in_range: bool) -> tuple[tuple[str, ...], bool]:
        names: list[str] = []
        at = 0
        while len(self.rest) > at and self.rest[at].kind is Kind.VARIABLE:
            names.append(self.rest[at].text)
            for sign in (":=", "="):
                if self._is_sign(sign, at + 1):
                    del self.rest[: at + 2]
                    return tuple(names), sign == ":="
            if not (in_range and self._is_sign(",", at + 1) and len(names) == 1):
                break
            at += 2
        return (), True

    def _command(self) -> Command:
        operands: list[Operand] = []
        while self.rest and not self._is_sign("|") and not self._is_sign(")"):
            if operands and not self.rest[0].spaced:
                raise self._mistake(f"unexpected {self.rest[0].text!r}; put a space before it")
            operands.append(self._operand())
        if not operands:
            raise self._mistake("missing value for command")
        return Command(tuple(operands))

    def _operand(self) -> Operand:
        operand = self._term(self.take())
        names: list[str] = []
        while self.rest and self.rest[0].kind is Kind.FIELD and not self.rest[0].spaced:
            names.append(self.take().text[1:])
        if not names:
            return operand
        if isinstance(operand, Literal):
            raise self._mistake("a literal has no fields")
        if isinstance(operand, Chain):
            return Chain(operand.operand, (*operand.names, *names))
        return Chain(operand, tuple(names))

    def _term(self, token: Token) -> Operand:
        match token.kind:
            case Kind.LITERAL:
                return Literal(token.value)
            case Kind.VARIABLE:
                return Variable(token.text)
            case Kind.FIELD:
                return Chain(Dot(), (token.text[1:],))
            case Kind.WORD:
                return self._word(token.text)
            case Kind.SIGN if token.text == ".":
                return Dot()
            case Kind.SIGN if token.text == "(":
                pipe = self._pipe()
                if not self._is_sign(")"):
                    raise self._mistake("a parenthesis is not closed")
                self.take()
                return pipe
            case Kind.SIGN:
                raise self._mistake(f"unexpected {token.text!r} in a command")

    def _word(self, word: str) -> Operand:
        if word in _CONSTANTS:
            return Literal(_CONSTANTS[word])
        return Function(word)
