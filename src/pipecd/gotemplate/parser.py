# SPDX-License-Identifier: Apache-2.0
"""Parses the tokens of a template into nodes."""

from collections import deque
from collections.abc import Callable, Iterator

from pipecd.gotemplate.lexer import Action, Token, TokenKind, split
from pipecd.gotemplate.nodes import (
    Body,
    Break,
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
    TemplateCall,
    TemplateMistake,
    Text,
    Variable,
    With,
)

_CONSTANTS = {"true": True, "false": False, "nil": None}
_BRANCHES: dict[str, type[If] | type[With] | type[Range]] = {
    "if": If,
    "with": With,
    "range": Range,
}


def parse(text: str, *, name: str) -> Template:
    """Parses a template; error messages begin with its `name`."""
    return _TemplateParser(text, name).template()


class _TemplateParser:
    def __init__(self, text: str, name: str) -> None:
        self._name = name
        self._parts: Iterator[str | Action] = split(text, name)
        self._defined: dict[str, Body] = {}
        self._open_ranges = 0
        self._line = 1

    def template(self) -> Template:
        body, end = self._body()
        if end is not None:
            raise self._mistake(f"unexpected {{{{{end.tokens[0].text}}}}}")
        return Template(self._name, body, self._defined)

    def _mistake(self, what: str) -> TemplateMistake:
        return TemplateMistake(f"template: {self._name}:{self._line}: {what}")

    def _body(self) -> tuple[Body, Action | None]:
        """Returns the nodes up to the next `end` or `else` of this level, and that action."""
        nodes: list[Node] = []
        for part in self._parts:
            if isinstance(part, str):
                if part:
                    nodes.append(Text(part))
                continue
            self._line = part.line
            if not part.tokens:
                raise self._mistake("missing value for command")
            first = part.tokens[0]
            keyword = first.text if first.kind is TokenKind.IDENTIFIER else ""
            if keyword in ("end", "else"):
                return tuple(nodes), part
            node = self._action(keyword, _ActionParser(part.tokens, self._mistake))
            if node is not None:
                nodes.append(node)
        return tuple(nodes), None

    def _action(self, keyword: str, tokens: "_ActionParser") -> Node | None:
        """Returns the node of an action; None for `define`, which renders nothing."""
        match keyword:
            case "if" | "with" | "range":
                tokens.take()
                return self._branch(keyword, tokens)
            case "define":
                tokens.take()
                name = self._template_name(tokens)
                tokens.require_end("define")
                self._defined[name] = self._until_end("define")
                return None
            case "block":
                tokens.take()
                name, line = self._template_name(tokens), self._line
                pipe = tokens.pipe()
                self._defined.setdefault(name, self._until_end("block"))
                return TemplateCall(name, pipe, line)
            case "template":
                tokens.take()
                name = self._template_name(tokens)
                return TemplateCall(name, tokens.pipe() if tokens.rest else None, self._line)
            case "break" | "continue" if len(tokens.rest) == 1:
                if not self._open_ranges:
                    raise self._mistake(f"{{{{{keyword}}}}} outside {{{{range}}}}")
                return Break() if keyword == "break" else Continue()
            case _:
                return Output(tokens.pipe())

    def _template_name(self, tokens: "_ActionParser") -> str:
        value = tokens.take().value if tokens.rest else None
        if not isinstance(value, str):
            raise self._mistake("the name of a template must be a quoted string")
        return value

    def _until_end(self, keyword: str) -> Body:
        line = self._line
        body, end = self._body()
        if end is None or end.tokens[0].text != "end" or len(end.tokens) != 1:
            self._line = line
            raise self._mistake(f"{{{{{keyword}}}}} is not closed by {{{{end}}}}")
        return body

    def _branch(self, keyword: str, tokens: "_ActionParser") -> Node:
        line = self._line
        pipe = tokens.pipe(in_range=keyword == "range")
        self._open_ranges += keyword == "range"
        body, end = self._body()
        self._open_ranges -= keyword == "range"
        else_body: Body = ()
        if end is not None and end.tokens[0].text == "else":
            if len(end.tokens) == 1:
                else_body = self._until_end(keyword)
            else:
                word = end.tokens[1].text
                if word != keyword or word == "range":
                    raise self._mistake(f"unexpected {word!r} after else")
                else_body = (self._branch(word, _ActionParser(end.tokens[2:], self._mistake)),)
        elif end is None or len(end.tokens) != 1:
            self._line = line
            raise self._mistake(f"{{{{{keyword}}}}} is not closed by {{{{end}}}}")
        return _BRANCHES[keyword](pipe, body, else_body)


