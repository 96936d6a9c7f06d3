"""What depends on the release of optimum-neuron that a file was written for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from neuronmigrate.site import Site

ChoiceT = TypeVar("ChoiceT")


def by_release(site: Site, todo: list[str], what: str, choices: Mapping[str, ChoiceT]) -> ChoiceT:
    """What the release of a file did; `choices` are keyed by the release that began each, oldest first.

    Where no file says which release is used and another one did otherwise, that is added to `todo`:
    `what` names the default that was written, as `the dtype`.
    """
    from packaging.version import Version

    legacy = site.project.legacy_of(site.path)
    began = list(choices)
    fitting = [release for release in began if Version(release) <= legacy.release]
    chosen = choices[fitting[-1] if fitting else began[0]]
    if legacy.assumed and any(other != chosen for other in choices.values()):
        todo.append(
            f"{what} is that of optimum-neuron {legacy.release}, which is assumed: "
            "give the release that was used with `--from-version`"
        )
    return chosen
