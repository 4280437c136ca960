"""A context in a child process is the same engine: the same texts, numbers and errors as in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from lacli.batch import Batch, from_tokens
from lacli.decode import Decoder
from lacli.engine import Engine
from lacli.errors import ModelLoadError
from lacli.llamacpp.context import LlamaEngine
from lacli.llamacpp.model import LlamaModel
from lacli.llamacpp.sampler import LlamaSampler
from lacli.llamacpp.sampling import SamplingSettings
from lacli.llamacpp.settings import Capacity, ModelSettings
from lacli.replicas.isolated import ATTRIBUTES, ChildSettings, RemoteEngine
from lacli.settings import DecodeSettings
from lacli.text.template import as_messages, choose_template
from lacli.verify import verifier
from tests.fakes import tiny_models
from tests.loading import STDLIB_7M

LOADING = ModelSettings(context=256, gpu_layers=0, threads=1, threads_batch=1)
PLAIN = DecodeSettings(mode="plain")
LOOKAHEAD = DecodeSettings(mode="lookahead", window=5, ngram=4, guesses=5)
LOOKUP = DecodeSettings(mode="lookup")
ALL = Capacity.of([PLAIN, LOOKAHEAD, LOOKUP])
WARM = SamplingSettings(seed=7, temp=0.9)
LIMIT = 60


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(STDLIB_7M, LOADING) as model:
        yield model


@pytest.fixture(scope="module")
def here(model: LlamaModel) -> Iterator[LlamaEngine]:
    with LlamaEngine(model, LOADING, ALL) as engine:
        yield engine


@pytest.fixture(scope="module")
def there() -> Iterator[RemoteEngine]:
    with RemoteEngine(ChildSettings(STDLIB_7M, LOADING, ALL, None, name="A")) as engine:
        yield engine


@pytest.fixture(scope="module")
def prompt(model: LlamaModel) -> list[int]:
    template, _ = choose_template("", model)
    return model.tokenize(template.render(as_messages("Show me the source code of `json.dumps`.")))


def tokens(decoder: Decoder, prompt: Sequence[int]) -> list[int]:
    return [token for step in decoder.generate(prompt, LIMIT) for token in step.tokens]


@pytest.mark.parametrize("mode", [PLAIN, LOOKAHEAD, LOOKUP], ids=lambda mode: mode.mode)
def test_text_is_the_same_and_sequence_calls_travel_with_the_next_decode(
    mode: DecodeSettings, model: LlamaModel, here: Engine, there: RemoteEngine, prompt: list[int]
) -> None:
    before = there.calls
    steps = list(Decoder(there, mode).generate(prompt, LIMIT))
    assert there.calls - before == len(steps) + 1
    greedy = [token for step in steps for token in step.tokens]
    assert greedy == tokens(Decoder(here, mode), prompt)
    with LlamaSampler(model, WARM) as sampler:
        texts = [tokens(Decoder(engine, mode, verifier(sampler, WARM)), prompt) for engine in (here, there)]
    assert texts[0] == texts[1] != greedy


def test_logits_choices_and_successors_are_the_same(here: Engine, there: Engine, prompt: list[int]) -> None:
    rows = len(prompt)
    batch = Batch(rows).set_rows(prompt, range(rows), [(0,)] * rows, [row % 3 == 0 for row in range(rows)])
    for engine in (here, there):
        engine.clear()
        assert engine.decode(batch)
    assert np.array_equal(there.logits(), here.logits())
    assert np.array_equal(there.row_logits(2), here.logits()[2])
    assert there.greedy().tolist() == here.greedy().tolist()
    best, expected = there.successors(3), here.successors(3)
    assert np.array_equal(best.tokens, expected.tokens) and np.array_equal(best.logits, expected.logits)


def test_a_batch_that_has_no_room_changes_nothing(here: Engine, there: Engine, prompt: list[int]) -> None:
    full = [prompt[0]] * (LOADING.context - 1)
    choices = []
    for engine in (here, there):
        engine.clear()
        assert engine.decode(from_tokens(full, 0))
        assert not engine.decode(from_tokens(prompt, len(full)))
        assert engine.decode(Batch(1).set_rows([5], [len(full)], [(0,)], [True]))
        choices.append(engine.greedy().tolist())
    assert choices[0] == choices[1]


def test_it_says_of_itself_what_a_context_here_says(here: LlamaEngine, there: RemoteEngine) -> None:
    for name in ATTRIBUTES:
        assert getattr(there, name) == getattr(here, name), name
    ends = [token for token in range(here.vocabulary) if here.is_end(token)]
    assert ends == [token for token in range(there.vocabulary) if there.is_end(token)]
    wide = replace(LOOKAHEAD, window=100)
    for mode in (PLAIN, LOOKAHEAD, wide):
        assert there.suits(mode, raw_logits=True) == here.suits(mode, raw_logits=True)


def test_choices_of_the_backend_are_the_same(model: LlamaModel, prompt: list[int]) -> None:
    with (
        LlamaEngine(model, LOADING, PLAIN, backend_greedy=True) as here,
        RemoteEngine(ChildSettings(STDLIB_7M, LOADING, PLAIN, True)) as there,
    ):
        assert tokens(Decoder(there, PLAIN), prompt) == tokens(Decoder(here, PLAIN), prompt)
        assert not there.suits(PLAIN, raw_logits=True)


def test_a_recurrent_state_is_taken_back_only_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    tiny_models.write_lfm2(path)
    chains = DecodeSettings(mode="lookup", max_rollback=4)
    with (
        LlamaModel(path, LOADING) as model,
        LlamaEngine(model, LOADING, chains) as here,
        RemoteEngine(ChildSettings(path, LOADING, chains, False)) as there,
    ):
        prompt = model.tokenize("the thing and the thing and the")
        assert tokens(Decoder(there, chains), prompt) == tokens(Decoder(here, chains), prompt)
        assert there.max_rollback == here.max_rollback == 4
        for engine in (here, there):
            engine.clear()
            assert engine.decode(from_tokens(prompt, 0))
            assert not engine.remove(0, 1, -1)


def test_a_file_that_cannot_be_loaded_is_the_same_error(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(STDLIB_7M.read_bytes()[:1000])
    with pytest.raises(ModelLoadError) as here:
        LlamaModel(path, LOADING)
    with pytest.raises(ModelLoadError) as there:
        RemoteEngine(ChildSettings(path, LOADING, PLAIN, None))
    assert str(there.value) == str(here.value)


class Full(StringIO):
    """A file on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_its_log_is_on_our_standard_error_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    for verbose in (False, True):
        with RemoteEngine(ChildSettings(STDLIB_7M, LOADING, PLAIN, None, verbose=verbose)):
            pass
        out, err = capsys.readouterr()
        assert ("llama_context" in err) == verbose and not out


@pytest.mark.parametrize("closed", [None, Full()], ids=["closed", "full"])
def test_where_its_log_cannot_be_written_it_goes_on(
    closed: StringIO | None, prompt: list[int], here: LlamaEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", closed)
    with RemoteEngine(ChildSettings(STDLIB_7M, LOADING, PLAIN, None, verbose=True)) as there:
        assert tokens(Decoder(there, PLAIN), prompt) == tokens(Decoder(here, PLAIN), prompt)
