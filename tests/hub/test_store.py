"""From a name to files: what is fetched, what is asked, and what happens without the network.

Longer than most files: it is a list of situations, each against the same small repository.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from llmrs_cli.errors import AccessError, DoesNotFitError, LlmrsError, ModelError, NetworkError, UsageError
from llmrs_cli.hub.access import HubAccess
from llmrs_cli.hub.download import Transfer
from llmrs_cli.hub.listing import RepoFile
from llmrs_cli.hub.names import parse_model, pinned
from llmrs_cli.hub.store import locate, preview
from tests.helpers.fake_hub import FakeHub, FakeRepo, Fault, fake_hub
from tests.helpers.told import Told
from tests.hub.conftest import WEIGHTS, Locate

CHECKPOINTS = Path(__file__).parents[1] / "data" / "golden" / "checkpoints"
DOWN = "http://127.0.0.1:9"
LISTING = "/api/models/a/b/revision/main"
ASK = ["/api/models/a/b", LISTING]
"""What is asked before anything is fetched: whether the Hub is there, and what it has."""


def asked(hub: FakeHub) -> list[str]:
    return [seen.path for seen in hub.seen + hub.stored]


def test_the_needed_files_arrive_and_no_others(find: Locate, small: FakeRepo, told: Told) -> None:
    with fake_hub({"a/b": small}) as hub:
        found = find(hub)
    assert sorted(path.name for path in found.path.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert (found.path / "model.safetensors").read_bytes() == WEIGHTS
    assert found.commit == small.commit
    assert told.notices == [f"Fetching 'a/b' at commit {small.commit[:12]}, 102 kB."]
    assert told.counts[-1] == (len(WEIGHTS), len(WEIGHTS))


def test_a_sharded_checkpoint_arrives_whole(find: Locate) -> None:
    folder = CHECKPOINTS / "tiny-qwen2-sharded-v4"
    with fake_hub({"a/b": folder}) as hub:
        found = find(hub)
    for path in folder.glob("*.safetensors"):
        assert (found.path / path.name).read_bytes() == path.read_bytes()


def test_two_requests_say_that_everything_is_here_already(find: Locate, small: FakeRepo) -> None:
    with fake_hub({"a/b": small}) as hub:
        first = find(hub)
        hub.seen.clear()
        hub.stored.clear()
        assert find(hub) == first
        assert asked(hub) == ASK


def test_an_alias_fetches_its_repository(find: Locate, small: FakeRepo) -> None:
    with fake_hub({"Qwen/Qwen2.5-0.5B-Instruct": small}) as hub:
        assert find(hub, "qwen2.5-0.5b").commit == small.commit


def test_a_folder_and_a_file_are_themselves(tmp_path: Path, told: Told) -> None:
    access = HubAccess(hub=tmp_path / "hub", cache=tmp_path / "cache", endpoint=DOWN)
    (tmp_path / "x.gguf").touch()
    for path in (tmp_path, tmp_path / "x.gguf"):
        assert locate(parse_model(str(path)), access, told).path == path


def test_a_moved_branch_is_followed_and_fetches_only_what_changed(find: Locate, small: FakeRepo) -> None:
    with fake_hub({"a/b": small}) as hub:
        find(hub)
        moved = FakeRepo({**small.files, "config.json": b'{"model_type": "qwen2"}'})
        hub.repos["a/b"] = moved
        hub.seen.clear()
        hub.stored.clear()
        found = find(hub)
        assert found.commit == moved.commit != small.commit
        assert (found.path / "config.json").read_bytes() == b'{"model_type": "qwen2"}'
        assert asked(hub)[2:] == [f"/a/b/resolve/{moved.commit}/config.json"] * 2, "its state and its content"


def test_a_pinned_revision_is_fetched_and_kept_apart(find: Locate, small: FakeRepo) -> None:
    old = "1" * 40
    with fake_hub({"a/b": replace(small, tags={"v1": old, old: old})}) as hub:
        assert find(hub, "a/b@v1").commit == old
        assert find(hub, "a/b").commit == small.commit
        assert find(hub, "a/b@v1", offline=True).commit == old
        assert find(hub, f"a/b@{old}", offline=True).commit == old


def test_a_revision_that_is_not_there_is_named(find: Locate, small: FakeRepo) -> None:
    with fake_hub({"a/b": small}) as hub, pytest.raises(ModelError, match="has no revision 'v9'"):
        find(hub, "a/b@v9")


def test_the_revision_flag_pins_a_repository_only() -> None:
    assert pinned(parse_model("a/b"), "v1").revision == "v1"
    assert pinned(parse_model("a/b@v1"), "v1").revision == "v1"
    assert pinned(parse_model("smollm2-135m"), None).revision is None
    for text, revision in (("smollm2-135m", "v1"), ("a/b@v1", "v2"), ("a/b", "../x")):
        with pytest.raises(UsageError):
            pinned(parse_model(text), revision)


# -- without the network ------------------------------------------------------------------------------


def test_a_cached_model_starts_with_a_warning_when_the_hub_is_down(
    find: Locate, small: FakeRepo, told: Told
) -> None:
    with fake_hub({"a/b": small}) as hub:
        first = find(hub)
        hub.endpoint = DOWN
        assert find(hub) == first
    (warning,) = told.warnings
    assert warning.startswith("Cannot reach '127.0.0.1:9': it refuses connections. Starting from the cache")
    assert small.commit[:12] in warning


def test_offline_starts_from_the_cache_without_asking_or_warning(
    find: Locate, small: FakeRepo, told: Told
) -> None:
    with fake_hub({"a/b": small}) as hub:
        first = find(hub)
        before = asked(hub)
        assert find(hub, offline=True) == first
        assert asked(hub) == before and told.warnings == []


def test_offline_and_missing_says_what_to_type(find: Locate, small: FakeRepo) -> None:
    with fake_hub({"a/b": small}) as hub:
        with pytest.raises(NetworkError) as caught:
            find(hub, offline=True)
        assert "--offline" in (caught.value.hint or "")
        assert asked(hub) == []


def test_down_and_missing_is_a_network_error(find: Locate) -> None:
    with fake_hub({}) as hub:
        hub.endpoint = DOWN
        with pytest.raises(NetworkError, match="refuses connections"):
            find(hub)


def test_a_hub_that_does_not_answer_in_time_counts_as_unreachable(
    find: Locate, small: FakeRepo, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_hub({"a/b": small}) as hub:
        find(hub)
        monkeypatch.setattr("llmrs_cli.hub.reach.DEADLINE", 0.05)
        hub.fail("/api/models", Fault(wait=60))
        find(hub)
    assert "no answer within 0.05 s" in told.warnings[0]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_hub_out_of_order_starts_what_is_cached_at_once(
    find: Locate, small: FakeRepo, told: Told, status: int
) -> None:
    with fake_hub({"a/b": small}) as hub:
        first = find(hub)
        hub.fail(LISTING, Fault(status=status))
        assert find(hub) == first
    assert len(told.warnings) == 1


@pytest.mark.parametrize("status", [429, 500])
def test_a_hub_out_of_order_is_asked_again_while_nothing_is_cached(
    find: Locate, small: FakeRepo, status: int
) -> None:
    with fake_hub({"a/b": small}) as hub:
        hub.fail(LISTING, Fault(status=status), Fault(status=status))
        assert find(hub).commit == small.commit
        hub.fail("c/d/revision", *[Fault(status=status)] * 10)
        with pytest.raises(NetworkError):
            find(hub, "c/d")
        assert len([path for path in asked(hub) if "c/d/revision" in path]) == 5


def test_a_snapshot_that_lacks_a_shard_does_not_start_offline(find: Locate) -> None:
    with fake_hub({"a/b": CHECKPOINTS / "tiny-qwen2-sharded-v4"}) as hub:
        found = find(hub)
        (found.path / "model-00002-of-00003.safetensors").unlink()
        with pytest.raises(NetworkError, match="or not all of it"):
            find(hub, offline=True)
        assert find(hub) == found, "online it is completed"


def test_a_listing_that_is_cut_is_a_network_error(find: Locate, small: FakeRepo) -> None:
    with fake_hub({"a/b": small}) as hub:
        chunked = {"Transfer-Encoding": "chunked"}
        hub.fail(LISTING, *[Fault(status=200, headers=chunked, body=b"ff\r\n{")] * 5)
        with pytest.raises(NetworkError, match="answer was cut"):
            find(hub)


@pytest.mark.parametrize(
    "body", [b"<html>log in</html>", b"[]", b"{}", b'{"sha": "x", "siblings": []}', b"[" * 100_000, b"\xff"]
)
def test_a_page_in_place_of_the_listing_is_a_network_error(
    find: Locate, small: FakeRepo, told: Told, body: bytes
) -> None:
    with fake_hub({"a/b": small}) as hub:
        hub.fail(LISTING, Fault(body=body))
        with pytest.raises(NetworkError, match="is not a Hub's") as caught:
            find(hub)
        assert "proxy" in (caught.value.hint or "")


# -- refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gate", "token", "said", "next_step"),
    [
        ("", "", "is gated, and no token was given", "put a token"),
        ("licence", "hf_good", "The licence of 'a/b' has not been accepted", "Accept it at"),
        ("pending", "hf_good", "Your request for access to 'a/b' is pending", "is shown at"),
        ("rejected", "hf_good", "was rejected", "See"),
    ],
)
def test_a_gated_repository_says_which_of_the_reasons_it_is(
    find: Locate, small: FakeRepo, gate: str, token: str, said: str, next_step: str
) -> None:
    with (
        fake_hub({"a/b": replace(small, gate=gate)}, tokens=frozenset({"hf_good"})) as hub,
        pytest.raises(AccessError) as caught,
    ):
        find(hub, token=token)
    assert said in caught.value.message
    assert next_step in str(caught.value) and f"{hub.endpoint}/a/b" in str(caught.value)
    assert "hf_good" not in str(caught.value)


def test_a_token_whose_account_has_accepted_reads_a_gated_repository(find: Locate, small: FakeRepo) -> None:
    with fake_hub({"a/b": replace(small, gate="")}, tokens=frozenset({"hf_good"})) as hub:
        assert find(hub, token="hf_good").commit == small.commit


def test_a_token_that_the_hub_does_not_know_is_an_access_error(find: Locate, small: FakeRepo) -> None:
    with (
        fake_hub({"a/b": small}) as hub,
        pytest.raises(AccessError, match="does not know the token") as caught,
    ):
        find(hub, token="hf_stale")
    assert "hf_stale" not in str(caught.value) + repr(caught.value)


@pytest.mark.parametrize("token", ["", "hf_good"])
def test_a_repository_that_is_not_there_is_named_with_the_nearest_alias(find: Locate, token: str) -> None:
    with (
        fake_hub({}, tokens=frozenset({"hf_good"})) as hub,
        pytest.raises(ModelError, match="has no repository 'Qwen/Qwen2.5-3B'") as caught,
    ):
        find(hub, "Qwen/Qwen2.5-3B", token=token)
    assert "Did you mean 'qwen2.5-3b'?" in (caught.value.hint or "")
    assert ("HF_TOKEN" in (caught.value.hint or "")) == (not token)


def test_an_alias_whose_repository_has_gone_does_not_suggest_itself(find: Locate) -> None:
    with fake_hub({}) as hub, pytest.raises(ModelError) as caught:
        find(hub, "qwen2.5-3b")
    assert "Did you mean" not in str(caught.value)


def test_a_refusal_is_never_taken_for_offline(find: Locate, small: FakeRepo, told: Told) -> None:
    with fake_hub({"a/b": small}) as hub:
        find(hub)
        del hub.repos["a/b"]
        with pytest.raises(ModelError) as caught:
            find(hub)
        assert "The copy in the cache starts with --offline." in (caught.value.hint or "")
        assert told.warnings == []


# -- tokens -------------------------------------------------------------------------------------------


def test_the_token_goes_to_the_endpoint_and_to_no_other_host(find: Locate, small: FakeRepo) -> None:
    with fake_hub({"a/b": small}, tokens=frozenset({"hf_good"})) as hub:
        find(hub, token="hf_good")
        assert [seen.authorization for seen in hub.seen] == [None, *["Bearer hf_good"] * 6], "not the probe"
        assert [seen.authorization for seen in hub.stored] == [None]


def test_the_token_file_of_other_hub_programs_is_read(tmp_path: Path, small: FakeRepo, told: Told) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "token").write_text("hf_good\n", encoding="utf-8")
    with fake_hub({"a/b": replace(small, gate="")}, tokens=frozenset({"hf_good"})) as hub:
        access = HubAccess.from_environment(offline=False, env=hub.env(tmp_path))
        assert locate(parse_model("a/b"), access, told).commit == small.commit
    assert "hf_good" not in repr(access)


@pytest.mark.parametrize("token", ["hf_é", "a\x1bb"])
def test_a_token_that_cannot_be_one_is_refused_unsaid(find: Locate, token: str) -> None:
    with fake_hub({}) as hub, pytest.raises(AccessError) as caught:
        find(hub, token=token)
    assert token not in str(caught.value)


# -- what a repository may hold -----------------------------------------------------------------------


def test_a_repository_of_one_gguf_is_that_file(find: Locate) -> None:
    with fake_hub({"a/b": FakeRepo({"b.Q4_0.gguf": WEIGHTS, "config.json": b"{}"})}) as hub:
        found = find(hub)
        assert found.path.name == "b.Q4_0.gguf" and found.path.read_bytes() == WEIGHTS
        assert find(hub, offline=True) == found


def test_several_ggufs_want_one_to_be_named(find: Locate) -> None:
    repo = FakeRepo({f"b.Q{n}_0.gguf": WEIGHTS[n:] for n in (4, 5, 8)})
    with fake_hub({"a/b": repo}) as hub:
        with pytest.raises(ModelError, match="holds 3 models") as caught:
            find(hub)
        assert "a/b/FILE: b.Q4_0.gguf, b.Q5_0.gguf, b.Q8_0.gguf" in (caught.value.hint or "")
        found = find(hub, "a/b/b.Q5_0.gguf")
        assert found.path.name == "b.Q5_0.gguf"
        assert find(hub, "a/b/b.Q5_0.gguf", offline=True) == found
        with pytest.raises(NetworkError):
            find(hub, "a/b/b.Q4_0.gguf", offline=True)
        with pytest.raises(ModelError, match="has no file 'no.gguf'"):
            find(hub, "a/b/no.gguf")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"pytorch_model.bin": b"x"}, "only pickled weights"),
        ({"README.md": b"x"}, "no weights"),
        ({}, "no weights"),
        ({"model.safetensors": b"x"}, "no config.json"),
        (
            {
                "config.json": b"{}",
                "model-00001-of-00002.safetensors": b"x",
                "model.safetensors.index.json": b'{"weight_map": {"a": "model-00002-of-00002.safetensors"}}',
            },
            "lacks a file of weights",
        ),
    ],
)
def test_a_repository_that_is_no_model_of_ours_says_why(
    find: Locate, files: dict[str, bytes], said: str
) -> None:
    with fake_hub({"a/b": FakeRepo(files)}) as hub, pytest.raises(ModelError, match=said):
        find(hub)


@pytest.mark.parametrize("name", ["../evil.safetensors", "..\\evil", "C:evil", "/abs", "a\0b", "\\\\h\\s"])
def test_a_listing_with_a_name_that_escapes_is_refused_whole(
    find: Locate, small: FakeRepo, tmp_path: Path, name: str
) -> None:
    extra = [{"rfilename": name, "size": 4, "blobId": "0" * 40}]
    with fake_hub({"a/b": replace(small, extra=extra)}) as hub:
        with pytest.raises(ModelError, match="unsafe name"):
            find(hub)
        assert asked(hub) == ASK
    assert not (tmp_path / "hf").exists()


@pytest.mark.parametrize("name", ["Config.json", "config.json"])
def test_a_listing_where_two_files_are_one_is_refused(find: Locate, small: FakeRepo, name: str) -> None:
    extra = [{"rfilename": name, "size": 4, "blobId": "0" * 40}]
    with fake_hub({"a/b": replace(small, extra=extra)}) as hub, pytest.raises(ModelError):
        find(hub)


def test_names_that_only_look_odd_do_not_matter(find: Locate, small: FakeRepo) -> None:
    odd = ["aux.txt", "例.png", "ab:c.txt", "x" * 300, "trailing."]
    extra = [{"rfilename": name, "size": 4, "blobId": "0" * 40} for name in odd]
    with fake_hub({"a/b": replace(small, extra=extra)}) as hub:
        assert find(hub).commit == small.commit


# -- before the weights -------------------------------------------------------------------------------


def test_the_check_sees_the_configuration_before_any_weight_is_fetched(find: Locate, small: FakeRepo) -> None:
    seen: list[tuple[Mapping[str, object], int]] = []

    def too_large(config: Mapping[str, object], weights: int) -> None:
        seen.append((config, weights))
        raise DoesNotFitError("It does not fit.")

    with fake_hub({"a/b": small}) as hub:
        with pytest.raises(DoesNotFitError):
            find(hub, check=too_large)
        assert hub.stored == []
    assert seen == [({"model_type": "llama"}, len(WEIGHTS))]


def test_a_preview_says_what_would_be_fetched_and_fetches_nothing(
    find: Locate, small: FakeRepo, tmp_path: Path
) -> None:
    with fake_hub({"a/b": small}) as hub:
        access = HubAccess.from_environment(offline=False, env=hub.env(tmp_path))
        before = preview(parse_model("a/b"), access)
        assert not (tmp_path / "hf").exists()
        find(hub)
        after = preview(parse_model("a/b"), access)
    assert [file.name for file, _ in before.files] == ["config.json", "tokenizer.json", "model.safetensors"]
    assert before.missing == len(WEIGHTS) + 25 and after.missing == 0
    assert before.commit == small.commit
    with pytest.raises(UsageError):
        preview(parse_model("smollm2-135m"), access)
    with pytest.raises(NetworkError):
        preview(parse_model("a/b"), replace(access, offline=True))


def test_weights_come_several_at_a_time(find: Locate, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    repo = FakeRepo({"config.json": b"{}", **{name: name.encode() * 9000 for name in names}})
    together = threading.Barrier(3, timeout=60)
    fetch = Transfer.fetch

    def fetch_together(transfer: Transfer, file: RepoFile, report: Callable[[int], None]) -> None:
        if file.name in names:
            together.wait()
        fetch(transfer, file, report)

    monkeypatch.setattr(Transfer, "fetch", fetch_together)
    with fake_hub({"a/b": repo}) as hub:
        found = find(hub)
    assert {path.name for path in found.path.iterdir()} == {"config.json", *names}


def test_a_disk_without_room_is_noticed_before_the_first_byte(
    find: Locate, small: FakeRepo, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 50_000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with fake_hub({"a/b": small}) as hub:
        with pytest.raises(LlmrsError, match=r"is full: 102 kB needed, 50 kB free") as caught:
            find(hub)
        assert asked(hub) == ASK
    assert caught.value.exit_code == 1


def test_locating_needs_no_heavy_library() -> None:
    code = "import sys, llmrs_cli.hub.store; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    heavy = {
        "numpy",
        "huggingface_hub",
        "requests",
        "httpx",
        "httpx2",
        "tqdm",
        "rich",
        "asyncio",
        "tokenizers",
    }
    assert not heavy & set(loaded)
