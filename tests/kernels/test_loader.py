"""Compiling and caching kernels, with a compiler that only pretends; no GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llmrs_cli.config import directories
from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels import loader
from llmrs_cli.kernels.loader import Cubin, CubinCache, Loader, Unit, arch_for, options_for, spliced, unit_key

UNIT = Unit("rms_norm", (("BF16", 1),))


class Compiler:
    """Counts compilations; the code names its unit and architecture."""

    def __init__(self) -> None:
        self.compiled: list[Unit] = []

    def __call__(self, unit: Unit, arch: str) -> Cubin:
        self.compiled.append(unit)
        return Cubin(f"{unit} for {arch}".encode())


def make(folder: Path, compiler: Compiler, version: str = "13.0", arch: str = "sm_90a") -> Loader:
    return Loader(arch, CubinCache(folder), compiler, lambda: version)


def test_headers_are_spliced_in_once() -> None:
    text = spliced("attend_decode")
    assert '#include "' not in text
    assert len(re.findall(r"^typedef unsigned short u16;", text, re.MULTILINE)) == 1
    assert text.index("typedef unsigned short u16;") < text.index("attend_decode(")


def test_sources_need_no_foreign_headers() -> None:
    for source in loader.SOURCES.glob("*.cu*"):
        assert not re.search(r"#include\s*<", source.read_text()), source.name


def test_macros_become_options() -> None:
    options = options_for(Unit("embed", (("BF16", 0), ("HEAD_DIM", 64))), "sm_80")
    assert options[0] == "-arch=sm_80"
    assert options[-2:] == ("-DBF16=0", "-DHEAD_DIM=64")


@pytest.mark.parametrize(
    ("capability", "arch"),
    [
        ((8, 0), "sm_80"),
        ((8, 6), "sm_86"),
        ((8, 7), "sm_86"),
        ((8, 9), "sm_89"),
        ((9, 0), "sm_90a"),
        ((10, 3), "sm_100"),
        ((12, 1), "sm_120"),
    ],
)
def test_a_card_gets_the_nearest_architecture(capability: tuple[int, int], arch: str) -> None:
    assert arch_for(*capability) == arch


@pytest.mark.parametrize("capability", [(7, 5), (6, 1)])
def test_an_old_card_is_refused_with_what_to_do(capability: tuple[int, int]) -> None:
    with pytest.raises(EngineFault, match=r"needs 8\.0 .* --device cpu"):
        arch_for(*capability)


def test_an_unknown_card_is_refused() -> None:
    with pytest.raises(EngineFault, match=r"11\.0, which llmrs does not know"):
        arch_for(11, 0)


def test_a_kernel_compiles_once(tmp_path: Path) -> None:
    compiler = Compiler()
    first = make(tmp_path / "c", compiler).load(UNIT)
    assert make(tmp_path / "c", compiler).load(UNIT) == first
    assert compiler.compiled == [UNIT]


def test_the_key_covers_all_that_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    key = unit_key(UNIT, "sm_90a", "13.0")
    assert unit_key(UNIT, "sm_80", "13.0") != key
    assert unit_key(UNIT, "sm_90a", "13.1") != key
    assert unit_key(Unit("rms_norm", (("BF16", 0),)), "sm_90a", "13.0") != key
    source = spliced("rms_norm")
    monkeypatch.setattr(loader, "spliced", lambda stem: source + "\n")
    assert unit_key(UNIT, "sm_90a", "13.0") != key


def test_a_damaged_cubin_is_compiled_again(tmp_path: Path) -> None:
    compiler = Compiler()
    folder = tmp_path / "c"
    code = make(folder, compiler).load(UNIT)
    (file,) = folder.iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    assert make(folder, compiler).load(UNIT) == code
    assert len(compiler.compiled) == 2
    assert make(folder, compiler).load(UNIT) == code
    assert len(compiler.compiled) == 2


def test_the_folder_is_ours_alone(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "c"
    CubinCache(folder)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_an_open_folder_is_not_trusted(tmp_path: Path) -> None:
    compiler = Compiler()
    folder = tmp_path / "c"
    make(folder, compiler).load(UNIT)
    folder.chmod(0o755)
    cache = CubinCache(folder)
    assert cache.notice is not None
    assert "open to other users" in cache.notice
    Loader("sm_90a", cache, compiler, lambda: "13.0").load(UNIT)
    assert len(compiler.compiled) == 2


def test_a_folder_that_cannot_be_made_only_costs_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = CubinCache(tmp_path / "file" / "c")
    assert cache.notice is not None
    cache.put("key", b"code")
    assert cache.get("key") is None


def test_no_half_written_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = CubinCache(tmp_path / "c")

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    cache.put("key", b"code")
    assert list((tmp_path / "c").iterdir()) == []
    assert cache.notice is not None
    assert "No space left" in cache.notice


def test_building_ahead_compiles_what_is_missing_and_reports(tmp_path: Path) -> None:
    compiler = Compiler()
    units = [Unit("embed", (("BF16", 1),)), Unit("embed", (("BF16", 0),)), UNIT]
    work = make(tmp_path / "c", compiler)
    work.load(UNIT)
    assert work.missing(units) == units[:2]
    seen: list[tuple[int, int]] = []
    work.build(units, lambda done, total: seen.append((done, total)), workers=2)
    assert seen == [(1, 2), (2, 2)]
    assert work.missing(units) == []
    work.build(units, lambda done, total: seen.append((done, total)))
    assert len(seen) == 2


def test_a_source_that_does_not_compile_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")
    monkeypatch.setattr(loader, "spliced", lambda stem: "int broken(\n;")
    with pytest.raises(EngineFault, match=r"rms_norm BF16=1 does not compile for sm_80: rms_norm\.cu\(2\)"):
        loader.compile_unit(UNIT, "sm_80")


def test_the_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LLMRS_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert loader.default_cache() == tmp_path / "llmrs" / "kernels"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert loader.default_cache() == tmp_path / ".cache" / "llmrs" / "kernels"
    monkeypatch.setenv("LLMRS_CACHE_DIR", str(tmp_path / "own"))
    assert loader.default_cache() == tmp_path / "own" / "kernels"


@pytest.mark.parametrize(
    "env",
    [
        {"LLMRS_CACHE_DIR": "~/c"},
        {"LLMRS_CACHE_DIR": "c"},
        {"XDG_CACHE_HOME": "relative"},
        {"XDG_CACHE_HOME": "/x", "LLMRS_CACHE_DIR": ""},
        {},
    ],
)
def test_the_cache_is_where_the_settings_say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, env: dict[str, str]
) -> None:
    for name in ("LLMRS_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": str(tmp_path), **env}.items():
        monkeypatch.setenv(name, value)
    assert loader.default_cache() == directories().cache / "kernels"
