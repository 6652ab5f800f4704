"""``ultralytics.setup_ddp`` on real releases: their own methods, called on a trainer without its constructor.

This machine has no GPU, so what would touch one is a recorder. Every program runs upstream's code twice,
alone and with the patch, and prints what each asked for.
"""

from __future__ import annotations

import sys

import pytest

from ddp_patches.engine.versions import FITTING
from support import layers, ranks
from support.releases import ULTRALYTICS

BY_DEVICE_STRING = ("8.4.100", "8.4.190")  # upstream takes the index from the device string itself
WITHOUT_BLOCKING_WAIT = ("8.0.40", "8.0.100")
BUILDS_BY_RANK = ("8.0.40", "8.0.100", "8.0.120", "8.0.132", "8.1.20")
VALIDATES_BY_RANK = ("8.4.0",)
OWN_GPU, UPSTREAMS_GPU = (
    {
        "selected": index,
        "device": "cuda:%d" % index,
        "model": "cuda:%d" % index,
        "ddp": [index],
        "barrier": [index],
        "validation": "cuda:%d" % index,
    }
    for index in (0, 1)
)

BEGINNING = """
    import collections, inspect, json, logging, os, types
    import torch
    import torch.distributed as dist

    class Stop(Exception):
        "Raised where a test has seen enough."

    seen = collections.defaultdict(list)  # a GPU that is not there can only be noted
    torch.cuda.set_device = lambda device: seen["selected"].append(device)
    torch.cuda.device_count = lambda: int(os.environ["FAKE_DEVICE_COUNT"])
    BLOCKING_WAIT = ("NCCL_BLOCKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT")
    AT_START = {name: os.environ[name] for name in BLOCKING_WAIT if name in os.environ}
    RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    try:
        import ultralytics.engine.trainer as trainer_module
        import ultralytics.engine.validator as validator_module
        from ultralytics.utils.torch_utils import torch_distributed_zero_first
    except ImportError:
        import ultralytics.yolo.engine.trainer as trainer_module
        import ultralytics.yolo.engine.validator as validator_module
        from ultralytics.yolo.utils.torch_utils import torch_distributed_zero_first
    import ultralytics
    assert ultralytics.__version__ == os.environ["EXPECTED_VERSION"], ultralytics.__file__

    def blocking_wait():
        return [os.environ.get(name) for name in BLOCKING_WAIT]

    def note_group(*arguments, **keywords):
        "In the place of init_process_group."
        seen["size"].append(keywords["world_size"])
        seen["blocking_wait"].append(blocking_wait())

    class Trainer(trainer_module.BaseTrainer):
        "Upstream's methods, without the constructor, which wants a data set."

        def __init__(self, world_size):
            self.args = types.SimpleNamespace(device=os.environ["DEVICE"], amp=False)
            self.args.freeze, self.args.compile = None, False
            self.world_size = world_size
            self.console = logging.getLogger("trainer")
            self.callbacks = collections.defaultdict(list)
            self.device = torch.device("cpu")

    def call(name, trainer, world_size):
        "One of upstream's methods, with the arguments that this release wants."
        method = getattr(trainer_module.BaseTrainer, name)
        known = {"rank": RANK, "world_size": world_size}
        wanted = list(inspect.signature(method).parameters)[1:]
        return method(trainer, **{name: known[name] for name in wanted})

    def own_rows():
        import ddp_patches
        return [row for row in ddp_patches.status().patches if row.id == "ultralytics.setup_ddp"]

    def enable():
        import ddp_patches
        # Nobody else may do this patch's work.
        ddp_patches.enable(skip="torch.*,ultralytics.zero_first", run_dir="none")

    def start_again():
        seen.clear()
        for name in BLOCKING_WAIT:
            os.environ.pop(name, None)
        os.environ.update(AT_START)
"""


@pytest.fixture
def run(processes):
    """Run a program as one rank, or as all ranks, of a job; one answer for each."""

    def answers(version, program, limit=240, count=None, **variables):
        pretended = {"DEVICE": "0,1", "FAKE_DEVICE_COUNT": "2", "EXPECTED_VERSION": version}
        known = layers.ultralytics_environment(processes.folder, version, **pretended, **variables)
        path = ranks.script(processes.folder, BEGINNING + program)
        if count:
            results = ranks.run(processes, path, known, count=count, nodes=2, limit=limit)
        else:
            known.update(ranks.variables(1, 2, ranks.free_port(), nodes=2))
            results = [processes.run([sys.executable, path], known, limit=limit)]
        return [result.check().answer for result in results]

    return answers


