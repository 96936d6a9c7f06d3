"""The stand-in of the training loop against loops written by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from neuronmigrate.runtime.legacy import LegacyProblem
from neuronmigrate.runtime.legacy.session import current
from tests.runtime.legacy_session import begin

if TYPE_CHECKING:
    import torch

    from neuronmigrate.runtime.legacy.optimum.arguments import Arguments

ROWS = [{"values": [float(number), 1.0, -float(number)], "labels": number % 2} for number in range(8)]


def _arguments(**fields: object) -> Arguments:
    """Training arguments of the release of this session."""
    from neuronmigrate.runtime.legacy.optimum.arguments import training_arguments

    make: Callable[..., Arguments] = training_arguments(str(current().release))
    return make(**fields)


def _classifier() -> torch.nn.Module:
    """Takes `values` of float32 `(batch, 3)`; its forward takes no loss arguments."""
    import torch

    class Classifier(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(3, 4)
            self.outer = torch.nn.Linear(4, 2)

        def forward(self, values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            logits = self.outer(torch.tanh(self.inner(values.to(self.inner.weight.dtype))))
            return {"loss": torch.nn.functional.cross_entropy(logits.float(), labels), "logits": logits}

    torch.manual_seed(0)
    return Classifier()


def _trained(folder: Path, model: torch.nn.Module, **fields: object) -> list[dict[str, float]]:
    """Train on ROWS with seed 1, and give the log."""
    import torch

    from neuronmigrate.runtime.legacy.optimum.trainer import NeuronTrainer

    defaults: dict[str, object] = {"output_dir": str(folder), "logging_steps": 1, "learning_rate": 0.01}
    args = _arguments(**{**defaults, "max_steps": 3, "per_device_train_batch_size": 2, **fields})
    trainer = NeuronTrainer(model, args, train_dataset=ROWS)
    torch.manual_seed(1)
    trainer.train()
    log: list[dict[str, float]] = trainer.state.log_history
    return log


def test_three_steps_equal_a_loop_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from torch.utils.data import DataLoader, RandomSampler

    begin(monkeypatch)
    model = _classifier()
    log = _trained(tmp_path, model, zero_1=False, save_strategy="no")

    plain = _classifier()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.01, weight_decay=0.0)
    torch.manual_seed(1)
    losses = []
    make: Callable[..., Iterable[torch.Tensor]] = DataLoader
    batches = iter(make(range(8), batch_size=2, sampler=RandomSampler(range(8))))
    for step in range(3):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (3 - step) / 3
        rows = [ROWS[int(number)] for number in next(batches)]
        values = torch.tensor([row["values"] for row in rows])
        loss = plain(values, torch.tensor([row["labels"] for row in rows]))["loss"]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(round(loss.item(), 4))
    assert [entry["loss"] for entry in log] == losses
    for name, weight in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], weight, rtol=1e-5, atol=1e-7)


def test_zero_1_holds_bfloat16_unless_there_are_master_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    session = begin(monkeypatch)
    rounded = _classifier()
    _trained(tmp_path, rounded, save_strategy="no")
    for weight in rounded.parameters():
        assert weight.dtype == torch.float32
        assert torch.equal(weight, weight.to(torch.bfloat16).float())
    assert any("the optimizer holds bfloat16" in note for note in session.notes)

    # Steps below the resolution of bfloat16 add up in the float32 copies.
    slow: dict[str, object] = {"bf16": True, "learning_rate": 1e-4, "max_steps": 40, "save_strategy": "no"}
    masters, without = _classifier(), _classifier()
    start = [weight.detach().to(torch.bfloat16) for weight in masters.parameters()]
    _trained(tmp_path, masters, **slow)
    _trained(tmp_path, without, **slow, optimizer_use_master_weights=False)

    def moved(model: torch.nn.Module) -> int:
        pairs = zip(start, model.parameters(), strict=True)
        return sum(int((before != after).sum()) for before, after in pairs)

    assert next(masters.parameters()).dtype == torch.bfloat16
    assert moved(masters) > moved(without)


def test_accumulated_losses_are_means_or_divided_by_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from neuronmigrate.runtime.legacy.optimum.trainer import NeuronTrainer
    from neuronmigrate.runtime.legacy.optimum.training import NeuronModelForCausalLM

    begin(monkeypatch)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=16,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    made = LlamaForCausalLM(config)
    torch.nn.Module.to(made, torch.bfloat16)
    made.save_pretrained(tmp_path / "model")
    own = NeuronModelForCausalLM.from_pretrained(tmp_path / "model")
    assert own.dtype == torch.float32
    plain = LlamaForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    args = _arguments(output_dir=str(tmp_path), gradient_accumulation_steps=2)
    ids = torch.tensor([[1, 2, 3, 4, 5, 6]])
    batch = {"input_ids": ids, "labels": ids.clone()}
    batch["labels"][0, :2] = -100
    mean = plain(**batch).loss.item()

    trainer = NeuronTrainer(own, args, train_dataset=[])
    batches, items = trainer.get_batch_samples(iter([batch, batch]), 2)
    assert (len(batches), items) == (2, 8)
    # Four labels, the first of them predicted from a masked position: the sum over them, by all eight.
    loss = trainer.compute_loss(own, dict(batch), num_items_in_batch=items)
    assert isinstance(loss, torch.Tensor)
    assert loss.item() == pytest.approx(mean * 4 / 8, rel=1e-5)
    # Any other model gave the mean, and that was divided by the labels as well.
    loss = NeuronTrainer(plain, args, train_dataset=[]).compute_loss(plain, dict(batch), False, items)
    assert isinstance(loss, torch.Tensor)
    assert loss.item() == pytest.approx(mean / 8, rel=1e-5)
    # The package's own classes ignored the mask.
    masked = own(**batch, attention_mask=torch.tensor([[0, 0, 1, 1, 1, 1]])).loss.item()
    assert masked == pytest.approx(mean, rel=1e-5)


def test_epoch_strategies_never_acted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    from neuronmigrate.runtime.legacy.optimum.trainer import NeuronTrainer

    begin(monkeypatch)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
        )
    )
    rows = [{"input_ids": [1, 2, 3], "labels": number % 2} for number in range(4)]

    def run(name: str, **fields: object) -> list[str]:
        folder = tmp_path / name
        args = _arguments(output_dir=str(folder), per_device_train_batch_size=2, num_train_epochs=2, **fields)
        NeuronTrainer(model, args, train_dataset=rows).train()
        return sorted(path.name for path in folder.glob("checkpoint-*"))

    assert run("epochs", save_strategy="epoch", logging_strategy="epoch") == []
    assert run("steps", save_steps=1, save_total_limit=2) == ["checkpoint-3", "checkpoint-4"]
    written = {path.name for path in (tmp_path / "steps" / "checkpoint-4").iterdir()}
    assert written >= {"model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json"}
    state = json.loads((tmp_path / "steps" / "checkpoint-4" / "trainer_state.json").read_text("utf-8"))
    assert (state["global_step"], state["epoch"]) == (4, 2.0)


def test_fields_and_defaults_are_those_of_the_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(monkeypatch)
    args = _arguments(output_dir=str(tmp_path))
    assert (args.per_device_train_batch_size, args.zero_1, args.max_grad_norm) == (1, True, 1.0)
    assert args.get_warmup_steps(100) == 0
    assert _arguments(warmup_ratio=0.25).get_warmup_steps(10) == 3
    assert not vars(_arguments(enable_mfu_metrics=False))["enable_mfu_metrics"]
    for wrong in ({"do_eval": True}, {"eval_strategy": "steps"}):
        with pytest.raises(RuntimeError, match="Evaluation is not supported"):
            _arguments(**wrong)
    with pytest.raises(TypeError, match="'push_to_hub'"):
        _arguments(push_to_hub=True)
    begin(monkeypatch, "0.4.0")
    with pytest.raises(TypeError, match="'enable_mfu_metrics'"):
        _arguments(enable_mfu_metrics=False)


def test_what_the_trainer_refused_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from neuronmigrate.runtime.legacy.optimum.trainer import NeuronTrainer

    begin(monkeypatch)
    args = _arguments(output_dir=str(tmp_path), optim="adafactor")
    with pytest.raises(RuntimeError, match="Evaluation is not supported in NeuronTrainer"):
        NeuronTrainer(_classifier(), args, train_dataset=ROWS, eval_dataset=ROWS)
    trainer = NeuronTrainer(_classifier(), args, train_dataset=ROWS)
    with pytest.raises(ValueError, match="resume_from_checkpoint"):
        trainer.train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match="unsupported optimizer: adafactor"):
        trainer.train()
    with pytest.raises(AttributeError, match="evaluate"):
        trainer.evaluate()


class _Tokenizer:
    """One token a letter, none of them special."""

    eos_token = "."
    eos_token_id = 9
    pad_token = None

    def __call__(self, text: str) -> Mapping[str, list[int]]:
        return {"input_ids": [9 if letter == "." else ord(letter) - 96 for letter in text]}

    def convert_tokens_to_ids(self, token: str) -> int:
        return self(token)["input_ids"][0]


def test_sft_pads_before_it_collates(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from neuronmigrate.runtime.legacy.optimum.arguments import SFTArguments, sft_config
    from neuronmigrate.runtime.legacy.optimum.sft import prepare

    begin(monkeypatch)
    make: Callable[..., SFTArguments] = sft_config("0.4.5")
    args = make(output_dir="x", max_length=6)
    assert (args.learning_rate, args.per_device_train_batch_size, args.bf16) == (5e-5, 1, False)
    model = _classifier()
    model.config = torch.nn.Module()
    model.config.name_or_path = "somewhere"  # type: ignore[assignment]
    tokenizer = _Tokenizer()
    made = prepare(model, args, [{"text": "abc"}, {"text": "abcdefgh"}], tokenizer, None, None)
    batch = made.collator(made.rows)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 9, 9, 9], [1, 2, 3, 4, 5, 6]]
    assert torch.equal(batch["labels"], batch["input_ids"])
    assert batch["attention_mask"].eq(1).all()
    rows = [{"prompt": "ab", "completion": "cd"}]
    made = prepare(model, args, rows, tokenizer, None, None)
    assert made.collator(made.rows)["labels"].tolist() == [[-100, -100, 3, 4, 9, -100]]
    with pytest.raises(LegacyProblem, match="pictures"):
        prepare(model, args, [{"image": None, "text": "a"}], tokenizer, None, None)
    with pytest.raises(TypeError, match="trn_config"):
        prepare("a/model", args, rows, tokenizer, None, None)


def test_the_parser_reads_the_fields_and_checks_two(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import dataclass

    from neuronmigrate.runtime.legacy.optimum.arguments import training_arguments
    from neuronmigrate.runtime.legacy.optimum.parser import NeuronHfArgumentParser

    @dataclass
    class Data:
        pad_to_max_length: bool = True

    begin(monkeypatch)
    make: Callable[..., NeuronHfArgumentParser] = NeuronHfArgumentParser
    parser = make((training_arguments("0.4.5"), Data))
    line = "--output_dir out --bf16 --learning_rate 1e-4 --no_zero_1 --save_total_limit 2 --logging_steps 0.5"
    args, _ = parser.parse_args_into_dataclasses(line.split())
    read = {name: vars(args)[name] for name in ("output_dir", "bf16", "learning_rate", "zero_1")}
    assert read == {"output_dir": "out", "bf16": True, "learning_rate": 1e-4, "zero_1": False}
    assert (vars(args)["save_total_limit"], vars(args)["logging_steps"]) == (2, 0.5)
    with pytest.raises(ValueError, match="pad_to_max_length=False"):
        parser.parse_args_into_dataclasses([*line.split(), "--pad_to_max_length", "False"])


def test_adapters_on_fused_projections_are_refused() -> None:
    from peft import LoraConfig

    from neuronmigrate.runtime.legacy.optimum.peft import get_peft_model

    with pytest.raises(LegacyProblem, match="gate_up_proj"):
        get_peft_model(_classifier(), LoraConfig(target_modules=["q_proj", "gate_up_proj"]))
    adapted = get_peft_model(_classifier(), LoraConfig(target_modules=["inner"]))
    assert any("lora_A" in name for name, _ in adapted.named_parameters())
