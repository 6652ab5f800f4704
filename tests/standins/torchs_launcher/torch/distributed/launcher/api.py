"""The launcher as torch's behaves: it ends its ranks at a signal or at the first failure, and then fails."""

import os
import signal
import socket
import subprocess
import sys
import time
import types


class ChildFailedError(Exception):
    def __init__(self, failures):
        super().__init__("ranks failed")
        self.failures = failures


class SignalException(Exception):
    def __init__(self, number):
        super().__init__("got signal %d" % number)
        self.number = number


def handle(number, frame):
    raise SignalException(number)


def end(ranks, number):
    for rank in ranks:
        if rank.poll() is None:
            rank.send_signal(number)
    for rank in ranks:
        rank.wait()


def launch_agent(config, entrypoint, args, health_check_server=None):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", config.master_port))
    listener.listen()
    for name in config.signals_to_handle.split(","):
        signal.signal(getattr(signal, name), handle)
    command = [sys.executable, "-u", entrypoint, *args]
    ranks = []
    for rank in range(config.nproc_per_node):
        known = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank))
        ranks.append(subprocess.Popen(command, env=known, start_new_session=True))
    try:
        watch(ranks)
    except SignalException as received:
        end(ranks, received.number)
        raise
    finally:
        end(ranks, signal.SIGTERM)


def watch(ranks):
    while True:
        codes = {rank: process.poll() for rank, process in enumerate(ranks)}
        failed = {rank: code for rank, code in codes.items() if code}
        if failed:
            end(ranks, signal.SIGTERM)
            raise ChildFailedError(
                {
                    rank: types.SimpleNamespace(pid=process.pid, exitcode=process.poll())
                    for rank, process in enumerate(ranks)
                    if process.poll()
                }
            )
        if None not in codes.values():
            return
        time.sleep(0.05)