EVERY_USE = """
    dist.init_process_group = note_group
    dist.is_initialized = lambda: bool(seen["size"])
    dist.broadcast = lambda *arguments, **keywords: None
    dist.barrier = lambda device_ids=None: seen["barrier"].append(device_ids)
    torch.Tensor.to = lambda self, *arguments, **keywords: self

    class Model(torch.nn.Module):
        def to(self, device):
            seen["model"].append(str(device))
            return self

    def note_ddp(self, module, device_ids=None, **keywords):
        seen["ddp"].append(device_ids)
        raise Stop

    class Backend:
        def __init__(self, **keywords):
            seen["validation"].append(str(keywords.get("device")))
            raise Stop

    torch.nn.parallel.DistributedDataParallel.__init__ = note_ddp
    validator_module.AutoBackend = Backend
    validator_module.callbacks.add_integration_callbacks = lambda instance: None

    RELEASE = tuple(map(int, ultralytics.__version__.split(".")))
    VALIDATES_BY_RANK = 'torch.device("cuda", RANK)' in inspect.getsource(validator_module)

    def use_devices(trainer, stop=False):
        "In the place of a part of _setup_train, before the model becomes a DDP."
        seen["device"].append(str(trainer.device))
        seen["blocking_wait_afterwards"].append(blocking_wait())
        # Up to 8.2.70 upstream builds its data sets with the global rank.
        if RELEASE <= (8, 2, 70):
            with torch_distributed_zero_first(RANK):
                pass
        if VALIDATES_BY_RANK:
            validator = validator_module.BaseValidator.__new__(validator_module.BaseValidator)
            validator.args = types.SimpleNamespace(model="model.pt", data="", augment=False)
            validator.args.dnn = validator.args.half = False
            try:
                validator()
            except Stop:
                pass
        if stop:  # releases in which nothing that follows names a rank
            raise Stop

    def train():
        start_again()
        trainer = Trainer(WORLD_SIZE)
        trainer.setup_model = lambda: None
        trainer.model = Model()
        trainer.set_model_attributes = lambda: use_devices(trainer)
        if RELEASE >= (8, 4, 87):
            trainer._setup_train = lambda: use_devices(trainer, stop=True)
        try:
            call("_do_train", trainer, WORLD_SIZE)
        except Stop:
            return {name: value[-1] for name, value in seen.items()}

    def exchanged():
        return [(id(owner), name, id(vars(owner)[name])) for owner, name in (
            (torch.cuda, "set_device"), (dist, "init_process_group"), (dist, "barrier"),
            (torch.nn.parallel.DistributedDataParallel, "__init__"), (validator_module, "AutoBackend"))]

    before = exchanged()
    alone = train()
    enable()
    patched = train()
    rows = own_rows()
    print(json.dumps({
        "alone": alone,
        "patched": patched,
        "left_exchanged": exchanged() != before,
        "rows": {row.target.partition(":")[2]: [row.state, row.verdict] for row in rows},
        "failures": [row.traceback for row in rows if row.call_failures],
    }))
"""


@pytest.mark.parametrize("version", list(ULTRALYTICS))
def test_first_rank_of_the_second_node_uses_its_own_gpu_everywhere(run, version):
    """RANK 1, LOCAL_RANK 0: upstream asks for GPU 1, which on that node belongs to nobody or is not there.

    With ``set_device`` alone cured, DDP, barriers and validation would still ask for it. Guards also that
    blocking wait is gone when the group is made, where ``torch.process_group_timeout`` is skipped.
    """
    (answer,) = run(version, EVERY_USE)
    alone, patched = answer["alone"], answer["patched"]
    used = {name for name in alone if name in OWN_GPU}
    assert {"selected", "device"} <= used
    assert ("ddp" in used) is (version not in BY_DEVICE_STRING)
    assert ("barrier" in used, "validation" in used) == (
        version in BUILDS_BY_RANK,
        version in VALIDATES_BY_RANK,
    )
    upstream = OWN_GPU if version in BY_DEVICE_STRING else UPSTREAMS_GPU
    assert {name: alone[name] for name in used} == {name: upstream[name] for name in used}
    assert {name: patched[name] for name in used} == {name: OWN_GPU[name] for name in used}
    assert alone["size"] == patched["size"] == 2

    assert ("1" in alone["blocking_wait"]) is (version not in WITHOUT_BLOCKING_WAIT)
    assert patched["blocking_wait"] == patched["blocking_wait_afterwards"] == [None, None]

    assert not answer["failures"]
    assert not answer["left_exchanged"]
    assert set(answer["rows"]) == {"BaseTrainer._do_train", "BaseTrainer._setup_ddp"}
    for state, verdict in answer["rows"].values():
        assert state == "applied" and verdict in FITTING  # `tested` only once this has passed


