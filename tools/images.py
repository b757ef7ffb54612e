# SPDX-License-Identifier: Apache-2.0
"""Builds the OCI images of a release without a container engine: packages of Debian, and wheels.

Packages are unpacked, not installed: an image has no package manager, no perl, no setuid programs.
The same packages, wheels and commit give the same bytes.
"""

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import wheels
from executables import ARCHITECTURES, PIPED_EXTRAS, PROGRAMS, SERVER_EXTRAS

SUITE, PYTHON = "bookworm", "3.11"
_BASE = (
    "busybox", "ca-certificates", "libbz2-1.0", "libc6", "libcom-err2", "libcrypt1", "libexpat1",
    "libffi8", "libgcc-s1", "libgssapi-krb5-2", "libk5crypto3", "libkeyutils1", "libkrb5-3",
    "libkrb5support0", "liblzma5", "libncursesw6", "libnsl2", "libpython3.11-minimal",
    "libpython3.11-stdlib", "libreadline8", "libsqlite3-0", "libssl3", "libstdc++6", "libtinfo6",
    "libtirpc-common", "libtirpc3", "libuuid1", "media-types", "netbase", "python3.11-minimal",
    "tini", "tzdata", "zlib1g",
)  # fmt: skip
# What a piped needs beside: Git, SSH, and what scripts of upstream's image find.
_TOOLS = (
    "curl", "git", "jq", "libbrotli1", "libbsd0", "libcbor0.8", "libcurl3-gnutls", "libcurl4",
    "libedit2", "libfido2-1", "libgmp10", "libgnutls30", "libhogweed6", "libidn2-0", "libjq1",
    "libldap-2.5-0", "libmd0", "libnettle8", "libnghttp2-14", "libonig5", "libp11-kit0",
    "libpcre2-8-0", "libpsl5", "librtmp1", "libsasl2-2", "libselinux1", "libssh2-1", "libtasn1-6",
    "libudev1", "libunistring2", "libzstd1", "openssh-client",
)  # fmt: skip
_LEFT_OUT = (
    "etc/init.d/", "usr/lib/python3.11/lib2to3/tests/", "usr/share/bash-completion/",
    "usr/share/bug/", "usr/share/gitweb/", "usr/share/lintian/", "usr/share/locale/",
    "usr/share/man/", "usr/share/pixmaps/", "usr/share/applications/", "usr/share/perl5/",
    "usr/lib/git-core/git-gui", "usr/lib/gitweb", "usr/lib/binfmt.d/", "usr/bin/tini-static",
    "usr/sbin/", "var/lib/git/",
)  # fmt: skip
_APPLETS = (  # noqa: SIM905 - a list of words
    "[ ash awk base64 basename cat chmod chown clear cmp cp cut date dd df diff dirname du echo "
    "egrep env expr false fgrep find free grep gunzip gzip head hostname id kill less ln ls md5sum "
    "mkdir mktemp mv nc nslookup od ping printf ps pwd readlink realpath rm rmdir sed seq sh "
    "sha1sum sha256sum sha512sum sleep sort stat strings sync tail tar tee test time timeout top "
    "touch tr true tty uname uniq unzip uptime vi watch wc wget which whoami xargs xz yes zcat"
).split()
_SITE = f"usr/local/lib/python{PYTHON}/dist-packages"
_USER, _GROUP = 1000, 1000
_COMPILE = ["-m", "compileall", "-q", "-j", "1", "--invalidation-mode", "unchecked-hash"]


_PORTS = (9080, 9081, 9082, 9083, 9085, 9090)


@dataclass(frozen=True)
class Image:
    """An image of a release."""

    name: str
    user: str
    extras: tuple[str, ...]
    tools: bool
    program: str
    ports: tuple[int, ...]
    state: tuple[str, ...] = ()


IMAGES = (
    Image("pipecd-server", "pipecd", SERVER_EXTRAS, False, "pipecd", _PORTS, ("/var/lib/pipecd",)),
    Image("piped", "piped", PIPED_EXTRAS, True, "piped", (9085,)),
    Image("launcher", "piped", PIPED_EXTRAS, True, "launcher", (9085,)),
)  # fmt: skip


@dataclass(frozen=True)
class Layer:
    """A layer: the digest of the tar archive, and the archive compressed."""

    plain: str
    blob: bytes

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.blob).hexdigest()


