"""Tiny models with random weights, saved where a script can load them without a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

WORDS = ("a", "and", "dull", "film", "fine", "good", "is", "long", "poor", "the", "this", "was")


def save_classifier(
    folder: Path, words: Sequence[str] = WORDS, labels: Sequence[str] = ("NEGATIVE", "POSITIVE")
) -> Path:
    """Save a BERT sequence classifier with its tokenizer, the same one on every call."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    torch.manual_seed(0)
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    config = BertConfig(
        vocab_size=len(entries),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
        id2label=dict(enumerate(labels)),
        # Larger than the usual 0.02, so that different texts get clearly different logits.
        initializer_range=0.5,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    BertTokenizer(vocab={entry: i for i, entry in enumerate(entries)}).save_pretrained(folder)
    return folder


def save_chat(folder: Path) -> Path:
    """Save a Qwen2 that writes lower-case letters only, with its tokenizer of single characters."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

    torch.manual_seed(0)
    end, letters = "<|endoftext|>", [chr(ord("a") + i) for i in range(26)]
    # A space and a line break, as the byte-level pre-tokenizer spells them.
    entries = [*letters, "\u0120", "\u010a", end]
    config = Qwen2Config(
        vocab_size=len(entries),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=entries.index(end),
        pad_token_id=entries.index(end),
        initializer_range=0.3,
    )
    model = Qwen2ForCausalLM(config)
    # No letter of all has a logit below zero: so the text goes on to the limit, and reads back as its tokens.
    model.lm_head.weight.data[len(letters) :] = 0
    model.save_pretrained(folder)
    vocabulary = {entry: i for i, entry in enumerate(entries)}
    Qwen2Tokenizer(vocab=vocabulary, merges=[], model_max_length=2048).save_pretrained(folder)
    return folder


def save_llama(folder: Path) -> Path:
    """Save a Llama with the tokenizer of single characters that `save_chat` makes."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(save_chat(folder))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def save_rows(folder: Path, vocabulary: int = 24) -> Path:
    """Save a dataset of eight rows of token ids, each its own labels."""
    from datasets import Dataset

    ids = [[(3 * row + column) % vocabulary for column in range(8)] for row in range(8)]
    rows = {"input_ids": ids, "attention_mask": [[1] * 8] * 8, "labels": ids}
    Dataset.from_dict(rows).save_to_disk(str(folder))
    return folder


def save_translator(folder: Path, words: Sequence[str] = WORDS, spread: float = 2.0) -> Path:
    """Save a T5 with its tokenizer of whole words.

    A `spread` of its weights above 1 makes its attention so sharp that bfloat16 tells other words.
    """
    import torch
    from transformers import T5Config, T5ForConditionalGeneration, T5Tokenizer

    torch.manual_seed(0)
    entries = ["<pad>", "</s>", "<unk>", *(f"\u2581{word}" for word in words)]
    config = T5Config(
        vocab_size=len(entries),
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        initializer_factor=spread,
    )
    T5ForConditionalGeneration(config).save_pretrained(folder)
    T5Tokenizer(vocab=[(entry, 0.0) for entry in entries], extra_ids=0).save_pretrained(folder)
    return folder


def save_sentence_encoder(folder: Path, words: Sequence[str] = WORDS) -> Path:
    """Save a BERT whose first token is the embedding of the text, as sentence-transformers stores it."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizer

    torch.manual_seed(0)
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    config = BertConfig(
        vocab_size=len(entries),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=512,
        initializer_range=0.5,
    )
    parts = folder / "parts"
    BertModel(config).save_pretrained(parts)
    BertTokenizer(vocab={entry: i for i, entry in enumerate(entries)}).save_pretrained(parts)
    model = SentenceTransformer(modules=[Transformer(str(parts)), Pooling(32, "cls")], device="cpu")
    model.save(str(folder), create_model_card=False)
    return folder


def save_recognizer(folder: Path) -> Path:
    """Save a Wav2Vec2 with a head for connectionist temporal classification: ten samples a frame."""
    import torch
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    torch.manual_seed(0)
    config = Wav2Vec2Config(
        vocab_size=12,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        conv_dim=(8, 8),
        conv_stride=(5, 2),
        conv_kernel=(10, 3),
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        initializer_range=0.5,
    )
    Wav2Vec2ForCTC(config).save_pretrained(folder)
    return folder


def save_stable_diffusion(folder: Path) -> Path:
    """Save a Stable Diffusion whose autoencoder shrinks by 64, so that large images are cheap."""
    import torch
    from diffusers import PNDMScheduler, StableDiffusionPipeline

    torch.manual_seed(0)
    StableDiffusionPipeline(
        **_diffusion_parts(cross_attention_dim=32),
        scheduler=PNDMScheduler(skip_prk_steps=True, steps_offset=1),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    ).save_pretrained(folder)
    return folder


def save_stable_diffusion_xl(folder: Path) -> Path:
    """Save a Stable Diffusion XL whose autoencoder shrinks by 64, so that large images are cheap."""
    import torch
    from diffusers import EulerDiscreteScheduler, StableDiffusionXLPipeline
    from transformers import CLIPTextModelWithProjection

    torch.manual_seed(0)
    parts = _diffusion_parts(
        cross_attention_dim=64,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        # Six numbers that tell sizes, and the pooled text.
        projection_class_embeddings_input_dim=6 * 8 + 32,
    )
    StableDiffusionXLPipeline(
        **parts,
        text_encoder_2=CLIPTextModelWithProjection(parts["text_encoder"].config),
        tokenizer_2=parts["tokenizer"],
        scheduler=EulerDiscreteScheduler(steps_offset=1),
    ).save_pretrained(folder)
    return folder


def _diffusion_parts(**unet: object) -> dict[str, Any]:
    """The models of a Stable Diffusion, but the scheduler; `unet` are further fields of its configuration."""
    from diffusers import AutoencoderKL, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    vae = AutoencoderKL(
        block_out_channels=[4] * 7,
        layers_per_block=1,
        down_block_types=["DownEncoderBlock2D"] * 7,
        up_block_types=["UpDecoderBlock2D"] * 7,
        latent_channels=4,
        norm_num_groups=2,
    )
    # The random encoder says little of an image, and a large variance: the noise would be all that is seen.
    vae.quant_conv.weight.data[:4] *= 30
    letters = [chr(ord("a") + i) for i in range(26)]
    entries = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{letter}</w>" for letter in letters)]
    return {
        "unet": UNet2DConditionModel(
            block_out_channels=(16, 32),
            layers_per_block=1,
            sample_size=16,
            in_channels=4,
            out_channels=4,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            norm_num_groups=8,
            **unet,
        ),
        "vae": vae,
        "text_encoder": CLIPTextModel(
            CLIPTextConfig(
                vocab_size=len(entries),
                hidden_size=32,
                intermediate_size=64,
                num_attention_heads=4,
                num_hidden_layers=2,
                max_position_embeddings=32,
                projection_dim=32,
                pad_token_id=1,
                bos_token_id=0,
                eos_token_id=1,
            )
        ),
        "tokenizer": CLIPTokenizer(
            vocab={entry: i for i, entry in enumerate(entries)}, merges=[], model_max_length=32
        ),
    }


def save_lora(folder: Path, weight_name: str, pipeline: Path, seed: int) -> dict[str, torch.Tensor]:
    """Save a LoRA of the attention of a saved Stable Diffusion, and return what it adds to each weight.

    The scale of the LoRA is 1, as its alpha is not stored. The keys are names of the UNet's parameters;
    the values are float32, of the shapes of the parameters.
    """
    import torch
    from diffusers import StableDiffusionPipeline, UNet2DConditionModel
    from peft import LoraConfig
    from peft.utils import get_peft_model_state_dict

    torch.manual_seed(seed)
    unet = UNet2DConditionModel.from_pretrained(pipeline, subfolder="unet")
    targets = ["to_q", "to_k", "to_v", "to_out.0"]
    unet.add_adapter(LoraConfig(r=2, lora_alpha=2, init_lora_weights=False, target_modules=targets))
    layers = get_peft_model_state_dict(unet)
    StableDiffusionPipeline.save_lora_weights(
        folder, unet_lora_layers=layers, weight_name=weight_name, safe_serialization=True
    )
    down, up = ".lora_A.weight", ".lora_B.weight"
    return {
        name.removesuffix(down) + ".weight": layers[name.removesuffix(down) + up] @ layers[name]
        for name in layers
        if name.endswith(down)
    }
