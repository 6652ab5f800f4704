import os
import pathlib
import sys
import tempfile

from . import USER_CONFIG_DIR

PROGRAM = """
if __name__ == "__main__":
    from ultralytics.engine.trainer import BaseTrainer

    BaseTrainer().train()
"""


def find_free_network_port():
    return int(os.environ["PORT"])


def generate_ddp_file(trainer):
    (USER_CONFIG_DIR / "DDP").mkdir(exist_ok=True, parents=True)
    ending, folder = "%d.py" % id(trainer), USER_CONFIG_DIR / "DDP"
    with tempfile.NamedTemporaryFile("w", prefix="_temp_", suffix=ending, dir=folder, delete=False) as file:
        pathlib.Path(file.name).with_suffix(".pt").write_text("state")
        if trainer.cannot_be_pickled:
            raise TypeError("cannot pickle it")
        file.write(PROGRAM)
    return file.name


def generate_ddp_command(trainer):
    file = generate_ddp_file(trainer)
    port = find_free_network_port()
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port"]
    return [*command, str(port), file], file


def ddp_cleanup(trainer, file):
    os.remove(file)
    pathlib.Path(file).with_suffix(".pt").unlink()
