# SPDX-License-Identifier: Apache-2.0
"""Figures of the source code: sizes, single-use helpers, Protocols, duplicate class names."""

import ast
import re
import statistics
import sys
from collections import Counter
from pathlib import Path

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def source_files(root: Path) -> list[Path]:
    """Every module of the product except generated code."""
    return sorted(
        path
        for path in (root / "src" / "pipecd").rglob("*.py")
        if "_pb2" not in path.name and "proto" not in path.relative_to(root / "src/pipecd").parts
    )


def percentile(values: list[int], share: float) -> int:
    return sorted(values)[min(len(values) - 1, round(share * len(values)))]


def methods(node: ast.ClassDef) -> set[str]:
    return {f.name for f in node.body if isinstance(f, DEFINITIONS) and not f.name.startswith("__")}


def is_protocol(node: ast.ClassDef) -> bool:
    names = {ast.unparse(base).split("[")[0] for base in node.bases}
    return bool(names & {"Protocol", "typing.Protocol"})


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]
    files = source_files(root)
    texts = {path: path.read_text() for path in files}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    lengths = [len(text.splitlines()) for text in texts.values()]
    functions = private = single = 0
    for path, tree in trees.items():
        words = Counter(re.findall(r"\w+", texts[path]))
        for node in ast.walk(tree):
            if not isinstance(node, DEFINITIONS):
                continue
            functions += 1
            if node.name.startswith("_") and not node.name.startswith("__"):
                private += 1
                # The definition and one use.
                single += words[node.name] == 2
    classes = [n for t in trees.values() for n in ast.walk(t) if isinstance(n, ast.ClassDef)]
    protocols = [c for c in classes if is_protocol(c)]
    concrete = [c for c in classes if not is_protocol(c)]
    implementations = {
        p.name: sum(1 for c in concrete if methods(p) and methods(p) <= methods(c))
        for p in protocols
    }
    names = Counter(c.name for c in classes)
    print(f"source files                         {len(files)}")
    print(f"lines                                {sum(lengths)}")
    print(f"lines per file, mean                 {statistics.mean(lengths):.0f}")
    print(f"lines per file, median               {statistics.median(lengths):.0f}")
    print(f"lines per file, p95                  {percentile(lengths, 0.95)}")
    print(f"files of up to 50 lines              {sum(1 for n in lengths if 2 < n <= 50)}")
    print(f"functions                            {functions}")
    print(f"private functions with one use       {single} ({single / functions:.1%})")
    print(f"Protocols                            {len(protocols)}")
    once = sorted(name for name, count in implementations.items() if count == 1)
    print(f"Protocols with one implementation    {len(once)}")
    print(f"classes                              {len(classes)}")
    print(f"class names used more than once      {sum(1 for n in names.values() if n > 1)}")
    if "--names" in sys.argv:
        print("one implementation:", ", ".join(once))
        print("duplicates:", ", ".join(f"{n} {c}" for n, c in names.most_common() if c > 1))


if __name__ == "__main__":
    main()