@pytest.mark.release(name="ultralytics/8.3.190")
def test_exported_blocking_wait_is_kept(run):
    """What the user exported before the process started is his."""
    (answer,) = run("8.3.190", EVERY_USE, TORCH_NCCL_BLOCKING_WAIT="1")
    assert answer["patched"]["blocking_wait"] == answer["patched"]["blocking_wait_afterwards"] == [None, "1"]


WHOLE_JOB = """
    real = dist.init_process_group

    def train():
        call("_do_train", Trainer(2), 2)

    def stop(*arguments, **keywords):
        note_group(*arguments, **keywords)
        raise Stop

    def note_plan(self, *arguments):
        seen["planned"].append(arguments[-1] if arguments else self.world_size)
        seen["device"].append(str(self.device))
        raise Stop

    Trainer._setup_train = note_plan
    dist.init_process_group = stop
    try:
        train()
    except Stop:
        alone = dict(seen)
    dist.init_process_group = real
    start_again()
    enable()
    try:
        train()
    except Stop:
        pass
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    print(json.dumps({"alone": alone, "patched": seen, "size": dist.get_world_size(), "sum": tensor.item()}))
    dist.destroy_process_group()
"""


@pytest.mark.upstream_fault("ultralytics.setup_ddp")
@pytest.mark.parametrize("version", ["8.3.190", "8.4.190"])
def test_ranks_of_two_nodes_become_one_group(run, version):
    """Four real ranks on two nodes with two GPUs each, ``device="0,1"``, as in ultralytics issue 22878.

    Upstream's ranks 2 and 3 would join a group of two and, up to 8.4.86, ask for the GPUs 2 and 3.
    """
    answers = run(version, WHOLE_JOB, count=4)
    upstream = [0, 1, 0, 1] if version in BY_DEVICE_STRING else [0, 1, 2, 3]
    assert [answer["alone"]["selected"] for answer in answers] == [[index] for index in upstream]
    assert [answer["alone"]["size"] for answer in answers] == [[2]] * 4
    assert [answer["patched"]["selected"] for answer in answers] == [[0], [1], [0], [1]]
    assert [answer["patched"]["device"] for answer in answers] == [["cuda:0"], ["cuda:1"]] * 2
    assert [answer["patched"]["planned"] for answer in answers] == [[4]] * 4
    assert [(answer["size"], answer["sum"]) for answer in answers] == [(4, 4.0)] * 4


OWN_FAILURE = """
    import ddp_patches.patches.ultralytics.setup_ddp as own
    from ddp_patches.runtime import blocking_wait as decision
    dist.init_process_group = note_group
    enable()

    def broken(*arguments, **keywords):
        raise RuntimeError("broken on purpose")

    own.device_index = own.job_world_size = decision.settle = broken
    call("_setup_ddp", Trainer(WORLD_SIZE), WORLD_SIZE)
    print(json.dumps({"seen": seen, "reasons": [row.reason for row in own_rows()]}))
"""


@pytest.mark.release(name="ultralytics/8.3.190")
def test_own_failure_leaves_the_work_to_upstream_once(run):
    """Promise 1: if a patch's own code fails at call time, the original is called once, never twice."""
    (answer,) = run("8.3.190", OWN_FAILURE)
    assert answer["seen"]["selected"] == [1]
    assert answer["seen"]["size"] == [2]
    assert "broken on purpose" in " ".join(answer["reasons"])
