"""Counts sentences whose subject is no noun, per 1,000 words of docs, docstrings, comments and
messages: the strings of three words or more in MESSAGES.

Of the documents, and of the docstrings and comments of MESSAGES, it also counts verbs of speech and
posture for machines (_IDIOM), per 1,000 words; of the names and strings in MESSAGES it counts all.

The reader of a clause that begins with one of SUBJECTS ("Whoever gives up has cost it a handshake")
has to search for its noun; CONTRIBUTING.md gives the rule. Questions are allowed.

    python -m tests.prose                   the rates; exit code 1 above one of MOST...
    python -m tests.prose --list [PATH...]  each such sentence or line as FILE:LINE: text
"""

import ast
import functools
import gc
import pathlib
import re
import sys
from collections import Counter
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
MOST = 1.2
MOST_IDIOM = 0.2
#: A person looks or is asked, a program speaks a protocol, and a regular expression looks around.
MOST_IN_CODE = 6
FOLDERS = ("aggregator", "nodeagent", "proto", "tests", "docs", "deploy")
MESSAGES = ("aggregator", "nodeagent")
FILES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
#: The fields of a node whose values are statements, or hold such.
BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
SUBJECTS = (
    "who", "whoever", "whom", "whose", "what", "whatever", "nobody", "nothing", "none",
    "somebody", "someone", "everybody", "anybody", "everything", "anything", "something",
)  # fmt: skip
_IDIOM = re.compile(
    r"\b(tell|tells|told|telling|ask|asks|asked|asking|say|says|said|stand|stands|stood|standing|"
    r"beside|heard|hears|look at|looks at|looked at|in place of|judge|judges|judged)\b",
    re.IGNORECASE,
)
#: In names and strings also others: there "look" has no "at" behind it.
_VERBS = frozenset((
    "tell", "tells", "told", "ask", "asks", "asked", "asking", "say", "says", "said", "stand",
    "stands", "stood", "standing", "beside", "hear", "hears", "heard", "look", "looks", "looked",
    "judge", "judges", "judged", "wish", "wishes", "speak", "speaks", "spoke", "spoken",
))  # fmt: skip
#: Of a sentence or a name: told_at, MOST_TOLD, AskRules.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
#: Blocks and spans of code, which may have any word.
_BLOCK = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
_START = re.compile(rf"^(?:and |but |or |so |for )?({'|'.join(SUBJECTS)})\b", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=[.!?:;])[\"')]*\s+")
#: Python's tokenizer takes ten times as long.
_STRING_OR_COMMENT = re.compile(
    r'''("""|\'\'\')(?:\\.|(?!\1).)*\1|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|(?P<comment>\#[^\n]*)''',
    re.DOTALL,
)
_CODE = re.compile(r"``[^`]*``|`[^`]*`|\[([^\]]*)\]\([^)]*\)")


def texts(path: pathlib.Path) -> Iterator[tuple[int, str]]:
    """(line, prose) of a file: paragraphs of Markdown; docstrings, comments and, in MESSAGES, the
    strings of Python.
    """
    source = path.read_text()
    if path.suffix == ".md":
        yield from _paragraphs(source)
        return
    yield from _docstrings_and_comments(source)
    if path.relative_to(ROOT).parts[0] in MESSAGES:
        yield from messages(source)


@functools.lru_cache(maxsize=1)
def _parse(source: str) -> ast.Module:
    """Each count of a file is of one tree: to parse it takes most of the time."""
    return ast.parse(source)


@functools.lru_cache(maxsize=1)
def _nodes(source: str) -> list[ast.AST]:
    return list(ast.walk(_parse(source)))


@functools.lru_cache(maxsize=1)
def _docstrings_and_comments(source: str) -> list[tuple[int, str]]:
    return [*_docstrings(_parse(source)), *_comments(source)]


def _paragraphs(source: str) -> Iterator[tuple[int, str]]:
    block: list[str] = []
    start, fenced = 1, False
    for number, written in enumerate([*source.splitlines(), ""], 1):
        fence = written.lstrip().startswith("```")
        fenced = fenced != fence
        line = "" if fence else written
        begins = bool(re.match(r"\s*([-*|#>]|\d+\.)\s?", line))
        if (fenced or not line.strip() or begins) and block:
            yield start, " ".join(block)
            block = []
        if fenced or not line.strip():
            continue
        if line.lstrip().startswith("|"):
            yield from ((number, cell.strip()) for cell in line.strip().strip("|").split("|"))
            continue
        if not block:
            start = number
        block.append(re.sub(r"^\s*([-*#>]+|\d+\.)\s+", "", line).strip())


