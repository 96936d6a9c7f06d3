"""Decoders: `NeuronModelForCausalLM` and the embedding model, with the generation of their backend.

Up to 0.1.0 the backend was transformers-neuronx ("HLO" below), from 0.2.0 NxD (granite, phi3 and qwen2
still HLO in 0.2.0). From `modeling_decoder.py` and `generation/token_selector.py` at 0.1.0,
`models/inference/modeling_utils.py` and `backend/modules/generation/generation_utils.py` at 0.4.5:

- HLO reads generation_config.json, takes 20 tokens in all by default, clamps to the sequence length,
  and samples with a generator that starts at seed 0 in each call (from 0.0.18 on).
- NxD starts from `GenerationConfig.from_model_config`, takes 20 new tokens, wants padding on the right,
  and leaves logits processors out where it samples on the device.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from neuronmigrate.runtime.legacy.optimum.base import (
    Config,
    NeuronModel,
    bind,
    check_arguments,
    dtype_keyword,
    library,
    of_transformers,
    pop_hub,
)
from neuronmigrate.runtime.legacy.session import LegacyProblem, current

_DTYPES = {
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "fp16": torch.float16,
    "float16": torch.float16,
    "f16": torch.float16,
    "f32": torch.float32,
    "float32": torch.float32,
    "fp32": torch.float32,
}
_ON_DEVICE = ("llama", "llama4", "llama4_text", "granite", "phi3", "qwen2", "qwen3", "qwen3_moe", "smollm3")
"""Architectures that sample on the device, where no processor of transformers acts."""
_PROCESSORS: Mapping[str, object] = {
    "repetition_penalty": 1.0,
    "min_length": 0,
    "min_new_tokens": None,
    "no_repeat_ngram_size": 0,
    "bad_words_ids": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "suppress_tokens": None,
}
"""Processors by the fields that ask for them, with the value that asks for none."""


def _dtype(value: object) -> torch.dtype:
    if isinstance(value, torch.dtype):
        return value
    name = str(value).removeprefix("torch.")
    if name not in _DTYPES:
        raise ValueError(f"{value!r} is no dtype; one of {', '.join(_DTYPES)}")
    return _DTYPES[name]


@dataclass
class NxDNeuronConfig:
    """Shapes and dtype of an export; what concerns cores and kernels is kept and has no effect."""

    checkpoint_id: str | None = None
    checkpoint_revision: str | None = None
    batch_size: int = 1
    max_batch_size: int | None = None
    continuous_batching: bool = False
    speculation_length: int = 0
    sequence_length: int = 128
    tp_degree: int = 1
    ep_degree: int = 1
    pp_degree: int = 1
    torch_dtype: torch.dtype | str = torch.bfloat16
    n_active_tokens: int | None = None
    max_context_length: int | None = None
    output_logits: bool = False
    fused_qkv: bool = False
    target: str | None = None
    on_device_sampling: bool = False
    max_topk: int = 256
    prefill_chunk_size: int = 0
    start_rank_id: int = 0
    local_ranks_size: int | None = None
    capacity_factor: float | None = None
    glu_mlp: bool = True

    def __post_init__(self) -> None:
        self.torch_dtype = _dtype(self.torch_dtype)


NeuronConfig = NxDNeuronConfig


class _Decoder(NeuronModel):
    """Weights of a decoder in the dtype of the export."""

    auto_model_class = "AutoModelForCausalLM"

    def __init__(self, model_id: str, neuron_config: NxDNeuronConfig, hub: Mapping[str, object]) -> None:
        loader: Callable[..., torch.nn.Module] = getattr(  # noqa: B009 - of a class
            of_transformers(self.auto_model_class), "from_pretrained"
        )
        self.neuron_config = neuron_config
        self.model = loader(model_id, **hub, **dtype_keyword(_dtype(neuron_config.torch_dtype))).eval()
        self.config: Config = self.model.config

    @classmethod
    def get_neuron_config(
        cls,
        model_name_or_path: str | Path,
        config: object = None,
        batch_size: int | None = None,
        sequence_length: int | None = None,
        tensor_parallel_size: int | None = None,
        auto_cast_type: str | None = None,
        **arguments: object,
    ) -> NxDNeuronConfig:
        """The shapes of an export: one row, and the model's positions up to 4096 unless said.

        The dtype is the config's from 0.4.1 on. Before, the config's dtype was compared with a text and
        so it was float32 (modeling_utils.py at 0.2.0: 172).
        """
        hub = pop_hub(arguments)
        check_arguments("optimum.neuron.NeuronModelForCausalLM.get_neuron_config", arguments)
        if config is None:
            config = _config_of(str(model_name_or_path), hub)
        if sequence_length is None:
            positions = getattr(config, "n_positions", getattr(config, "max_position_embeddings", 1024))
            sequence_length = min(int(positions), 4096)
        dtype: torch.dtype | str = torch.float32
        if auto_cast_type is not None:
            dtype = auto_cast_type
        elif current().release.since("0.4.1"):
            dtype = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None) or torch.float32
        return NxDNeuronConfig(
            checkpoint_id=str(model_name_or_path),
            batch_size=batch_size or 1,
            sequence_length=sequence_length,
            tp_degree=tensor_parallel_size or 1,
            torch_dtype=dtype,
            on_device_sampling=str(getattr(config, "model_type", "")) in _ON_DEVICE,
        )

    @classmethod
    def export(
        cls,
        model_id: str | Path,
        neuron_config: NxDNeuronConfig,
        config: object = None,
        load_weights: bool = False,
        **arguments: object,
    ) -> _Decoder:
        """The model with these shapes. Without `load_weights` the original could not generate yet."""
        if not load_weights:
            current().note(f"{cls.__name__}.export: load_weights=False compiled only; the stand-in can run")
        return cls(str(model_id), neuron_config, pop_hub(arguments))

    @classmethod
    def from_pretrained(
        cls,
        model_id: str | Path,
        neuron_config: NxDNeuronConfig | None = None,
        export: bool = False,
        batch_size: int | None = None,
        sequence_length: int | None = None,
        auto_cast_type: str | None = None,
        **arguments: object,
    ) -> _Decoder:
        """Export and load, up to 0.3.0; from 0.4.0 on it only loads what was exported.

        Raises ValueError for a checkpoint that was not exported.
        """
        release = current().release
        hub = pop_hub(arguments)
        name = str(model_id)
        saved = Path(name, "neuron_config.json")
        if saved.exists():
            return cls(name, _read_config(saved), hub)
        if release.since("0.4.0") or not export:
            raise ValueError(
                f"{name} does not contain a neuron model: export it first"
                + ("" if release.since("0.4.0") else ", by passing export=True")
            )
        for each in ("task", "num_cores", "tensor_parallel_size", "continuous_batching", "from_transformers"):
            arguments.pop(each, None)
        check_arguments("optimum.neuron.NeuronModelForCausalLM.from_pretrained", arguments)
        if neuron_config is None:
            config = _config_of(name, hub)
            neuron_config = cls.get_neuron_config(name, config, batch_size, sequence_length)
            default = "bf16" if release.since("0.2.0") else "fp32"
            neuron_config.torch_dtype = _dtype(auto_cast_type or default)
        return cls(name, neuron_config, hub)

    def save_pretrained(self, save_directory: str | Path, **options: object) -> None:
        """Write weights and shapes; the original wrote the compiled program instead."""
        import json
        from dataclasses import asdict

        save: Callable[[str | Path], object] = getattr(self.model, "save_pretrained")  # noqa: B009
        save(save_directory)
        data = {**asdict(self.neuron_config), "torch_dtype": str(self.neuron_config.torch_dtype)}
        Path(save_directory, "neuron_config.json").write_text(json.dumps(data, indent=1), "utf-8")

    def _check_size(self, input_ids: torch.Tensor) -> None:
        batch, length = input_ids.shape
        if length > self.neuron_config.sequence_length:
            raise ValueError(
                f"The input sequence length ({length}) exceeds the model static sequence length "
                f"({self.neuron_config.sequence_length})"
            )
        if batch > self.neuron_config.batch_size:
            raise ValueError(
                f"The specified batch_size ({batch}) exceeds the model static batch size "
                f"({self.neuron_config.batch_size})"
            )


def _config_of(model_id: str, hub: Mapping[str, object]) -> object:
    loader: Callable[..., object] = getattr(library("transformers"), "AutoConfig").from_pretrained  # noqa: B009
    return loader(model_id, **hub)


def _read_config(path: Path) -> NxDNeuronConfig:
    import json

    data = json.loads(path.read_text("utf-8"))
    known = NxDNeuronConfig.__dataclass_fields__
    if "torch_dtype" not in data or not set(data) <= set(known):
        raise LegacyProblem(f"{path} is that of a compiled model, which only a NeuronCore can run")
    return NxDNeuronConfig(**data)


class NeuronModelForCausalLM(_Decoder):
    """A decoder that generates. Token ids are int64 `(batch, sequence)` on the CPU, in and out."""

    main_input_name = "input_ids"

    def __init__(self, model_id: str, neuron_config: NxDNeuronConfig, hub: Mapping[str, object]) -> None:
        super().__init__(model_id, neuron_config, hub)
        config_class = getattr(library("transformers"), "GenerationConfig")  # noqa: B009
        self.generation_config = config_class.from_model_config(self.config)
        if not self._nxd:
            with contextlib.suppress(OSError):
                self.generation_config = config_class.from_pretrained(model_id, **hub)

    @property
    def _nxd(self) -> bool:
        release = current().release
        if release.since("0.2.1"):
            return True
        return release.since("0.2.0") and str(self.config.model_type) not in ("granite", "phi3", "qwen2")

    def can_generate(self) -> bool:
        """Yes."""
        return True

    def forward(self, *args: object, **kwargs: object) -> object:
        """Raises LegacyProblem: a single step of the compiled graphs has no stand-in, `generate` has."""
        raise LegacyProblem(
            f"{type(self).__name__}: a direct call steps the compiled graph with a cache of its own, "
            "which has no stand-in; only generate() has"
        )

    def generate(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        generation_config: object = None,
        stopping_criteria: Sequence[Callable[..., object]] | None = None,
        **kwargs: object,
    ) -> torch.Tensor:
        """The prompt and new tokens, `(batch, length)`; rows that ended are filled up.

        Raises ValueError for a prompt or batch larger than compiled, and for what the release refused;
        LegacyProblem for processors that acted and have no stand-in.
        """
        self._check_size(input_ids)
        settings = _Settings(generation_config or self.generation_config, kwargs, self._nxd)
        settings.refuse()
        self._check_processors(settings)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        if self._nxd and bool((mask[:, 0] == 0).any()):
            if current().release.since("0.4.5"):
                raise ValueError("Left padding is not supported for Neuron models.")
            current().note("left padding was accepted and gave wrong numbers; here it gives the right ones")
        limit = settings.limit(input_ids.shape[1])
        if limit > self.neuron_config.sequence_length:
            if not self._nxd:
                limit = self.neuron_config.sequence_length
            else:
                current().note("generation ran past the compiled sequence length; what came there is unknown")
        new = self._new_tokens(input_ids, mask, limit - input_ids.shape[1], settings, stopping_criteria or ())
        return torch.cat([input_ids, new], 1)

    def _check_processors(self, settings: _Settings) -> None:
        asked = settings.processors()
        if not asked:
            return
        if self._nxd and self.neuron_config.on_device_sampling:
            current().note(f"ignored, as on the device: {', '.join(asked)}")
        else:
            raise LegacyProblem(f"generate: {', '.join(asked)} acted there and has no stand-in")

    @torch.no_grad()
    def _new_tokens(
        self,
        input_ids: torch.Tensor,
        mask: torch.Tensor,
        count: int,
        settings: _Settings,
        criteria: Sequence[Callable[..., object]],
    ) -> torch.Tensor:
        """Decode row by row of the batch at once, with the prompts moved to the right side."""
        ids, mask = _right_aligned(input_ids, mask)
        generator = torch.Generator().manual_seed(0) if not self._nxd and self._seeded else None
        if settings.do_sample and self._nxd:
            current().note("sampling: on the device no seed of torch acted; here the global one does")
        running = torch.ones(ids.shape[0], dtype=torch.bool)
        new = ids.new_empty((ids.shape[0], 0))
        # transformers 5 gave the argument another name.
        keeps = "cache" if "cache" in inspect.signature(self.model.forward).parameters else "past_key_values"
        step: torch.Tensor = ids
        cache: dict[str, object] = {}
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        # The prompt alone fills the compiled length: one token came all the same in the HLO era.
        for _ in range(max(count, 1)):
            output = self.model(
                input_ids=step,
                attention_mask=mask,
                position_ids=positions,
                use_cache=True,
                **cache,
            )
            cache = {keeps: output[keeps] if keeps in output else output["past_key_values"]}
            chosen = settings.choose(output.logits[:, -1].float(), generator, self.neuron_config.max_topk)
            if settings.eos:
                chosen = torch.where(running, chosen, torch.full_like(chosen, settings.pad))
            new = torch.cat([new, chosen[:, None]], 1)
            if settings.eos:
                running &= ~torch.isin(chosen, torch.tensor(settings.eos))
            whole = torch.cat([input_ids, new], 1)
            for criterion in criteria:
                running &= ~torch.as_tensor(criterion(whole, None))
            if not running.any():
                break
            step = chosen[:, None]
            mask = torch.cat([mask, mask.new_ones((mask.shape[0], 1))], 1)
            positions = positions[:, -1:] + 1
        return new

    @property
    def _seeded(self) -> bool:
        return current().release.since("0.0.18")

    def reset_generation(self) -> None:
        """Nothing is kept between calls."""


def _right_aligned(ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Move each row's tokens to its end, so that all go on from the same column."""
    order = mask.long().argsort(dim=1, stable=True)
    return ids.gather(1, order), mask.gather(1, order)


