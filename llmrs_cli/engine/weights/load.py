"""A checkpoint into a backend: prove that every tensor fits, then stream them, one layer at a time.

The proof comes first and reads nothing but headers, so a wrong file costs no time and no memory. What a
backend makes of a weight is its own affair; it gets parts (queries, keys, values; gate, up) unstacked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from llmrs_cli.engine.backends.base import Backend
from llmrs_cli.engine.backends.handles import LayerWeights, Linear, ModelWeights, Vector
from llmrs_cli.engine.model import names
from llmrs_cli.engine.model.names import in_layer
from llmrs_cli.engine.model.rope import rope_tables
from llmrs_cli.engine.model.spec import ModelSpec
from llmrs_cli.engine.weights.ahead import files_of
from llmrs_cli.engine.weights.checkpoint import Checkpoint
from llmrs_cli.engine.weights.files import shown
from llmrs_cli.engine.weights.packed import Dense, Stored
from llmrs_cli.engine.weights.parameters import Parameter
from llmrs_cli.engine.weights.store import NAMED, few
from llmrs_cli.errors import ModelError, quoted

Progress = Callable[[int, int], None]
"""Called with bytes read so far and bytes in all."""


def load_model(
    checkpoint: Checkpoint,
    backend: Backend,
    progress: Progress | None = None,
    *,
    context: int | None = None,
) -> ModelWeights:
    """Load every parameter into `backend`. Raises ModelError listing what is missing, extra or misshapen.

    `context` limits the rotary tables (tokens); by default they cover the model's own context.
    """
    check_parameters(checkpoint)
    spec = checkpoint.spec
    length = min(spec.max_context, context or spec.max_context)
    with files_of(_in_order(checkpoint), backend.read_ahead, stored=backend.reorders) as read:
        reader = _Reader(checkpoint.parameters, read, backend, progress)
        embedding = reader.linear("embedding", names.EMBEDDING)
        layers = tuple(_load_layer(reader, spec, layer) for layer in range(spec.layers))
        return ModelWeights(
            embedding=embedding,
            rope=backend.prepare_rope(*rope_tables(spec, length)),
            layers=layers,
            norm=reader.vector(names.NORM),
            head=embedding if spec.tied_head else reader.linear("head", names.HEAD),
            eps=spec.eps,
        )


def _load_layer(reader: _Reader, spec: ModelSpec, layer: int) -> LayerWeights:
    def vector(name: str) -> Vector:
        return reader.vector(in_layer(layer, name))

    def linear(label: str, *modules: str) -> Linear:
        weights = [in_layer(layer, f"{module}.weight") for module in modules]
        return reader.linear(f"layer {layer} {label}", *weights)

    return LayerWeights(
        geometry=spec.geometry(layer),
        attention_norm=vector(names.ATTENTION_NORM),
        qkv=linear("qkv", names.Q, names.K, names.V),
        q_norm=vector(names.Q_NORM) if spec.qk_norm else None,
        k_norm=vector(names.K_NORM) if spec.qk_norm else None,
        o=linear("o", names.O),
        mlp_norm=vector(names.MLP_NORM),
        gate_up=linear("gate_up", names.GATE, names.UP),
        down=linear("down", names.DOWN),
    )


def _in_order(checkpoint: Checkpoint) -> dict[str, Parameter]:
    """The parameters that are wanted, in the order of `_load_layer`."""
    of_layer = [names.ATTENTION_NORM]
    for modules in ((names.Q, names.K, names.V), (names.O,), (names.GATE, names.UP), (names.DOWN,)):
        of_layer += [f"{module}.{kind}" for kind in ("weight", "bias") for module in modules]
        of_layer += [names.Q_NORM, names.K_NORM] if names.Q in modules else []
        of_layer += [names.MLP_NORM] if names.O in modules else []
    layers = (in_layer(layer, name) for layer in range(checkpoint.spec.layers) for name in of_layer)
    wanted = [names.EMBEDDING, *layers, names.NORM]
    wanted += [] if checkpoint.spec.tied_head else [names.HEAD]
    return {name: checkpoint.parameters[name] for name in wanted if name in checkpoint.parameters}


class _Reader:
    """Reads parameters, hands them to the backend at once and keeps none."""

    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        read: Callable[[str], Stored],
        backend: Backend,
        progress: Progress | None,
    ) -> None:
        self._parameters = parameters
        self._stored = read
        self._backend = backend
        self._progress = progress
        self._done = 0
        self._total = sum(parameter.nbytes for parameter in parameters.values())

    def linear(self, label: str, *weights: str) -> Linear:
        """One prepared layer of the parts `weights`, each with its bias if there is one."""
        parts = [self._read(name) for name in weights]
        biases = [self._bias(name.removesuffix("weight") + "bias") for name in weights]
        return self._backend.prepare_linear(parts, biases, label)

    def vector(self, name: str) -> Vector:
        return self._backend.prepare_vector(self._dense(name))

    def _bias(self, name: str) -> Dense | None:
        return self._dense(name) if name in self._parameters else None

    def _dense(self, name: str) -> Dense:
        values = self._read(name)
        assert isinstance(values, Dense)
        return values

    def _read(self, name: str) -> Stored:
        parameter = self._parameters[name]
        values = self._stored(name)
        assert values.shape == parameter.shape
        self._done += parameter.nbytes
        if self._progress is not None:
            self._progress(self._done, self._total)
        return values


# -- proof --------------------------------------------------------------------------------------------


def check_parameters(checkpoint: Checkpoint) -> None:
    """Raise one ModelError that lists parameters missing, unexpected and misshapen, up to 10 of each."""
    found, expected = checkpoint.parameters, names.expected_shapes(checkpoint.spec)
    missing = [name for name in expected if name not in found]
    extra = [
        name
        for name in found
        if name not in expected and not _is_allowed(name, found, expected, checkpoint.spec)
    ]
    wrong = [name for name in expected if name in found and found[name].shape != expected[name]]
    problems = []
    if missing:
        problems.append(f"{len(missing)} missing: {few(missing)}")
    if extra:
        problems.append(f"{len(extra)} unexpected: {few(extra)}")
    if wrong:
        shapes = ", ".join(f"{quoted(n, 120)} is {found[n].shape}, not {expected[n]}" for n in wrong[:NAMED])
        problems.append(f"{len(wrong)} misshapen: {shapes}")
    if problems:
        raise ModelError(
            f"The tensors of {shown(checkpoint.path)} do not fit its configuration: {'; '.join(problems)}.",
            hint="The files may be incomplete or of different models.",
        )


def _is_allowed(
    name: str, found: Mapping[str, Parameter], expected: Mapping[str, names.Shape], spec: ModelSpec
) -> bool:
    """Whether an extra parameter is harmless: left unread, or the bias of a quantised layer (it is used)."""
    if names.is_ignored(name, spec):
        return True
    weight = name.removesuffix(".bias") + ".weight"
    if not name.endswith(".bias") or weight not in expected or weight not in found:
        return False
    return found[weight].is_quantised and found[name].shape == expected[weight][:1]