def _docstrings(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        text = ast.get_docstring(node)
        if text:
            for part in text.split("\n\n"):
                before = text[: text.index(part)].count("\n")
                yield node.body[0].lineno + before, " ".join(part.split())
    # Only statements hold definitions, and most nodes are parts of expressions.
    for block in BLOCKS:
        for statement in getattr(node, block, ()):
            yield from _docstrings(statement)


def messages(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of the strings of three words or more that are no docstrings; in the text x
    stands for each value of an f-string.
    """
    nodes = _nodes(source)
    docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    strings = (node for node in nodes if isinstance(node, ast.JoinedStr))
    parts = {id(part) for whole in strings for part in whole.values}
    skipped = docs | parts
    for node in nodes:
        if not isinstance(node, ast.Constant | ast.JoinedStr) or id(node) in skipped:
            continue
        text = "".join(
            "x"
            if isinstance(part, ast.FormattedValue)
            else part.value
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
            else ""
            for part in (node.values if isinstance(node, ast.JoinedStr) else [node])
        )
        if len(text.split()) >= 3:
            yield node.lineno, " ".join(text.split())


def _comments(source: str) -> Iterator[tuple[int, str]]:
    block: list[str] = []
    start = last = 0
    line, at = 1, 0
    for found in _STRING_OR_COMMENT.finditer(source):
        if found["comment"] is None:
            continue
        line, at = line + source.count("\n", at, found.start()), found.start()
        text = found["comment"].lstrip("#: ")
        if re.match(r"(noqa|type:|fmt:|pragma|!)", text):
            continue
        if block and line != last + 1:
            yield start, " ".join(block)
            block = []
        if not block:
            start = line
        block.append(text)
        last = line
    if block:
        yield start, " ".join(block)


def sentences(text: str) -> Iterator[str]:
    plain = _CODE.sub(lambda m: m[1] or "x", text).replace("**", "")
    yield from (one.strip(" \"'(*_") for one in _SENTENCE.split(plain))


def is_nounless(sentence: str) -> bool:
    return bool(_START.match(sentence)) and not sentence.endswith("?")


def idiom(source: str) -> tuple[int, list[tuple[int, str]]]:
    """The words of a document without its code, and (line, verb) of each verb of _IDIOM."""
    text = _BLOCK.sub(lambda code: "\n" * code[0].count("\n"), source)
    found = [(text.count("\n", 0, one.start()) + 1, one[0]) for one in _IDIOM.finditer(text)]
    return len(text.split()), found


def documents() -> list[pathlib.Path]:
    """The documents that people write: docs/reference is made from the code."""
    docs = [path for path in (ROOT / "docs").rglob("*.md") if "reference" not in path.parts]
    return sorted([*docs, *(ROOT / name for name in FILES if name != "CHANGELOG.md")])


def idiom_of_comments(source: str) -> tuple[int, list[tuple[int, str]]]:
    """As `idiom`, of the docstrings and comments of Python; the line is where the text begins."""
    words, found = 0, []
    for line, text in _docstrings_and_comments(source):
        size, verbs = idiom(text)
        words += size
        found += [(line, verb) for _, verb in verbs]
    return words, found


def idiom_in_code(source: str) -> list[tuple[int, str]]:
    """(line, text) of each name that the module defines and each string that is no docstring, with
    one of _VERBS.
    """
    found: list[tuple[int, str]] = []
    if not _has_verb(source):  # most modules
        return found
    nodes = _nodes(source)
    docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        match node:
            case ast.Constant(value=str(text)):
                if id(node) not in docs and _has_verb(text):
                    found.append((node.lineno, " ".join(text.split())))
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.arg(arg=name)
                | ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(attr=name, ctx=ast.Store())
            ):
                if _has_verb(name):
                    found.append((node.lineno, name))
    return found


def _has_verb(text: str) -> bool:
    return not _VERBS.isdisjoint(word.lower() for word in set(_WORD.findall(text)))


def main(arguments: list[str]) -> int:
    listed = "--list" in arguments
    under = [(ROOT / one).resolve() for one in arguments if one != "--list"]
    words: Counter[str] = Counter()
    found: Counter[str] = Counter()

    def count(kind: str, path: pathlib.Path, lines: list[tuple[int, str]], size: int) -> None:
        words[kind] += size
        found[kind] += len(lines)
        for line, text in lines if listed else ():
            print(f"{path.relative_to(ROOT)}:{line}: {text[:160]}")

    written = set(documents())
    for path in files():
        if under and not any(path.is_relative_to(one) for one in under):
            continue
        source, prose = path.read_text(), list(texts(path))
        size = sum(len(text.split()) for _, text in prose)
        nounless = [
            (line, one) for line, text in prose for one in sentences(text) if is_nounless(one)
        ]
        count("", path, nounless, size)
        if path in written:
            size, verbs = idiom(source)
            count("documents", path, verbs, size)
        elif path.suffix == ".py" and path.relative_to(ROOT).parts[0] in MESSAGES:
            size, verbs = idiom_of_comments(source)
            count("comments", path, verbs, size)
            count("code", path, idiom_in_code(source), 0)
    rates = {
        kind: 1000 * found[kind] / max(words[kind], 1) for kind in ("", "documents", "comments")
    }
    print(
        f"{found['']} sentences without a noun in {words['']} words: {rates['']:.2f} in 1,000 "
        f"(most: {MOST})"
    )
    for kind in ("documents", "comments"):
        print(
            f"{found[kind]} verbs of speech or posture in {words[kind]} words of {kind}: "
            f"{rates[kind]:.2f} in 1,000"
        )
    print(
        f"{found['code']} names and strings with verbs of speech or posture (most: {MOST_IN_CODE})"
    )
    spoken = max(rates["documents"], rates["comments"]) > MOST_IDIOM
    return int(rates[""] > MOST or spoken or found["code"] > MOST_IN_CODE)


def files() -> list[pathlib.Path]:
    """Every file with prose of ours, sorted."""
    found = [
        path
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".md")
        and "_pb2" not in path.name
        and "/fixtures/" not in path.as_posix()
    ]
    return sorted([*found, *(ROOT / name for name in FILES)])


if __name__ == "__main__":
    gc.disable()  # a tree has no cycles, and its collections are a fifth of the time
    sys.exit(main(sys.argv[1:]))
