"""A converted checkpoint holds the numbers of its source, is keyed by it, and is used whole or refused by name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from llmrs_cli.engine.backends.reference import ReferenceBackend
from llmrs_cli.engine.forced import load
from llmrs_cli.engine.verify import forced_logits
from llmrs_cli.engine.weights import manifest as manifests
from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from llmrs_cli.engine.weights.convert import check_converted, check_convertible, convert, key_of
from llmrs_cli.engine.weights.folder import lock_folder, new_folder
from llmrs_cli.engine.weights.load import load_model
from llmrs_cli.engine.weights.manifest import StoredWeight, read_manifest
from llmrs_cli.engine.weights.packed import Stored, Tiles4, Weight, canonical
from llmrs_cli.engine.weights.pieces import from_pieces, to_pieces
from llmrs_cli.errors import LlmrsError, ModelError
from tests.helpers.canonical import dense, packed4, packed8, permuted4
from tests.helpers.tiny_model import TinyModel, write_tiny

IDS = (5, 9, 200, 31, 7)
AWQ = TinyModel("qwen2", awq=True, layers=1)


def converted(source: Path, target: Path) -> Path:
    with lock_folder(target), new_folder(target) as part:
        list(convert(open_checkpoint(source), "name", part))
    return target


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("source") / "m", AWQ)


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return converted(source, tmp_path_factory.mktemp("whole") / "c")


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    """To be damaged."""
    return shutil.copytree(whole, tmp_path / "copy")


# -- the numbers ----------------------------------------------------------------------------------------


@given(
    rows=st.integers(1, 70),
    columns=st.integers(1, 300),
    group=st.sampled_from([8, 32, 64, 96, 128, 10**6]),
    form=st.sampled_from(["packed4", "offsets", "wide", "permuted4", "packed8", "dense"]),
)
def test_any_weight_comes_back_as_it_was(rows: int, columns: int, group: int, form: str) -> None:
    rng = np.random.default_rng(rows)
    group = min(group, columns)
    if form == "packed8":
        weight: Weight = packed8(rng, rows, columns, group)
    elif form == "dense":
        weight = dense(rng, rows, columns, 1, "bfloat16")
    elif form == "permuted4":
        weight = permuted4(rng, rows, columns, group)
    else:
        weight = packed4(rng, rows, columns, group, offsets=form == "offsets")
        if form == "wide":
            object.__setattr__(weight, "scales", weight.scales.astype(np.float32))
    kind, stored_group, pieces = to_pieces(weight)
    found = canonical(from_pieces(StoredWeight(weight.shape, "", kind, stored_group, {}), pieces))
    assert type(found) is type(weight)
    np.testing.assert_array_equal(found.dequantise(), weight.dequantise())
    fits = group in (32, 64, 96, 128) or group == columns
    assert (kind == "tiles") == (fits and form in ("packed4", "permuted4"))


def test_a_converted_checkpoint_computes_exactly_what_its_source_does(source: Path, whole: Path) -> None:
    ours, right = (
        forced_logits(load(open_checkpoint(path), ReferenceBackend()), IDS, 1) for path in (whole, source)
    )
    np.testing.assert_array_equal(ours, right)


def test_it_says_what_it_is_and_keeps_tokenizer_template_and_configuration(source: Path, whole: Path) -> None:
    found, right = open_checkpoint(whole), open_checkpoint(source)
    assert (found.converted_from, right.converted_from) == ("name", None)
    assert found.spec == right.spec
    assert found.tokenizer_json == right.tokenizer_json
    assert (found.chat_template, found.generation) == (right.chat_template, right.generation)
    forms = {parameter.form for parameter in found.parameters.values()}
    assert forms == {"float16", "4-bit AWQ, group 64, in tiles"}
    assert found.identity != right.identity


def test_the_key_changes_with_the_source_and_with_the_order_of_the_tiles(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = key_of(open_checkpoint(source))
    assert key == key_of(open_checkpoint(source))
    assert key != key_of(open_checkpoint(write_tiny(tmp_path / "other", AWQ)))
    monkeypatch.setattr("llmrs_cli.engine.weights.convert.LAYOUT", 99)
    assert key != key_of(open_checkpoint(source))


def test_models_without_4_bit_layers_or_that_are_converted_are_refused(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no 4-bit layers") as caught:
        check_convertible(open_checkpoint(write_tiny(tmp_path / "m")))
    assert "llmrs quantize" in str(caught.value.hint)
    with pytest.raises(ModelError, match="is converted already"):
        check_convertible(open_checkpoint(whole))


def test_layers_that_fit_no_tile_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "m", TinyModel(awq=True, layers=1, group=16))
    with pytest.raises(ModelError, match="do not fit into the kernels' tiles") as caught:
        converted(source, tmp_path / "c")
    assert "runs as it is" in str(caught.value.hint)
    assert not (tmp_path / "c").exists()


def test_what_is_read_back_wrongly_is_never_put_in_place(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(stored: StoredWeight, pieces: Any) -> Stored:
        weight = from_pieces(stored, pieces)
        if isinstance(weight, Tiles4):
            weight.tiles[0, 0, 0] ^= 16
        return weight

    monkeypatch.setattr("llmrs_cli.engine.weights.pieces.from_pieces", wrong)
    with pytest.raises(LlmrsError, match="was not written as it should be"):
        converted(source, tmp_path / "c")
    assert not (tmp_path / "c").exists()


# -- damage ---------------------------------------------------------------------------------------------


def use(folder: Path) -> None:
    load_model(open_checkpoint(folder), ReferenceBackend())


def test_every_changed_byte_of_any_file_is_found(copy: Path) -> None:
    """One bit, at several places of each file: in headers, weights, tokenizer, configuration, manifest."""
    rng = np.random.default_rng(0)
    for path in sorted(copy.rglob("*")):
        data = path.read_bytes()
        for place in {0, len(data) - 1, *(int(n) for n in rng.integers(0, len(data), 4))}:
            changed = bytearray(data)
            changed[place] ^= 1 << int(rng.integers(8))
            path.write_bytes(changed)
            with pytest.raises(ModelError):
                use(copy)
        path.write_bytes(data)
    use(copy)


@pytest.mark.parametrize("length", [0, 10, -2])
def test_every_file_that_is_cut_or_gone_is_found(copy: Path, length: int) -> None:
    for path in sorted(copy.rglob("*")):
        data = path.read_bytes()
        path.write_bytes(data[:length])
        with pytest.raises(ModelError):
            use(copy)
        path.unlink()
        if path.name != manifests.MANIFEST:
            with pytest.raises(ModelError):
                use(copy)
        path.write_bytes(data)


def test_the_damaged_weight_is_named(copy: Path) -> None:
    path = copy / "layer-0000.safetensors"
    data = bytearray(path.read_bytes())
    tensors = load_file(path)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    name = "model.layers.0.mlp.up_proj.weight.tiles"
    assert name in tensors
    data[8 + int.from_bytes(data[:8], "little") + header[name]["data_offsets"][0]] ^= 1
    path.write_bytes(data)
    with pytest.raises(ModelError, match=r"mlp\.up_proj\.weight' in .* is not what was written") as caught:
        use(copy)
    assert caught.value.hint == "Convert the model again."


def damaged_under_its_stamp(folder: Path) -> None:
    """A bit of a weight turned by the disk: no time of the file's changes."""
    path = folder / "layer-0000.safetensors"
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(before.st_size // 2)
        byte = file.read(1)[0]
        file.seek(before.st_size // 2)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_what_was_proved_is_not_summed_again_until_it_is_moved_or_told_to(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy where it was written loads as its source does; elsewhere, damage of the way is found."""
    own = converted(source, tmp_path / "own")
    check_converted(own)
    with monkeypatch.context() as patch:
        patch.setattr("llmrs_cli.engine.weights.pieces.digest", lambda values: pytest.fail("summed again"))
        use(own)
    damaged_under_its_stamp(own)
    with pytest.raises(ModelError, match="is not what was written"):
        check_converted(own)
    with pytest.raises(ModelError, match="is not what was written"):
        use(shutil.copytree(own, tmp_path / "moved"))


def test_only_a_converted_checkpoint_can_be_checked(source: Path) -> None:
    with pytest.raises(ModelError, match="is no converted checkpoint"):
        check_converted(source)


def test_a_copy_for_another_version_says_so(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "LAYOUT", 99)
    with pytest.raises(ModelError, match="for another version of llmrs"):
        open_checkpoint(copy)


def forged(folder: Path, change: Any) -> None:
    """A manifest that was changed by somebody who seals it again."""
    path = folder / manifests.MANIFEST
    values = json.loads(path.read_text())
    del values["seal"]
    change(values)
    path.write_text(json.dumps(values | {"seal": manifests._seal(values)}))


UP = "model.layers.0.mlp.up_proj.weight"


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v.pop("weights"),
        lambda v: v.update(weights=[1]),
        lambda v: v.update(source="x"),
        lambda v: v["weights"][UP].update(shape=[1, 2, 3]),
        lambda v: v["weights"][UP].update(shape=[-4, 4]),
        lambda v: v["weights"][UP].update(shape="x"),
        lambda v: v["weights"][UP].update(group=0),
        lambda v: v["weights"][UP].update(group=3),
        lambda v: v["weights"][UP].update(kind="dense"),
        lambda v: v["weights"][UP].update(kind="packed4"),
        lambda v: v["weights"][UP].update(kind="magic"),
        lambda v: v["weights"][UP].update(pieces={}),
        lambda v: v["weights"][UP]["pieces"].update(inputs={"file": "rest.safetensors", "digest": ""}),
        lambda v: v["weights"][UP]["pieces"]["tiles"].update(file="../x.safetensors"),
        lambda v: v["weights"].pop(UP),
        lambda v: v["files"].update({"../../etc/passwd": ""}),
        lambda v: v["stamps"].update({"rest.safetensors": [1]}),
        lambda v: v["stamps"].update({"rest.safetensors": [1, 2, "x"]}),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused_without_a_crash(copy: Path, change: Any) -> None:
    forged(copy, change)
    with pytest.raises(ModelError):
        use(copy)


# -- faults while writing ---------------------------------------------------------------------------------


def failing_calls(owner: Any, call: str) -> Iterator[tuple[int, Any]]:
    real = getattr(owner, call)
    for k in range(60):
        seen = 0

        def fail(*arguments: Any, k: int = k, **named: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == k + 1:
                raise OSError(28, "No space left on device")
            return real(*arguments, **named)

        yield k, fail
        if seen <= k:
            assert k > 0
            return
    raise AssertionError("it never ended without a failure")


@pytest.mark.parametrize(
    ("owner", "call"),
    [(os, "pwrite"), (os, "fsync"), (os, "rename"), (Path, "write_text"), (shutil, "copyfile")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_k_th_failure_of_the_disk_leaves_nothing_and_the_next_run_completes(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, call: str
) -> None:
    for k, fail in failing_calls(owner, call):
        target = tmp_path / f"c{k}"
        with monkeypatch.context() as patch:
            patch.setattr(owner, call, fail)
            try:
                converted(source, target)
            except (OSError, LlmrsError):
                assert list(tmp_path.iterdir()) == []
        if not target.exists():
            converted(source, target)
        assert read_manifest(target) is not None
        shutil.rmtree(target)


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.weights.test_convert import POINTS, converted
source, folder = Path(sys.argv[2]), Path(sys.argv[3])

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def run(point, k):
    call, when = point.split()
    calls, real = 0, getattr(os, call)
    def patched(*arguments):
        nonlocal calls
        calls += 1
        if calls < k:
            return real(*arguments)
        if when == "half":
            real(arguments[0], arguments[1][: len(arguments[1]) // 2], arguments[2])
        elif when == "after":
            real(*arguments)
        die()
    setattr(os, call, patched)
    converted(source, folder / f"{call}-{when}-{k}" / "c")

for point in POINTS:
    for k in range(1, 200):
        (folder / f"{point.replace(' ', '-')}-{k}").mkdir()
        child = os.fork()
        if not child:
            run(point, k)
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            break
"""
POINTS = ("pwrite before", "pwrite half", "fsync before", "rename before", "rename after")
"""Calls of the system, and when a conversion is killed: at the first one, at the second … until there is none."""


def test_whenever_it_is_killed_there_is_a_whole_copy_or_none_and_the_next_run_completes(
    source: Path, tmp_path: Path
) -> None:
    root = str(Path(__file__).parents[2])
    subprocess.run([sys.executable, "-c", KILLED, root, str(source), str(tmp_path)], check=True)
    killed = {point: len(list(tmp_path.glob(point.replace(" ", "-") + "-*"))) - 1 for point in POINTS}
    files = len(open_checkpoint(source).parameters)
    assert killed["pwrite before"] == killed["pwrite half"] > files
    assert killed["fsync before"] > 3 and killed["rename before"] == killed["rename after"] == 1
    for folder in tmp_path.iterdir():
        point, _, k = folder.name.rpartition("-")
        there, done = (folder / "c").exists(), int(k) > killed[point.replace("-", " ")]
        renamed = done or point == "rename-after"
        assert there == renamed or point == "fsync-before", (
            folder.name
        )  # the last of them follows the renaming
        check_converted(folder / "c" if there else converted(source, folder / "c"))
        left = {path.name for path in folder.iterdir()}
        assert left <= {"c", ".c.lock"} if there else left == {"c"}, folder.name


def test_two_processes_at_once_make_one_whole_copy(source: Path, tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.weights.test_convert import converted
try:
    converted(Path(sys.argv[2]), Path(sys.argv[3]))
except Exception as error:
    print(error)
"""
    arguments = (str(Path(__file__).parents[2]), str(source), str(tmp_path / "c"))
    command = [sys.executable, "-c", script, *arguments]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    said = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert sorted(bool(text) for text in said) == [False, True]  # the second finds the place taken
    use(tmp_path / "c")


def test_a_tensor_more_in_a_file_changes_nothing(copy: Path) -> None:
    path = copy / "rest.safetensors"
    save_file(load_file(path) | {"more": np.ones(1, np.float32)}, path)
    use(copy)
