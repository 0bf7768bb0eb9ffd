"""Builds what would be published, installs it outside the repo, and uses it there."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import firstbad

ROOT = Path(__file__).resolve().parent.parent

FOLDERS = ("agent", "evals", "playbooks", "tools")
# Only the fault lab may need these; the base install has none of them.
OPTIONAL = {"accelerate", "datasets", "tensorboard", "torch", "transformers", "trl"}
TEST_TOOLS = {"build", "coverage", "hatchling", "hypothesis", "importlinter", "mypy", "pytest"}

IMPORT_ALL = """
import importlib, pkgutil, sys
import firstbad, firstbad_recorder
optional, test_tools = {optional!r}, {test_tools!r}
def needs_the_lab(name, error):
    return name.startswith("firstbad.evals.") and getattr(error, "name", "") in optional
def broken(name):
    if not needs_the_lab(name, sys.exc_info()[1]):
        raise
count = 0
for package in (firstbad, firstbad_recorder):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".", broken):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if not needs_the_lab(module.name, error):
                raise
        count += 1
assert not test_tools & set(sys.modules), test_tools & set(sys.modules)
print(count, firstbad.__file__, firstbad_recorder.__file__, sep="\\n")
"""


@dataclass(frozen=True)
class Built:
    """The archives of one distribution."""

    sdist: Path
    wheel: Path
    """Built from the source archive, as an installer does that finds no wheel."""
    wheel_of_tree: Path


def run(*command: str | Path, cwd: Path) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(
        command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(project: Path, out: Path) -> Built:
    command = (sys.executable, "-m", "build", "--no-isolation", project)
    run(*command, "--outdir", out / "both", cwd=out)
    run(*command, "--wheel", "--outdir", out / "tree", cwd=out)
    (sdist,) = out.glob("both/*.tar.gz")
    (wheel,) = out.glob("both/*.whl")
    (wheel_of_tree,) = out.glob("tree/*.whl")
    return Built(sdist, wheel, wheel_of_tree)


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(ROOT, tmp_path_factory.mktemp("product"))


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(ROOT / "recorder", tmp_path_factory.mktemp("recorder"))


@pytest.fixture(scope="module")
def installed(product: Built, recorder: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of programs of a new environment that holds both wheels.

    Third-party packages are those of the environment that runs the tests. A .pth file in it is not
    followed from there, so the editable install stays out.
    """
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, with_pip=False)
    programs = folder / "bin"
    pip = (
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--python",
        programs / "python",
    )
    run(*pip, "install", "--no-deps", "--no-index", product.wheel, recorder.wheel, cwd=folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "third_party.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return programs


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def sources(folder: Path, prefix: str) -> set[str]:
    """Every file of a package folder, under the name it has in the wheel."""
    return {
        f"{prefix}/{path.relative_to(folder).as_posix()}"
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }


def test_wheel_holds_every_file_of_every_folder(product: Built) -> None:
    expected = {"firstbad/__init__.py", "firstbad/py.typed"}
    for folder in FOLDERS:
        expected |= sources(ROOT / folder, f"firstbad/{folder}")
    packed = names(product.wheel)
    assert {name for name in packed if ".dist-info/" not in name} == expected
    assert names(product.wheel_of_tree) == packed


def test_source_archive_leaves_the_links_out(product: Built) -> None:
    with tarfile.open(product.sdist) as archive:
        members = archive.getmembers()
    assert not [member.name for member in members if member.issym()]
    inside = {member.name.partition("/")[2] for member in members}
    assert {name for name in inside if name.startswith("src/")} == {
        "src/firstbad/__init__.py",
        "src/firstbad/py.typed",
    }
    # All else is there, so that its tests run and its pages show their pictures.
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    tracked = set(listed.stdout.splitlines()) or {"README.md", "docs/images/memo.png", ".ci/run"}
    assert not {name for name in tracked - inside if not name.startswith("src/")}


def test_recorder_wheel_holds_every_file(recorder: Built) -> None:
    folder = ROOT / "recorder" / "src" / "firstbad_recorder"
    packed = names(recorder.wheel)
    assert {n for n in packed if ".dist-info/" not in n} == sources(folder, "firstbad_recorder")
    assert names(recorder.wheel_of_tree) == packed


@pytest.mark.parametrize("which", ["product", "recorder"])
def test_metadata(which: str, request: pytest.FixtureRequest) -> None:
    built: Built = request.getfixturevalue(which)
    with zipfile.ZipFile(built.wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
        terms = archive.read(name.replace("METADATA", "licenses/LICENSE"))
    assert "License-Expression: Apache-2.0" in metadata
    assert terms == (ROOT / "LICENSE").read_bytes()
    needs = [line for line in metadata.splitlines() if line.startswith("Requires-Dist:")]
    base = [line for line in needs if "extra ==" not in line]
    assert not [line for line in base if "torch" in line]
    if which == "recorder":
        assert not needs


def test_every_module_imports_from_the_installed_wheels(installed: Path, tmp_path: Path) -> None:
    code = IMPORT_ALL.format(optional=OPTIONAL, test_tools=TEST_TOOLS)
    count, *files = run(installed / "python", "-I", "-c", code, cwd=tmp_path).split("\n")[:3]
    assert int(count) > 10
    assert all(Path(file).is_relative_to(installed.parent) for file in files)


def test_installed_program_tells_its_version(installed: Path, tmp_path: Path) -> None:
    assert firstbad.__version__ in run(installed / "firstbad", "--version", cwd=tmp_path)


def test_installed_program_runs_the_demo(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "firstbad", "demo", cwd=tmp_path).strip()