class _Settings:
    """What a call asks for, with the defaults of the backend."""

    def __init__(self, config: object, given: Mapping[str, object], nxd: bool) -> None:
        self._values = {name: value for name, value in vars(config).items() if value is not None}
        self._values.update({name: value for name, value in given.items() if value is not None})
        self._given = given
        self._nxd = nxd
        eos = self._values.get("eos_token_id")
        self.eos: list[int] = [eos] if isinstance(eos, int) else list(eos) if isinstance(eos, list) else []
        pad = self._values.get("pad_token_id")
        self.pad = pad if isinstance(pad, int) else self.eos[0] if self.eos else 0
        self.do_sample = bool(self._values.get("do_sample", False))

    def refuse(self) -> None:
        """Raise ValueError for what the backend did not do."""
        late = current().release.since("0.4.4")
        for name in ("output_scores", "return_dict_in_generate", "output_attentions", "output_hidden_states"):
            if self._values.get(name):
                if self._nxd and not late:
                    raise LegacyProblem(f"generate: {name} has no stand-in")
                raise ValueError(f"{name} is not supported for generation.")
        if self._number("num_beams", 1) > 1 or self._number("penalty_alpha", 0) > 0:
            raise ValueError("Unsupported generation mode")

    def processors(self) -> list[str]:
        """Fields that ask for a processor."""
        return [
            name
            for name, neutral in _PROCESSORS.items()
            if self._values.get(name, neutral) not in (neutral, None, [])
        ]

    def limit(self, prompt: int) -> int:
        """Length of prompt and new tokens together."""
        if "max_new_tokens" in self._values:
            return prompt + int(self._number("max_new_tokens", 0))
        if "max_length" in self._given and self._given["max_length"] is not None:
            return int(self._number("max_length", 20))
        # transformers 4.x counts its default of 20 from the prompt's end since NxD came in.
        configured = int(self._number("max_length", 20))
        return prompt + configured if self._nxd and configured == 20 else configured

    def _number(self, name: str, default: float) -> float:
        value = self._values.get(name, default)
        return value if isinstance(value, int | float) else default

    def choose(self, logits: torch.Tensor, generator: torch.Generator | None, most: int) -> torch.Tensor:
        """The next token of each row from float32 logits `(batch, vocabulary)`."""
        if not self.do_sample:
            return logits.argmax(-1)
        k = int(self._number("top_k", 50)) or logits.shape[-1]
        p = self._number("top_p", 1.0)
        temperature = self._number("temperature", 1.0)
        scores, tokens = logits.topk(min(k, logits.shape[-1], most if self._nxd else k), -1)
        chances = (scores / temperature).softmax(-1)
        if p < 1.0:
            # The device dropped the token that crosses the limit too; transformers keeps it.
            before = chances.cumsum(-1) - (0 if self._nxd else chances)
            kept = before <= p
            kept[..., 0] = True
            chances = torch.where(kept, chances, torch.zeros_like(chances))
        drawn = torch.multinomial(chances, 1, generator=generator)
        return tokens.gather(-1, drawn).squeeze(-1)


class NeuronModelForEmbedding(_Decoder):
    """The hidden state of the last token of each text: `(batch, 1, hidden)`, not normalised.

    From `NxDDecoderModelForEmbedding` at 0.4.5; texts are padded on the right.
    """

    auto_model_class = "AutoModel"

    @torch.no_grad()
    def forward(self, *args: object, **kwargs: object) -> torch.Tensor:
        """Takes `input_ids` and `attention_mask`, int64 `(batch, sequence)`.

        Raises ValueError for left padding or an input larger than compiled.
        """
        inputs = bind(type(self).__name__, ("input_ids", "attention_mask"), 2, args, kwargs)
        mask = inputs["attention_mask"]
        self._check_size(inputs["input_ids"])
        if bool((mask[:, 0] == 0).any()):
            raise ValueError("Left padding is not supported for Neuron models.")
        hidden: torch.Tensor = self.model(**inputs).last_hidden_state
        return hidden[torch.arange(hidden.shape[0]), mask.sum(1) - 1].unsqueeze(1)
