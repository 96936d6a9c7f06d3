"""Optimum Neuron: which stand-in a name has. Many import paths lead to one class, so the last part decides.

The behaviour is that of the package's own source at its tags; where a release differs the module says so.
"""

from __future__ import annotations

import importlib

from neuronmigrate.runtime.legacy.session import Session

_HERE = __name__

STAND_INS: dict[str, str] = {
    "NeuronBertForMaskedLM": "traced",
    "NeuronBertForMultipleChoice": "traced",
    "NeuronBertForQuestionAnswering": "traced",
    "NeuronBertForSequenceClassification": "traced",
    "NeuronBertForTokenClassification": "traced",
    "NeuronBertModel": "traced",
    "NeuronCLIPForImageClassification": "traced",
    "NeuronCLIPModel": "traced",
    "NeuronModelForAudioClassification": "traced",
    "NeuronModelForAudioFrameClassification": "traced",
    "NeuronModelForCTC": "traced",
    "NeuronModelForFeatureExtraction": "traced",
    "NeuronModelForImageClassification": "traced",
    "NeuronModelForMaskedLM": "traced",
    "NeuronModelForMultipleChoice": "traced",
    "NeuronModelForObjectDetection": "traced",
    "NeuronModelForQuestionAnswering": "traced",
    "NeuronModelForSemanticSegmentation": "traced",
    "NeuronModelForSequenceClassification": "traced",
    "NeuronModelForTokenClassification": "traced",
    "NeuronModelForXVector": "traced",
    "NeuronTracedModel": "traced",
    "NeuronYolosForObjectDetection": "traced",
}
"""Last part of a name to the module of this package that has it."""


def stand_in(name: str, session: Session) -> object:
    """The stand-in of a name; None without one.

    Raises LegacyProblem if a library that it is built on is not installed.
    """
    if name == "__version__":
        return str(session.release)
    module = STAND_INS.get(name)
    if module is None:
        return None
    found: object = getattr(importlib.import_module(f"{_HERE}.{module}"), name)
    return found
