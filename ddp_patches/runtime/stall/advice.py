"""What each kind of finding means, and what to try: text for people."""

from __future__ import annotations

from typing import Dict, Tuple

# Kind: (what it means, what to try).
_WORDS: Dict[str, Tuple[str, str]] = {
    "silent": (
        "A process that was killed or stopped, or a machine that is gone: the others wait for it in vain.",
        "Exit code -9 in the launcher's output is mostly the host's memory: loader workers times ranks, or "
        "the container's limit. A stopped process goes on with `kill -CONT PID`.",
    ),
    "unknown": (
        "Where a rank without ddp_patches stands is not known; the others wait for it.",
        "Turn ddp_patches on for all ranks (`ddp-patches probe` shows where it gets lost), or look there "
        "with `py-spy dump --pid PID`.",
    ),
    "loader": (
        "The data loading of that rank has delivered no batch: this is not NCCL's fault, and a longer "
        "timeout will not help.",
        "Samples that are drawn again and again (without ground truth, or dropped by the pipeline), a "
        "corrupt file, slow storage. `py-spy dump --pid PID` of the worker shows the line.",
    ),
    "build lock": (
        "torch builds a C++ or CUDA extension in one process, and the others wait for its lock file. If no "
        "process builds any more (it was killed), the file is left behind, and they wait for ever.",
        "Look for a running ninja or nvcc; if there is none, remove the lock file that is named, and start "
        "again.",
    ),
    "left": (
        "That rank has come to the end of its program while the others are still in theirs: they have more "
        "batches, or it left the loop early.",
        "Give every rank the same number of steps (drop_last, a DistributedSampler, DDP's join()), and leave "
        "a loop on all ranks or on none.",
    ),
    "different places": (
        "Some ranks wait for a leader in a rank-0-first block, others in a collective: they have come to "
        "different places of the program.",
        "Enter rank-0-first blocks on all ranks or on none.",
    ),
    "rank 0 alone": (
        "Rank 0 is alive and works where the others are not, as in an evaluation, an upload, a checkpoint or "
        "a scan that it does alone.",
        "Nothing is wrong as long as it ends before the limit of the process group. If it should be in the "
        "collective with the others: look for an `if rank == 0` around one.",
    ),
    "works alone": (
        "That rank is alive and works where the others are not: a step that only it does, more data than the "
        "others have, or a branch that depends on its data.",
        "A long step of one rank: nothing is wrong as long as it ends before the limit. If all ranks should "
        "be in the same collective: look for a branch around it, such as `if num_pos > 0`.",
    ),
    "blocked": (
        "That rank neither computes nor moves: it waits for something that is no collective (a lock, a file, "
        "a sleep, another process).",
        "Look at the line that is named. An exception that was caught there would look like this, too.",
    ),
    "unfinished step": (
        "Some ranks are in the backward pass, others have begun the next forward pass already: those have "
        "not finished the step. An exception (out of memory?) was caught and the batch left out, or a batch "
        "was skipped (a loss that is not a number, nothing to learn from).",
        "Look for `except` and `continue` in the training loop: whatever one rank leaves out, all have to. A "
        "longer timeout will not help.",
    ),
    "forward and collective": (
        "Some ranks are in DDP's forward pass, which exchanges buffers, others in a collective of the "
        "program: they have unequal numbers of batches, or one evaluates with the DDP model and the others "
        "wait for it.",
        "Give every rank the same number of batches; evaluate with `model.module` where only one rank does.",
    ),
    "point to point": (
        "Ranks that send and receive do not match each other.",
        "Compare the places: every recv needs a send of the rank that it names, in the same order.",
    ),
    "transport": (
        "All are in the same collective and it does not end: the connection between them is at fault, not "
        "the program.",
        "With NCCL try NCCL_P2P_DISABLE=1, NCCL_IB_DISABLE=1 and NCCL_SOCKET_IFNAME=INTERFACE; "
        "NCCL_DEBUG=INFO shows which path it takes.",
    ),
    "different collectives": (
        "They have taken different ways through the program: a loss term that one rank skips, an unequal "
        "number of batches, an evaluation on some ranks only.",
        "Compare the places: what decides on one rank that it goes there? A longer timeout will not help.",
    ),
}


def meaning(kind: str) -> str:
    """What a finding of ``kind`` means."""
    return _WORDS[kind][0]


def what_to_try(kind: str) -> str:
    """What has helped others."""
    return _WORDS[kind][1]
