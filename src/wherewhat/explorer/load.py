"""Results as `report` and `plot` take them: objects or folders, one or several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import BadInput
from ..remote import local_copy
from ..studies.ablation.ablate import Ablation
from ..studies.atlas.atlas import Atlas
from ..studies.dynamics.dynamics import Dynamics
from ..studies.lengths.lengths import Lengths
from ..studies.profile.result import Profile
from ..studies.rotations.plan import RotationPlan

Drawable = Profile | Dynamics | Atlas | Ablation  # what `plot` draws
Source = Profile | Dynamics | Atlas | Lengths  # what the page shows by itself
Joined = Ablation | RotationPlan  # joins the profile of its model
Shown = Source | Joined
# The file that marks a folder as holding each kind of result.
KINDS: dict[type[Shown], str] = {kind: kind.FILE for kind in (Atlas, Dynamics, Profile, Lengths)}
KINDS |= {kind: kind.FILE for kind in (Ablation, RotationPlan)}


def open_results(
    results: Shown | str | Path | Sequence[Shown | str | Path],
) -> Iterator[tuple[list[Shown], Path | None]]:
    """What each argument holds: one object, or every result of a folder and the folder."""
    for result in [results] if isinstance(results, str) or not isinstance(results, Sequence) else results:
        if isinstance(result, (str, Path)):
            folder = local_copy(result)
            yield load_results(folder), folder
        elif isinstance(result, tuple(KINDS)):
            yield [result], None
        else:
            raise BadInput(
                f"{type(result).__name__} cannot be shown: give a profile, dynamics, lengths, an ablation or an atlas, "
                "or the folder of one; ww.profile(model) makes a profile"
            )


def load_results(folder: Path) -> list[Shown]:
    """Every result in a folder that can be shown; the folder of a training run stands for its dynamics."""
    found: list[Shown] = []
    for kind, file in KINDS.items():
        places = (folder, folder / "dynamics") if kind is Dynamics else (folder,)
        found += [kind.load(place) for place in places if (place / file).exists()]
    if not found and (folder / "run.json").exists():
        raise BadInput(f"{folder}: the checkpoints of this run are not scored yet; run wherewhat dynamics {folder}")
    if not found:
        raise BadInput(f"{folder}: holds no profile, dynamics, lengths, ablation, plan of rotations or atlas")
    return found


def load_drawable(
    results: Drawable | str | Path | Sequence[Drawable | str | Path], kinds: tuple[type, ...] = ()
) -> list[Drawable]:
    """One result to draw per argument: of these `kinds`, if the folder holds one of them, else the first."""
    drawn: list[Drawable] = []
    for held, folder in open_results(results):
        found = [result for result in held if isinstance(result, Drawable)]
        if not found:
            where = f"{folder}: " if folder else ""
            raise BadInput(f"{where}figures are drawn from a profile, dynamics, an ablation or an atlas")
        drawn.append(next((result for result in found if isinstance(result, kinds)), found[0]))
    return drawn
