"""What it means that a rank has ended: exceptions, signals, exit codes."""

from __future__ import annotations

from typing import Dict

from .cause import MONITOR, PATCH, RESAMPLE, Cause, Help

ENDS: Dict[str, Cause] = {
    "exception": Cause(
        "an exception",
        "One rank ended with an exception; the others lost their connection to it, or were ended by the "
        "launcher. "
        "What they print is no error of their own.",
        ("Fix this exception; the time-outs and connection errors of the other ranks go with it.",
         "If it depends on the data, run the same sample on one GPU."),
        (Help(PATCH, "torch.teardown", "a failed rank leaves within exit_timeout instead of holding the "
                                       "others up"),),
    ),
    "host memory": Cause(
        "killed, most likely for the host's memory",
        "Signal 9 that nobody sent by hand is the kernel's or the container's out-of-memory killer. Memory "
        "grows with "
        "loader workers x ranks, and a container's or job's limit counts, not the machine's memory.",
        ("Fewer loader workers per rank (workers=, num_workers, workers_per_gpu), or a smaller cache "
         "(cache=ram).",
         "Ask for more memory (--mem in Slurm, the pod's limit). `dmesg | grep -i oom` or `sacct -o "
         "MaxRSS` proves it."),
    ),
    "terminal closed": Cause(
        "the terminal was closed",
        "Signal 1 (SIGHUP) goes to the programs of a terminal or an ssh connection that ends.",
        ("Start the job in tmux or screen, or with `setsid nohup ... &`; nohup alone does not reach "
         "torchrun, which "
         "installs its own handler.",),
        (Help(PATCH, "ultralytics.launch", "carries patches and settings into the workers of such a start"),),
    ),
    "interrupted": Cause("ended by hand", "Signal 2 is Ctrl-C, or the stop button of a notebook.", ()),
    "cancelled": Cause(
        "ended from outside",
        "Somebody or something asked the whole job to end: a time limit, preemption, scancel, docker stop, "
        "or the launcher on another node.",
        ("Look at the scheduler's own record (`sacct -j JOB`, `kubectl describe pod`).",
         "If the job was hanging before, the hang is the question and not this signal."),
    ),
    "time limit": Cause(
        "the scheduler's time limit",
        "Slurm ended the job because its time was over. If it stood still before, look for the last "
        "progress line.",
        ("Ask for more time (--time), or resume from the last checkpoint.",),
        (MONITOR,),
    ),
    "aborted": Cause(
        "aborted (signal 6)",
        "C++ code gave up: an NCCL time-out or error ends the process like that, and so do failed "
        "assertions of "
        "libraries and a second error while the interpreter ends.",
        ("Look for the first message of that rank before the signal.",),
        (Help(PATCH, "torch.teardown", "if it came after the last epoch: groups are destroyed in order at "
                                       "the end"),),
    ),
    "bus error": Cause(
        "a bus error (signal 7): shared memory",
        "Loader workers hand batches over in shared memory, and /dev/shm is full: in a container it has 64 "
        "MB "
        "unless it is asked for.",
        ("docker run --ipc=host, or --shm-size=16g; in Kubernetes an emptyDir with medium: Memory on "
         "/dev/shm.",
         "Or fewer loader workers, or torch.multiprocessing.set_sharing_strategy('file_system')."),
    ),
    "segmentation fault": Cause(
        "a segmentation fault (signal 11)",
        "Native code crashed: an extension that was built for another torch, a broken driver or library, "
        "sometimes "
        "a corrupt file in an image or video decoder.",
        ("Run with PYTHONFAULTHANDLER=1: it prints the Python line.",
         "Rebuild compiled extensions (mmcv, custom ops) for this torch."),
    ),
    "signal": Cause("ended by a signal", "The process did not end by itself.", ()),
    "parameters differ": Cause(
        "the ranks built different models",
        "DDP compares the parameters of all ranks: number or shapes differ. Ranks have read different "
        "configurations, class counts or data, or different code.",
        ("Print the number of classes and the config on every rank. A cache or dataset that only rank 0 "
         "has changed "
         "is a usual reason.",),
    ),
    "unused parameters": Cause(
        "parameters without a gradient",
        "In one iteration a part of the model did not contribute to the loss on some rank: a branch "
        "without targets, "
        "an early return, a loss that was left out. On NCCL the same can hang instead.",
        ("find_unused_parameters=True in DDP (OpenMMLab: find_unused_parameters=True in the config).",
         "Better: let the branch contribute a zero, such as `0 * prediction.sum()`.",
         "TORCH_DISTRIBUTED_DEBUG=INFO names the parameters."),
    ),
    "ready twice": Cause(
        "a parameter was used twice",
        "DDP saw one parameter's gradient twice in an iteration: reentrant checkpointing, or a module that "
        "is called "
        "more than once, together with find_unused_parameters.",
        ("use_reentrant=False in checkpointing, or static_graph=True in DDP.",),
    ),
    "losses differ": Cause(
        "the ranks have different loss terms",
        "OpenMMLab adds up the loss terms of all ranks and found that their names or number differ: a head "
        "left one "
        "out, mostly on a batch without ground truth.",
        ("Let the head return every term on every batch, with a zero that stays in the graph.",
         "filter_empty_gt=True avoids such batches."),
    ),
    "integer reduce": Cause(
        "the mean of an integer tensor",
        "mmdet's reduce_mean divides in place, which integers do not take.",
        ("Cast to float before the call.",),
        (Help(PATCH, "mmdet.reduce_mean", "integers and bools get a float mean"),),
    ),
    "device refused": Cause(
        "barrier(device_ids=...) on a torch or backend that does not take it",
        "Only NCCL takes device_ids, and only since torch 1.8.",
        (),
        (Help(PATCH, "torch.barrier_device_ids", "drops the argument where it is refused"),),
    ),
    "wrong device": Cause(
        "a rank asked for a GPU that it does not have",
        "The device was computed from the wrong number: the global rank on a second node, or an index into "
        "a list "
        "that CUDA_VISIBLE_DEVICES has already shortened. Or two ranks took the same one.",
        ("Use LOCAL_RANK as the index among the visible devices; as many processes per node as visible "
         "GPUs.",),
        (Help(PATCH, "ultralytics.setup_ddp", "the device follows LOCAL_RANK"),
         Help(PATCH, "mmengine.init_dist", "the device by the rank's number on its node")),
    ),
    "gpu memory": Cause(
        "the GPU's memory was full",
        "One rank ran out of GPU memory; the others wait for it.",
        ("Smaller batch or images. If only rank 0 fails, other ranks have opened contexts on its GPU.",),
        (Help(PATCH, "torch.barrier_device_ids", "ranks do not open contexts on GPU 0 by a barrier"),),
    ),
    "gpu error": Cause(
        "a CUDA error",
        "A kernel failed on one rank; the line that is named may be a later one. A device-side assert is "
        "mostly an "
        "index out of range (a class number beyond the number of classes).",
        ("CUDA_LAUNCH_BLOCKING=1 gives the true line; the same batch on the CPU gives a readable error.",),
    ),
    "nccl error": Cause(
        "an NCCL error",
        "NCCL itself failed: a network interface, a driver, a version that differs between nodes, or no "
        "shared memory.",
        ("NCCL_DEBUG=INFO names the failing call. Same NCCL on all nodes; in containers --ipc=host.",),
    ),
    "bool on gloo": Cause("gloo has no booleans on this "
                          "torch", "A boolean tensor was sent over gloo, which older torch "
                          "refuses.", ("Update torch, or cast the tensor to an integer.",)),
    "worker bus error": Cause(
        "a loader worker was killed by a bus error: shared memory",
        "Loader workers hand batches over in shared memory, and /dev/shm is full: in a container it has 64 "
        "MB "
        "unless it is asked for.",
        ("docker run --ipc=host, or --shm-size=16g; in Kubernetes an emptyDir with medium: Memory on "
         "/dev/shm.",
         "Or fewer loader workers."),
    ),
    "worker killed": Cause(
        "a loader worker was killed",
        "\"Killed\" is mostly the host's memory: every rank has its own workers.",
        ("Fewer loader workers per rank; more memory for the job.",),
    ),
    "worker gone": Cause(
        "a loader worker ended unexpectedly",
        "The worker died without a message of its own: memory of the host, shared memory, or a crash in a "
        "decoder.",
        ("num_workers=0 shows the error itself.",),
    ),
    "worker slow": Cause(
        "the data loading took longer than its timeout",
        "No worker delivered a batch within DataLoader(timeout=...).",
        ("`py-spy dump` of the workers, or num_workers=0, shows where they are.",),
        RESAMPLE,
    ),
    "file descriptors": Cause(
        "too many open files",
        "Batches are handed over by file descriptors, and the process has no more of them.",
        ("ulimit -n 65536, or torch.multiprocessing.set_sharing_strategy('file_system').",),
    ),
    "no valid sample": Cause(
        "no sample could be used",
        "mmengine drew a sample again and again, and the pipeline dropped all of them: class names that do "
        "not match "
        "the annotations, a wrong path or format, or a transform that drops everything. The images "
        "themselves may "
        "be fine.",
        ("Check metainfo classes against the annotation file, and data_prefix.",
         "Run the pipeline on one sample and look which transform returns None."),
        (Help(PATCH, "mmengine.resample", "says which transform dropped how many, and the first indices"),),
    ),
    "empty loader": Cause(
        "fewer batches than ranks",
        "The validation set has fewer batches than there are ranks, and this release gives some rank a "
        "negative length.",
        ("A smaller validation batch, or fewer ranks.",),
    ),
    "timeout type": Cause(
        "a time limit of the wrong type",
        "torch wants a timedelta, and the config holds a number.",
        (),
        (Help(PATCH, "mmengine.init_dist", "takes seconds, durations and timedeltas"),
         Help(PATCH, "mmcv.init_dist", "takes seconds, durations and timedeltas")),
    ),
    "failed exit": Cause(
        "a rank ended with an error code",
        "The launcher saw a failure, but the rank's own message is not in this log.",
        ("Read the ranks' own output (torchrun: --log_dir DIR --redirects 3 --tee 3 keeps it; then explain "
         "DIR).",),
    ),
}  # fmt: skip
