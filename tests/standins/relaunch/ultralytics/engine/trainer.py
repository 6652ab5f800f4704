import os
import subprocess
import sys
import time

from ultralytics.utils.dist import ddp_cleanup, generate_ddp_command


class BaseTrainer:
    cannot_be_pickled = False

    def train(self):
        if "LOCAL_RANK" in os.environ:
            return self._do_train()
        command, file = None, None
        try:
            command, file = generate_ddp_command(self)
            print("command: %s" % " ".join(command[3:]), flush=True)
            subprocess.run(command, check=True)
        finally:
            if file is not None:
                ddp_cleanup(self, file)

    def _do_train(self):
        rank = int(os.environ["RANK"])
        os.write(1, b"RANK %d begins, pid %d\n" % (rank, os.getpid()))  # in one piece
        exec(os.environ["RANK_DOES"], {"rank": rank, "os": os, "sys": sys, "time": time})
        print("RANK %d is done" % rank, flush=True)
