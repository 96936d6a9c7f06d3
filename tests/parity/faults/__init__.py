"""Migrated programs with one wrong edit each, to learn whether parity sees it.

A folder here holds an old program, `before.py`. Its migrated side is what neuronmigrate makes of it, or
`after.py` where that stands beside it, written by hand. A change replaces one text of the migrated side: a *fault*
computes something else than the old program, a *variant* computes the same by another way. `python -m
tests.parity.table` runs all of them and writes the tables of docs/parity.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from neuronmigrate.config import Settings
from neuronmigrate.engine import migrate
from neuronmigrate.plan import Result
from neuronmigrate.project import Project

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Base:
    """An old program and how it is run."""

    name: str
    devices: int = 1
    release: str = "0.4.5"
    model: str = ""
    """Variable with the folder of the model that it loads."""

    @property
    def before(self) -> Path:
        return FOLDER / self.name / "before.py"

    def after(self) -> str:
        """The migrated program."""
        by_hand = FOLDER / self.name / "after.py"
        if by_hand.exists():
            return by_hand.read_text("utf-8")
        after = self.result().after
        assert after is not None
        return after.decode()

    @cache  # noqa: B019 - there is a handful of them
    def result(self) -> Result:
        """What neuronmigrate makes of the old program."""
        return migrate("before.py", self.before.read_bytes(), Project(given=self.release), Settings())


@dataclass(frozen=True)
class Change:
    """One edit of a migrated program; an empty text is no edit."""

    base: str
    name: str
    old: str
    new: str

    def apply(self, after: str) -> str:
        """The edited program. Raises ValueError where the text does not stand exactly once."""
        if not self.old:
            return after
        if after.count(self.old) != 1:
            raise ValueError(f"{self.base}: {self.name}: stands {after.count(self.old)} times: {self.old!r}")
        return after.replace(self.old, self.new)


BASES = {
    base.name: base
    for base in (
        Base("classify", model="CLASSIFIER"),
        Base("embed", model="CLASSIFIER"),
        Base("generate", release="0.3.0", model="CHAT"),
        Base("loop"),
        Base("pretrain"),
        Base("ranks", devices=2),
        Base("trainer", model="CLASSIFIER"),
        Base("translate", model="TRANSLATOR"),
    )
}

_AVERAGE = "        average_gradients(optimizer)\n"
_CLIP = "        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)\n"

FAULTS = (
    # Two processes
    Change("ranks", "gradients not reduced", _AVERAGE, ""),
    Change("ranks", "gradients summed", "                param.grad.div_(dist.get_world_size())\n", ""),
    Change(
        "ranks", "gradients divided twice", "param.grad.div_(dist.get_world_size())", "param.grad.div_(4)"
    ),
    Change("ranks", "clipped before the reduction", _AVERAGE + _CLIP, _CLIP + _AVERAGE),
    Change("ranks", "not clipped", _CLIP, ""),
    Change("ranks", "clipped at another norm", "parameters(), 0.5)", "parameters(), 1.0)"),
    Change("ranks", "clipped by value", "clip_grad_norm_(", "clip_grad_value_("),
    Change("ranks", "same shard on each process", "rank=dist.get_rank()", "rank=0"),
    Change(
        "ranks",
        "data not sharded",
        "num_replicas=dist.get_world_size(), rank=dist.get_rank()",
        "num_replicas=1, rank=0",
    ),
    Change(
        "ranks",
        "data sharded twice",
        "data, num_replicas",
        "torch.utils.data.Subset(data, range(dist.get_rank(), 73, 2)), num_replicas",
    ),
    Change("ranks", "sampler pads", "seed=3, drop_last=True", "seed=3, drop_last=False"),
    Change("ranks", "last batch dropped", "sampler=sampler)", "sampler=sampler, drop_last=True)"),
    Change("ranks", "epoch not set", "    sampler.set_epoch(epoch)\n", ""),
    Change("ranks", "sampler seed lost", "shuffle=True, seed=3", "shuffle=True"),
    Change("ranks", "not shuffled", "shuffle=True, seed=3", "shuffle=False, seed=3"),
    Change("ranks", "batch size halved", "batch_size=8", "batch_size=4"),
    Change("ranks", "weight decay by default", "lr=1e-2, weight_decay=0.1", "lr=1e-2"),
    Change("ranks", "learning rate by default", "lr=1e-2, weight_decay", "weight_decay"),
    Change("ranks", "Adam for AdamW", "torch.optim.AdamW", "torch.optim.Adam"),
    Change("ranks", "scheduler not stepped", "        scheduler.step()\n", ""),
    Change("ranks", "scheduler stepped each epoch", "        scheduler.step()\n", "    scheduler.step()\n"),
    Change("ranks", "optimizer not stepped", "        optimizer.step()\n", ""),
    Change("ranks", "gradients not cleared", "        optimizer.zero_grad()\n", ""),
    Change(
        "ranks",
        "loss summed",
        "F.cross_entropy(model(inputs), targets)",
        'F.cross_entropy(model(inputs), targets, reduction="sum")',
    ),
    Change(
        "ranks",
        "metric averaged",
        "right = all_reduce(right)",
        "right = all_reduce(right, scale=1 / dist.get_world_size())",
    ),
    Change("ranks", "metric not reduced", "right = all_reduce(right)\n", ""),
    Change(
        "ranks",
        "metric by the largest",
        "right = all_reduce(right)",
        "right = all_reduce(right, dist.ReduceOp.MAX)",
    ),
    Change(
        "ranks",
        "saved on each process",
        "    if int(os.environ.get(rank, 0)) == 0:\n        torch.save(to_cpu(data), path)",
        "    torch.save(to_cpu(data), path + os.environ[rank])",
    ),
    Change("ranks", "optimizer not saved", ', "optimizer": optimizer.state_dict()}', "}"),
    Change(
        "ranks",
        "nothing saved",
        "    if int(os.environ.get(rank, 0)) == 0:\n        torch.save(to_cpu(data), path)",
        "    to_cpu(data)",
    ),
    Change("ranks", "another seed", "torch.manual_seed(1)\n", "torch.manual_seed(2)\n"),
    Change(
        "ranks",
        "weights differ between processes",
        "torch.manual_seed(1)\n",
        "torch.manual_seed(1 + dist.get_rank())\n",
    ),
    Change("ranks", "learning rate times the processes", "lr=1e-2,", "lr=1e-2 * dist.get_world_size(),"),
    Change(
        "ranks",
        "metric read before its reduction",
        "right = all_reduce(right)\naccuracy = right.item() / (len(data) * dist.get_world_size())\n",
        "accuracy = right.item() / (len(data) * dist.get_world_size())\nright = all_reduce(right)\n",
    ),
    Change("ranks", "metric for one process", "(len(data) * dist.get_world_size())", "len(data)"),
    Change(
        "ranks",
        "twice as many shares",
        "num_replicas=dist.get_world_size()",
        "num_replicas=2 * dist.get_world_size()",
    ),
    Change("ranks", "epoch set one ahead", "set_epoch(epoch)", "set_epoch(epoch + 1)"),
    Change(
        "ranks", "scheduler stepped twice", "        scheduler.step()\n", "        scheduler.step()\n" * 2
    ),
    Change(
        "ranks",
        "largest of the gradients",
        "dist.all_reduce(param.grad)\n                param.grad.div_(dist.get_world_size())",
        "dist.all_reduce(param.grad, dist.ReduceOp.MAX)",
    ),
    Change(
        "ranks",
        "reduced after the step",
        _AVERAGE + _CLIP + "        optimizer.step()\n",
        _CLIP + "        optimizer.step()\n" + _AVERAGE,
    ),
    Change(
        "ranks",
        "gradients cleared before the step",
        "        loss.backward()\n",
        "        loss.backward()\n        optimizer.zero_grad()\n",
    ),
    Change("ranks", "saved under another key", '{"model": model', '{"module": model'),
    Change(
        "ranks",
        "saved by the second process",
        "os.environ.get(rank, 0)) == 0",
        "os.environ.get(rank, 0)) == 1",
    ),
    Change("ranks", "saved in bfloat16", "data.detach().cpu()", "data.detach().cpu().bfloat16()"),
    Change(
        "ranks",
        "other weights saved",
        'save_on_master({"model": model.state_dict()',
        'save_on_master({"model": torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).state_dict()',
    ),
    # One process
    Change(
        "loop",
        "autocast lost",
        'torch.autocast("neuron", dtype=torch.bfloat16)',
        'torch.autocast("neuron", enabled=False)',
    ),
    Change("loop", "autocast to float16", "dtype=torch.bfloat16", "dtype=torch.float16"),
    Change("loop", "model in bfloat16", "Tagger().to(device)", "Tagger().to(device, torch.bfloat16)"),
    Change("loop", "loss in bfloat16", "logits.float().flatten(0, 1)", "logits.flatten(0, 1)"),
    Change("loop", "accumulation without a divisor", "(loss / 2).backward()", "loss.backward()"),
    Change("loop", "accumulation without effect", "if index % 2 == 1", "if index >= 0"),
    Change("loop", "steps at the wrong batches", "if index % 2 == 1", "if index % 2 == 0"),
    Change("loop", "label smoothing lost", ", label_smoothing=0.1", ""),
    Change(
        "loop",
        "padding counted in the loss",
        "targets.flatten(), ignore",
        "targets.flatten().clamp(min=0), ignore",
    ),
    Change("loop", "padding not masked", ", src_key_padding_mask=ids == 0", ""),
    Change("loop", "dropout lost", "self.drop(hidden)", "hidden"),
    Change("loop", "more dropout", "torch.nn.Dropout(0.1)", "torch.nn.Dropout(0.2)"),
    Change("loop", "trained in eval mode", "model.train()\n", "model.eval()\n"),
    Change("loop", "evaluated in train mode", "model.eval()\n", ""),
    Change("loop", "eps of the optimizer by default", "betas=(0.9, 0.95), eps=1e-6", "betas=(0.9, 0.95)"),
    Change("loop", "betas by default", "betas=(0.9, 0.95), ", ""),
    Change("loop", "eps of the norm by default", "LayerNorm(16, eps=1e-6)", "LayerNorm(16)"),
    Change("loop", "not shuffled", "shuffle=True", "shuffle=False"),
    Change("loop", "last batch dropped", "shuffle=True", "shuffle=True, drop_last=True"),
    Change("loop", "one epoch less", "for epoch in range(2)", "for epoch in range(1)"),
    Change("loop", "gradients not cleared", "            optimizer.zero_grad()\n", ""),
    Change("loop", "scheduler by another rule", "1 / (1 + step)", "1 / (2 + step)"),
    Change(
        "loop",
        "scheduler before the optimizer",
        "            optimizer.step()\n            scheduler.step()\n",
        "            scheduler.step()\n            optimizer.step()\n",
    ),
    Change("loop", "norm bounded by another value", "parameters(), 1.0)", "parameters(), 10.0)"),
    Change("loop", "optimizer not saved", '"optimizer": optimizer.state_dict(), ', ""),
    Change("loop", "head frozen", "optimizer = torch", "model.head.requires_grad_(False)\noptimizer = torch"),
    Change("loop", "scores not normalized", ".float().softmax(-1).cpu()", ".float().cpu()"),
    Change(
        "loop",
        "evaluated in bfloat16",
        "with torch.no_grad():\n    scores",
        'with torch.no_grad(), torch.autocast("neuron", dtype=torch.bfloat16):\n    scores',
    ),
    Change("loop", "learning rate halved", "lr=5e-3", "lr=2.5e-3"),
    Change(
        "loop",
        "clipped at each batch",
        "        if index % 2 == 1:\n            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
        "        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n        if index % 2 == 1:\n",
    ),
    Change(
        "loop",
        "clipped after the step",
        "            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n            average_gradients(optimizer)\n            optimizer.step()\n",
        "            average_gradients(optimizer)\n            optimizer.step()\n            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
    ),
    Change(
        "loop",
        "scheduler stepped at each batch",
        "            scheduler.step()\n            optimizer.zero_grad()\n",
        "            optimizer.zero_grad()\n        scheduler.step()\n",
    ),
    Change(
        "loop",
        "targets of other sentences",
        "targets.flatten(), ignore",
        "targets.roll(1, 0).flatten(), ignore",
    ),
    Change(
        "loop",
        "shuffled by a seed of its own",
        "shuffle=True",
        "shuffle=True, generator=torch.Generator().manual_seed(1)",
    ),
    Change("loop", "another epoch saved", '"epoch": 2', '"epoch": 1'),
    Change("loop", "another model saved", '{"model": model.state_dict()', '{"model": Tagger().state_dict()'),
    # A language model and its cache
    Change("pretrain", "weights not tied", "        self.head.weight = self.words.weight\n", ""),
    Change(
        "pretrain",
        "labels shifted twice",
        "loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:]",
        "loss = F.cross_entropy(logits[:, :-2].flatten(0, 1), ids[:, 2:]",
    ),
    Change(
        "pretrain",
        "labels not shifted",
        "loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:]",
        "loss = F.cross_entropy(logits.flatten(0, 1), ids",
    ),
    Change(
        "pretrain",
        "padding counted in the loss",
        "ids[:, 1:].flatten(), ignore_index=PAD)",
        "ids[:, 1:].flatten())",
    ),
    Change(
        "pretrain", "padding not masked", "causal & mask[:, None, :]", "causal.expand(ids.shape[0], -1, -1)"
    ),
    Change(
        "pretrain",
        "future not masked",
        "causal & mask[:, None, :]",
        "mask[:, None, :].expand(-1, ids.shape[1], -1)",
    ),
    Change(
        "pretrain", "cache one place on", "written != PAD, start, cache", "written != PAD, start + 1, cache"
    ),
    Change("pretrain", "places from zero", "written != PAD, start, cache", "written != PAD, 0, cache"),
    Change(
        "pretrain",
        "cache lost",
        "logits, cache = model(ids, written",
        "cache = None\n        logits, _ = model(ids, ids",
    ),
    Change("pretrain", "evaluated in train mode", "model.eval()\n", ""),
    Change("pretrain", "mean of the batches' means", 'ignore_index=PAD, reduction="sum"', "ignore_index=PAD"),
    Change(
        "pretrain",
        "padding counted in the perplexity",
        "(ids[:, 1:] != PAD).sum().item()",
        "ids[:, 1:].numel()",
    ),
    Change(
        "pretrain",
        "losses added in bfloat16",
        "torch.zeros((), device",
        "torch.zeros((), dtype=torch.bfloat16, device",
    ),
    Change("pretrain", "last loss for the average", "        running += loss", "        running = loss"),
    Change("pretrain", "shorter warmup", "(step + 1) / 4", "(step + 1) / 3"),
    Change(
        "pretrain",
        "drawn for the likeliest",
        "logits[:, -1:].argmax(-1)",
        "logits[:, -1].softmax(-1).multinomial(1)",
    ),
    Change("pretrain", "one word less", "for _ in range(5)", "for _ in range(4)"),
    Change(
        "pretrain",
        "gradients cleared before the step",
        "        optimizer.zero_grad()\n        loss.backward()\n",
        "        loss.backward()\n        optimizer.zero_grad()\n",
    ),
    Change("pretrain", "float16 weights saved", "model.state_dict(), ", "model.half().state_dict(), "),
    Change("pretrain", "model left on the CPU", 'torch.device("neuron")', 'torch.device("cpu")'),
    # A Trainer
    Change("trainer", "learning rate by default", "        learning_rate=1e-3,\n", ""),
    Change("trainer", "batch size by default", "        per_device_train_batch_size=2,\n", ""),
    Change("trainer", "weight decay by default", "        weight_decay=0.1,\n", ""),
    Change("trainer", "betas by default", "        adam_beta2=0.95,\n", ""),
    Change("trainer", "scheduler by default", '        lr_scheduler_type="cosine",\n', ""),
    Change("trainer", "no warmup", "        warmup_steps=1,\n", ""),
    Change("trainer", "clipped at the default norm", "        max_grad_norm=0.5,\n", ""),
    Change("trainer", "accumulation lost", "        gradient_accumulation_steps=2,\n", ""),
    Change("trainer", "accumulation without a divisor", "        loss = loss / 2  # of two batches\n", ""),
    Change("trainer", "label smoothing lost", ", label_smoothing=0.1", ""),
    Change("trainer", "classes weighted alike", ", weight=weight", ""),
    Change("trainer", "padding not masked", "model(**inputs)", "model(inputs['input_ids'])"),
    Change("trainer", "autocast to bfloat16", "        seed=3,\n", "        seed=3,\n        bf16=True,\n"),
    Change("trainer", "model in bfloat16", "dtype=torch.float32", "dtype=torch.bfloat16"),
    Change("trainer", "SGD for AdamW", 'optim="adamw_torch"', 'optim="sgd"'),
    Change(
        "trainer", "order by another seed", "        seed=3,\n", "        seed=3,\n        data_seed=5,\n"
    ),
    Change(
        "trainer",
        "last batch dropped",
        "        seed=3,\n",
        "        seed=3,\n        dataloader_drop_last=True,\n",
    ),
    Change("trainer", "one epoch less", "num_train_epochs=2", "num_train_epochs=1"),
    Change("trainer", "no checkpoints", "        save_steps=2,\n", '        save_strategy="no",\n'),
    Change("trainer", "checkpoints half as often", "save_steps=2", "save_steps=4"),
    Change(
        "trainer",
        "optimizer not saved",
        "        save_steps=2,\n",
        "        save_steps=2,\n        save_only_model=True,\n",
    ),
    Change("trainer", "tokenizer not saved", "    processing_class=tokenizer,\n", ""),
    Change("trainer", "model not saved", 'trainer.save_model("trained")\n', ""),
    Change(
        "trainer",
        "saved in bfloat16",
        'trainer.save_model("trained")\n',
        'trainer.model.to(torch.bfloat16)\ntrainer.save_model("trained")\n',
    ),
    Change(
        "trainer",
        "head trained alone",
        "\n\nclass Weighted",
        "\nmodel.bert.requires_grad_(False)\n\n\nclass Weighted",
    ),
    Change("trainer", "labels turned round", '"labels": label}', '"labels": 1 - label}'),
    # Generation
    Change("generate", "sampled for greedy", "do_sample=False", "do_sample=True"),
    Change("generate", "padded on the right", 'padding_side="left"', 'padding_side="right"'),
    Change(
        "generate",
        "attention mask lost",
        "model.generate(**inputs, ",
        "model.generate(inputs['input_ids'], attention_mask=torch.ones_like(inputs['input_ids']), ",
    ),
    Change("generate", "fewer new tokens", "max_new_tokens=16", "max_new_tokens=15"),
    Change("generate", "max_length for max_new_tokens", "max_new_tokens=16", "max_length=16 + 4"),
    Change(
        "generate",
        "penalty for repetitions",
        "max_new_tokens=16",
        "max_new_tokens=16, repetition_penalty=1.2",
    ),
    Change("generate", "in bfloat16", "dtype=torch.float32", "dtype=torch.bfloat16"),
    Change("generate", "two beams", "max_new_tokens=16", "max_new_tokens=16, num_beams=2"),
    Change("generate", "no repeated pairs", "max_new_tokens=16", "max_new_tokens=16, no_repeat_ngram_size=2"),
    Change("generate", "prompts cut", "padding=True,", "padding=True, truncation=True, max_length=8,"),
    Change("generate", "prompt in the answer", "outputs[:, length:]", "outputs"),
    Change("generate", "last character cut", "outputs[:, length:]", "outputs[:, length:-1]"),
    # Inference
    Change("classify", "in bfloat16", "dtype=torch.float32", "dtype=torch.bfloat16"),
    Change(
        "classify",
        "attention mask lost",
        "model(**inputs.to(model.device))",
        "model(inputs.to(model.device)['input_ids'])",
    ),
    Change("classify", "cut at another length", "max_length=16", "max_length=12"),
    Change("classify", "in train mode", "texts = [", "model.train()\ntexts = ["),
    Change(
        "classify",
        "other labels of segments",
        "model(**inputs.to(model.device))",
        "model(**{**inputs.to(model.device), 'token_type_ids': inputs['input_ids'].clamp(max=1)})",
    ),
    Change("classify", "sigmoid for softmax", "torch.softmax(logits, dim=-1)", "torch.sigmoid(logits)"),
    Change("classify", "softmax over the batch", "dim=-1", "dim=0"),
    Change("embed", "in float16", "dtype=torch.float32", "dtype=torch.float16"),
    Change("embed", "mean over the padding too", "(hidden * mask).sum(1) / mask.sum(1)", "hidden.mean(1)"),
    Change("embed", "first word for the mean", "(hidden * mask).sum(1) / mask.sum(1)", "hidden[:, 0]"),
    Change("embed", "not normalized", "vectors = torch.nn.functional.normalize(vectors, dim=-1)\n", ""),
    Change("embed", "last layer but one", ".last_hidden_state.cpu()", ".last_hidden_state.cpu().roll(1, 0)"),
    Change("translate", "one beam for two", "num_beams=2", "num_beams=1"),
    Change("translate", "shorter", "max_length=12", "max_length=11"),
    Change("translate", "sampled", "do_sample=False", "do_sample=True"),
    Change(
        "translate",
        "attention mask lost",
        "    **inputs.to(model.device),\n",
        "    inputs.to(model.device)['input_ids'],\n    attention_mask=torch.ones_like(inputs['input_ids']),\n",
    ),
    Change("translate", "in bfloat16", "dtype=torch.float32", "dtype=torch.bfloat16"),
    Change("classify", "labels turned round", "[row.index(max(row))]", "[row.index(min(row))]"),
    Change("classify", "logits rounded to bfloat16", ".logits.cpu()", ".logits.bfloat16().cpu()"),
    Change("classify", "last batch lost", "range(0, len(texts), 2)", "range(0, 2, 2)"),
    Change(
        "classify",
        "cut at the other end",
        "from_pretrained(folder)\n",
        'from_pretrained(folder, truncation_side="left")\n',
    ),
    Change("embed", "normalized over the batch", "normalize(vectors, dim=-1)", "normalize(vectors, dim=0)"),
    Change("embed", "distances for cosines", "vectors @ vectors.T", "torch.cdist(vectors, vectors)"),
    Change("embed", "cut", "padding=True,", "padding=True, truncation=True, max_length=6,"),
    Change("embed", "in train mode", "inputs = tokenizer(", "model.train()\ninputs = tokenizer("),
    Change("translate", "another first token", "num_beams=2,", "num_beams=2, decoder_start_token_id=1,"),
    Change("translate", "special tokens kept", "skip_special_tokens=True", "skip_special_tokens=False"),
    Change("translate", "source cut", "padding=True,", "padding=True, truncation=True, max_length=3,"),
)

VARIANTS = (
    Change(
        "ranks",
        "summed, then multiplied",
        "param.grad.div_(dist.get_world_size())",
        "param.grad.mul_(1 / dist.get_world_size())",
    ),
    Change(
        "ranks",
        "divided before the sum",
        "                dist.all_reduce(param.grad)\n                param.grad.div_(dist.get_world_size())\n",
        "                param.grad.div_(dist.get_world_size())\n                dist.all_reduce(param.grad)\n",
    ),
    Change(
        "ranks",
        "one reduction of all gradients",
        "        average_gradients(optimizer)\n",
        "        flat = torch.cat([each.grad.flatten() for each in model.parameters()])\n        dist.all_reduce(flat)\n        flat /= dist.get_world_size()\n        for each, part in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()])):\n            each.grad.copy_(part.view_as(each))\n",
    ),
    Change(
        "ranks",
        "gradients cleared at the end",
        "        scheduler.step()\n",
        "        scheduler.step()\n        optimizer.zero_grad()\n",
    ),
    Change(
        "ranks",
        "one tensor at a time in the optimizer",
        "weight_decay=0.1",
        "weight_decay=0.1, foreach=False",
    ),
    Change(
        "ranks",
        "world size by the launcher",
        "num_replicas=dist.get_world_size()",
        'num_replicas=int(os.environ["WORLD_SIZE"])',
    ),
    Change(
        "ranks", "barrier before the file is written", "save_on_master({", "dist.barrier()\nsave_on_master({"
    ),
    Change(
        "loop", "gradients set to zero", "optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=False)"
    ),
    Change("loop", "loss multiplied by a half", "(loss / 2).backward()", "(loss * 0.5).backward()"),
    Change(
        "loop",
        "fused attention off",
        "torch.manual_seed(7)\n",
        "torch.manual_seed(7)\ntorch.backends.mha.set_fastpath_enabled(False)\n",
    ),
    Change(
        "loop",
        "loss by log_softmax",
        "logits.float().flatten(0, 1)",
        "logits.float().flatten(0, 1).log_softmax(-1)",
    ),
    Change(
        "loop",
        "inference mode",
        "with torch.no_grad():\n    scores",
        "with torch.inference_mode():\n    scores",
    ),
    Change("trainer", "fused optimizer", 'optim="adamw_torch"', 'optim="adamw_torch_fused"'),
    Change("trainer", "loss multiplied by a half", "loss / 2  #", "loss * 0.5  #"),
    Change(
        "trainer", "inputs by name", "model(**inputs)", "model(inputs['input_ids'], inputs['attention_mask'])"
    ),
    Change("generate", "dynamic cache", 'model.generation_config.cache_implementation = "static"\n', ""),
    Change(
        "generate",
        "inputs by name",
        "model.generate(**inputs, max_new_tokens=16",
        'model.generate(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=16',
    ),
    Change(
        "generate",
        "eager attention",
        "dtype=torch.float32",
        'dtype=torch.float32, attn_implementation="eager"',
    ),
    Change(
        "classify",
        "eager attention",
        "dtype=torch.float32",
        'dtype=torch.float32, attn_implementation="eager"',
    ),
    Change(
        "classify",
        "softmax of doubles",
        "torch.softmax(logits, dim=-1)",
        "torch.softmax(logits.double(), dim=-1).float()",
    ),
    Change(
        "embed",
        "mean by einsum",
        "(hidden * mask).sum(1)",
        'torch.einsum("bsh,bs->bh", hidden, mask[..., 0])',
    ),
    Change(
        "translate",
        "arguments in another order",
        "    num_beams=2,\n    do_sample=False,\n",
        "    do_sample=False,\n    num_beams=2,\n",
    ),
    Change(
        "trainer",
        "gradient checkpointing",
        "        seed=3,\n",
        "        seed=3,\n        gradient_checkpointing=True,\n",
    ),
    Change("trainer", "checkpoints kept", "        save_total_limit=2,\n", ""),
    Change(
        "ranks",
        "gradients set to zero as well",
        "        optimizer.step()\n",
        "        optimizer.step()\n        optimizer.zero_grad(set_to_none=False)\n",
    ),
    Change(
        "pretrain",
        "attention by hand",
        "F.scaled_dot_product_attention(query, key, value, attn_mask=allowed)",
        "(query @ key.mT / 4).masked_fill(~allowed, -torch.inf).softmax(-1) @ value",
    ),
    Change(
        "pretrain", "no cache", "model(ids, written != PAD, start, cache)\n", "model(written, written != PAD)\n        logits = logits[:, -1:]\n"
    ),
    Change(
        "pretrain",
        "scores by the embedding",
        "return self.head(self.norm(hidden + self.drop(attended)))",
        "return F.linear(self.norm(hidden + self.drop(attended)), self.words.weight)",
    ),
    Change(
        "pretrain",
        "loss read at each step",
        "        running += loss.detach()\n",
        "        running += loss.item()\n",
    ),
    Change("pretrain", "data on the device", "held[:2, :3].to(device)", "held.to(device)[:2, :3]"),
    Change(
        "classify", "padded as needed", 'padding="max_length", max_length=16', "padding=True, max_length=16"
    ),
    Change("embed", "sum for the mean", " / mask.sum(1)", ""),
)