def download_packages(directory: Path, architecture: str) -> None:
    """Downloads the packages of Debian, as they are today, with the signatures checked by apt."""
    if shutil.which("mmdebstrap") is None:
        sys.exit(
            "images are made of packages of Debian: install mmdebstrap, or use --without images"
        )
    mirror = os.environ.get("PIPECD_DEBIAN_MIRROR")
    directory.mkdir(parents=True, exist_ok=True)
    # The packages are wanted, not the tree that mmdebstrap makes of them.
    copy = f"cp \"$1\"/var/cache/apt/archives/*.deb '{directory}'"
    command = ["mmdebstrap", "--quiet", "--variant=extract", "--format=null"]
    command += [f"--architectures={architecture}", f"--include={','.join((*_BASE, *_TOOLS))}"]
    command += [f"--extract-hook={copy}", SUITE, "/dev/null", *([mirror] if mirror else [])]
    if subprocess.run(command, check=False).returncode:
        sys.exit(
            f"mmdebstrap cannot download the packages of Debian for {architecture}, for the reason "
            "above; another architecture than this machine's needs qemu-user-static, a mirror is "
            "PIPECD_DEBIAN_MIRROR; --debian-packages takes packages that you have"
        )


def build(
    source: Path, wheel: Path, output: Path, found: dict[str, list[Path]], *, epoch: int,
    architecture: str, debian: Path | None,
) -> None:  # fmt: skip
    """Writes an archive per image, which container engines load and registries accept."""
    version = f"v{wheel.name.split('-')[1]}"
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        if debian is None:
            debian = work / "debian"
            download_packages(debian, architecture)
        layers = _Layers(work, debian, ARCHITECTURES[architecture], epoch)
        for image in IMAGES:
            names = wheels.packages_of(source, image.extras)
            parts = [layers.base()]
            parts += [layers.tools()] if image.tools else []
            parts.append(layers.packages(wheels.select(found[PYTHON], names)))
            parts.append(layers.program(wheel, image.user))
            target = output / f"{image.name}_{version}_linux_{architecture}.tar"
            _write_archive(target, image, parts, version, epoch, architecture)


def packages_layer_name(chosen: list[Path]) -> str:
    """The name of the layer with these wheels; images with the same wheels share it."""
    names = "\n".join(sorted(wheel.name for wheel in chosen))
    return f"packages-{hashlib.sha256(names.encode()).hexdigest()[:16]}"


def run_of_image(command: list[str], environment: dict[str, str], machine: str) -> None:
    """Runs a program of an image; its exit code is for the caller to judge by the result."""
    try:
        subprocess.run(command, env=environment, check=False, stdout=subprocess.DEVNULL)
    except OSError as e:
        sys.exit(
            f"programs of images for {machine} cannot run on this machine ({e.strerror}): build "
            f"them on one with {machine}, install qemu-user-static, or use --without images"
        )


