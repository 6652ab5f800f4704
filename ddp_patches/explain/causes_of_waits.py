"""What it means that ranks wait, at the start, in a collective or at the end."""

from __future__ import annotations

from typing import Dict

from .cause import (
    COLLECT,
    COMMAND,
    FLOOR,
    MONITOR,
    PATCH,
    RESAMPLE,
    SETTING,
    TIMEOUT,
    ZERO_FIRST,
    Cause,
    Help,
)

WAITS: Dict[str, Cause] = {
    "stall": Cause(
        "a stall, by ddp_patches' own report",
        "ddp_patches looked at all ranks while they stood still, and named the one that was missing.",
        ("Read the report in the log: it goes on with what it means and with every rank's place.",),
        (Help(COMMAND, "status --run newest", "every rank's limits and patches, and the folder with the "
                                              "full stacks"),),
    ),
    "slow leader": Cause(
        "a rank goes first and works, the others wait for it",
        "A rank-0-first block (label scan, download, dataset check) takes long. As long as it moves "
        "nothing is wrong.",
        ("Let it work, or do the scan once on one GPU, so that its cache exists.",),
        (ZERO_FIRST, Help(SETTING, "zero_first_timeout", "how long a living leader is waited for")),
    ),
    "joining": Cause(
        "ranks are missing at the start",
        "init_process_group waits until every rank has come to it.",
        ("Look whether the missing ranks were started at all, and what they print.",),
    ),
    "missing rank": Cause(
        "a rank did not come to a collective",
        "Ranks that time out are the ones that waited. The rank that did not come was elsewhere: in its data "
        "loading, in a branch without this collective, in work that only it does, or dead.",
        (),
        (MONITOR,),
    ),
    "different collectives": Cause(
        "the ranks were in different collectives",
        "Collectives pair up by their order. One rank has made one more or one less than the others, so "
        "their ways "
        "have parted before this point: a loss that one rank skips, one batch more, an evaluation or a "
        "logger on one "
        "rank only. A longer time limit will not help.",
        ("Look for collectives inside a branch that depends on the data or on the rank (`if num_pos > 0`, "
         "`if rank == 0`), and for unequal numbers of batches (drop_last, DistributedSampler).",
         "TORCH_DISTRIBUTED_DEBUG=DETAIL lets torch compare every collective, slowly."),
        (MONITOR,) + RESAMPLE[:1],
    ),
    "transport": Cause(
        "all ranks were in the same collective",
        "Nobody was missing: the transfer itself did not end. The connection between the GPUs or nodes is "
        "at fault, "
        "or a GPU has stopped; the program is not.",
        ("Try NCCL_P2P_DISABLE=1, then NCCL_IB_DISABLE=1, then NCCL_SOCKET_IFNAME=INTERFACE; "
         "NCCL_DEBUG=INFO shows "
         "the path it takes.",
         "`dmesg | grep -i xid` and `nvidia-smi` show a GPU that has failed."),
    ),
    "waited": Cause(
        "ranks waited in a collective until their limit",
        "The ranks that time out are the ones that waited; which one was missing is not in this log.",
        ("Look into the logs of all ranks: the one without a time-out is the one to look at.",),
        (MONITOR,),
    ),
    "start phase": Cause(
        "at the start",
        "These are the first collectives of a job: while rank 0 scans labels, downloads or builds "
        "something alone, "
        "the others wait in them. If it was still working, only the limit was too short.",
        ("Do the scan or download once on one GPU, so that its cache exists.",
         "Raise the limit: --timeout, or nothing at all with the patches on."),
        (ZERO_FIRST, FLOOR, TIMEOUT),
    ),
    "training phase": Cause(
        "in the middle of training",
        "After many collectives that went well the usual reasons are the data of one rank (samples without "
        "ground "
        "truth drawn again and again, a corrupt file, slow storage) and a branch that one rank takes "
        "(a loss without positives). A longer limit rarely helps.",
        ("Look at the data loading first: `py-spy dump --pid PID` of the missing rank and of its workers.",
         "Then at code around the collective that depends on the batch."),
        (MONITOR, *RESAMPLE, Help(PATCH, "mmdet.reduce_mean", "an error names the call and the missing "
                                                                "rank")),
    ),
    "evaluation phase": Cause(
        "at an evaluation",
        "Rank 0 evaluates, computes metrics or writes results, and the others wait longer than their "
        "limit; early in "
        "a training this takes longest, since there are most false positives.",
        ("Raise the limit above the longest evaluation, or evaluate less often, or on all ranks.",),
        (FLOOR, TIMEOUT, *COLLECT),
    ),
    "end phase": Cause(
        "at the end",
        "The training is over: one rank saves, evaluates or uploads while the others already wait or leave.",
        ("Check that the results are there: often only the exit has failed.",),
        (Help(PATCH, "torch.teardown", "groups are destroyed once and in order, with a bound"),),
    ),
    "heartbeat": Cause(
        "NCCL's heartbeat monitor ended the process",
        "This is another limit than the group's: the watchdog thread itself has not moved, mostly because "
        "a call "
        "into CUDA or a thread that holds Python's lock does not return; often after a collective that hung.",
        ("Look for a time-out of a collective before it: that is then the cause.",
         "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC is its limit, TORCH_NCCL_ENABLE_MONITORING=0 turns it off."),
        (Help(COMMAND, "status", "all limits that are in force, in one place"),),
    ),
    "address in use": Cause(
        "the port is taken",
        "Another job, or what is left of an earlier one, holds the port at which the ranks meet.",
        ("`ss -ltnp | grep PORT` names the process. End it, or choose another port: --master_port, or "
         "torchrun's "
         "--standalone, which takes a free one.",),
        (Help(PATCH, "mmengine.init_dist", "another port for a Slurm job where 29500 is taken"),
         Help(PATCH, "mmcv.init_dist", "the same for OpenMMLab 1.x/2.x")),
    ),
    "store barrier": Cause(
        "not all ranks joined",
        "The ranks meet in init_process_group; some never came, or what was left of an earlier job was "
        "counted.",
        ("Fewer joined than the world size: those ranks died or were not started; read their output.",
         "More joined than the world size: processes of an earlier run are alive, end them and start again."),
        (Help(PATCH, "torch.process_group_timeout", "says once a minute who is missing at the start"),),
    ),
    "store timeout": Cause(
        "the store did not answer in time",
        "The store, through which the ranks find each other, is hosted by rank 0 or by the launcher. That "
        "process had not come, was blocked, or had gone.",
        ("Read what rank 0 printed before.",),
        (Help(PATCH, "torch.process_group_timeout", "says once a minute who is missing at the start"),),
    ),
    "store unreachable": Cause(
        "rank 0's address could not be reached",
        "Nobody answered at MASTER_ADDR:MASTER_PORT: rank 0 is not running (yet), the address is wrong, or a "
        "firewall is in between.",
        ("Check rank 0 first, then `nc -vz HOST PORT` from the other node. A host name must resolve to an "
         "address "
         "that the other nodes reach, not to 127.0.1.1.",),
    ),
    "rendezvous": Cause(
        "torchrun's nodes did not find each other",
        "Not all nodes came to the rendezvous, or its host was gone.",
        ("Same --rdzv_id, --rdzv_endpoint and --nnodes on all nodes; start them within the join timeout "
         "(10 min).",),
    ),
    "nccl setup": Cause(
        "NCCL's connection could not be made",
        "A rank was in its first NCCL collective and waited for another one to hand out the connection's "
        "id: that "
        "rank had not come there, or had gone.",
        ("Read what that rank printed; if it was scanning or downloading, only the limit was too short.",),
        (ZERO_FIRST, FLOOR),
    ),
    "guessed device": Cause(
        "a barrier without a device",
        "torch had to guess the GPU for a barrier. If ranks and GPUs are numbered differently, it hangs, "
        "or every "
        "rank opens a context on GPU 0.",
        ("torch.cuda.set_device(local_rank) before the first barrier, or device_ids=[local_rank].",),
        (Help(PATCH, "torch.barrier_device_ids", "names the GPU of a barrier if the caller did not"),
         Help(PATCH, "ultralytics.setup_ddp", "the device follows LOCAL_RANK")),
    ),
    "collectives differ": Cause(
        "the ranks called different collectives",
        "torch compared the calls of the ranks (TORCH_DISTRIBUTED_DEBUG=DETAIL) and they do not match.",
        ("Compare the two calls: what decides on one rank that it goes there?",),
        (MONITOR,),
    ),
    "not destroyed": Cause(
        "the process group was not destroyed at the end",
        "A warning since torch 2.4: the program ended without destroy_process_group(). Harmless by itself; "
        "now and "
        "then such an exit hangs or aborts.",
        ("torch.distributed.destroy_process_group() on every rank at the end, without a barrier before it.",),
        (Help(PATCH, "torch.teardown", "destroys each group once at the end"),),
    ),
    "connection lost": Cause(
        "ranks lost their connection to another one",
        "Such errors are consequences: the rank at the other end has died or left. Its own message is not in "
        "this log.",
        ("Look into the other ranks' output, and for exit codes: -9 is mostly the host's memory.",),
    ),
}  # fmt: skip