class _ActionParser:
    """Consumes the tokens of one action from left to right."""

    def __init__(
        self, tokens: tuple[Token, ...], mistake: Callable[[str], TemplateMistake]
    ) -> None:
        self.rest = deque(tokens)
        self._mistake = mistake

    def take(self) -> Token:
        if not self.rest:
            raise self._mistake("unexpected end of the action")
        return self.rest.popleft()

    def require_end(self, where: str) -> None:
        if self.rest:
            raise self._mistake(f"unexpected {self.rest[0].text!r} in {where}")

    def pipe(self, *, in_range: bool = False) -> Pipe:
        """Returns the pipeline that the rest of the action consists of."""
        pipe = self._pipe(in_range=in_range)
        self.require_end("a command")
        return pipe

    def _pipe(self, *, in_range: bool = False) -> Pipe:
        variables, declares = self._assignment(in_range)
        line = self.rest[0].line if self.rest else 0
        commands = [self._command()]
        while self._is_operator("|"):
            self.take()
            commands.append(self._command())
        for command in commands[1:]:
            if isinstance(command.operands[0], Literal | Dot):
                raise self._mistake("only a function or a field may follow |")
        return Pipe(tuple(commands), line, variables, declares)

    def _is_operator(self, operator: str, at: int = 0) -> bool:
        if len(self.rest) <= at:
            return False
        return self.rest[at].kind is TokenKind.OPERATOR and self.rest[at].text == operator

    def _assignment(self, in_range: bool) -> tuple[tuple[str, ...], bool]:
        """Consumes `$x :=` or `$x =`; returns the variables and whether they are declared."""
        names: list[str] = []
        at = 0
        while len(self.rest) > at and self.rest[at].kind is TokenKind.VARIABLE:
            names.append(self.rest[at].text)
            for operator in (":=", "="):
                if self._is_operator(operator, at + 1):
                    for _ in range(at + 2):
                        self.rest.popleft()
                    return tuple(names), operator == ":="
            if not (in_range and self._is_operator(",", at + 1) and len(names) == 1):
                break
            at += 2
        return (), True

    def _command(self) -> Command:
        operands: list[Operand] = []
        while self.rest and not self._is_operator("|") and not self._is_operator(")"):
            if operands and not self.rest[0].has_space_before:
                raise self._mistake(f"unexpected {self.rest[0].text!r}; put a space before it")
            operand = self._term(self.take())
            names: list[str] = []
            while self.rest and self.rest[0].kind is TokenKind.FIELD:
                if self.rest[0].has_space_before:
                    break
                names.append(self.take().text[1:])
            if names and isinstance(operand, Literal):
                raise self._mistake("a literal has no fields")
            if names and isinstance(operand, Chain):
                operand = Chain(operand.operand, (*operand.names, *names))
            elif names:
                operand = Chain(operand, tuple(names))
            operands.append(operand)
        if not operands:
            raise self._mistake("missing value for command")
        return Command(tuple(operands))

    def _term(self, token: Token) -> Operand:
        match token.kind:
            case TokenKind.LITERAL:
                return Literal(token.value)
            case TokenKind.VARIABLE:
                return Variable(token.text)
            case TokenKind.FIELD:
                return Chain(Dot(), (token.text[1:],))
            case TokenKind.IDENTIFIER:
                word = token.text
                return Literal(_CONSTANTS[word]) if word in _CONSTANTS else Function(word)
            case TokenKind.OPERATOR if token.text == ".":
                return Dot()
            case TokenKind.OPERATOR if token.text == "(":
                pipe = self._pipe()
                if not self._is_operator(")"):
                    raise self._mistake("a parenthesis is not closed")
                self.take()
                return pipe
            case TokenKind.OPERATOR:
                raise self._mistake(f"unexpected {token.text!r} in a command")
