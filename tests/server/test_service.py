"""The one service of a server: when it takes requests, how many, and what it knows to be under way."""

from __future__ import annotations

import asyncio
import threading

import pytest

from llmrs_cli.errors import RequestError
from llmrs_cli.server import service as module
from llmrs_cli.server.faults import HttpError
from llmrs_cli.server.service import Phase, Service, salt_of
from llmrs_cli.server.settings import ServerSettings
from llmrs_cli.text.generate import GenerateOptions
from tests.helpers.bench import Bench
from tests.helpers.byte_tokenizer import byte_ids
from tests.helpers.fake_engine import reply

HELLO = reply(tuple(byte_ids("hello")))


def code_of(error: pytest.ExceptionInfo[HttpError]) -> tuple[int, str]:
    return error.value.status, error.value.code


@pytest.mark.parametrize(
    ("phase", "code"),
    [(Phase.LOADING, "loading"), (Phase.DRAINING, "shutting_down"), (Phase.FAILED, "engine_fault")],
)
def test_only_a_ready_service_has_an_engine(phase: Phase, code: str) -> None:
    service = Bench(HELLO).service
    assert service.engine is not None
    service.phase = phase
    with pytest.raises(HttpError) as error:
        _ = service.engine
    assert code_of(error) == (503, code)


def test_a_service_that_loads_knows_neither_model_nor_figures() -> None:
    service = Service(ServerSettings())
    assert service.phase is Phase.LOADING
    assert b"num_requests_running" not in service.metrics.text()
    service.close()


def test_its_model_answers_to_its_names_alone() -> None:
    service = Service(ServerSettings(("short", "owner/long")))
    for name in (None, "short", "owner/long"):
        service.check_model(name)
    with pytest.raises(HttpError) as error:
        service.check_model("other\x1b[31m")
    assert code_of(error) == (404, "model_not_found")
    assert "\x1b" not in error.value.message
    service.close()


def test_places_are_as_many_as_run_and_may_wait() -> None:
    service = Bench(HELLO, queue=2).service  # over four rows
    with service.place() as first, service.place() as second:
        first.hold(4)
        service.check_room()
        second.hold(2)
        with pytest.raises(HttpError) as error, service.place():
            pass
        assert code_of(error) == (429, "overloaded")
        with pytest.raises(HttpError) as error:
            service.check_room()
        assert code_of(error) == (429, "overloaded")
        first.hold(1)
        with pytest.raises(HttpError):
            second.hold(6)
        second.hold(5)
        assert not service.idle.is_set()
    service.check_room()
    assert service.idle.is_set()


def test_a_place_is_given_back_by_what_fails() -> None:
    service = Bench(HELLO, queue=0).service
    for _ in range(3):
        with pytest.raises(RuntimeError), service.place() as place:
            place.hold(4)
            raise RuntimeError
    assert service.idle.is_set()


class Trials:
    """Stands in for what tries the forms of an engine; waits until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, service: Service) -> None:
        self.tried: list[str] = []
        self.release = threading.Event()
        self.known = {"old"}
        monkeypatch.setattr(service.engine, "knows_grammar", self.known.__contains__)
        monkeypatch.setattr(service.engine, "check_grammar", self._check)

    def _check(self, grammar: str, param: str) -> None:
        if grammar not in self.known:
            self.release.wait()
            self.known.add(grammar)
            self.tried.append(grammar)
        if grammar == "bad":
            raise RequestError("No.", param=param)


def test_forms_are_tried_one_after_the_other_and_only_so_many_of_a_caller_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_FORMS", 2)

    async def scene() -> None:
        service = Bench(HELLO).service
        trials = Trials(monkeypatch, service)
        waiting = [asyncio.ensure_future(service.check_form(form, "f", b"k")) for form in ("a", "bad", "b")]
        await asyncio.sleep(0)
        with pytest.raises(HttpError) as error:
            await service.check_form("late", "f", b"k")
        assert code_of(error) == (429, "overloaded")
        with service.place():  # whoever asks for no form has nothing to wait for
            assert await service.in_thread(str.upper, "text") == "TEXT"
        assert not service.idle.is_set()
        trials.release.set()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [type(None), RequestError, type(None)]
        assert trials.tried == ["a", "bad", "b"]
        assert service.idle.is_set()
        await service.check_form("again", "f", b"k")
        service.close()

    asyncio.run(scene())


def test_a_form_that_has_been_tried_waits_for_none_that_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        service = Bench(HELLO).service
        trials = Trials(monkeypatch, service)
        trials.known.add("bad")
        slow = asyncio.ensure_future(service.check_form("slow", "f", b""))
        await asyncio.sleep(0)
        await service.check_form("old", "f", b"")
        with pytest.raises(RequestError):
            await service.check_form("bad", "f", b"")
        assert not slow.done()
        trials.release.set()
        await slow
        service.close()

    asyncio.run(scene())


def test_many_forms_of_one_key_delay_another_s_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        service = Bench(HELLO).service
        trials = Trials(monkeypatch, service)
        many = [asyncio.ensure_future(service.check_form(f"m{n}", "f", b"many")) for n in range(5)]
        await asyncio.sleep(0)
        other = asyncio.ensure_future(service.check_form("o", "f", b"other"))
        await asyncio.sleep(0)
        trials.release.set()
        await asyncio.gather(*many, other)
        assert trials.tried == ["m0", "m1", "o", "m2", "m3", "m4"]
        service.close()

    asyncio.run(scene())


def test_what_is_cut_is_counted_and_told() -> None:
    async def scene() -> None:
        bench = Bench(HELLO, at_once=False)
        async with bench.service.answering([[1, 2], [3]], GenerateOptions(max_tokens=5), "") as answers:
            bench.service.cut_all()
            assert bench.service.cut == 1
            assert len(bench.engine.aborted) == 2
            bench.engine.play()
            news = await answers.news()
            assert {event.finish_reason.value for _, event in news if event.finish_reason} == {"abort"}
        bench.service.cut_all()
        assert bench.service.cut == 1
        bench.service.close()

    asyncio.run(scene())


def test_answers_end_with_their_block() -> None:
    async def scene() -> None:
        bench = Bench(HELLO, at_once=False)
        options = GenerateOptions(max_tokens=5, n=3)
        with pytest.raises(RuntimeError):
            async with bench.service.answering([[1]], options, ""):
                raise RuntimeError
        assert len(bench.engine.aborted) == 3
        bench.service.close()

    asyncio.run(scene())


def test_a_salt_tells_keys_and_salts_apart_and_holds_no_key() -> None:
    salts = [salt_of(key, salt) for key in (b"", b"key-one-1", b"key-two-2") for salt in ("", "a", "b")]
    assert len(set(salts)) == len(salts)
    assert salt_of(b"", "") == ""
    assert not any("key" in salt for salt in salts)