class _Layers:
    """Makes each layer once."""

    def __init__(self, work: Path, debian: Path, machine: str, epoch: int) -> None:
        self._work, self._debian, self._machine, self._epoch = work, debian, machine, epoch
        self._made: dict[str, Layer] = {}

    def base(self) -> Layer:
        if "base" not in self._made:
            root = self._directory("base")
            for package in _BASE:
                self._unpack(package, root)
            _make_base(root, _list_packages(self._debian, _BASE))
            self._compile(root / "usr" / "lib" / f"python{PYTHON}", "/usr/lib/python3.11")
            self._made["base"] = _layer(root, self._epoch)
        return self._made["base"]

    def tools(self) -> Layer:
        if "tools" not in self._made:
            root = self._directory("tools")
            for package in _TOOLS:
                self._unpack(package, root)
            _write(root / "usr/share/doc/pipecd/debian-tools", _list_packages(self._debian, _TOOLS))
            self._made["tools"] = _layer(root, self._epoch)
        return self._made["tools"]

    def packages(self, chosen: list[Path]) -> Layer:
        key = packages_layer_name(chosen)
        if key not in self._made:
            root = self._directory(key)
            for wheel in chosen:
                wheels.unpack(wheel, root / _SITE)
            self._compile(root / _SITE, f"/{_SITE}")
            self._made[key] = _layer(root, self._epoch)
        return self._made[key]

    def program(self, wheel: Path, user: str) -> Layer:
        key = f"program-{user}"
        if key not in self._made:
            root = self._directory(key)
            wheels.unpack(wheel, root / _SITE)
            self._compile(root / _SITE, f"/{_SITE}")
            entries = {program.name: program.entry for program in PROGRAMS}
            for name, entry in {**entries, "controlplane": entries["pipecd"]}.items():
                module, _, function = entry.partition(":")
                start = f"from {module} import {function}\n{function}()\n"
                text = f"#!/usr/bin/python{PYTHON} -sP\n{start}"
                _write(root / "usr/local/bin" / name, text, 0o755)
            home = f"/home/{user}"
            accounts = f"root:x:0:0:root:/root:/bin/sh\n{user}:x:{_USER}:{_GROUP}::{home}:/bin/sh\n"
            _write(root / "etc/passwd", f"{accounts}nobody:x:65534:65534:nobody:/:/bin/false\n")
            _write(root / "etc/group", f"root:x:0:\n{user}:x:{_GROUP}:\nnogroup:x:65534:\n")
            # Writable for the group root, which containers with any user id belong to on OpenShift.
            for name in (home, "/var/lib/pipecd"):
                _directory(root / name[1:], 0o775)
            self._made[key] = _layer(root, self._epoch)
        return self._made[key]

    def _directory(self, name: str) -> Path:
        directory = self._work / name
        directory.mkdir()
        directory.chmod(0o755)
        return directory

    def _unpack(self, package: str, root: Path) -> None:
        packed = _file_of(self._debian, package)
        content = subprocess.run(
            ["dpkg-deb", "--fsys-tarfile", str(packed)], check=True, stdout=subprocess.PIPE
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            for member in archive:
                member.name = member.name.removeprefix("./")
                if not _is_left_out(member.name):
                    # The content is signed by Debian; links are relative to the root of the image.
                    member.mode &= 0o755
                    archive.extract(member, root, set_attrs=True, filter=_as_it_is)

    def _compile(self, directory: Path, place: str) -> None:
        """Compiles modules with the Python of the image: its file system is read-only."""
        base = self._work / "base"
        library = base / "lib" / f"{self._machine}-linux-gnu"
        linker = next(library.glob("ld-linux-*.so.*"))
        libraries = f"{library}:{base / 'usr' / 'lib' / library.name}"
        python = [str(linker), "--library-path", libraries, str(base / "usr/bin/python3.11")]
        environment = {"PYTHONHOME": str(base / "usr"), "PYTHONHASHSEED": "0", "PATH": ""}
        # Modules that the compiler itself imports would be written with the path of this directory.
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        command = [*python, *_COMPILE, "-s", str(directory), "-p", place, str(directory)]
        # Templates and tests of other versions of Python do not compile, which is reported as 1.
        run_of_image(command, environment, self._machine)
        if not any(directory.rglob("*.pyc")):
            sys.exit(f"the modules of {place} cannot be compiled on this machine")


def _as_it_is(member: tarfile.TarInfo, _: str) -> tarfile.TarInfo:
    member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
    return member


def _is_left_out(name: str) -> bool:
    if name.startswith("usr/share/doc/"):
        return (
            not (name.endswith("/copyright") or name.count("/") <= 3) or "." in Path(name).name[1:]
        )
    return f"{name}/".startswith(_LEFT_OUT) or name.startswith(_LEFT_OUT)


def _file_of(debian: Path, package: str) -> Path:
    found = sorted(debian.glob(f"{package}_*.deb"))
    if len(found) != 1:
        sys.exit(f"{debian} must have the package {package} once, and has {len(found)} of it")
    return found[0]


def _list_packages(debian: Path, names: tuple[str, ...]) -> str:
    """The packages of a layer, as sha256sum prints them."""
    files = [_file_of(debian, name) for name in names]
    lines = (f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}" for file in files)
    return "".join(f"{line}\n" for line in lines)


def _make_base(root: Path, packages: str) -> None:
    """Adds what scripts of packages would make: links of programs, certificates, directories."""
    _write(root / "usr/share/doc/pipecd/debian-base", packages)
    for applet in _APPLETS:
        (root / "bin" / applet).symlink_to("busybox")
    for name in ("python3", "python"):
        (root / "usr/bin" / name).symlink_to(f"python{PYTHON}")
    (root / "usr/bin/env").symlink_to("/bin/busybox")
    authorities = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    bundle = "".join(file.read_text().rstrip() + "\n" for file in authorities)
    _write(root / "etc/ssl/certs/ca-certificates.crt", bundle)
    _write(root / "etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
    for name in ("dev", "proc", "sys", "run", "root", "var"):
        _directory(root / name, 0o755)
    _directory(root / "tmp", 0o1777)
    _directory(root / "var/tmp", 0o1777)


def _directory(path: Path, mode: int) -> None:
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def _layer(root: Path, epoch: int) -> Layer:
    """The layer of a directory; all belongs to root, but the directories of the program."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            name = str(path.relative_to(root))
            info = archive.gettarinfo(path, name)
            info.mtime, info.uname, info.gname = epoch, "", ""
            is_home = name.startswith(("home/", "var/lib/pipecd"))
            info.uid, info.gid = (_USER, 0) if is_home else (0, 0)
            if info.isdir() and not is_home and name not in ("tmp", "var/tmp"):
                info.mode = 0o755
            if info.isfile():
                with path.open("rb") as content:
                    archive.addfile(info, content)
            else:
                archive.addfile(info)
    return _compressed(plain.getvalue())


def _compressed(plain: bytes) -> Layer:
    packed = gzip.compress(plain, compresslevel=6, mtime=0)
    return Layer(hashlib.sha256(plain).hexdigest(), packed)


def _write_archive(
    target: Path, image: Image, layers: list[Layer], version: str, epoch: int, architecture: str
) -> None:
    """Writes an OCI layout, with the manifest that `docker load` of any age reads."""
    created = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    home = f"/home/{image.user}"
    path = "/usr/local/bin:/usr/bin:/bin"
    config: dict[str, Any] = {
        "created": created,
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": f"{_USER}:0",
            "WorkingDir": home,
            "Entrypoint": ["/usr/bin/tini", "--", image.program],
            "Env": [
                f"PATH={home}/.piped/tools:{path}" if image.tools else f"PATH={path}",
                f"HOME={home}", "LANG=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1",
                "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt",
            ],
            "ExposedPorts": {f"{port}/tcp": {} for port in image.ports},
            # With these, a read-only root file system needs no further settings, and volumes that
            # an engine creates belong to the user.
            "Volumes": {place: {} for place in ("/tmp", home, *image.state)},
            "StopSignal": "SIGTERM",
            "Labels": {
                "org.opencontainers.image.title": image.name,
                "org.opencontainers.image.version": version,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.plain}" for layer in layers]},
        "history": [{"created": created, "created_by": "make dist"} for _ in layers],
    }  # fmt: skip
    blobs = dict[str, bytes]()

    def add(content: bytes, kind: str) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        media = f"application/vnd.oci.image.{kind}"
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(content)}

    config_blob = add(json.dumps(config).encode(), "config.v1+json")
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config_blob,
        "layers": [add(layer.blob, "layer.v1.tar+gzip") for layer in layers],
    }
    # A name that no public registry has: nobody else can push an image of it.
    name = f"localhost/{image.name}:{version}"
    entry = add(json.dumps(manifest).encode(), "manifest.v1+json")
    entry["annotations"] = {
        "io.containerd.image.name": name,
        "org.opencontainers.image.ref.name": version,
    }
    entry["platform"] = {"architecture": architecture, "os": "linux"}
    files = dict[str, bytes]()
    files["oci-layout"] = b'{"imageLayoutVersion":"1.0.0"}'
    media = "application/vnd.oci.image.index.v1+json"
    index = {"schemaVersion": 2, "mediaType": media, "manifests": [entry]}
    files["index.json"] = json.dumps(index).encode()
    in_archive = [f"blobs/sha256/{layer.digest}" for layer in layers]
    config_file = f"blobs/sha256/{str(config_blob['digest']).removeprefix('sha256:')}"
    files["manifest.json"] = json.dumps(
        [{"Config": config_file, "RepoTags": [name], "Layers": in_archive}]
    ).encode()
    files |= {f"blobs/sha256/{digest}": content for digest, content in blobs.items()}
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        for info, content in _members(files, epoch):
            archive.addfile(info, io.BytesIO(content))


def _members(files: dict[str, bytes], epoch: int) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    for name, content in sorted(files.items()):
        info = tarfile.TarInfo(name)
        info.size, info.mtime, info.mode = len(content), epoch, 0o644
        yield info, content
