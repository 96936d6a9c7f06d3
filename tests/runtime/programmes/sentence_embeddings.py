"""sentence-transformers: embeddings of texts of different lengths, as tensors and as numpy arrays."""

from __future__ import annotations

from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer

from tests.runtime.models import bert, tokenizer


def run(device: str) -> dict[str, object]:
    bert().bert.save_pretrained("model")
    tokenizer().save_pretrained("model")
    words = Transformer("model")
    model = SentenceTransformer(modules=[words, Pooling(words.get_embedding_dimension())], device=device)
    texts = ["the cat sat", "a big dog ran home", "the mat"]
    embeddings = model.encode(texts, convert_to_tensor=True, normalize_embeddings=True)
    model.save("saved")
    again = SentenceTransformer("saved", device=device).encode(texts, batch_size=2)
    return {
        "embeddings": embeddings,
        "again": again.tolist(),
        "similar": model.similarity(embeddings, embeddings),
    }
