"""The messages of torch 1.8 to 2.14, its launchers, Slurm and the frameworks: how they are spelt.

To teach a new one: add a ``Message`` with a text that every such line contains (``needle``, which makes the
search cheap) and a pattern whose groups become the event's facts; what it means is said in ``causes``. A
group ``rank`` is the rank that writes, unless the line's prefix knows better. A pattern must not be able to
backtrack far: counted repetitions, no nested ones.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Iterator, Pattern, Tuple


@dataclasses.dataclass(frozen=True)
class Message:
    """One spelling of one kind of message."""

    kind: str
    needle: str
    pattern: Pattern[str]


def _message(kind: str, needle: str, pattern: str = "") -> Message:
    return Message(kind, needle, re.compile(pattern or re.escape(needle)))


# "[Rank 3] " until 2.1, "[PG 1 Rank 3] " in 2.2, "[PG 0 (default_pg) Rank 3] " in 2.4,
# "[PG ID 0 PG GUID 0(default_pg) Rank 3] " since.
_OWNER = r"(?:\[(?P<group>PG [^\]\[]{1,100} )?Rank (?P<rank>\d{1,6})\]:?\s{0,3})"
# 1.8: "WorkNCCL(OpType=ALLREDUCE, TensorShape=[1], Timeout(ms)=60000)"; 1.10: SeqNum in front;
# 2.1: NumelIn and NumelOut. Other backends: WorkXCCL, WorkHCCL.
_WORK = r"Work\w{2,8}\((?P<work>(?:[^()]|\(ms\)){1,400})\)"
_ENDS_BY_SIGNAL = r"(?P<signal>SIG[A-Z0-9]{2,8})"

CATALOGUE: Tuple[Message, ...] = (
    # Collectives that do not end.
    _message("nccl timeout", "ollective operation timeout",
             _OWNER + r"?(?:Watchdog c|C|c)aught collective operation timeout: " + _WORK
             + r"(?: ran for (?P<elapsed>\d{1,12}) milli)?"),
    _message("nccl timeout", "timed out in blocking wait",
             _OWNER + r"?Work " + _WORK + r" timed out in blocking wait"),
    _message("nccl progress", "ast enqueued",
             _OWNER + r"(?P<says>[^\[]{0,400}?)[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d{1,15}), "
             r"last completed (?:NCCL )?work: (?P<completed>-?\d{1,15})"),
    _message("nccl aborted", "NCCL communicator was aborted",
             r"NCCL communicator was aborted(?: on rank (?P<rank>\d{1,6}))?"),
    _message("nccl taken down", "taking the entire process "
                                "down", _OWNER + r"?.{0,40}taking the entire process down"),
    _message("dump signal", "Observed flight recorder dump "
                            "signal", _OWNER + r"?Observed flight recorder dump"),
    _message("heartbeat", "watchdog got stuck for",
             _OWNER + r"?ProcessGroup\w{2,8}'s watchdog got stuck for (?P<seconds>\d{1,9}) sec"),
    _message("heartbeat", "Heartbeat monitor timed out", _OWNER + r"?Heartbeat monitor timed out"),
    _message("gloo timeout", "Timed out waiting", r"Timed out waiting (?P<limit>\d{1,12})ms for "
                                                  r"(?P<operation>\w+)"),
    _message("gloo timeout", "Application timeout caused pair closure"),
    _message("missing named", "failed to pass monitoredBarrier",
             r"\[Rank (?P<rank>\d{1,6})\]: Ranks? (?P<missing>\d[\d, ]{0,2000}) failed to pass "
             r"monitoredBarrier"
             r"(?: in (?P<limit>\d{1,12}) ms)?"),
    _message("collectives differ", "Detected mismatch between collectives",
             r"Detected mismatch between collectives on ranks\. (?P<both>Rank .{1,1500})"),
    # A peer that has gone.
    _message("peer gone", "onnection closed by peer", r"[Cc]onnection closed by peer(?: "
                                                      r"\[(?P<peer>[^\]]{1,80})\])?"),
    _message("peer gone", "Connection reset by peer"),
    _message("peer gone", "Broken pipe"),
    _message("peer gone", "emote process exited or there was a network error"),
    _message("store gone", "failed to recv, got 0 bytes"),
    _message("store gone", "sendBytes failed on"),
    _message("store gone", "recvValue failed on"),
    # The beginning.
    _message("nccl setup", "retrieving ncclUniqueId",
             r"\[(?P<rank>\d{1,6})\] is setting up NCCL communicator and retrieving ncclUniqueId from "
             r"\[(?P<from>\d{1,6})\]"),
    _message("store barrier", "initializing process group in store based barrier",
             r"Timed out initializing process group in store based barrier on rank: (?P<rank>\d{1,6})"
             r".{0,200}?"
             r"world_size=(?P<world>\d{1,6}), (?:worker_count|num_workers_joined)=(?P<count>\d{1,9})"
             r"(?:, timeout=(?P<limit>[\d:.a-z ,]{1,40}))?"),
    _message("store timeout", "wait timeout after", r"wait timeout after (?P<limit>\d{1,12})ms"),
    _message("store timeout", "Socket Timeout"),
    _message("store timeout", "waiting for clients",
             r"Timed out after (?P<seconds>\d{1,9}) seconds waiting for clients\. "
             r"(?P<count>\d{1,6})/(?P<world>\d{1,6}) clients"),
    _message("store unreachable", "client socket has timed out",
             r"client socket has timed out after (?P<limit>\S{1,20}) while trying to connect to "
             r"\((?P<host>[^,)]{1,200}), (?P<port>\d{1,5})\)"),
    _message("store unreachable", "client socket has failed to connect to any",
             r"client socket has failed to connect to any network address of "
             r"\((?P<host>[^,)]{1,200}), (?P<port>\d{1,5})\)"),
    _message("store unreachable", "failed to connect/validate to host",
             r"failed to connect/validate to host (?P<host>[^\s:]{1,200}):(?P<port>\d{1,5}) - timed out"),
    _message("rendezvous", "Rendezvous", r"(?P<name>Rendezvous(?:Timeout|Connection|Closed|State)Error)"),
    _message("address in use", "ddress already in use",
             r"(?:(?P<port>(?<=:)\d{2,5})\b.{0,80})?[Aa]ddress already in use(?:.{0,80}\bport: "
             r"(?P<port2>\d{1,5}))?"),
    _message("address in use", "EADDRINUSE",
             r"(?:\bport: (?P<port>\d{1,5}).{0,80})?EADDRINUSE"),
    # DDP and the losses.
    _message("parameters differ", "DDP expects same model across all ranks",
             r"DDP expects same model across all ranks, but Rank (?P<rank>\d{1,6}) has (?P<own>\d{1,9}) "
             r"params, "
             r"while rank (?P<other>\d{1,6}) has inconsistent (?P<others>\d{1,9})"),
    _message("parameters differ", "of the same param in process 0",
             r"(?:\[(?P<rank>\d{1,6})\]: )?params\[(?P<index>\d{1,9})\] in this process.{0,200}?of the "
             r"same param"),
    _message("unused parameters", "Expected to have finished reduction in the prior iteration"),
    _message("unused parameters", "did not receive grad for rank",
             r"(?:Parameters|Parameter indices) which did not receive grad for rank (?P<rank>\d{1,6}): "
             r"(?P<parameters>.{1,1000})"),
    _message("ready twice", "Expected to mark a variable ready only once"),
    _message("losses differ", "loss log variables are different across GPUs"),
    _message("loss keys", "len(log_vars)", r"rank (?P<rank>\d{1,6}) len\(log_vars\): (?P<keys>.{1,1000})"),
    _message("integer reduce", "can't be cast to the desired output type Long"),
    # Devices.
    _message("guessed device", "to perform barrier as devices used by this process",
             r"(?:Rank (?P<rank>\d{1,6})\]?\s{1,3})?using (?:best-guess )?GPU (?P<device>\d{1,4}) to "
             r"perform barrier"),
    _message("guessed device", "as device used by this process is currently unknown",
             _OWNER + r"?\s{0,3}using GPU (?P<device>\d{1,4}) as device used by"),
    _message("guessed device", "Guessing device ID based on global "
                               "rank", _OWNER + r"?\s{0,3}Guessing device ID"),
    _message("device refused", "device_ids not supported for the selected backend"),
    _message("device refused", "unexpected keyword argument 'device_ids'"),
    _message("wrong device", "invalid device ordinal"),
    _message("wrong device", "Duplicate GPU detected",
             r"Duplicate GPU detected ?: rank (?P<rank>\d{1,6}) and rank (?P<other>\d{1,6})"),
    _message("gpu memory", "CUDA out of memory"),
    _message("gpu memory", "CUDA error: out of memory"),
    _message("gpu error", "CUDA error: ", r"CUDA error: (?P<what>(?!out of memory|invalid device ordinal)"
                                          r".{1,120})"),
    _message("nccl error", "NCCL error", r"NCCL error(?: in)?: .{0,300}?, (?P<what>[a-z][a-z "
                                         r"]{3,80}error[^,]{0,80})"),
    _message("bool on gloo", "Invalid scalar type"),
    # Data loading.
    _message("worker bus error", "is killed by signal: Bus error",
             r"DataLoader worker \(pid (?P<worker>\d{1,9})\) is killed by signal: Bus error"),
    _message("worker bus error", "nexpected bus error encountered in worker"),
    _message("worker bus error", "unable to open shared memory object"),
    _message("worker killed", "is killed by signal: ",
             r"DataLoader worker \(pid (?P<worker>\d{1,9})\) is killed by signal: (?P<what>(?!Bus error)"
             r".{1,60})"),
    _message("worker gone", "exited unexpectedly",
             r"DataLoader worker \(pid(?:\(s\))? (?P<worker>[\d, ]{1,200})\) exited unexpectedly"),
    _message("worker slow", "DataLoader timed out after", r"DataLoader timed out after "
                                                          r"(?P<seconds>[\d.]{1,12})"),
    _message("worker error", "in DataLoader worker process",
             r"Caught (?P<type>[\w.]{1,200}) in DataLoader worker process (?P<worker>\d{1,6})"),
    _message("file descriptors", "received 0 items of ancdata"),
    _message("file descriptors", "Too many open files"),
    _message("no valid sample", "annot find valid image",
             r"[Cc]annot find valid image(?: after (?P<tries>\d{1,9}))?"),
    _message("empty loader", "__len__() should return >= 0"),
    # The launchers and the operating system.
    _message("launcher failed", "failed (exitcode: ",
             r"failed \(exitcode: (?P<exitcode>-?\d{1,6})\) local_rank: (?P<local>\d{1,6}) \(pid: "
             r"(?P<pid>\d{1,9})\)"),
    _message("launcher ends worker", "closing signal",
             r"Sending process (?P<pid>\d{1,9}) closing signal (?:Signals\.)?" + _ENDS_BY_SIGNAL),
    _message("launcher kills worker", "Unable to shutdown "
                                      "process", r"Unable to shutdown process (?P<pid>\d{1,9}) via"),
    _message("launcher signalled", "got signal: ", r"Process \d{1,9} got signal: (?P<number>\d{1,3})"),
    _message("launcher signalled", "death signal", r"Received (?:Signals\.)?(?P<name>\S{1,20}) death signal"),
    _message("command died", "died with <Signals.", r"died with <Signals\." + _ENDS_BY_SIGNAL),
    _message("command failed", "returned non-zero exit status",
             r"returned non-zero exit status (?P<exitcode>\d{1,6})"),
    _message("spawned process", "terminated with the following error",
             r"-- Process (?P<rank>\d{1,6}) terminated with the following error"),
    _message("spawned process died", "terminated with signal",
             r"process (?P<rank>\d{1,6}) terminated with signal " + _ENDS_BY_SIGNAL),
    _message("slurm cancelled", "CANCELLED AT",
             r"\*\*\* (?:JOB|STEP) (?P<job>\S{1,40}) ON (?P<host>\S{1,200}) CANCELLED AT (?P<time>\S{1,40})"
             r"(?: DUE TO (?P<why>[A-Z ]{1,40}))?"),
    _message("host memory", "oom-kill event"),
    _message("host memory", "oom_kill event"),
    _message("host memory", "Out of memory: Killed process", r"Out of memory: Killed process "
                                                             r"(?P<pid>\d{1,9})"),
    _message("slurm task", "srun: error: ",
             r"srun: error: (?P<host>[^\s:]{1,200}): tasks? (?P<tasks>\d[\d,-]{0,500}): (?P<what>.{1,100})"),
    _message("shell said", "(core dumped)",
             r"(?P<what>Bus error|Segmentation fault|Aborted|Illegal instruction)\s{1,8}\(core dumped\)"),
    # The end.
    _message("not destroyed", "has NOT been destroyed"),
    _message("not destroyed", "destroy_process_group() was not called before program exit"),
    # Settings of frameworks.
    _message("timeout type", "Expected timeout argument to be of type"),
    _message("timeout type", "datetime.timedelta", r"(?:unsupported|incompatible)"
                                                   r".{0,200}datetime\.timedelta"),
    # Ours.
    _message("ours", "ddp_patches 20",
             r"ddp_patches (?P<time>20\d\d-\d\d-\d\d \d\d:\d\d:\d\d) \[(?:rank (?P<rank>\d{1,6}), )?"
             r"(?P<host>[^,\]]{1,200}), pid (?P<pid>\d{1,9})\] (?P<said>.{1,2000})"),
)  # fmt: skip

# How many ranks the job has; "ranks" is the number.
WORLD: Tuple[Message, ...] = (
    _message(
        "started with us", "is on for ", r"ddp_patches \S{1,40} is on for \d{1,6} of (?P<ranks>\d{1,6}) ranks"
    ),
    _message("world", "world_size=", r"world_size=(?P<ranks>\d{1,6})"),
    _message("world", "global_world_sizes=", r"global_world_sizes=\[(?P<ranks>\d{1,6})"),
    _message("world", "WORLD_SIZE", r"WORLD_SIZE['\"]?(?:\]| )?[=:]\s{0,2}['\"]?(?P<ranks>\d{1,6})"),
    _message("world", "MEMBER: ", r"MEMBER: \d{1,6}/(?P<ranks>\d{1,6})"),
    _message("world", "GPU number: ", r"GPU number: (?P<ranks>\d{1,6})"),
    _message("world", " nranks ", r" nranks (?P<ranks>\d{1,6})"),
    _message("world", "nproc_per_node", r"nproc_per_node[ =](?P<ranks>\d{1,6})"),
    _message("world", "nproc-per-node", r"nproc-per-node[ =](?P<ranks>\d{1,6})"),
)

# What the job is at.
SCAN, TRAINING, EVALUATION, END = "scan", "training", "evaluation", "end"
STAGES: Tuple[Tuple[str, str], ...] = (
    ("Scanning ", SCAN),
    ("Caching images", SCAN),
    ("Downloading ", SCAN),
    ("New cache created", SCAN),
    ("Epoch(train)", TRAINING),
    ("Epoch [", TRAINING),
    ("box_loss", TRAINING),
    ("Epoch(val)", EVALUATION),
    ("Epoch(test)", EVALUATION),
    ("Evaluating ", EVALUATION),
    ("mAP50", EVALUATION),
    ("mAP@", EVALUATION),
    (">>>>>", EVALUATION),  # mmcv's bar over the validation set
    ("epochs completed in", END),
    ("Optimizer stripped from", END),
    ("estroying process group", END),
)

# A line after which a failure that came before belongs to an earlier run, appended to the same file.
STARTS = (
    "Setting OMP_NUM_THREADS environment variable for each process",
    "will restart worker group",
    "System environment:",  # mmengine
    "Environment info:",  # mmcv 1.x
)


def present(catalogue: Tuple[Message, ...], block: str) -> Tuple[Message, ...]:
    """The messages of which ``block`` contains the needle."""
    return tuple(message for message in catalogue if message.needle in block)


def found_in(text: str, catalogue: Tuple[Message, ...]) -> Iterator[Tuple[str, re.Match[str]]]:
    """The messages in one line; there may be several, where ranks write into each other's lines."""
    for message in catalogue:
        if message.needle in text:
            for match in message.pattern.finditer(text):
                yield message.kind, match


def work_facts(work: str) -> Iterator[Tuple[str, str]]:
    """What stands in the brackets of ``WorkNCCL(...)``, under our names."""
    for key, name in (("SeqNum", "sequence"), ("OpType", "operation"), ("NumelIn", "elements"),
                      ("TensorShape", "shape"), ("Timeout(ms)", "limit")):  # fmt: skip
        start = work.find(key + "=")
        if start < 0:
            continue
        value = work[start + len(key) + 1 :]
        end = value.find("]") + 1 if value.startswith("[") else value.find(",")
        yield name, value[:end] if end > 0 else value
