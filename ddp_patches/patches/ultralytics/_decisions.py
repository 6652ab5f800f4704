"""What ``ultralytics.setup_ddp`` decides: which GPU a rank uses, and how many ranks the job has."""

from __future__ import annotations

from typing import Any, Mapping


def requested_indices(device: Any) -> list[int]:
    """The indices in Ultralytics' ``device``: ``"0,1"``, ``"cuda:0,1"``, ``[0, 1]``, ``1``; [] for others."""
    text = str(device).lower()
    for mark in ("cuda:", "(", ")", "[", "]", "'", " "):
        text = text.replace(mark, "")
    entries = [entry for entry in text.split(",") if entry]
    return [int(entry) for entry in entries] if all(entry.isdigit() for entry in entries) else []


def device_index(
    asked: int, local_rank: int | None, device: Any, visible: str | None, device_count: int
) -> int:
    """The index, among the devices that CUDA shows to this process, of this rank's own one.

    Args:
        asked: what upstream would use, its global rank.
        local_rank: LOCAL_RANK, None outside a job.
        device: the trainer's ``args.device``.
        visible: CUDA_VISIBLE_DEVICES. These releases write ``device`` there (``select_device``), and
            CUDA then counts from 0 within that list; not so if CUDA had been started before.
        device_count: the devices that CUDA shows, 0 if that is unknown.
    """
    if local_rank is None or local_rank < 0 or asked == local_rank:
        return asked
    if device_count == 1:  # the launcher shows each rank its own GPU, as srun --gpus-per-task=1 does
        return 0
    indices = requested_indices(device)
    renumbered = bool(indices) and requested_indices(visible) == indices and device_count == len(indices)
    index = local_rank
    if indices and not renumbered and local_rank < len(indices):
        index = indices[local_rank]
        if 0 < device_count <= index:  # written for other GPUs than these: only the order is left
            index = local_rank
    if 0 < device_count <= index:
        return asked  # more ranks than GPUs on this node: torch's own message says it best
    return index


def job_world_size(named: int, environ: Mapping[str, str]) -> int:
    """How many ranks the group has. ``named``: the devices counted by upstream, which takes them for all.

    Another number than ``named`` is returned only if this node has just as many ranks, and the launcher
    started a multiple of them.
    """
    here = number(environ.get("LOCAL_WORLD_SIZE"))
    everywhere = number(environ.get("WORLD_SIZE"))
    if here is None or everywhere is None or named < 2 or here != named:
        return named
    return everywhere if everywhere > named and everywhere % named == 0 else named


def number(text: str | None) -> int | None:
    """A rank or a count from a variable, None where there is none."""
    return int(text) if text is not None and text.isdigit() else None
